"""`devicecore checkpoint`: its verdicts on files, and how it shows their contents."""

import base64
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.wire.conversion import write_receipt

Run = Callable[..., "subprocess.CompletedProcess[str]"]

DATA = Path(__file__).parents[4] / "tests" / "data" / "checkpoint"
GOOD, AS_PRINTED, EMPTY = (str(DATA / f"v1.13-{name}.json") for name in ("two-pods", "one-pod", "empty"))
FIELDS = ["file", "kind", "verdict", "format", "stored", "computed", "entries", "resources", "problem", "warnings"]


OLD = "kubelets after 1.29 cannot read format 1, and start without any allocation"
CORRUPT = "checksum: checkpoint is corrupted: checksum is 82159178, the file says 3602853121"


@pytest.fixture
def rich_file(tmp_path: Path) -> str:
    """Return a checkpoint with all kinds of entries and one unreadable response."""
    answer = ContainerAllocateResponse(
        envs={"VISIBLE": "gpu-2,gpu-10"},
        mounts=(Mount("/opt/lib", "/usr/lib/gpu", read_only=True), Mount("/scratch", "/tmp/scratch")),  # noqa: S108 - it is never created
        devices=(DeviceSpec("/dev/gpu2", "/dev/gpu2", "rw"),),
        annotations={"cdi.k8s.io/gpu": "two"},
        cdi_devices=("example.com/gpu=2",),
    )
    entries = (
        PodDevicesEntry("uid-1", "main", "example.com/gpu", {0: ("gpu-2",), 1: ("gpu-10",)}, write_receipt(answer)),
        PodDevicesEntry("uid-1", "main", "example.com/nic", {-1: ("nic-\x1b[31m",)}, b"\xff"),
    )
    file = tmp_path / "rich"
    file.write_bytes(encode(CheckpointData(entries, {"example.com/gpu": ("gpu-2", "gpu-10"), "example.com/nic": ()})))
    return str(file)


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_agrees_with_kubelets(devicecore: Run, tmp_path: Path) -> None:
    """Every file gets its recorded verdict, but a malformed file in format 0 or 1 may be accepted."""
    recorded = [json.loads(line) for line in (DATA / "decode.jsonl").read_text().splitlines()]
    files = [tmp_path / str(number) for number in range(len(recorded))]
    for file, record in zip(files, recorded, strict=True):
        file.write_bytes(base64.b64decode(record["file_b64"]))
    ran = devicecore("checkpoint", "verify", "--json", *map(str, files))
    findings = json.loads(ran.stdout)
    assert ran.returncode == 1
    for file, found, record in zip(files, findings, recorded, strict=True):
        assert (list(found), found["file"]) == (FIELDS, str(file))
        if record["verdict"] == "malformed":
            assert found["verdict"] == "malformed" or found["format"] in {0, 1}, record["id"]
        else:
            known = [record[name] for name in ("verdict", "stored", "computed", "entries", "resources")]
            assert [found[name] for name in ("verdict", "stored", "computed", "entries", "resources")] == known


@pytest.mark.parametrize(
    ("file", "status", "line"),
    [
        (EMPTY, 0, f"{EMPTY}: ok (format 2, 0 entries, 0 resources, checksum 3467439661)"),
        (GOOD, 0, f"{GOOD}: ok (format 1, 3 entries, 2 resources, checksum 3285376913)\n{GOOD}: warning: {OLD}"),
        (AS_PRINTED, 1, f"{AS_PRINTED}: {CORRUPT}"),
        ("/nowhere", 2, "/nowhere: absent: there is no checkpoint"),
        (str(DATA), 2, f"{DATA}/kubelet_internal_checkpoint: absent: there is no checkpoint"),
    ],
)
def test_verify_prints_a_line_for_each_file(devicecore: Run, file: str, status: int, line: str) -> None:
    """The file from a v1.13 node was already invalid when it was published. A missing file is reported as absent."""
    ran = devicecore("checkpoint", "verify", file)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, f"{line}\n", "")


def test_one_bad_file_makes_the_status_bad(devicecore: Run) -> None:
    """Good files do not hide a bad one."""
    ran = devicecore("checkpoint", "verify", GOOD, AS_PRINTED, EMPTY)
    found = [re.split(r": | \(", line)[1] for line in ran.stdout.splitlines()]
    assert (ran.returncode, found) == (1, ["ok", "warning", "checksum", "ok"])


