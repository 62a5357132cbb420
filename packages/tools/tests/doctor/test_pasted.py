"""A refusal is found in pasted text, with columns, quotes or line breaks, and among other lines."""

import html
import json
import textwrap
from collections.abc import Callable
from functools import partial

import pytest
from devicecore_tools.doctor.pod.messages import MAX_MESSAGE, find, sentences_in
from devicecore_tools.doctor.pod.pasted import find_all
from hypothesis import example, given
from hypothesis import strategies as st
from tests.doctor.test_messages import EXAMPLES
from tests.doctor.test_report_growth import work

GPU = "nvidia.com/gpu"
INNER = f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
REFUSAL = f"Allocate failed due to {INNER}, which is unexpected"
NUMA = "Resources cannot be allocated with Topology locality"

DESCRIBED = f"""
Name:             train
Namespace:        default
Status:           Failed
Reason:           UnexpectedAdmissionError
Message:          Pod was rejected: {REFUSAL}
Events:
  Type     Reason                    Age   From               Message
  ----     ------                    ----  ----               -------
  Normal   Scheduled                 3m    default-scheduler  Successfully assigned default/train to node-1
  Warning  UnexpectedAdmissionError  3m    kubelet            {REFUSAL}
"""

PASTED = [
    f"  Warning  UnexpectedAdmissionError  3m    kubelet  {REFUSAL}",
    f"Warning  UnexpectedAdmissionError  3m (x12 over 8m)  kubelet, node-1  {REFUSAL}",
    f"3m12s       Warning   UnexpectedAdmissionError   pod/train   {REFUSAL}",
    f"default  3m12s  Warning   UnexpectedAdmissionError   pod/train   {REFUSAL}",
    f"Pod was rejected: {REFUSAL}",
    f"Pod {REFUSAL}",
    f"Pod {REFUSAL}.",
    f'"{REFUSAL}"',
    f"'{REFUSAL}'",
    f"`{REFUSAL}`",
    f"> {REFUSAL}",
    f"```\n{REFUSAL}\n```",
    f"message: '{REFUSAL}'",
    f'  "message": "Pod was rejected: {REFUSAL}",',
    f'Error: failed, "err": {json.dumps(json.dumps(REFUSAL))}',
    f"status:\n  message: 'Pod was rejected: {textwrap.fill(REFUSAL, 40, subsequent_indent='    ')}'\n  phase: Failed",
    textwrap.fill(REFUSAL, 30),
    textwrap.fill(f"Pod was rejected: {REFUSAL}", 60, subsequent_indent=" " * 20),
    REFUSAL.replace("unavailable", "unavail\n    able"),
    f"{INNER}, which is unexpected",
    f"Allocate failed due to {INNER}",
    f'E1121 17:00:01.123456    1234 kubelet.go:2361] "Pod was rejected" pod="default/train" err="{REFUSAL}"',
    f'Nov 21 17:00:01 node-1 kubelet[1234]: I1121 17:00:01.1 1234 kubelet.go:2] "Rejected" message="{REFUSAL}" x="y"',
    f"my pod fails with {REFUSAL} - what can I do?",
    DESCRIBED,
    f"\r\n{REFUSAL}\r\n",
    f"\ufeff{REFUSAL}",
    json.dumps({"ts": 1.5, "msg": "Rejected", "err": REFUSAL}),
    f"\x1b[31mWarning\x1b[0m  Failed  \x1b[1m{REFUSAL}\x1b[0m",
    f"\u201c{REFUSAL}\u201d",
    f"<tr><td>Failed</td><td>{REFUSAL}</td></tr>",
    textwrap.indent(textwrap.fill(REFUSAL, 40), "> > "),
    "\n".join([REFUSAL[:24], REFUSAL[24:63], REFUSAL[63:]]),
]


@pytest.mark.parametrize("pasted", PASTED, ids=range(len(PASTED)))
def test_a_refusal_is_found_in_its_surroundings(pasted: str) -> None:
    (found,) = find_all(pasted)
    assert found.message.id == "DM-05"
    assert found.values == {"resource": GPU, "requested": "1", "available": "0"}


@pytest.mark.parametrize("around", [html.escape, lambda text: json.dumps(json.dumps(text)), "\ufeff{}".format])
def test_quotes_inside_of_a_sentence_are_found_in_any_form(around: Callable[[str], str]) -> None:
    (found,) = find_all(around('Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'))
    assert (found.message.id, found.values) == ("CM-09", {"policy": "static"})


def test_a_refusal_without_the_kubelets_wrapping_is_a_containers() -> None:
    starts, waits, bare = (find_all(f"{before}{INNER}.") for before in ("Error: ", "CreateContainerConfigError: ", ""))
    assert [found.message.id for found in (*starts, *waits, *bare)] == ["DC-04"] * 3
    assert [found.message.next for found in (*starts, *waits, *bare)] == ["container", "container", "unknown"]


