"""Compare our three managers' admissions with Kubernetes': `make bench` or `python -m benchmarks.numa`.

A machine with 8 NUMA nodes and 512 threads runs 500 pods; each has exclusive memory, and every second pod has an
exclusive CPU. Once these pods are admitted, a pod is removed before each further admission, and only the further
admissions are measured. For each admission, the CPU and memory managers give hints, the hints are merged, the resources
are allocated, and both state files are saved. Our code and Kubernetes' are measured in processor time, but Kubernetes'
code runs only 20 pods: it merges all combinations of hints, so admitting 500 pods would take minutes.
"""

import argparse
import statistics
import sys
import time
from typing import Any

from tests.oracle.asking import Oracle
from tests.oracle.numa import NumaReplay, pod_of
from tools.make_peers import PeersError, default_version, program

NODES, CORES, THREADS = 8, 32, 2
PODS, OF_KUBERNETES = 500, 20
Json = dict[str, Any]


def pod(number: int) -> Json:
    """Return the Guaranteed pod with this number; every second pod has an exclusive CPU."""
    limits = {"cpu": "1" if number % 2 else "500m", "memory": f"{64 + number % 64}Mi"}
    # UIDs whose order differs from the order of the pods, as in a cluster
    uid = f"{number * 2654435761 % 2**32:08x}-0000-4000-8000-{number:012}"
    metadata = {"uid": uid, "name": f"pod-{number}", "namespace": "default"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]}}


def history(pods: int, newcomers: int) -> Json:
    """Return a history that admits `pods` pods, and then `newcomers` more, before each of which it removes a pod."""
    topology = [
        {
            "node_id": node,
            "memory": 64 << 30,
            "hugepages": [],
            "cores": [
                {
                    "core_id": core,
                    "socket_id": node // 4,
                    "thread_ids": [core + thread * NODES * CORES for thread in range(THREADS)],
                }
                for core in range(node * CORES, (node + 1) * CORES)
            ],
        }
        for node in range(NODES)
    ]
    steps = [{"op": "admit", "object": pod(number)} for number in range(pods)]
    for number in range(pods, pods + newcomers):
        steps.append({"op": "remove", "uid": pod(number - pods)["metadata"]["uid"]})
        steps.append({"op": "admit", "object": pod(number)})
    return {
        "machine": {"num_cores": NODES * CORES * THREADS, "num_sockets": 2, "topology": topology},
        "gates": [],
        "topology": {"policy": "restricted", "scope": "container"},
        "cpu": {"policy": "static", "options": {}, "reserved": {"cpu": "2"}, "cpus": ""},
        "memory": {
            "policy": "Static",
            "reserved": {"memory": "1Gi"},
            "nodes": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        },
        "steps": steps,
        "timed": True,
    }


def ours(case: Json, newcomers: int) -> list[float]:
    """Return the CPU seconds that each of the last `newcomers` admissions took in our managers."""
    replay, taken = NumaReplay(case), list[float]()
    assert replay.begin()["ok"]
    for step in case["steps"]:
        if step["op"] == "remove":
            replay.remove(step)
            continue
        given = pod_of(step["object"])
        replay.pods.objects[str(given.uid)] = step["object"]
        start = time.process_time()
        verdict = replay.admission.admit(given)
        taken.append(time.process_time() - start)
        assert verdict, verdict
    return taken[-newcomers:]


def theirs(case: Json, newcomers: int, version: str) -> list[float]:
    """Return the CPU seconds that each of the last `newcomers` admissions took in Kubernetes' managers."""
    with Oracle(program("oracle", version)) as oracle:
        answers = oracle.ask("numa", case)
    found = [one["seconds"] for one in answers if "seconds" in one]
    assert all(one.get("ok", True) for one in answers), answers
    return found[-newcomers:]


def main() -> int:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--newcomers", type=int, default=200, help="number of admissions to measure (default: %(default)s)"
    )
    newcomers = parser.parse_args().newcomers
    own = 1e3 * statistics.mean(ours(history(PODS, newcomers), newcomers))
    line = f"{'admit_by_three_managers':28}{f'{PODS} pods':>16}{own:10.3f} ms"
    try:
        few = OF_KUBERNETES // 2
        kubernetes = 1e3 * statistics.mean(theirs(history(OF_KUBERNETES, few), few, default_version()))
        line += f"  Kubernetes {kubernetes:9.3f} ms  {kubernetes / own:8.2f} x"
    except (PeersError, FileNotFoundError) as error:
        line += f"  (Kubernetes was not measured: {error})"
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
