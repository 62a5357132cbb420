"""The API server refuses objects with fields of wrong types, and no such object exposes a bug."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from devicecore_tools.testing.api_server import ApiError, Json, LocalApiServer

OBJECTS = list(yaml.safe_load_all((Path(__file__).parents[1] / "data" / "whole_objects.yaml").read_text()))
WRONG = [5, 1.5, True, "x", [], {}, None, [None], [5], ["x"], [[]], [{}], {"a": 5}, {"a": None}, {"": {}}]


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Yield the path of each value in an object, except the top-level fields that are not objects."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in below:
        if above or isinstance(item, dict):
            yield (*above, key)
            yield from paths(item, (*above, key))


@pytest.mark.parametrize("body", OBJECTS, ids=lambda body: body["kind"])
def test_a_value_of_a_wrong_type_is_refused_or_taken(body: Json) -> None:
    server = LocalApiServer()
    for path in paths(body):
        for wrong in WRONG if len(path) > 1 else ():
            changed = copy.deepcopy(body)
            place = changed
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = wrong
            try:
                made = server.create(changed)["metadata"]
            except ApiError:
                continue
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bug:
                pytest.fail(f"{path} = {json.dumps(wrong)}: {bug!r}")
            server.delete(body["kind"], made["name"], made.get("namespace", "default"))


def test_the_answer_names_the_field_and_the_type() -> None:
    body = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"devices": [{"name": "a"}, 7]}}
    with pytest.raises(ApiError, match=r"number into field spec\.devices\[1\]: expected object") as refused:
        LocalApiServer().create(body)
    assert refused.value.code == 400
