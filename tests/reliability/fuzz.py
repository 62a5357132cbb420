"""Coverage-guided fuzzing with atheris: `python -m tests.reliability.fuzz TARGET SECONDS`.

`make fuzz` runs all targets. The fuzzer starts with the inputs recorded under `tests/data`, and with those that earlier
runs kept in `build/fuzz`. The first input that breaks a law ends the run, and is saved in `tests/data/fuzz`, which
`test_fuzz_wire.py` reads, or in `build/fuzz` if the target is `questions`.
"""

import base64
import json
import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")  # atheris has no types, and only `make fuzz` installs it

with atheris.instrument_imports(include=["devicecore"]):  # no earlier import may load devicecore
    from tests.questions import MAX_SECONDS, questions

    from devicecore.domain.model import Device, DeviceId, NumaNode
    from devicecore.wire import deviceplugin
    from devicecore.wire.conversion import from_devices
    from tests.hostile_documents import HOSTILE
    from tests.recorded import DATA, lines
    from tests.reliability import fuzz_targets

MAX_SEED_SIZE = 4096  # bytes
BUILD = Path("build") / "fuzz"
WORDS = (
    *("Data", "PodDeviceEntries", "PodDevicesEntry", "PodUID", "ContainerName", "ResourceName", "DeviceIDs"),
    *("AllocResp", "RegisteredDevices", "Checksum", "null", "true", "1e9", "-1", "18446744073709551615"),
    *("\\\\ud800", "[", "]", "{", "}", "Healthy", "acme.io/gpu", "v1beta1"),
    *("apiVersion", "kind", "Pod", "metadata", "name", "spec", "containers", "resources", "limits", "<<", "&a", "*a"),
)
"""Words that the fuzzer would take a long time to find by changing bytes."""


def checkpoint_seeds() -> Iterator[bytes]:
    """Yield checkpoints that kubelets have written, and some that no kubelet would write."""
    yield from (path.read_bytes() for path in (DATA / "checkpoint").glob("*.json"))
    yield from (base64.b64decode(row["file_b64"]) for row in lines("checkpoint/decode.jsonl"))


def wire_seeds() -> Iterator[bytes]:
    """Yield one message of each kind."""
    devices = (Device(DeviceId("gpu-0"), topology=(NumaNode(0), NumaNode(1))), Device(DeviceId("gpu-1")))
    answer = deviceplugin.ContainerAllocateResponse(
        envs={"A": "B"},
        mounts=[{"container_path": "/a", "host_path": "/b", "read_only": True}],
        devices=[{"container_path": "/dev/a", "host_path": "/dev/b", "permissions": "rw"}],
        annotations={"c": "d"},
        cdi_devices=[{"name": "acme.io/gpu=0"}],
    )
    messages = [
        from_devices(devices),
        deviceplugin.AllocateResponse(container_responses=[answer]),
        deviceplugin.PreferredAllocationResponse(container_responses=[{"deviceIDs": ["gpu-0"]}]),
        deviceplugin.DevicePluginOptions(pre_start_required=True),
        deviceplugin.RegisterRequest(version="v1beta1", endpoint="p.sock", resource_name="acme.io/gpu"),
        answer,
        answer,
    ]
    yield from (bytes([kind]) + message.SerializeToString() for kind, message in enumerate(messages))


def manifest_seeds() -> Iterator[bytes]:
    """Yield a manifest in YAML and in JSON, and short hostile manifests."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    pod["spec"] = {"containers": [{"name": "main", "resources": {"limits": {"acme.io/gpu": 1, "cpu": "500m"}}}]}
    yield json.dumps(pod).encode()
    yield json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}, indent=1).encode()
    yield b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - &m {name: main}\n  - {<<: *m}\n"
    yield from (text.encode() for text in HOSTILE.values() if len(text) < MAX_SEED_SIZE)


def pods_file_seeds() -> Iterator[bytes]:
    """Yield a state file with additional lines, and a state file without them."""
    yield b'{"boot": "boot", "files": {"a.json": "{}"}, "running": ["u"]}\n"v"\n"w"\n'
    yield b'{\n "boot": "",\n "files": {},\n "running": []\n}\n'


def kubeconfig_seeds() -> Iterator[bytes]:
    """Yield kubeconfigs that together have every field that is read."""
    cluster = {"server": "https://127.0.0.1", "tls-server-name": "x", "proxy-url": "http://y"}
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "x",
        "args": ["y"],
        "env": [{"name": "a", "value": "b"}],
        "provideClusterInfo": True,
    }
    for user in ({"token": "t", "as": "a", "as-uid": "u"}, {"username": "u", "password": "p"}, {"exec": program}):
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "d", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "d",
        }
        yield json.dumps(config).encode()


def api_answer_seeds() -> Iterator[bytes]:
    """Yield a Node with a status, and a Node without one."""
    fields: dict[str, Any] = {"f:status": {"f:capacity": {"f:acme.io/gpu": {}}}}
    entry = {"manager": "devicecore", "operation": "Apply", "subresource": "status", "fieldsV1": fields}
    metadata = {"name": "a", "resourceVersion": "1", "managedFields": [entry]}
    yield json.dumps({"metadata": metadata, "status": {"capacity": {"acme.io/gpu": "4k"}, "allocatable": {}}}).encode()
    yield b'{"metadata": {"name": "a", "resourceVersion": "1"}}'


def question_seeds() -> Iterator[bytes]:
    """Yield a few different inputs. Any bytes are valid, and determine which parts of the objects grow."""
    yield from (bytes([number]) for number in range(8))


SEEDS = {
    "checkpoint": checkpoint_seeds,
    "wire": wire_seeds,
    "manifest": manifest_seeds,
    "pods_file": pods_file_seeds,
    "kubeconfig": kubeconfig_seeds,
    "api_answer": api_answer_seeds,
    "questions": question_seeds,
}


def main(target: str, seconds: str) -> None:
    """Fuzz one target for this many seconds."""
    is_of_tools = target == "questions"  # the library's tests cannot use the inputs of this target
    seeds, corpus = BUILD / f"{target}-seeds", BUILD / target
    found = BUILD / f"{target}-found" if is_of_tools else DATA / "fuzz" / target
    for folder in (seeds, corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]()):
        (seeds / str(number)).write_bytes(seed)
    words = BUILD / "words"
    words.write_text("".join(f'"{word}"\n' for word in WORDS))
    logging.disable()  # otherwise, each input would log a warning
    arguments = [
        sys.argv[0],
        str(corpus),
        str(seeds),
        str(found),
        f"-max_total_time={seconds}",
        f"-dict={words}",
        f"-max_len={MAX_SEED_SIZE}",
        f"-timeout={(6 if is_of_tools else 2) * MAX_SECONDS:.0f}",  # in real time, even on a busy machine
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={found}/",
    ]
    atheris.Setup(arguments, questions if is_of_tools else getattr(fuzz_targets, target))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
