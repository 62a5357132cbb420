"""Requests to an API server over one connection, with sentences that describe failures.

Law: a request returns its answer or raises a `RequestError`, no matter whether a file, a program, the network or the
server fails.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import lru_cache, partial
from http import HTTPStatus
from http.client import responses
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpcore2
import httpx2
from attrs import Factory, define, field, frozen

from devicecore.adapters.kube_api.client_config import SERVICE_ACCOUNT, ApiConnection, add_certificate, load
from devicecore.adapters.kube_api.credential_program import run
from devicecore.adapters.kube_api.http import MAX_ANSWER, MAX_WATCH, Answer, AnswerTooLargeError, Transport, WholeAnswer
from devicecore.adapters.kube_api.patches import Json
from devicecore.domain.checks import expected, is_seconds
from devicecore.domain.errors import DeviceCoreError, ForkedError, SetUpError
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import foreign_text
from devicecore.runtime.run import process_id
from devicecore.system.arguments import checks_fields

T = TypeVar("T")

_loads: Callable[[bytes], Json] = json.loads
_dumps: Callable[[Json], bytes] | None = None
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _loads, _dumps = orjson.loads, orjson.dumps

_quoted = lru_cache(4096)(partial(quote, safe=""))  # cached, because most paths consist of the same few parts
_parameters = lru_cache(64)(lambda *pairs: urlencode(pairs))


def compact(body: Json) -> bytes:
    """Quickly return JSON by which values can be compared. In the JSON, a number that is not finite may be null."""
    with suppress(TypeError):  # a number or string that only Python's own json module can write
        if _dumps is not None:
            return _dumps(body)
    return json.dumps(body).encode()


def _dumped(body: Json) -> bytes:
    text = compact(body)
    # orjson writes null for NaN, which would remove a field; Python's own json module writes NaN, which a server
    # refuses.
    return json.dumps(body).encode() if b"null" in text and _loads(text) != body else text


_MAX_PAUSE = 3600.0  # the maximum number of seconds that a Retry-After can ask for
_MAX_MESSAGE = 300  # how many characters of an answer are repeated in a sentence
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_MAX_REASON = 64  # how many characters of a reason are repeated
_WATCH_SECONDS = 240  # seconds after which the server ends a watch and the client starts another


@frozen
class NodeNameError(SetUpError, ValueError):
    """A name that no Node object can have."""

    name: str = field(converter=foreign_text)
    _text = "expected a node name, made of a-z, 0-9, '-' and '.', got {name!r}"


def check_node_name(name: str) -> None:
    """Refuse a name that no Node can have. Raises NodeNameError."""
    if not is_dns_subdomain(name):
        raise NodeNameError(name)


@frozen
class RequestError(DeviceCoreError):
    """A request to an API server failed, or an object does not reach the desired state.

    Attributes:
        cause: what failed, in one sentence.
        status: the HTTP status of a refusal, or None if the failure is not a refusal.
        reason: the API server's word for a refusal, such as `NotFound`, or an empty string if there is none.
        pause: the minimum number of seconds before the next attempt, usually because the server asked for a pause.
        message: the server's message, which is part of the cause.
        kind: identifies similar errors: of consecutive errors with the same value, only the first is logged. By
            default, this is the status, or the cause if there is no status.
        is_unreachable: whether any other request would fail in the same way, because the server did not answer or there
            are no credentials.
    """

    cause: str = field(converter=foreign_text)
    status: int | None = None
    reason: str = ""
    pause: float = 0.0
    message: str = ""
    kind: object = Factory(lambda self: self.status or self.cause, takes_self=True)
    is_unreachable: bool = False
    _text = "{cause}"

    @property
    def is_passing(self) -> bool:
        """Whether the request may succeed later: there is an outage (see `is_outage`), or the server has failed."""
        return self.is_outage or (self.status or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def is_outage(self) -> bool:
        """Whether other requests may fail, too: no answer was usable, or the server refused credentials or is busy."""
        return self.status in (None, HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS)


@checks_fields
@frozen
class Access:
    """Where the API server and the credentials are, and how long to wait for them.

    Attributes:
        kubeconfig: the kubeconfig. If None, the following are tried in turn: the service account of the pod in which
            this process runs, the files in `$KUBECONFIG`, and `~/.kube/config`. The source is read again when
            credentials have expired.
        context: the context to use from the kubeconfig, if not the current one.
        service_account: the directory of the pod's service account.
        timeout: seconds for a request, including the whole answer.
        program_timeout: seconds for a credential program.
    """

    kubeconfig: str | PathLike[str] | None = None
    context: str | None = None
    service_account: str | PathLike[str] = field(default=SERVICE_ACCOUNT, kw_only=True)
    timeout: float = field(default=10.0, kw_only=True, validator=is_seconds)
    program_timeout: float = field(default=30.0, kw_only=True, validator=is_seconds)

    def connection(self) -> ApiConnection:
        """Read the kubeconfig, or the files of the service account.

        Raises:
            ApiAccessError: the files are missing or cannot be used.
        """
        return load(self.kubeconfig, self.context, self.service_account)


def connection_of(access: Access) -> ApiConnection:
    """Return the connection that `access` describes. The files are read at once, so that the caller gets the errors.

    Raises:
        TypeError: `access` is not an Access but, for example, the path of a kubeconfig.
        ApiAccessError: the files are missing or cannot be used.
    """
    if not isinstance(access, Access):
        raise TypeError(expected("access", "an Access, such as Access('/root/.kube/config')", access))
    return access.connection()


ANY = "*/*"
"""Any type of answer, which an API server takes to mean JSON."""

METADATA_ONLY = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{ANY}"
"""Asks for a list without specs and statuses; a server that cannot omit them sends a complete list."""


@frozen
class ApiRequest:
    """One request.

    Attributes:
        permission: the verb and the resource, as errors name them.
        method: the HTTP method.
        path: the path below the server's URL, with escaped names.
        query: the parameters.
        body: parsed JSON, or None if there is none.
        kind: the media type of the body.
        accept: the media type that the answer may have.
    """

    permission: str
    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    body: Json = None
    kind: str = "application/json"
    accept: str = ANY

    @property
    def target(self) -> bytes:
        """The path and the parameters in the form in which they are sent."""
        return f"{self.path}?{_parameters(*self.query.items())}".encode("ascii") if self.query else self.path.encode()

    @property
    def is_core(self) -> bool:
        """Whether the request is about a resource of the core group, which every API server has."""
        return self.path.startswith("api/")


@frozen
class ApiResource:
    """A resource of the API; `group` is empty for the core group."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path below the server's URL. Without a name, return the path of all objects."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if namespace else []
        parts += [self.plural, name, subresource]
        return "/".join(_quoted(part) for part in parts if part)


