"""Requests to an API server for one node, and their failures as sentences.

Law: a request returns the node or raises a `Problem`, whether a file, a program, the network or the server fails.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import NoReturn, TypeVar
from urllib.parse import urlencode

import httpcore2
import httpx2
from attrs import define, field, frozen

from devicecore.adapters.kube_api.client_config import SERVICE_ACCOUNT, ApiConnection, add_certificate, load
from devicecore.adapters.kube_api.credential_program import run
from devicecore.adapters.kube_api.http import MAX_ANSWER, MAX_WATCH, AnswerTooLargeError, Transport
from devicecore.adapters.kube_api.patches import Json, NodeObject, PatchType
from devicecore.domain.errors import DeviceCoreError, SetUpError
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import foreign_text

T = TypeVar("T")

_loads: Callable[[bytes], Json] = json.loads
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _loads = orjson.loads

_MAX_PAUSE = 3600.0  # seconds that a Retry-After can ask for
_MAX_MESSAGE = 300  # characters of an answer that are repeated in a sentence
_MAX_REASON = 64  # characters of a reason
_ASKED = httpx2.Request("GET", "")  # an error of httpx2 needs one, and nothing reads it
_WATCH_SECONDS = 240  # after which the server ends a watch, and the sink begins another


@frozen
class NodeNameError(SetUpError, ValueError):
    """A name that no Node object can have."""

    name: str = field(converter=foreign_text)
    _text = "expected the name of a node, made of a-z, 0-9, '-' and '.', got {name!r}"


def check_node_name(name: str) -> None:
    """Refuse a name that no Node can have. Raises NodeNameError."""
    if not is_dns_subdomain(name):
        raise NodeNameError(name)


@frozen
class Problem(Exception):  # noqa: N818 - it never leaves this adapter
    """Why a request to the API server failed, or why the node does not show what it should.

    Attributes:
        kind: problems of the same kind are logged once in a row.
        cause: one sentence.
        pause: seconds for which the server asked not to be called.
        is_stale: whether the node may have changed since it was read.
        is_unreachable: whether another request would fail in the same way, because the server did not answer or there
            are no credentials.
        reason: the API server's word for a refusal, such as `NotFound`; empty if there is none.
        message: the words of the server that refuses, which are a part of the cause.
    """

    kind: object
    cause: str = field(converter=foreign_text)
    pause: float = 0.0
    is_stale: bool = False
    is_unreachable: bool = False
    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return self.cause


@frozen
class Access:
    """Where to find the API server and credentials, and how long to wait for them.

    Attributes:
        kubeconfig: the kubeconfig. Without it: the service account of the pod that this process runs in, then the files
            of `$KUBECONFIG`, then `~/.kube/config`. It is read again when credentials have expired.
        context: the context of the kubeconfig, if not its current one.
        service_account: the directory of the pod's service account.
        timeout: seconds for a request with its whole answer.
        program_timeout: seconds for a program that gives credentials.
    """

    kubeconfig: str | PathLike[str] | None = None
    context: str | None = None
    service_account: str | PathLike[str] = field(default=SERVICE_ACCOUNT, kw_only=True)
    timeout: float = field(default=10.0, kw_only=True)
    program_timeout: float = field(default=30.0, kw_only=True)

    def connection(self) -> ApiConnection:
        """Read the files.

        Raises:
            ApiAccessError: they are missing or cannot be used.
        """
        return load(self.kubeconfig, self.context, self.service_account)


@frozen
class ApiRequest:
    """One request.

    Attributes:
        permission: the verb and the resource, as errors name them.
        method: the HTTP method.
        path: the path below the server's URL, with names as they are in URLs.
        query: the parameters.
        body: parsed JSON; None if there is none.
        kind: the type of the body.
    """

    permission: str
    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    body: Json = None
    kind: str = "application/json"


@define
class ApiServer:
    """Reads, patches and watches one node. One thread uses it; any thread may call `stop`.

    Attributes:
        node: the node's name.
        access: where the server and the credentials are.
        field_manager: our name in `metadata.managedFields`.
        is_watch: whether requests are watches.
        sentences: what refusals mean, by HTTP status, if requests are not about the Node.
    """

    node: str
    access: Access
    field_manager: str
    is_watch: bool = False
    sentences: Mapping[int, str] = field(factory=dict)
    stopped: bool = field(default=False, init=False)
    _connection: tuple[Transport, httpx2.URL] | None = field(default=None, init=False)

    def read(self) -> NodeObject:
        """Return the node as it is. Raises Problem if there is no answer, or not a node."""
        request = ApiRequest("get nodes", "GET", f"api/v1/nodes/{self.node}")
        return self.ask(request.permission, lambda: NodeObject.parse(self.answer(request)))

    def write(self, kind: PatchType, body: Json) -> NodeObject:
        """Patch the node's status and return the node.

        Raises Problem if the patch is refused, or its result is not known.
        """
        query = {"fieldManager": self.field_manager, **({"force": "true"} if kind is PatchType.APPLY else {})}
        path = f"api/v1/nodes/{self.node}/status"
        request = ApiRequest("patch nodes/status", "PATCH", path, query, body, kind.value)
        return self.ask(request.permission, lambda: NodeObject.parse(self.answer(request)))

    def watch(self, since: str) -> Iterator[tuple[str, NodeObject]]:
        """Yield the changes of the node after version `since`, until the server ends the watch after some minutes.

        If `since` is empty, the first event is the node as it is.

        Yields:
            `ADDED`, `MODIFIED` or `DELETED`, and the node.

        Raises:
            Problem: the server refuses, the connection fails, or the versions since then are no longer known.
        """
        return self.events("api/v1/nodes", "watch nodes", f"metadata.name={self.node}", since, NodeObject.parse)

    def send(self, request: ApiRequest) -> Json:
        """Send a request and return the parsed answer.

        Raises Problem if the server refuses, or there is no answer, or it is not JSON.
        """
        is_core = request.path.startswith("api/")
        return self.ask(request.permission, lambda: self.answer(request), is_core=is_core)

    def answer(self, request: ApiRequest) -> Json:
        """Send a request and return the parsed answer. Only what is asked by `ask` may call this.

        Raises httpx2.HTTPStatusError if the server refuses.
        """
        transport, url, headers = self._prepared(request)
        content = None
        if request.body is not None:
            headers.append((b"Content-Type", request.kind.encode("ascii")))
            content = json.dumps(request.body).encode()
        status, answered, found = transport.send(request.method, url, headers, content)
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            named = [one for one in answered if one[0].lower() != "content-encoding"]
            _raise(httpx2.Response(status, headers=named, content=found))
        try:
            return _loads(found)
        except ValueError as error:
            message = f"the answer is malformed JSON: {error}"
            raise ValueError(message) from error

    def _prepared(self, request: ApiRequest) -> tuple[Transport, httpcore2.URL, list[tuple[bytes, bytes]]]:
        """Return what sends a request, its address and its headers, except those about a body."""
        assert self._connection is not None, "`ask` has connected"  # noqa: S101 - for mypy
        transport, base = self._connection
        target = base.raw_path + request.path.encode("ascii")
        if request.query:
            target += b"?" + urlencode(request.query).encode("ascii")
        url = httpcore2.URL(scheme=base.raw_scheme, host=base.raw_host, port=base.port, target=target)
        return transport, url, [(b"Host", base.netloc), (b"Accept", b"*/*")]

    def events(
        self,
        path: str,
        permission: str,
        selector: str,
        since: str,
        parse: Callable[[Json], T],
        *,
        bookmarks: bool = False,
    ) -> Iterator[tuple[str, T]]:
        """Yield the changes of the objects at `path` that match a field selector since a version.

        This goes on until the server ends the watch. If `since` is empty, the first events are the objects as they are.

        Yields:
            `ADDED`, `MODIFIED`, `DELETED` or, if they are asked for, `BOOKMARK`; and the object as `parse` returns it.

        Raises:
            Problem: the server refuses, the connection fails, or the versions since then are no longer known.
        """
        query = {"fieldSelector": selector, "timeoutSeconds": str(_WATCH_SECONDS), "watch": "true"}
        if since:
            query["resourceVersion"] = since
        if bookmarks:
            query["allowWatchBookmarks"] = "true"
        request, is_core = ApiRequest(permission, "GET", path, query), path.startswith("api/")
        answer = self.ask(permission, lambda: self._stream(request), is_core=is_core)
        with closing(answer):
            lines = _lines(answer)
            while True:
                try:
                    line = next(lines, None)
                    found = None if line is None else _event(line)
                    event = None if found is None else (found[0], parse(found[1]))
                except Exception as error:
                    self.disconnect()
                    raise self._problem(error, permission, is_core=is_core) from error
                if event is None:
                    return
                yield event

    def _stream(self, request: ApiRequest) -> httpx2.Response:
        """Send a request and return the answer, which is not read yet. Raises httpx2.HTTPStatusError."""
        transport, url, headers = self._prepared(request)
        answer = transport.stream(request.method, url, headers)
        if answer.status_code != HTTPStatus.OK:
            _raise(answer)
        return answer

    def stop(self) -> None:
        """End the request in progress, and begin no other."""
        self.stopped = True
        connection = self._connection
        if connection is not None:
            connection[0].cut()

    def disconnect(self) -> None:
        """Close the connection. The next request makes a new one, with the credentials of that time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()

    def ask(self, permission: str, request: Callable[[], T], *, is_core: bool = True) -> T:
        """Return what `request` returns, which needs `permission`. If credentials have expired, ask once more.

        `is_core` is whether it asks for a resource of the core group, which every API server has.

        Raises:
            Problem: `request` has raised.
        """
        is_new = self._connection is None
        try:
            return self._try(permission, request, is_core=is_core)
        except Problem as problem:
            if problem.kind != HTTPStatus.UNAUTHORIZED or is_new:
                raise
            return self._try(permission, request, is_core=is_core)  # the credentials have expired: these are new ones

    def _try(self, permission: str, request: Callable[[], T], *, is_core: bool) -> T:
        if self.stopped:
            raise Problem(kind="stopped", cause="the connection was closed")
        try:
            transport, _ = self._connection or self._connect()
            transport.begin_all()
            return request()
        except Exception as error:
            problem = self._problem(error, permission, is_core=is_core)
            if not isinstance(problem.kind, int) or problem.kind == HTTPStatus.UNAUTHORIZED:
                self.disconnect()
            raise problem from error

    def _problem(self, error: Exception, permission: str, *, is_core: bool) -> Problem:
        return _problem(error, self.sentences or _node_sentences(self.node), permission, names_missing=is_core)

    def _connect(self) -> tuple[Transport, httpx2.URL]:
        connection = self.access.connection()
        context, headers = connection.tls(), {**connection.headers, "User-Agent": f"devicecore/{_version()}"}
        token = connection.token() if connection.token else None
        if connection.program is not None and token is None:
            given = run(connection.program, self.access.program_timeout, lambda: self.stopped)
            token = given.token
            if given.certificate and given.key:
                add_certificate(context, given.certificate, given.key)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        seconds, limit = self.access.timeout, MAX_ANSWER
        if self.is_watch:
            seconds, limit = seconds + _WATCH_SECONDS, MAX_WATCH
        transport = Transport(
            context, seconds, headers, server_name=connection.server_name, proxy=connection.proxy, limit=limit
        )
        self._connection = transport, httpx2.URL(connection.server.rstrip("/") + "/")
        if self.stopped:  # `stop` may have come before there was a connection
            transport.cut()
        return self._connection


