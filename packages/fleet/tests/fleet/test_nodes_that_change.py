"""A fleet whose set of nodes changes after the fleet starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.testing.api_server import LocalApiServer
from tests.fleet.world import FILE, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalApiServer() as server:
        made = World(server, tmp_path)
        made.start()
        try:
            made.until(made.is_settled)
            yield made
        finally:
            made.close()


def nodes(world: World) -> list[str]:
    return sorted(node["metadata"]["name"] for node in world.server.objects("Node"))


def said(world: World, *words: str) -> tuple[str, ...]:
    return world.fleet.command_now(words[0], words[1:]).sentences


def test_nodes_that_are_added_run_pods_and_those_that_are_removed_are_deleted(world: World) -> None:
    assert said(world, "add", "n=2") == ("node n-2 was added", "node n-3 was added")
    world.pod("early", "n-3")
    world.until(lambda: world.phase("early") == "Running" and world.allocatable("n-2") == "4")
    assert nodes(world) == ["n-0", "n-1", "n-2", "n-3"]
    assert said(world, "remove", "n-[02]") == ("node n-0 was removed", "node n-2 was removed")
    world.until(lambda: nodes(world) == ["n-1", "n-3"])
    assert said(world, "add", "n-{number}=1") == ("node n-0 was added",)
    world.until(lambda: nodes(world) == ["n-0", "n-1", "n-3"] and world.allocatable("n-0") == "4")
    world.pod("late", "n-0")
    world.until(lambda: world.phase("late") == "Running")


def test_a_fleet_may_have_no_nodes_for_a_while(world: World) -> None:
    said(world, "remove", "*")
    world.until(lambda: not nodes(world))
    said(world, "add", "n=1")
    world.until(lambda: nodes(world) == ["n-0"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("add", "m=1"), "expected one of the groups n-{number}, got 'm'"),
        (("add", "n=none"), "expected a number of nodes from 1 to 4998, got 'none'"),
        (("add", "n=9999"), "expected a number of nodes from 1 to 4998, got '9999'"),
        (("remove", "x-*"), "there is no node x-*; nodes: n-0, n-1"),
        (("add", "n"), "there is no node add: to add nodes, write add GROUP=N"),
        (("reload", "n-0"), "there is no node reload: to read the file again, write only reload"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_changes_nothing(
    world: World, words: tuple[str, ...], problem: str
) -> None:
    assert said(world, *words) == (problem,)
    assert [*world.fleet.nodes] == ["n-0", "n-1"]


def test_a_reload_has_the_nodes_and_what_they_show_as_the_file_says_now(world: World) -> None:
    world.pod("runs")
    world.until(lambda: world.phase("runs") == "Running")
    held = world.devices("runs")
    more = "\n  cpu: 8\n  labels: {zone: a}\n  annotations: {example.com/name: 'the-{node}'}\n  count: 3\n"
    world.file = FILE.replace("\n  count: 2\n", more, 1)
    assert said(world, "reload") == (
        "node n-0 was changed, and it is up",
        "node n-1 was changed, and it is up",
        "node n-2 was added",
    )

    def is_changed() -> bool:
        node = world.server.get("Node", "n-0")
        shown = node["metadata"]["labels"].get("zone"), node["metadata"]["annotations"].get("example.com/name")
        return shown == ("a", "the-n-0") and node["status"]["capacity"]["cpu"] == "8"

    world.until(lambda: is_changed() and nodes(world) == ["n-0", "n-1", "n-2"])
    world.until(lambda: world.devices("runs") == held)
    assert said(world, "reload") == ("the file has not changed",)
    world.file = FILE
    assert len(said(world, "reload")) == 3
    world.until(lambda: "zone" not in world.server.get("Node", "n-0")["metadata"]["labels"])
    world.until(lambda: nodes(world) == ["n-0", "n-1"])


def test_a_file_with_a_mistake_changes_nothing(world: World) -> None:
    world.file = "nodes: [{nam: x}]"
    (sentence,) = said(world, "reload")
    assert sentence.startswith("nothing was changed, because the file cannot be read: ")
    assert [*world.fleet.nodes] == ["n-0", "n-1"]


def test_a_node_that_an_autoscaler_deleted_returns_with_a_reload(world: World) -> None:
    world.server.delete("Node", "n-1")
    world.until(lambda: world.fleet.connections["n-1"].is_gone)
    assert nodes(world) == ["n-0"]
    assert said(world, "reload") == ("node n-1 was changed, and it is up",)
    world.until(lambda: nodes(world) == ["n-0", "n-1"])


def test_the_name_of_a_node_that_an_autoscaler_has_deleted_is_free(world: World) -> None:
    world.server.delete("Node", "n-0")
    world.until(lambda: world.fleet.connections["n-0"].is_gone)
    assert said(world, "add", "n=2") == ("node n-0 was added", "node n-2 was added")
    world.until(lambda: nodes(world) == ["n-0", "n-1", "n-2"] and world.allocatable("n-0") == "4")
    assert [*world.fleet.nodes] == ["n-1", "n-0", "n-2"]


def test_each_node_has_a_provider_id_of_its_own(tmp_path: Path) -> None:
    with LocalApiServer() as server:
        world = World(server, tmp_path)
        world.start(file="nodes: [{name: 'n-{number}', count: 2, providerID: 'fleet:///{node}'}]")
        try:
            world.until(lambda: len(nodes(world)) == 2)
            assert {node["spec"]["providerID"] for node in server.objects("Node")} == {"fleet:///n-0", "fleet:///n-1"}
        finally:
            world.close()
