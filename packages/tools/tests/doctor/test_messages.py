"""Each message that kubelets 1.29 to 1.37 can print is explained."""

import json
import re
from pathlib import Path

import pytest
from devicecore_tools.doctor.pod.messages import MAX_MESSAGE, NEXT, find, messages
from hypothesis import example, given
from hypothesis import strategies as st

EXAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[4] / "tests" / "data" / "admission-messages.jsonl")
    .read_text("utf-8")
    .splitlines()
]


@pytest.mark.parametrize("recorded", EXAMPLES, ids=lambda one: f"{one['id']}-{len(one['message'])}")
def test_a_recorded_sentence_is_found_with_its_values(recorded: dict[str, str | dict[str, str]]) -> None:
    found = find(str(recorded["message"]))
    assert found is not None
    assert found.message.id == recorded["id"]
    groups = recorded["groups"]
    assert isinstance(groups, dict)
    for name in ("resource", "requested", "available", "container", "pod_uid", "claim", "driver"):
        if groups.get(name):
            assert found.values[name] == groups[name]


def test_every_row_has_an_example() -> None:
    assert {message.id for message in messages()} == {recorded["id"] for recorded in EXAMPLES}


def test_every_row_says_what_happens_next_and_what_to_change() -> None:
    for message in messages():
        assert message.next in NEXT
        assert message.because.endswith((".", "{cause}"))
        assert message.change.endswith(".")


def test_an_explanation_fills_in_the_numbers() -> None:
    found = find(
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for a.b/gpu. "
        "Requested: 3, Available: 1, which is unexpected"
    )
    assert found is not None
    assert found.because == "The container still needs 3 of a.b/gpu, and 1 are healthy and free."
    assert found.change.startswith("Free or add 2 of a.b/gpu.")


@pytest.mark.parametrize(
    "text",
    [
        "requested number of devices unavailable for a.b/gpu. Requested: 1, Available: 3",
        "unexpectedly allocated less resources than required. Requested: 1, Got: 1",
        "Node didn't have enough resource: a.b/gpu, requested: 1, used: 1, capacity: 2",
    ],
)
def test_numbers_that_contradict_a_refusal_are_not_explained_away(text: str) -> None:
    found = find(text if text.startswith("Node") else f"Allocate failed due to {text}, which is unexpected")
    assert found is not None
    assert "The numbers contradict this" in found.because
    assert found.change.startswith("Read the original message again")


def test_an_explanation_has_no_braces_left() -> None:
    for recorded in EXAMPLES:
        found = find(str(recorded["message"]))
        assert found is not None
        assert not found.contradicts_itself
        for sentence in (found.because, found.change):
            assert not re.search(r"\{\w+\}", sentence), sentence


def test_a_plugins_own_message_is_shown_escaped_and_truncated() -> None:
    words = "\x1b[31mforged\n" + "x" * 5_000
    found = find(f"Allocate failed due to rpc error: code = Unknown desc = {words}, which is unexpected")
    assert found is not None
    assert found.because.isprintable()
    assert len(found.because) < 500


@given(st.text())
@example("Allocate failed due to " + "rpc error: code = " * 800)
@example("Failed to prepare dynamic resources: ResourceClaim " + "a" * MAX_MESSAGE)
@example('pod "' + "a/" * 8_000)
@example("unable to get claim info for claim " + "in namespace " * 1_200)
def test_any_text_has_one_answer(text: str) -> None:
    """No text makes the search fail, and text without a refusal has no row."""
    found = find(text)
    assert found is None or found.because


def test_text_that_is_not_a_refusal_has_no_row() -> None:
    assert find("Back-off restarting failed container") is None
