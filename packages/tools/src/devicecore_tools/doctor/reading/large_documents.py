"""JSON of up to 64 MiB, such as all pods of a large node, and YAML of up to 1 MiB.

Law: any bytes are either read or refused with a `DocumentError`, in bounded time and memory. A list of many objects is
allowed to take more memory than one object, because an API server stores no object of more than a few MiB.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import accumulate
from typing import TYPE_CHECKING

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES, OBJECTS, Reader, memory_of, size_problem
from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file
from devicecore_tools.budget import Budget

if TYPE_CHECKING:
    from devicecore.system.documents import Data

MAX_INPUT = MAX_BYTES + 1
"""The maximum number of bytes that are read from standard input. A longer document is refused when it is parsed."""

_TABLE = re.compile(rb"\s*(?:NAMESPACE|NAME|LAST SEEN) {2,}[A-Z]")  # the first line of kubectl's table
_DESCRIPTION = re.compile(rb"\s*Name: +\S.*\n(?:Namespace|Roles|Labels): ")
_JSON = re.compile(rb"\s*\{(?!\{)")  # {{ begins a placeholder of Helm

_loads: "Callable[[bytes], Data]" = json.loads
with suppress(ImportError):  # some platforms have no orjson wheel
    import orjson

    _loads = orjson.loads


def read_document_file(path: str, budget: Budget | None = None, *, unique_keys: bool = False) -> Value:
    """Return the document in a file. The path may be a symbolic link, as in mounted volumes.

    Raises DocumentError if the file cannot be used.
    """
    return parse_document(_content(path), path, budget, unique_keys=unique_keys)


def read_all_documents(path: str, budget: Budget | None = None) -> list[Value]:
    """Return the documents in a file. A YAML file may contain several documents.

    Raises DocumentError if the file cannot be used.
    """
    return parse_documents(_content(path), path, budget)


def _content(path: str) -> bytes:
    try:
        return read_file(path, MAX_BYTES, follow_links=True)
    except OSError as error:
        raise DocumentError(path, None, "", error.strerror or str(error)) from error


def parse_document(data: bytes, file: str, budget: Budget | None = None, *, unique_keys: bool = False) -> Value:
    """Return the one document in `data`.

    Raises DocumentError if `data` is neither JSON nor YAML, is too large, or is not exactly one object.
    """
    documents = parse_documents(data, file, budget, unique_keys=unique_keys)
    if len(documents) != 1:
        got = len(documents) or "nothing: the command that should have written it may have failed"
        Value(None, file).refuse(f"expected one document, got {got}")
    return documents[0]


def as_utf8(data: bytes) -> bytes:
    """Return a string as UTF-8 without a byte-order mark.

    A redirection on Windows may write UTF-16, with such a mark.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").encode(errors="replace")
    return data.removeprefix(codecs.BOM_UTF8)


def parse_documents(data: bytes, file: str, budget: Budget | None = None, *, unique_keys: bool = False) -> list[Value]:
    """Return the documents in `data`, within a budget. With `unique_keys`, no object in YAML may have a key twice.

    Raises DocumentError if the documents cannot be used, or exceed the rest of the budget.
    """
    whole = Value(None, file)
    data = as_utf8(data).rstrip()  # errors in YAML have line numbers, so empty lines at the start are kept
    if budget is not None and (problem := budget.keep(memory_of(data, OBJECTS))):
        whole.refuse(f"{problem}; give fewer objects, such as those of one node")
    if _TABLE.match(data):
        whole.refuse("expected JSON or YAML, got a kubectl table: add -o json to that command")
    if _DESCRIPTION.match(data):
        whole.refuse("expected JSON or YAML, got the output of kubectl describe: use kubectl get -o json")
    is_json = _JSON.match(data) and b"\n---" not in data  # several YAML documents may also begin with a brace
    values = [_json(data, whole)] if is_json else _yaml(data, whole, unique_keys=unique_keys)
    for value in values:
        if not isinstance(value.data, dict):
            whole.refuse(f"expected an object, got {described(value.data)}")
        if problem := _error_in(value.data):
            whole.refuse(f"it contains only an error: {foreign_text(problem)}")
    return values