def test_a_directory_is_its_checkpoint(devicecore: Run, tmp_path: Path) -> None:
    """Given a plugin directory, the command reads the kubelet_internal_checkpoint in it."""
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_bytes(Path(EMPTY).read_bytes())
    ran = devicecore("checkpoint", "verify", "--json", str(tmp_path))
    (found,) = json.loads(ran.stdout)
    assert (ran.returncode, found["file"], found["verdict"]) == (0, str(file), "ok")


def test_a_root_directory_is_the_checkpoint_of_its_plugins(devicecore: Run, tmp_path: Path) -> None:
    """Given a kubelet's root directory, the command reads the checkpoint in its device-plugins directory.

    If the root directory itself contains a checkpoint, the command reads that checkpoint instead.
    """
    for directory in (tmp_path / "device-plugins", tmp_path):
        directory.mkdir(exist_ok=True)
        file = directory / "kubelet_internal_checkpoint"
        file.write_bytes(Path(EMPTY).read_bytes())
        ran = devicecore("checkpoint", "verify", str(tmp_path))
        assert (ran.returncode, ran.stdout.startswith(f"{file}: ok ")) == (0, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("\n", "it is empty"),
        ("{", "not JSON: "),
        ("[]", "expected an object, got a list without entries"),
    ],
)
def test_a_malformed_file_is_called_malformed_only_once(devicecore: Run, text: str, problem: str) -> None:
    """In the output line, the verdict is followed by the reason, which does not repeat the verdict."""
    ran = devicecore("checkpoint", "verify", "-", stdin=text)
    assert (ran.returncode, ran.stdout.startswith(f"-: malformed: {problem}")) == (1, True)


@pytest.mark.parametrize("command", [("verify",), ("show",), ("diff", GOOD)])
def test_a_manifest_is_answered_with_the_files_that_are_expected(devicecore: Run, command: tuple[str, ...]) -> None:
    ran = devicecore("checkpoint", *command, "-", stdin="apiVersion: v1")
    assert "expected a kubelet's kubelet_internal_checkpoint or dra_manager_state" in ran.stdout + ran.stderr


@pytest.mark.parametrize(("command", "status"), [(("show",), 1), (("diff", GOOD), 2)])
def test_json_of_another_program_is_neither_shown_nor_compared(
    devicecore: Run, command: tuple[str, ...], status: int
) -> None:
    ran = devicecore("checkpoint", *command, "-", stdin='{"apiVersion": "v1", "kind": "List", "items": []}')
    assert (ran.returncode, ran.stdout) == (status, "")
    assert "this is not a checkpoint: expected the members Data and Checksum" in ran.stderr
    assert "warning" not in ran.stderr


@pytest.mark.parametrize(("text", "status", "verdict"), [(Path(GOOD).read_text(), 0, "ok"), ("", 1, "malformed")])
def test_a_dash_is_standard_input(devicecore: Run, text: str, status: int, verdict: str) -> None:
    """Piped input is treated like a file; empty input is malformed, not absent."""
    ran = devicecore("checkpoint", "verify", "--json", "-", stdin=text)
    (found,) = json.loads(ran.stdout)
    assert (ran.returncode, found["file"], found["verdict"]) == (status, "-", verdict)


def test_a_file_that_cannot_be_read_hides_no_verdict(devicecore: Run) -> None:
    """The unreadable file is reported in one sentence with status 2, and the other file is still checked."""
    ran = devicecore("checkpoint", "verify", f"{GOOD}/below", EMPTY)
    assert (ran.returncode, len(ran.stdout.splitlines())) == (2, 1)
    assert ran.stderr.endswith(f"{GOOD}/below: Not a directory\n")


