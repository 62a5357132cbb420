"""CEL: recorded results of Kubernetes 1.36.2, and limits."""

import json

import pytest

from devicecore.adapters.cel import MAX_EXPRESSION, CelSelectors
from devicecore.domain.allocation import Features, PoolDevice, SelectorError, slice_of
from tests.recorded import Json, check_each
from tests.recorded_allocations import recordings, selectors

NESTED = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"

# Where the library differs from Kubernetes: what the expression has, and why.
DIFFERENCES = (
    (".all(", "more than 10,000 elements are visited", "Iteration budget exceeded"),
    (".map(", "more than 10,000 elements are visited", "Iteration budget exceeded"),
    (".format([device", "Kubernetes checks the arguments of format when it compiles", ""),
    ('": "', "Kubernetes wants all values of a literal to have one type", ""),
    ("Integer()", "Kubernetes sees no integer in a quantity that was written with a fraction", "1.5Ti"),
    (".names", "Kubernetes compares a version with a text to an error", "versions"),
)


def device_of(driver: str, body: Json) -> PoolDevice:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "node", "pool": pool, "devices": [{"name": "device", **body}]}
    return slice_of({"metadata": {"name": "slice"}, "spec": spec}).devices[0]


def outcome(cel: CelSelectors, expression: str, device: PoolDevice) -> tuple[bool | None, str]:
    try:
        return cel(expression, device), ""
    except SelectorError as error:
        return None, str(error)


def test_expressions_have_the_values_that_they_have_in_kubernetes() -> None:
    different: list[str] = []

    def check(recording: Json) -> None:
        features = recording["features"]
        cel = selectors(
            Features(consumable_capacity=features["ConsumableCapacity"], list_attributes=features["ListTypeAttributes"])
        )
        expression, driver = recording["expression"], recording["driver"]
        if recording["compileError"]:
            recording["devices"] = [{"device": {}, "result": None, "error": "compile error"}]
        for one in recording["devices"]:
            value, problem = outcome(cel, expression, device_of(driver, one["device"]))
            if (value, bool(problem)) != (one["result"], bool(one["error"])):
                shown = f"{problem} {json.dumps(one['device'])}"
                assert any(part in expression and sign in shown for part, _, sign in DIFFERENCES), shown
                different.append(recording["id"])

    check_each(recordings("cel.jsonl"), check)
    assert len(set(different)) <= 8


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == '" + "x" * MAX_EXPRESSION + "'",
        "(" * 5000 + "true" + ")" * 5000,
        f"{NESTED}.all(a, " * 6 + "true" + ")" * 6,
        "'aaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaa')" * 40 + " == ''",
        "".join(f"cel.bind(v{n}, {f'v{n - 1} + v{n - 1}' if n else repr('x' * 99)}, " for n in range(60))
        + "v59 == ''"
        + ")" * 60,
        "'x'.matches('" + "(" * 200 + "a" + "{9})" * 200 + "')",
        "device.attributes[",
        "\ud800",
        "",
    ],
)
def test_a_hostile_expression_is_an_error(expression: str) -> None:
    value, problem = outcome(selectors(Features()), expression, device_of("a.example.com", {}))
    assert value is None
    assert len(problem) < 1_100


def test_an_expression_is_compiled_once() -> None:
    cel, device = CelSelectors(), device_of("a.example.com", {})
    assert cel("true", device)
    assert cel("true", device)
    assert cel._compiled.cache_info().misses == 1  # noqa: SLF001 - to count