class _RefusedError(Exception):
    """A server's answer that refuses a request."""

    def __init__(self, answer: WholeAnswer) -> None:
        super().__init__()
        self.answer = answer


@define(eq=False)  # connections are compared by identity, not by server
class ApiServer:
    """Sends requests over one connection. Only one thread may use this object, but any thread may call `stop`.

    Attributes:
        access: where the server and the credentials are.
        sentences: the meaning of refusals, by HTTP status.
        is_watch: whether requests are watches.
        charge: called with the content of each successful answer before it is parsed; returns why it may not be parsed,
            or an empty string. For watches, `charge` is not called.
    """

    access: Access
    sentences: Mapping[int, str]
    is_watch: bool = False
    charge: Callable[[bytes], str] = field(default=lambda _: "", kw_only=True)
    stopped: bool = field(default=False, init=False)
    _connection: Transport | None = field(default=None, init=False)
    _process: int = field(factory=process_id, init=False)

    def send(self, request: ApiRequest) -> Json:
        """Send a request and return the parsed answer.

        Raises RequestError if the server refuses or does not answer, or if the response is not JSON.
        """
        return self.read(request, lambda answer: answer)

    def read(self, request: ApiRequest, parse: Callable[[Json], T]) -> T:
        """Send a request and return the answer, parsed by `parse`.

        Raises RequestError if `send` would, or if `parse` raises an error.
        """
        return self.ask(request, lambda: parse(self.answer(request)))

    def answer(self, request: ApiRequest) -> Json:
        """Send a request and return the parsed answer.

        Only functions that `ask` calls may use this method, because `ask` handles the errors.
        """
        headers, content = {b"Accept": request.accept.encode("ascii")}, None
        if request.body is not None:
            headers[b"Content-Type"] = request.kind.encode("ascii")
            content = _dumped(request.body)
        answer = self._transport.send(request.method, request.target, headers, content)
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise _RefusedError(answer)
        if why := self.charge(answer.content):
            raise RequestError(why)
        try:
            return _loads(answer.content)
        except ValueError as error:
            message = f"the answer is malformed JSON: {error}"
            raise ValueError(message) from error

    @property
    def _transport(self) -> Transport:
        assert self._connection is not None, "`ask` has connected"  # noqa: S101 - for mypy
        return self._connection

    def events(
        self,
        resource: ApiResource,
        selected: Mapping[str, str],
        since: str,
        parse: Callable[[Json], T],
        *,
        bookmarks: bool = False,
    ) -> Iterator[tuple[str, T]]:
        """Yield the changes that the selected objects have undergone since a version.

        `selected` is what `selectors` returns. A change consists of `ADDED`, `MODIFIED`, `DELETED` or, if bookmarks are
        requested, `BOOKMARK`, and the object as `parse` returns it. If `since` is empty, the first events are the
        current objects. The server ends the watch after a few minutes. Raises RequestError, for example if the server
        no longer knows the version `since`.
        """
        query = {**selected, "timeoutSeconds": str(_WATCH_SECONDS), "watch": "true"}
        if since:
            query["resourceVersion"] = since
        if bookmarks:
            query["allowWatchBookmarks"] = "true"
        request = ApiRequest(f"watch {resource.plural}", "GET", resource.path(), query)
        with closing(self.ask(request, lambda: self._stream(request))) as answer:
            lines, started_in = _lines(answer.parts), process_id()
            while True:
                if started_in != process_id():
                    raise ForkedError(started_in, process_id())
                try:
                    line = next(lines, None)
                    found = None if line is None else _event(line)
                    event = None if found is None else (found[0], parse(found[1]))
                except Exception as error:
                    self.disconnect()
                    raise self._error(error, request) from error
                if event is None:
                    return
                yield event

    def _stream(self, request: ApiRequest) -> Answer:
        """Send a request and return the answer, whose content is not read yet."""
        answer = self._transport.stream(request.method, request.target, {b"Accept": request.accept.encode("ascii")})
        if answer.status != HTTPStatus.OK:
            refused = WholeAnswer(answer.status, b"")
            with suppress(Exception):  # the body cannot be read, and the status says more than that error
                refused = answer.read()
            raise _RefusedError(refused)
        return answer

    def _leave_parent(self) -> None:
        """In a fork, abandon the parent's connection; otherwise, each process would read the other's answers.

        The connection is not shut down, because that would end it for the parent, and nothing is called that may wait
        for a lock.
        """
        if self._process != process_id():
            if self._connection is not None:
                self._connection.leave()
            self._connection, self._process = None, process_id()

    def stop(self) -> None:
        """Abort the request in progress, and start no other."""
        self._leave_parent()
        self.stopped = True
        connection = self._connection
        if connection is not None:
            connection.cut()

    def disconnect(self) -> None:
        """Close the connection. The next request opens a new connection, with the credentials at that time."""
        self._leave_parent()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(self, request: ApiRequest, call: Callable[[], T]) -> T:
        """Return the result of `call`, which sends `request`. If the credentials have expired, make the call once more.

        Raises RequestError if `call` fails.
        """
        self._leave_parent()
        is_new = self._connection is None
        try:
            return self._try(request, call)
        except RequestError as error:
            if error.kind != HTTPStatus.UNAUTHORIZED or is_new:
                raise
            return self._try(request, call)  # the credentials have expired: get new ones

    def _try(self, request: ApiRequest, call: Callable[[], T]) -> T:
        if self.stopped:
            raise RequestError(cause="the connection was closed", kind="stopped")
        try:
            (self._connection or self._connect()).begin_all()
            return call()
        except Exception as error:
            failed = self._error(error, request)
            if not isinstance(failed.kind, int) or failed.kind == HTTPStatus.UNAUTHORIZED:
                self.disconnect()
            raise failed from error

    def _error(self, error: Exception, request: ApiRequest) -> RequestError:
        """Return a RequestError that says why a request failed."""
        for cause in causes(error):
            match cause:
                case _RefusedError(answer=answer):
                    return _refusal(answer, self.sentences, request)
                case RequestError():
                    return cause
                case ssl.SSLCertVerificationError(verify_message=why):
                    text = f"the API server's certificate is not trusted: {why}"
                    return RequestError(text, kind="TLS", is_unreachable=True)
                case ssl.SSLError(reason=why):
                    hint = ": does the server use http, not https?" if why == "WRONG_VERSION_NUMBER" else ""
                    return RequestError(f"no TLS connection: {why or cause}{hint}", kind="TLS", is_unreachable=True)
                case _:
                    pass
        text = _failure(error, self._connection.address if self._connection else "the API server")
        return RequestError(text, kind=type(error), is_unreachable=isinstance(error, _UNREACHABLE))

    def _connect(self) -> Transport:
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
        url, name, proxy = httpx2.URL(connection.server.rstrip("/") + "/"), connection.server_name, connection.proxy
        transport = Transport(url, context, seconds, headers, server_name=name, proxy=proxy, limit=limit)
        self._connection = transport
        if self.stopped:  # `stop` may have come before there was a connection
            transport.cut()
        return transport


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of an answer. Only a line feed ends a line: an object's text may contain other separators."""
    begun: list[bytes] = []
    for part in parts:
        end, *lines = part.split(b"\n")
        begun.append(end)
        for line in lines:
            yield b"".join(begun)
            begun = [line]
    if rest := b"".join(begun):
        yield rest