def test_a_name_that_is_impossible_for_a_file_hides_no_verdict(devicecore: Run) -> None:
    """If the system refuses to look up a file, an error is reported for that file only."""
    ran = devicecore("checkpoint", "verify", "x" * 300, EMPTY)
    assert (ran.returncode, len(ran.stdout.splitlines())) == (2, 1)
    assert ran.stderr.endswith(": File name too long\n")


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_prints_everything_as_json(devicecore: Run, rich_file: str) -> None:
    """For each entry, the JSON contains the devices by NUMA node and the plugin's answer (null if unreadable)."""
    ran = devicecore("checkpoint", "show", "--json", rich_file)
    shown = json.loads(ran.stdout)
    gpu, nic = shown["entries"]
    assert (ran.returncode, shown["verdict"], shown["format"]) == (0, "ok", 2)
    assert shown["registered"] == {"example.com/gpu": ["gpu-2", "gpu-10"], "example.com/nic": []}
    assert (gpu["pod"], gpu["container"], gpu["resource"]) == ("uid-1", "main", "example.com/gpu")
    assert gpu["devices"] == {"0": ["gpu-2"], "1": ["gpu-10"]}
    assert gpu["given"]["envs"] == {"VISIBLE": "gpu-2,gpu-10"}
    assert gpu["given"]["mounts"][0]["host_path"] == "/usr/lib/gpu"
    assert nic["given"] is None


def test_show_prints_everything_as_text(devicecore: Run, rich_file: str) -> None:
    """Each fact is on one line, and nothing moves a terminal's cursor or changes its colors."""
    ran = devicecore("checkpoint", "show", rich_file)
    holds = "container main of pod uid-1 holds 1 device of example.com/nic"
    warning = rf"{holds} that is not registered as healthy: nic-\x1b[31m"
    assert (ran.returncode, "\x1b" in ran.stdout) == (0, False)
    assert ran.stderr == f"devicecore checkpoint show: warning: {warning}\n"
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert lines[2:] == [
        "pod uid-1, container main",
        "1 example.com/gpu NUMA 0 gpu-2",
        "1 example.com/gpu NUMA 1 gpu-10",
        r"1 example.com/nic nic-\x1b[31m",
        "env VISIBLE=gpu-2,gpu-10",
        "mount /usr/lib/gpu on /opt/lib read-only",
        "mount /tmp/scratch on /scratch writable",
        "device /dev/gpu2 as /dev/gpu2 rw",
        "annotation cdi.k8s.io/gpu=two",
        "CDI device example.com/gpu=2",
        "given the plugin's answer for example.com/nic cannot be read",
        "",
        "registered",
        "2 example.com/gpu gpu-2, gpu-10",
        "0 example.com/nic",
    ]


def test_format_1_knows_no_numa_nodes(devicecore: Run) -> None:
    """A NUMA node that a kubelet assumes when it reads an old file is not shown as if it were in the file."""
    ran = devicecore("checkpoint", "show", GOOD)
    assert ran.returncode == 0
    assert "  2 nicktming.com/gpu    nicktming.com/gpu-0, nicktming.com/gpu-4\n" in ran.stdout
    assert "NUMA" not in ran.stdout


def test_a_corrupt_file_is_shown_with_a_warning(devicecore: Run) -> None:
    """The readable part is shown, and the exit status is 1 because the checksum is wrong."""
    ran = devicecore("checkpoint", "show", AS_PRINTED)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    facts = "format 1, 1 entry, 1 resource, checksum 3602853121"
    assert ran.stdout.startswith(f"{AS_PRINTED}: the checksum is wrong ({facts})\n")
    assert "podtest-8" in ran.stdout
    assert "checkpoint is corrupted" in ran.stderr
    assert "corrupted" not in ran.stdout  # a terminal would show the warning twice


@pytest.mark.parametrize(("text", "verdict", "status"), [("{", "malformed", 1), (None, "absent", 2)])
def test_a_file_that_is_not_a_checkpoint_cannot_be_shown(
    devicecore: Run, tmp_path: Path, text: str | None, verdict: str, status: int
) -> None:
    """Without --json, one sentence is printed; the JSON contains the verdict, and the exit status is the same."""
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    ran, for_programs = (devicecore("checkpoint", "show", *more, str(file)) for more in ([], ["--json"]))
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (status, "", 1)
    shown = json.loads(for_programs.stdout)
    assert (for_programs.returncode, shown["verdict"], shown["entries"]) == (status, verdict, None)


# --- holders ----------------------------------------------------------------------------------------------------------

GPU, NIC = "example.com/gpu", "example.com/nic"


