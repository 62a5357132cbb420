"""JSON of up to 64 MiB, such as all pods of a large node, and YAML of up to 1 MiB.

Law: any bytes are read or refused with a `DocumentError`, in bounded time and memory.
"""

import json
from collections.abc import Callable
from contextlib import suppress

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.system.documents import Data, read_documents
from devicecore.system.files import read_file

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a JSON document. 5,000 pods have some 30 MiB."""

MAX_MEMBERS = 4_000_000
"""Commas and brackets in a JSON document, which bound the number of its values."""

_loads: Callable[[bytes], Data] = json.loads
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _loads = orjson.loads


def read_document_file(path: str) -> Value:
    """The document in a file. The path may be a symbolic link, as in mounted volumes.

    Raises:
        DocumentError: the file cannot be used.
    """
    try:
        data = read_file(path, MAX_BYTES, follow_links=True)
    except OSError as error:
        raise DocumentError(path, None, "", error.strerror or str(error)) from error
    return parse_document(data, path)


def parse_document(data: bytes, file: str) -> Value:
    """The one document in `data`.

    Raises:
        DocumentError: it is neither JSON nor YAML, or too large, or not one object.
    """
    whole = Value(None, file)
    if len(data) > MAX_BYTES:
        whole.refuse(f"expected at most {MAX_BYTES:,} bytes, got {len(data):,}")
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    value = _json(data, whole) if data.startswith(b"{") else _yaml(data, whole)
    if not isinstance(value.data, dict):
        whole.refuse(f"expected an object, got {described(value.data)}")
    return value


def _json(data: bytes, whole: Value) -> Value:
    members = data.count(b",") + data.count(b"[") + data.count(b"{")
    if members > MAX_MEMBERS:
        whole.refuse(f"expected at most {MAX_MEMBERS:,} values, got {members:,}")
    try:
        return Value(_loads(data), whole.file)
    except (ValueError, RecursionError) as error:
        return whole.refuse(f"it is not JSON: {error}", error if isinstance(error, ValueError) else None)


def _yaml(data: bytes, whole: Value) -> Value:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        whole.refuse("expected UTF-8 text, got other bytes")
    documents = read_documents(text, whole.file)
    if len(documents) != 1:
        whole.refuse(f"expected one document, got {len(documents) or 'nothing'}")
    return documents[0]