def _event(line: bytes) -> tuple[str, Json]:
    """Return the type of a watch event, and the event's object.

    Raises RequestError if the server has ended the watch with an error, and ValueError if the line is not an event.
    """
    event = _loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        message = "expected a watch event, got something else"
        raise ValueError(message)  # noqa: TRY004 - as for text that is not JSON
    found = event["object"]
    if event.get("type") == "ERROR":
        code, why = found.get("code"), _line(str(found.get("message") or ""))
        raise RequestError(cause=f"the watch ended with status {code}: {foreign_text(why, _MAX_MESSAGE)}", kind=code)
    return str(event.get("type")), found


def _version() -> str:
    try:
        return version("devicecore")
    except PackageNotFoundError:
        return "unknown"


# --- failures as sentences --------------------------------------------------------------------------------------------


def node_sentences(node: str) -> Mapping[int, str]:
    """Return what refusals of requests about a Node mean, by HTTP status."""
    return {
        404: f"there is no node {node!r}",
        409: "other clients keep changing the node",
        422: "the patch is invalid, or a policy refuses it",
    }


_UNREACHABLE = httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProxyError, DeviceCoreError


def _failure(error: Exception, server: str) -> str:
    """Return a sentence for an error other than a refusal by `server`."""
    match error:
        case httpcore2.TimeoutException():
            return f"no complete answer from {server} in time"
        case httpcore2.NetworkError() | httpcore2.ProtocolError() | httpcore2.ProxyError():
            why = _ERRNO.sub("", _line(str(error))) or type(error).__name__
            return f"no connection to {server}: {why}"
        case AnswerTooLargeError() | DeviceCoreError() | ValueError():
            return _line(str(error))
        case _:
            return f"{_line(str(error))} ({type(error).__name__})"


