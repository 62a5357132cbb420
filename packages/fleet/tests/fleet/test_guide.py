"""The files in docs/run-a-cluster.md are valid, and its scenario happens as described.

The commands in docs/run-a-cluster.md and docs/test-your-scheduler.md exist.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from devicecore_fleet.command.fleet import do, run
from devicecore_fleet.fleet.commands import check_command
from devicecore_fleet.fleet.reading import parse_fleet, shapes
from devicecore_tools.command.api_server import api_server
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.status import UnknownKindError
from tests.fleet.world import World

DOCS = Path(__file__).parents[4] / "docs"
GUIDE = (DOCS / "run-a-cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
SCHEDULERS = (DOCS / "test-your-scheduler.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for text in (GUIDE, SCHEDULERS)
    for line in re.findall(r"^\$ (devicecore (?:fleet|api-server) .*)", text, re.MULTILINE)
]
OBJECTS = [one for block in BLOCKS for one in yaml.safe_load_all(block) if "kind" in one]


def test_every_file_of_the_guide_describes_a_fleet() -> None:
    described = [block for block in BLOCKS if block.startswith("nodes:")]
    assert len(described) == 3
    for block in described:
        assert parse_fleet(block, "the guide").groups


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_of_the_guide_exists(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, group, *arguments = words
    if group == "api-server":
        api_server.make_context(group, [str(tmp_path / arguments[0])])
        return
    assert group == "fleet"
    match arguments:
        case ["shapes", name, ">", _]:
            assert main(["fleet", "shapes", name]) == 0
            assert capsys.readouterr().out == shapes()[name]
        case ["do", "add" | "remove" | "reload", *_]:
            do.make_context("do", ["--control", "fleet.sock", *arguments[1:]])
        case ["do", node, *command]:
            nodes = parse_fleet(shapes()["mig"], "mig").groups[0]
            assert node == "mig-*" or node in nodes.node_names()
            assert check_command(command, nodes) == ""
        case _:
            (there := tmp_path / "file").touch()
            run.make_context(
                "run", [str(there) if one == "~/.kube/config" or ".yaml" in one else one for one in arguments]
            )


def test_the_api_server_takes_the_objects_of_the_guide() -> None:
    with LocalApiServer() as server:
        for one in (one for one in OBJECTS if one["kind"] != "Deployment"):
            server.create(one)


def test_the_api_server_does_not_serve_the_kinds_that_the_guide_excludes() -> None:
    excluded = re.search(r"for a (\w+) such as\n`train.yaml`, a (\w+) or a (\w+), kubectl prints `no matches", GUIDE)
    assert excluded is not None
    with LocalApiServer() as server:
        for kind in excluded.groups():
            with pytest.raises(UnknownKindError):
                server.create({"kind": kind, "metadata": {"name": "train"}})


def test_the_pod_of_the_guide_is_refused_on_one_node_and_runs_on_the_other(tmp_path: Path) -> None:
    (deployment,) = (one for one in OBJECTS if one["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    with LocalApiServer() as server:
        world = World(server, tmp_path)
        world.start(file=BLOCKS[0])
        for node in ("left", "right"):
            body = {"metadata": {"name": node}, "spec": {**spec, "nodeName": node}}
            server.create({"kind": "Pod", "apiVersion": "v1", **body})
        world.until(lambda: {world.phase("left"), world.phase("right")} == {"Failed", "Running"})
        assert server.get("Pod", "left")["status"]["reason"] == "TopologyAffinityError"
        world.close()
