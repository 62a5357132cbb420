"""The law of `adapters/kube_api`: the sink changes only keys that it must publish or that an earlier run wrote."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen
from devicecore_tools.testing.api_server import RunFirst
from hypothesis import example, given
from hypothesis import strategies as st
from tests.node_server import NodeServer

from devicecore.adapters.kube_api import Access, Backoff, KubeApiSink, Pace, PatchStrategy
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.model import ResourceName, is_extended_resource, resource_name
from devicecore.domain.quantity import Quantity

Json = Any

OURS = tuple(resource_name(name) for name in ("acme.io/gpu", "acme.io/fpga", "acme.io/gpu.shared"))
THEIRS = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "acme.io/gpu.x", "other.io/gpu", "ACME.io/gpu")
SECTIONS = ("capacity", "allocatable")
PATIENCE = 60.0
"""Seconds after which a test stops waiting for something that should happen at once on a machine with little load."""
SPELLINGS: Mapping[int | None, Sequence[str]] = {1000: ["1k", "1e3"], 2048: ["2048", "2Ki"]}
"""By number, the forms in which a Node may show the number."""

foreign_keys = st.sampled_from(THEIRS) | st.text(max_size=8).filter(lambda key: key not in OURS)
quantities = st.sampled_from(["0", "4", "4k", "2Ki", "7500m", "1e3", "16Gi", "0.5"])
anything = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


def is_kept(size: Json) -> bool:
    """Return whether an API server accepts this size in a Node's status: it refuses negative numbers."""
    return not str(size).startswith("-")


foreign_maps = st.dictionaries(foreign_keys, (quantities | anything).filter(is_kept), max_size=5)


def held(ours: st.SearchStrategy[str]) -> st.SearchStrategy[Json]:
    """One map in a Node's status, with our keys and other clients' keys, or None."""
    our_map = st.dictionaries(st.sampled_from(OURS), ours, max_size=2)
    return st.none() | st.builds(lambda theirs, mine: {**theirs, **mine}, foreign_maps, our_map)


@st.composite
def node_statuses(draw: st.DrawFn) -> Json:
    """Statuses that an API server may hold, including malformed values."""
    if draw(st.integers(0, 9)) == 0:
        return None
    sections = {section: draw(held((quantities | st.text(max_size=3)).filter(is_kept))) for section in SECTIONS}
    others = st.dictionaries(st.text(max_size=5).filter(lambda key: key not in SECTIONS), anything, max_size=3)
    return {**draw(others), **{section: keys for section, keys in sections.items() if keys is not None}}


@st.composite
def published(draw: st.DrawFn) -> NodeStatus:
    """Any published status, including statuses that a manager would not publish."""
    counts = st.dictionaries(st.sampled_from(OURS), st.integers(0, 5) | st.sampled_from([1000, 2048, 10**9]))
    capacity, allocatable = draw(counts), draw(counts)
    removed = draw(st.sets(st.sampled_from(OURS)))
    return NodeStatus(capacity, allocatable, tuple(sorted(removed - capacity.keys() - allocatable.keys())))


@frozen
class Interference:
    """A write to another client's key between our read and our write."""

    section: str = field()
    key: str = field()
    quantity: str | None = field()  # None deletes the key

    def __call__(self, status: Json) -> None:
        section = status.setdefault(self.section, {})
        if self.quantity is None:
            section.pop(self.key, None)
        else:
            section[self.key] = self.quantity


written = st.none() | st.sampled_from(["1", "3k", "5Mi"])
interferences = st.builds(Interference, st.sampled_from(SECTIONS), foreign_keys, written)


def foreign(node: Json, leftovers: Collection[str] = ()) -> Json:
    """Return a Node without our keys, without `leftovers`, and without the metadata that changes with each write."""
    metadata = {
        key: value for key, value in node["metadata"].items() if key not in {"resourceVersion", "managedFields"}
    }
    status = dict(node.get("status") or {})
    for section in SECTIONS:
        theirs = {
            key: value for key, value in (status.pop(section, None) or {}).items() if key not in (*OURS, *leftovers)
        }
        if theirs:
            status[section] = theirs
    return {**node, "metadata": metadata, "status": status}


