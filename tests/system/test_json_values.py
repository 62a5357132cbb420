"""`from_json(to_json(value), type(value)) == value`, and the checks of data from other programs."""

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from devicecore import DeviceId, DeviceSet
from devicecore.domain.checkpoint import FileVerdict, judge
from devicecore.domain.errors import NoHealthyDevicesError
from devicecore.system.json_values import from_json, to_json


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@frozen
class Part:
    name: str
    size: int | None = None
    tags: tuple[str, ...] = ()


@frozen
class Whole:
    color: Color
    data: bytes
    ratio: float
    done: bool
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(factory=dict)


texts = st.text(max_size=5)
parts = st.builds(Part, texts, st.none() | st.integers(), st.lists(texts, max_size=2).map(tuple))
wholes = st.builds(
    Whole,
    st.sampled_from(Color),
    st.binary(max_size=5),
    st.floats(allow_nan=False),
    st.booleans(),
    st.lists(parts, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), parts, max_size=3),
)


@given(wholes)
def test_a_value_survives_json(whole: Whole) -> None:
    assert from_json(json.loads(json.dumps(to_json(whole))), Whole) == whole


def test_a_report_is_a_json_object() -> None:
    assert to_json(judge(None)) == {
        "verdict": FileVerdict.ABSENT.value,
        **dict.fromkeys(["format", "stored", "computed", "entries", "resources"]),
        "problem": judge(None).problem,
    }


def test_sets_paths_and_errors_are_written_as_readers_expect() -> None:
    devices = DeviceSet.of(map(DeviceId, ["gpu-10", "gpu-9"]))
    found = to_json([devices, Path("/x"), NoHealthyDevicesError("a/b")])
    assert found == [["gpu-9", "gpu-10"], "/x", str(NoHealthyDevicesError("a/b"))]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"name": 1}, "expected str, got 1 @ $.name"),
        ({"name": "x", "size": "7"}, "expected int, got '7' @ $.size"),
        ({}, "required field missing @ $.name"),
        ({"name": "x", "tags": "ab"}, "expected a list, got 'ab' @ $.tags"),
        ({"name": "x", "tags": {"a": 1}}, "expected a list, got {'a': 1} @ $.tags"),
        ({"name": "x", "tags": ["a", 1]}, "expected str, got 1 @ $.tags[1]"),
        ({"name": "x", "other": 1}, "other"),
        ([], "expected an object, got [] @ $"),
        (None, "expected an object, got None @ $"),
    ],
)
def test_a_document_that_describes_no_value_is_refused(document: object, problem: str) -> None:
    with pytest.raises(ValueError, match=r"\$") as refused:
        from_json(document, Part)
    assert problem in str(refused.value)