def variants(sentence: str) -> list[str]:
    return [
        f"  Warning  Failed  3m (x2 over 5m)  kubelet  {sentence}",
        f"3m  Warning  Failed  pod/train  {sentence}",
        f'"{sentence}"',
        f"  {sentence}\n",
        f"Status:  Failed\nMessage:  {sentence}\nEvents:  <none>",
        f"Events:\n  Normal  Pulled  3m  kubelet  Image is present\n  Warning  Failed  3m  kubelet  {sentence}",
    ]


@pytest.mark.parametrize("recorded", EXAMPLES, ids=lambda one: f"{one['id']}-{len(one['message'])}")
def test_each_recorded_message_is_found_wherever_it_is(recorded: dict[str, str]) -> None:
    for text in (recorded["message"], *variants(recorded["message"])):
        ids = [found.message.id for found in find_all(text)]
        assert ids == [recorded["id"]], text


@pytest.mark.parametrize("recorded", EXAMPLES, ids=lambda one: f"{one['id']}-{len(one['message'])}")
def test_each_recorded_message_is_found_if_a_terminal_has_wrapped_it(recorded: dict[str, str]) -> None:
    broken = textwrap.fill(recorded["message"], 50, break_on_hyphens=False, break_long_words=False)
    ids = [found.message.id for found in find_all(f"  Warning  Failed  3m  kubelet  {broken}")]
    assert ids == [recorded["id"]]


@pytest.mark.parametrize("recorded", EXAMPLES, ids=lambda one: f"{one['id']}-{len(one['message'])}")
def test_a_message_that_was_cut_off_is_not_mistaken_for_another(recorded: dict[str, str]) -> None:
    """A table of events may show only the first words of a message.

    The beginning of a refusal is not explained as the message of a container that is restarted.
    """
    for end in range(15, len(recorded["message"]), 5):
        for row in (recorded["message"][:end], f"3m  Warning  Reason  pod/p  {recorded['message'][:end]}..."):
            assert {one.message.id for one in find_all(row)} <= {recorded["id"], "DM-99", "DR-99"}, row


def test_several_refusals_are_each_found_once() -> None:
    events = [f"  Warning  UnexpectedAdmissionError  {age}m  kubelet  {REFUSAL}" for age in range(3)]
    events.append(f"  Warning  TopologyAffinityError  1m  kubelet  {NUMA}")
    assert [found.message.id for found in find_all("\n".join(events))] == ["DM-05", "TM-01"]


def test_a_message_that_only_the_last_row_matches_yields_to_a_known_one() -> None:
    unknown = "Allocate failed due to a new reason, which is unexpected"
    assert [found.message.id for found in find_all(unknown)] == ["DM-99"]
    assert [found.message.id for found in find_all(f"{unknown}\n\n{REFUSAL}")] == ["DM-05"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "Back-off restarting failed container",
        "Started container main",
        "which is unexpected",
        "{}",
        "a: b",
    ],
)
def test_text_without_a_refusal_gives_nothing(text: str) -> None:
    assert find_all(text) == ()


@given(st.text())
@example("Allocate failed due to " * 600)
@example('pod "' + "a/" * 8_000)
@example("Warning " * 2_000)
@example("\n".join(["Warning  Failed  3m  kubelet  x"] * 200))
def test_any_text_has_an_answer_and_what_one_row_knows_has_that_answer(text: str) -> None:
    known = find(text)
    found = find_all(text)
    if known is not None and not known.message.is_last_resort:
        assert found == (known,)
    assert len(found) < 300


def test_a_long_text_is_read_to_its_end() -> None:
    """No time limit is needed here: if the search time grew with the cube of the length, the test would not end."""
    line = '  Normal  Pulled  3m  kubelet  Container image "x" already present on machine\n'
    assert [found.message.id for found in find_all(line * 500 + REFUSAL)] == ["DM-05"]
    assert find_all("Allocate failed due to " + "x " * (MAX_MESSAGE // 2)) == ()
    assert find_all("a" + " " * 1_000_000 + "b") == ()


def test_a_line_that_is_nearly_a_refusal_is_compared_with_few_sentences() -> None:
    """A pasted text may have 100,000 lines, and the table has more than 100 sentences."""
    nearly = "Warning  UnexpectedAdmissionError  5s  kubelet  Allocate failed due to requested number of devices: 1"
    assert {message.id for _, message, _ in sentences_in(nearly)} <= {"DM-99", "DR-99"}
    few, many = (work(partial(find_all, f"{nearly}\n" * count)) for count in (5, 10))
    assert many - few < 5 * 5_000  # instructions per line: 1,700 in Python 3.11, and 20,000 if each sentence is tried


def test_a_line_that_is_shorter_than_any_refusal_is_not_compared() -> None:
    assert work(lambda: find_all("Predicate x\n\n" * 100)) < 100 * 500
