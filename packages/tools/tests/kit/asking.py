"""Requests to the API server of the test kit, over HTTP."""

import json
from http.client import HTTPConnection
from typing import Any, NamedTuple

from devicecore_tools.testing.api_server import LocalApiServer

JSON, STRATEGIC = "application/json", "application/strategic-merge-patch+json"


class Reply(NamedTuple):
    """A response: its status code, and its body as JSON or as a string."""

    code: int
    body: Any


def ask(
    server: LocalApiServer, method: str, path: str, body: object = None, content: str = JSON, *, client: str = ""
) -> Reply:
    """Send a request as the client with this token, and return the response."""
    connection = HTTPConnection(*server.address, timeout=60)
    headers = {"Content-Type": content or JSON, "User-Agent": "tests/1"}
    if client:
        headers["Authorization"] = f"Bearer {client}"
    try:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        is_text = answer.headers["Content-Type"] == "text/plain"
        return Reply(answer.status, text.decode() if is_text else json.loads(text))
    finally:
        connection.close()
