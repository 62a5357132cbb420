"""The laws of the DRA manager, with a fault at each call to a port in turn.

`make test` tries only some of the faults.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.recorded import share
from tests.simulation.dra.world import FAULTS, Action, Fault, run


def parsed(text: str) -> list[Action]:
    """Return the actions listed in the text of a scenario."""
    return [tuple(action.split()) for action in text.split(", ")]


TEXTS = {
    "one pod": "prepare first, prepare first, unprepare first",
    "two pods that share a claim": (
        "prepare first, prepare second, unprepare first, prepare third, unprepare second, unprepare third"
    ),
    "a restart between": "prepare first, restart, prepare second, unprepare first, orderly_restart, unprepare second",
    "pods that vanish": "prepare first, prepare third, vanish first, reconcile, vanish third, restart, reconcile",
    "a release that is tried again": "prepare first, unprepare first, unprepare first, prepare second, prepare third",
    "a claim that is replaced": "prepare third, replace_claim one, prepare first, unprepare third, prepare first",
    "drivers that restart": (
        "prepare first, driver_restarts a.example.com, prepare third, unprepare first, "
        "driver_restarts b.example.com, unprepare third"
    ),
}
SCENARIOS = {name: parsed(text) for name, text in TEXTS.items()}
BESIDE = parsed("prepare first, prepare second, prepare third, unprepare first, unprepare third, reconcile")


def places(actions: list[Action]) -> Iterator[tuple[int, int, str]]:
    """Yield each call to a port that a scenario makes if nothing fails, as action number, call number and port."""
    for number, calls in enumerate(run(actions, {})):
        for call, port in enumerate(calls):
            yield number, call, port


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_laws_hold_with_a_fault_at_every_call(name: str) -> None:
    actions = SCENARIOS[name]
    cases = [(number, call, kind) for number, call, port in places(actions) for kind in FAULTS[port]]
    for number, call, kind in share(cases, of=3):
        run(actions, {number: [Fault(call, kind)]})


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_laws_hold_with_another_action_alongside_every_call(name: str) -> None:
    actions = SCENARIOS[name]
    cases = product([(number, call) for number, call, port in places(actions) if port != "disk"], BESIDE)
    for (number, call), action in share(list(cases), of=5):
        if action[1:] != actions[number][1:]:  # a kubelet performs one operation at a time on a given pod
            run(actions, {number: [Fault(call, "beside", action)]})


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_laws_hold_with_two_faults_of_drivers_in_a_row(name: str) -> None:
    """The two faults occur in consecutive actions."""
    actions = SCENARIOS[name]
    drivers = [(number, call) for number, call, port in places(actions) if port == "driver"]
    first = ("error", "silent, done", "missing", "power cut after")
    second = ("error", "silent, not done", "power cut before")
    for (number, call), kind, again in share(list(product(drivers, first, second)), of=11):
        run(actions, {number: [Fault(call, kind)], number + 1: [Fault(1, again), Fault(2, again)]})