def _raise(refused: httpx2.Response) -> NoReturn:
    message = f"HTTP status {refused.status_code}"
    raise httpx2.HTTPStatusError(message, request=_ASKED, response=refused)


def _lines(answer: httpx2.Response) -> Iterator[bytes]:
    """Yield the lines of an answer. Only a line feed ends one: the text of an object may have other separators."""
    begun: list[bytes] = []
    for part in answer.iter_bytes():
        end, *lines = part.split(b"\n")
        begun.append(end)
        for line in lines:
            yield b"".join(begun)
            begun = [line]
    if rest := b"".join(begun):
        yield rest


def _event(line: bytes) -> tuple[str, Json]:
    """Return the kind of an event of a watch, and its object.

    Raises Problem if the server has ended the watch with an error, and ValueError if it is no event.
    """
    event = _loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        message = "expected an event of a watch, got something else"
        raise ValueError(message)  # noqa: TRY004 - as for text that is no JSON
    found = event["object"]
    if event.get("type") == "ERROR":
        code, why = found.get("code"), _line(str(found.get("message") or ""))
        raise Problem(code, f"the watch ended with status {code}: {foreign_text(why, _MAX_MESSAGE)}")
    return str(event.get("type")), found


def _version() -> str:
    try:
        return version("devicecore")
    except PackageNotFoundError:
        return "unknown"