def ours(node: Json, section: str) -> Json:
    """Return our keys and their values in one map of a Node's status."""
    counts = (node.get("status") or {}).get(section) or {}
    return {key: counts[key] for key in OURS if key in counts}


def in_the_end(
    section: str, statuses: Sequence[NodeStatus], *, keep_removed: bool
) -> Mapping[ResourceName, int | None]:
    """Return the count that each of our keys must have in the end, or None if the key must be gone.

    Keys that no status named are left out.
    """
    wanted: dict[ResourceName, int | None] = {}
    for status in statuses:
        named = status.capacity if section == "capacity" else status.allocatable
        wanted |= {**dict.fromkeys(status.removed, 0 if keep_removed else None), **named}
    return wanted


@pytest.fixture(scope="module")
def server() -> Iterator[NodeServer]:
    with NodeServer() as server:
        yield server


@pytest.fixture(scope="module")
def kubeconfig(server: NodeServer) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield server.config(Path(directory))


@given(
    strategy=st.sampled_from(PatchStrategy),
    status=node_statuses(),
    applied=st.dictionaries(st.sampled_from(THEIRS), st.sampled_from(["1", "3k"]), max_size=2),
    statuses=st.lists(published(), min_size=1, max_size=3),
    meanwhile=st.lists(interferences, max_size=3),
    keep_removed=st.booleans(),
)
@example(
    strategy=PatchStrategy.APPLY,
    status=None,
    applied={"acme.io/gpu.x": "1"},
    statuses=[NodeStatus({}, {})],
    meanwhile=[],
    keep_removed=False,
)
@example(  # an applied status that is empty is not ours
    strategy=PatchStrategy.APPLY,
    status={"": []},
    applied={},
    statuses=[NodeStatus({}, {OURS[0]: 0}), NodeStatus({}, {}, (OURS[0],)), NodeStatus({}, {OURS[0]: 0})],
    meanwhile=[],
    keep_removed=False,
)
def test_foreign_keys_never_change(
    server: NodeServer,
    kubeconfig: Path,
    strategy: PatchStrategy,
    status: Json,
    applied: Mapping[str, str],
    statuses: Sequence[NodeStatus],
    meanwhile: Sequence[Interference],
    keep_removed: bool,
) -> None:
    """Others may write their keys at any time. What an earlier run wrote is removed if it is an extended resource."""
    name = f"node-{len(server.requests)}"
    server.add_node(name, status)
    if applied:
        server.apply(name, {"capacity": dict(applied)}, manager="devicecore")
    expected = server.node(name)
    done: list[Interference] = []

    def interfere(interference: Interference) -> None:
        server.write(name, interference)
        done.append(interference)

    server.clear_faults()
    server.inject(*[RunFirst(partial(interfere, each)) for each in meanwhile], verb="patch")
    with KubeApiSink(
        name,
        Access(kubeconfig, timeout=PATIENCE),
        strategy=strategy,
        keep_removed=keep_removed,
        pace=Pace(backoff=Backoff(0.001, 0.002), patches_per_second=10_000),
    ) as sink:
        for one in statuses:
            sink.publish(one)
            sink.wait_until_published(PATIENCE)
    for interference in done:
        interference(expected.setdefault("status", {}))
    node = server.node(name)
    leftovers = [key for key in applied if is_extended_resource(key)]
    assert foreign(node, leftovers) == foreign(expected, leftovers)
    capacity = node.get("status", {}).get("capacity", {})
    assert {capacity.get(key) for key in leftovers} <= {"0" if keep_removed else None}

    for section in SECTIONS:
        before, after = ours(expected, section), ours(node, section)
        wanted = in_the_end(section, statuses, keep_removed=keep_removed)
        assert {key: after.get(key) for key in OURS if key not in wanted} == {
            key: before.get(key) for key in OURS if key not in wanted
        }
        for key, count in wanted.items():
            assert after.get(key) in SPELLINGS.get(count, [count if count is None else str(Quantity.parse(str(count)))])
