"""The laws of `domain/container_options.py`.

"If two answers give different values for a name, or different host paths for a container path, the first answer wins,
and the conflict is reported. Resources are visited in order of their names."
"""

from collections.abc import Iterator

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.container_options import (
    Conflict,
    ContainerAllocateResponse,
    ContainerOptions,
    merge,
    with_claims,
)
from devicecore.domain.model import ResourceName
from devicecore.testing.strategies import allocate_responses

NAMES = tuple(map(ResourceName, ("a.com/x", "b.com/x", "c.com/x")))

Responses = dict[ResourceName, ContainerAllocateResponse]
Item = tuple[str, str, str, object]  # kind, name, the compared part, the whole value

responses_by_resource = st.dictionaries(st.sampled_from(NAMES), allocate_responses())


def items(answer: ContainerAllocateResponse | ContainerOptions) -> Iterator[Item]:
    """Yield, in order, everything in an answer that another answer might contradict."""
    yield from (("environment variable", name, text, text) for name, text in answer.envs.items())
    yield from (("mount", mount.container_path, mount.host_path, mount) for mount in answer.mounts)
    yield from (("device", spec.container_path, spec.host_path, spec) for spec in answer.devices)
    yield from (("annotation", name, text, text) for name, text in answer.annotations.items())


def in_order(responses: Responses) -> Iterator[tuple[ResourceName, Item]]:
    """Yield the items of all answers, in the order in which the answers are merged."""
    for resource in sorted(responses):
        yield from ((resource, item) for item in items(responses[resource]))


@given(responses_by_resource)
def test_the_first_wins(responses: Responses) -> None:
    """The result has each name and path once, as in the first answer that has it, and no others."""
    first: dict[tuple[str, str], object] = {}
    for _, (kind, name, _, whole) in in_order(responses):
        first.setdefault((kind, name), whole)
    merged = merge(responses)
    assert {(kind, name): whole for kind, name, _, whole in items(merged)} == first
    assert len(list(items(merged))) == len(first)


@given(responses_by_resource)
def test_every_disagreement_is_reported(responses: Responses) -> None:
    """A later value that differs from the first is a conflict with both values and their resources."""
    first: dict[tuple[str, str], str] = {}
    expected = []
    for resource, (kind, name, value, _) in in_order(responses):
        if first.setdefault((kind, name), value) != value:
            expected.append(Conflict(kind, name, first[kind, name], value, resource))
    conflicts = merge(responses).conflicts
    for kind in ("environment variable", "mount", "device", "annotation"):
        assert [one for one in conflicts if one.kind == kind] == [one for one in expected if one.kind == kind]
    assert len(conflicts) == len(expected)
    assert all(str(one.resource) in str(one) and one.name in str(one) for one in conflicts)


@given(responses_by_resource)
def test_cdi_devices_are_named_once(responses: Responses) -> None:
    """A CDI name in two answers is not a conflict. The result has it once, at its first position."""
    named = [name for resource in sorted(responses) for name in responses[resource].cdi_devices]
    assert merge(responses).cdi_devices == tuple(dict.fromkeys(named))


@given(responses_by_resource.flatmap(lambda responses: st.permutations(list(responses.items()))))
def test_the_order_of_answers_does_not_matter(answers: list[tuple[ResourceName, ContainerAllocateResponse]]) -> None:
    """Only the names of the resources decide which answer is first."""
    assert merge(dict(answers)) == merge(dict(sorted(answers, key=lambda answer: answer[0])))


@given(allocate_responses())
def test_one_answer_that_agrees_with_itself_is_kept_whole(answer: ContainerAllocateResponse) -> None:
    """Merging one answer returns it, unless it names one path twice."""
    merged = merge({NAMES[0]: answer})
    assert (merged.envs, merged.annotations) == (answer.envs, answer.annotations)
    if len({mount.container_path for mount in answer.mounts}) == len(answer.mounts):
        assert merged.mounts == answer.mounts
    if len({spec.container_path for spec in answer.devices}) == len(answer.devices):
        assert merged.devices == answer.devices


def test_no_responses_give_no_options() -> None:
    """Merging nothing gives nothing."""
    assert merge({}) == ContainerOptions()


@given(responses_by_resource, st.lists(st.sampled_from(["a/b=1", "a/b=2"])))
def test_names_of_claims_come_first_and_none_is_left_out(responses: Responses, names: list[str]) -> None:
    merged = merge(responses)
    options = with_claims(merged, names)
    assert options.cdi_devices == (*names, *merged.cdi_devices)
    assert evolve(options, cdi_devices=merged.cdi_devices) == merged
    assert with_claims(None, names) == ContainerOptions(cdi_devices=tuple(names))
