"""Questions about objects that are generated from bytes. `make fuzz` tries many questions, and `make test` a few.

Law: whatever objects an API server stores, `why`, `fits`, `nodes` and `doctor` exit with one of their documented
statuses, within `MAX_SECONDS` of processor time, and use less than `MAX_MEGABYTES`.
"""

import copy
import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from devicecore_tools.command.main import main
from tests.command.test_large_numbers import DOCUMENTS, NEW

MAX_SECONDS, MAX_MEGABYTES = 30.0, 512
COUNTS = (2, 33, 129, 1000, 4000)
NUMBERS = (0, -1, 1, 2**31, 10**18, 10**30)
TEXTS = ("", "x" * 300, "*", "0-9999999999", "device.driver == 'x' || true", "\u202e\x1b[2J", "1e400", "9" * 5000)
Json = Any
"""A JSON value."""


def values_in(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Json]]:
    """Yield each value of a document with its path."""
    yield path, value
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from values_in(one, (*path, key))


def grown(value: Json, chance: Random) -> Json:
    """Return a larger list or mapping, a different number, or a different string."""
    count = chance.choice(COUNTS)
    if isinstance(value, list) and value:
        return [numbered(value[number % len(value)], number) for number in range(count)]
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        return value | {f"{key}{number}": value[key] for number in range(count)}
    return chance.choice(NUMBERS if isinstance(value, int) else TEXTS)


def numbered(value: Json, number: int) -> Json:
    """Return a copy of an item, with a unique name."""
    changed = copy.deepcopy(value)
    for inner in (changed, changed.get("metadata", {})) if isinstance(changed, dict) else ():
        if isinstance(inner.get("name"), str) and number:
            inner["name"] += str(number)
    return changed


def changed(documents: Sequence[Json], chance: Random) -> list[Json]:
    """Return the documents after one to three changes, each of which grows a part or repeats an object."""
    found = [copy.deepcopy(one) for one in documents]
    for _ in range(chance.randint(1, 3)):
        one = chance.choice(found)
        if chance.random() < 0.3:
            at = found.index(one)
            found[at:at] = [numbered(one, number) for number in range(1, chance.choice(COUNTS))]
            continue
        path, value = chance.choice([each for each in values_in(one) if each[0] and each[0][-1] != "kind"])
        inner = one
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = grown(value, chance)
    return found


def questions(data: bytes) -> None:
    """Run commands on objects that are generated from `data`."""
    *objects, claim, pod = changed(DOCUMENTS, Random(data))  # noqa: S311 - it is to be repeated, not to be secret
    with TemporaryDirectory() as directory:
        place = Path(directory)
        known, node = str(place / "known"), str(place / "node")
        for name, content in (
            ("known", {"apiVersion": "v1", "kind": "List", "items": [*objects, claim, pod]}),
            ("claim", claim),
            ("pod", pod),
            ("new", pod | {"metadata": NEW}),
            ("node", next(one for one in objects if one["kind"] == "Node")),
        ):
            (place / name).write_text(json.dumps(content))
        lists = ("pods", "Pod"), ("slices", "ResourceSlice"), ("resourceclaims", "ResourceClaim")
        of_node = ["--node", node]
        for name, kind in lists:
            items = [one for one in (*objects, claim, pod) if one["kind"] == kind]
            (place / name).write_text(json.dumps({"kind": f"{kind}List", "items": items}))
            of_node += [f"--{name}", str(place / name)]
        sources = ["--slices", known, "--claims", known]
        for words in (
            ["why", str(place / "claim"), *sources],
            ["why", str(place / "pod"), *sources],
            ["why", str(place / "new"), *sources],
            ["fits", str(place / "pod"), "--node", node, *sources],
            ["nodes", known],
            ["nodes", known, "--devices", "--json"],
            ["doctor", "--root", directory, *of_node, "--no-plugins", "--patience", "0"],
        ):
            ask(words)


def ask(words: Sequence[str]) -> None:
    """Run a command in this process, and check the time and memory that it used."""
    seconds, megabytes = used()
    with redirect_stdout(StringIO()) as out, redirect_stderr(out):
        status = main(words)
    after, most = used()
    assert status in range(5), (words, out.getvalue()[-2000:])
    assert after - seconds < MAX_SECONDS, words
    assert most - megabytes < MAX_MEGABYTES, words


def used() -> tuple[float, float]:
    """Return the processor time of this process and its children, and its peak memory in megabytes."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime, own.ru_maxrss / 1024