def _refusal(answer: WholeAnswer, sentences: Mapping[int, str], request: ApiRequest) -> RequestError:
    status, said = answer.status, _status(answer.content)
    text = said.get("message") or answer.content.decode(errors="replace") or responses.get(status, "")
    message, reason = foreign_text(_line(str(text)), _MAX_MESSAGE), said.get("reason")
    if status == HTTPStatus.NOT_FOUND and not isinstance(reason, str) and request.is_core:
        cause = (
            "HTTP status 404, but not in the form that an API server uses: is something else at this "
            f"address? ({message})"
        )
        return RequestError(cause, kind="no API server")
    sentences = {
        401: "unauthorized: the API server does not know the credentials, or they have expired",
        403: f"forbidden: the permission to {request.permission!r} is missing",
        429: "too many requests",
        **sentences,
    }
    pause = re.fullmatch(r"\s*([0-9]{1,9})\s*", answer.retry_after)
    return RequestError(
        f"{sentences.get(status, f'HTTP status {status}')} ({message})",
        status,
        foreign_text(reason, _MAX_REASON) if isinstance(reason, str) else "",
        min(float(pause[1]), _MAX_PAUSE) if pause else 0.0,
        message,
    )


def _status(content: bytes) -> Mapping[str, object]:
    """Return the object in an answer: a Status if an API server refuses. The object is empty if there is none."""
    try:
        body = _loads(content)
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {}


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and then the chain of errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