# --- failures as sentences --------------------------------------------------------------------------------------------


def _node_sentences(node: str) -> Mapping[int, str]:
    """Return what refusals of requests about a Node mean."""
    return {
        404: f"there is no node {node!r}",
        409: "others keep changing the node",
        422: "the patch is refused as invalid or by a policy",
    }


_UNREACHABLE = httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProxyError, DeviceCoreError


def _problem(error: Exception, sentences: Mapping[int, str], permission: str, *, names_missing: bool) -> Problem:
    """Return the problem behind an error of a request.

    `names_missing` is whether an API server that answers 404 says what is missing, because it always has this resource.
    """
    for cause in causes(error):
        match cause:
            case httpx2.HTTPStatusError(response=response):
                return _refusal(response, sentences, permission, names_missing=names_missing)
            case Problem():
                return cause
            case ssl.SSLCertVerificationError(verify_message=why):
                return Problem("TLS", f"the API server's certificate is not trusted: {why}", is_unreachable=True)
            case ssl.SSLError(reason=why):
                return Problem("TLS", f"no TLS connection: {why or cause}", is_unreachable=True)
            case _:
                pass
    return Problem(type(error), _failure(error), is_unreachable=isinstance(error, _UNREACHABLE))


def _failure(error: Exception) -> str:
    """Return a sentence for an error without an answer of the server."""
    match error:
        case httpcore2.TimeoutException():
            return "no complete answer in time"
        case httpcore2.NetworkError() | httpcore2.ProtocolError() | httpcore2.ProxyError():
            return f"no connection: {_line(str(error)) or type(error).__name__}"
        case AnswerTooLargeError() | DeviceCoreError() | ValueError():
            return _line(str(error))
        case _:
            return f"{_line(str(error))} ({type(error).__name__})"


