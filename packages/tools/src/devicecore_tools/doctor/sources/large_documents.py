"""JSON of up to 64 MiB, such as all pods of a large node, and YAML of up to 1 MiB.

Law: any bytes are read or refused with a `DocumentError`, in bounded time and memory.
"""

import codecs
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES, OBJECTS, size_problem
from devicecore.system.files import read_file

if TYPE_CHECKING:
    from devicecore.system.documents import Data

MAX_INPUT = MAX_BYTES + 1
"""Bytes that are read of standard input; a longer document is refused when it is parsed."""

_loads: "Callable[[bytes], Data]" = json.loads
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _loads = orjson.loads


def read_document_file(path: str) -> Value:
    """Return the document in a file. The path may be a symbolic link, as in mounted volumes.

    Raises DocumentError if the file cannot be used.
    """
    return parse_document(_content(path), path)


def read_all_documents(path: str) -> list[Value]:
    """Return the documents in a file, of which a YAML file may have several.

    Raises DocumentError if the file cannot be used.
    """
    return parse_documents(_content(path), path)


def _content(path: str) -> bytes:
    try:
        return read_file(path, MAX_BYTES, follow_links=True)
    except OSError as error:
        raise DocumentError(path, None, "", error.strerror or str(error)) from error


def parse_document(data: bytes, file: str) -> Value:
    """Return the one document in `data`.

    Raises DocumentError if it is neither JSON nor YAML, or too large, or not one object.
    """
    documents = parse_documents(data, file)
    if len(documents) != 1:
        Value(None, file).refuse(f"expected one document, got {len(documents) or 'nothing'}")
    return documents[0]


def as_utf8(data: bytes) -> bytes:
    """Return a text as UTF-8 without a byte-order mark. A redirection on Windows may write UTF-16, with such a mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").encode(errors="replace")
    return data.removeprefix(codecs.BOM_UTF8)


def parse_documents(data: bytes, file: str) -> list[Value]:
    """Return the documents in `data`. Raises DocumentError if it cannot be used."""
    whole = Value(None, file)
    data = as_utf8(data).strip()
    values = [_json(data, whole)] if data.startswith(b"{") else _yaml(data, whole)
    for value in values:
        if not isinstance(value.data, dict):
            whole.refuse(f"expected an object, got {described(value.data)}")
    return values


def _json(data: bytes, whole: Value) -> Value:
    if problem := size_problem(data, OBJECTS):
        whole.refuse(problem)
    try:
        return Value(_loads(data), whole.file)
    except (ValueError, RecursionError) as error:
        return whole.refuse(f"it is not JSON: {error}", error if isinstance(error, ValueError) else None)


def _yaml(data: bytes, whole: Value) -> list[Value]:
    from devicecore.system.documents import MAX_DOCUMENT_SIZE, read_documents  # which JSON does not need

    if len(data) > MAX_DOCUMENT_SIZE:
        whole.refuse(f"expected JSON, or YAML of at most {MAX_DOCUMENT_SIZE:,} bytes, got {len(data):,}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        whole.refuse("expected UTF-8 text, got other bytes")
    return read_documents(text, whole.file)