def _error_in(data: "Mapping[str, Data]") -> str:
    """Return the error of an API server or of kubectl that a document consists of, or an empty string."""
    if data.get("kind") == "Status":
        return str(data.get("message", ""))
    key = next(iter(data), "")
    return f"{key}: {data[key]}" if key.lower().startswith("error") and "kind" not in data else ""


def refuse_misspelled(value: Value, known: Sequence[str]) -> None:
    """Refuse an object with a field whose name resembles one of `known`.

    Other unknown fields are ignored: a later version may have written them.
    """
    for name, one in value.mapping().items():
        meant = get_close_matches(name, known, n=1, cutoff=_SIMILAR) if name not in known else []
        if meant:
            one.refuse(f"there is no such field; expected {meant[0]!r}")


_SIMILAR = 0.8


def _json(data: bytes, whole: Value) -> Value:
    problem = size_problem(data, OBJECTS) or (size_problem(data, _ONE_OBJECT) and _object_problem(data))
    if problem:
        whole.refuse(problem)
    try:
        return Value(_loads(data), whole.file)
    except (ValueError, RecursionError) as error:
        several = "unexpected content after document" in str(error) or "Extra data" in str(error)
        hint = "; it contains several JSON documents: put each into a separate file" if several else ""
        return whole.refuse(f"it is not JSON: {error}{hint}", error if isinstance(error, ValueError) else None)


_ONE_OBJECT = Reader(600_000, value_bytes=260, copies=4)
"""Input within these limits is not checked per object, because even a single object takes less than 256 MB."""

_MAX_OBJECT_BYTES = 8 * 1024 * 1024
_MAX_OBJECT_VALUES = 400_000
_CHUNK = 256 * 1024
_DEPTH_OF_ITEMS = 2  # the depth of an object in the list `items`
_VALUES_OF_BRACKET = 50  # a list of objects has at least one bracket per this many values
_NO_STRUCTURE = bytes(set(range(256)) - set(b"{}[],"))
_STEPS = bytes.maketrans(b"{}[]", b"\x01\xff\x01\xff")


def _object_problem(data: bytes) -> str:
    """Return why an object in a JSON text is larger than any that an API server stores, or an empty string.

    The text is examined in chunks, so an object may exceed the limits by one chunk.
    """
    depth = size = values = start = 0
    is_in_text = False
    while start < len(data):
        end = min(start + _CHUNK, len(data))
        while end < len(data) and data[end - 1] == ord("\\"):
            end += 1  # do not split an escape sequence
        parts = data[start:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        structure = b"".join(parts[is_in_text::2]).translate(None, _NO_STRUCTURE)
        is_in_text ^= len(parts) % 2 == 0
        brackets = structure.translate(_STEPS, b",")
        depths = list(accumulate(memoryview(brackets).cast("b"), initial=depth))
        depth = depths[-1]
        is_of_one = min(depths) > _DEPTH_OF_ITEMS or len(brackets) * _VALUES_OF_BRACKET <= len(structure)
        size, values = (size + end - start, values + len(structure)) if is_of_one else (0, 0)
        if size > _MAX_OBJECT_BYTES or values > _MAX_OBJECT_VALUES:
            limits = f"{_MAX_OBJECT_BYTES:,} bytes and {_MAX_OBJECT_VALUES:,} values"
            return f"expected objects of at most {limits}, more than an API server stores; got a larger one"
        start = end
    return ""


def _yaml(data: bytes, whole: Value, *, unique_keys: bool) -> list[Value]:
    from devicecore.system.documents import (
        MAX_DOCUMENT_SIZE,
        read_documents,
        why_not_text,
    )  # only YAML needs this import

    if len(data) > MAX_DOCUMENT_SIZE:
        whole.refuse(f"expected JSON, or YAML of at most {MAX_DOCUMENT_SIZE:,} bytes, got {len(data):,}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        whole.refuse(why_not_text(data))
    return read_documents(text, whole.file, unique_keys=unique_keys)