def _refusal(
    response: httpx2.Response, sentences: Mapping[int, str], permission: str, *, names_missing: bool
) -> Problem:
    status = response.status_code
    try:
        message = _message(response)
        reason = _status(response).get("reason")
    except Exception as error:  # noqa: BLE001 - the body failed, and the status says more
        message, reason = _failure(error), None
    if status == HTTPStatus.NOT_FOUND and not isinstance(reason, str) and names_missing:
        cause = f"HTTP status 404, but not as an API server answers: is something else at this address? ({message})"
        return Problem("no API server", cause)
    sentences = {
        401: "unauthorized: the API server does not know the credentials, or they have expired",
        403: f"forbidden: the permission to {permission!r} is missing",
        429: "too many requests",
        **sentences,
    }
    pause = re.fullmatch(r"\s*([0-9]{1,9})\s*", response.headers.get("Retry-After", ""))
    return Problem(
        status,
        f"{sentences.get(status, f'HTTP status {status}')} ({message})",
        pause=min(float(pause[1]), _MAX_PAUSE) if pause else 0.0,
        # A JSON patch that removes what was removed before is invalid, and not a conflict.
        is_stale=status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY},
        reason=foreign_text(reason, _MAX_REASON) if isinstance(reason, str) else "",
        message=message,
    )


def _message(response: httpx2.Response) -> str:
    """Return the reason that the server gives."""
    message = _status(response).get("message")
    return foreign_text(_line(str(message or response.text or response.reason_phrase)), _MAX_MESSAGE)


def _status(response: httpx2.Response) -> Mapping[str, object]:
    """Return the object of an answer, a Status if an API server refuses; empty if it is something else."""
    response.read()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {}


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