@pytest.fixture
def odd_file(tmp_path: Path) -> str:
    """A file with a correct checksum. Two pods hold one device, and a third pod holds devices without a plugin."""
    entries = (
        PodDevicesEntry("uid-1", "main", GPU, {0: ("gpu-1", "gpu-2")}),
        PodDevicesEntry("uid-1", "side", GPU, {0: ("gpu-1",)}),
        PodDevicesEntry("uid-2", "main", GPU, {0: ("gpu-2",)}),
        PodDevicesEntry("uid-3", "main", NIC, {-1: ("nic-0", "nic-1")}),
    )
    file = tmp_path / "odd"
    file.write_bytes(encode(CheckpointData(entries, {GPU: ("gpu-1", "gpu-2", "gpu-10", "gpu-9")})))
    return str(file)


WARNINGS = [
    f"2 pods hold 1 device of {GPU}: uid-1, uid-2 hold gpu-2",
    f"container main of pod uid-3 holds 2 devices of {NIC} that belong to an unregistered resource: nic-0, nic-1",
]


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--strict",), 1)])
def test_a_device_with_two_pods_or_no_plugin_gives_a_warning(
    devicecore: Run, odd_file: str, options: tuple[str, ...], status: int
) -> None:
    """A kubelet accepts such a file, so the verdict is ok, and only `--strict` makes the exit status 1."""
    ran = devicecore("checkpoint", "verify", *options, odd_file)
    first, *others = ran.stdout.splitlines()
    assert (ran.returncode, first.startswith(f"{odd_file}: ok (")) == (status, True)
    assert others == [f"{odd_file}: warning: {warning}" for warning in WARNINGS]
    ran = devicecore("checkpoint", "verify", "--json", *options, odd_file)
    assert (ran.returncode, json.loads(ran.stdout)[0]["warnings"]) == (status, WARNINGS)
    ran = devicecore("checkpoint", "show", *options, odd_file)
    assert ran.returncode == status
    assert ran.stderr.splitlines() == [f"devicecore checkpoint show: warning: {warning}" for warning in WARNINGS]


def shown(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    return [" ".join(line.split()) for line in ran.stdout.splitlines()[1:] if line]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ("--free", ["free", f"2 {GPU} gpu-9, gpu-10"]),
        (f"--free --resource {NIC}", []),
        (f"--resource {NIC}", ["pod uid-3, container main", f"2 {NIC} nic-0, nic-1"]),
        ("--pod uid-2 --pod uid-3", ["pod uid-2, container main", f"1 {GPU} NUMA 0 gpu-2"]),
        (f"--pod uid-3 --resource {GPU}", []),
    ],
)
def test_show_can_be_limited(devicecore: Run, odd_file: str, options: str, lines: list[str]) -> None:
    """The output can be limited to certain resources or pods, or to free devices."""
    ran = devicecore("checkpoint", "show", *options.split(), odd_file)
    assert shown(ran)[: len(lines)] == lines
    assert bool(shown(ran)) == bool(lines)
    document = json.loads(devicecore("checkpoint", "show", "--json", *options.split(), odd_file).stdout)
    assert document["free"].get(GPU) in (None, ["gpu-9", "gpu-10"])


def test_a_resource_or_a_pod_that_is_not_there_gives_status_1(devicecore: Run, odd_file: str) -> None:
    for options, missing in (("--pod train", "no pod train"), ("--resource a.com/b", "no resource a.com/b")):
        ran = devicecore("checkpoint", "show", *options.split(), odd_file)
        assert (ran.returncode, f"has {missing}. It has: " in ran.stderr) == (1, True)


def test_free_and_pod_cannot_be_used_together(devicecore: Run, odd_file: str) -> None:
    """A free device has no pod."""
    ran = devicecore("checkpoint", "show", "--free", "--pod", "uid-1", odd_file)
    assert (ran.returncode, "--free and --pod cannot be used together" in ran.stderr) == (2, True)


def test_long_lines_are_folded_for_a_terminal_only(devicecore: Run, tmp_path: Path) -> None:
    """In a pipe, the 3,000 devices of a container are on one line, and no id is lost or broken."""
    ids = tuple(f"example.com/gpu-{number}" for number in range(3000))
    file = tmp_path / "many"
    file.write_bytes(encode(CheckpointData((PodDevicesEntry("uid", "main", GPU, {0: ids}),), {GPU: ids})))
    ran = devicecore("checkpoint", "show", str(file))
    lines = ran.stdout.splitlines()[1:]
    assert sum("example.com/gpu-" in line for line in lines) == 2
    words = " ".join(lines).replace(",", "").split()
    assert [word for word in words if word.startswith("example.com/gpu-")] == [*ids, *ids]
