"""Requests to an API server for one node, and their failures as sentences.

Law: a request returns the node or raises a `Problem`, whether a file, a program, the network or the server fails.
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import httpcore2
import httpx2  # lightkube's HTTP client: its errors are part of lightkube's interface
from attrs import define, field, frozen
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef
from lightkube.types import PatchType

from devicecore.adapters.kube_api.client_config import ApiConnection, add_certificate, load
from devicecore.adapters.kube_api.credential_program import run
from devicecore.adapters.kube_api.http import MAX_ANSWER, MAX_WATCH, AnswerTooLargeError, Transport
from devicecore.adapters.kube_api.patches import Json, NodeObject
from devicecore.domain.errors import DeviceCoreError, SetUpError
from devicecore.domain.text import foreign_text

T = TypeVar("T")

_MAX_PAUSE = 3600.0  # seconds that a Retry-After can ask for
_MAX_MESSAGE = 300  # characters of an answer that are repeated in a sentence
_WATCH_SECONDS = 240  # after which the server ends a watch, and the sink begins another


@frozen
class NodeNameError(SetUpError, ValueError):
    """A name that no Node object can have."""

    name: str = field(converter=foreign_text)
    _text = "expected the name of a node, made of a-z, 0-9, '-' and '.', got {name!r}"


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
    """

    kind: object
    cause: str = field(converter=foreign_text)
    pause: float = 0.0
    is_stale: bool = False
    is_unreachable: bool = False

    def __str__(self) -> str:
        return self.cause


@frozen
class Access:
    """Where to find the API server and credentials, and how long to wait for them.

    Attributes:
        kubeconfig: the file; None for the service account and then the usual files.
        context: the context of the kubeconfig; None for the current one.
        service_account: the directory of the pod's service account.
        timeout: seconds for a request with its whole answer.
        program_timeout: seconds for a program that gives credentials.
    """

    kubeconfig: Any
    context: str | None
    service_account: Any
    timeout: float
    program_timeout: float

    def connection(self) -> ApiConnection:
        """Read the files.

        Raises:
            ApiAccessError: they are missing or cannot be used.
        """
        return load(self.kubeconfig, self.context, self.service_account)


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
    _client: Client | None = field(default=None, init=False)
    _transport: Transport | None = field(default=None, init=False)

    def read(self) -> NodeObject:
        """Return the node as it is.

        Raises:
            Problem: there is no answer, or not a node.
        """
        return self.ask("get nodes", lambda client: NodeObject.parse(client.get(_Node, self.node)))

    def write(self, kind: PatchType, body: Json) -> NodeObject:
        """Patch the node's status and return the node.

        Raises:
            Problem: the patch is refused, or its result is not known.
        """
        return self.ask(
            "patch nodes/status",
            lambda client: NodeObject.parse(
                client.patch(
                    _NodeStatus,
                    self.node,
                    body,
                    patch_type=kind,
                    field_manager=self.field_manager,
                    force=kind is PatchType.APPLY,
                )
            ),
        )

    def watch(self, since: str) -> Iterator[tuple[str, NodeObject]]:
        """Yield the changes of the node after version `since`, until the server ends the watch after some minutes.

        If `since` is empty, the first event is the node as it is.

        Yields:
            `ADDED`, `MODIFIED` or `DELETED`, and the node.

        Raises:
            Problem: the server refuses, the connection fails, or the versions since then are no longer known.
        """
        return self.events(_Node, "watch nodes", {"metadata.name": self.node}, since, NodeObject.parse)

    def events(
        self,
        resource: "type[Watched]",
        permission: str,
        fields: Mapping[str, str],
        since: str,
        parse: Callable[[Json], T],
    ) -> Iterator[tuple[str, T]]:
        """Yield the changes of the objects that `fields` selects since a version, until the server ends the watch.

        If `since` is empty, the first events are the objects as they are.

        Yields:
            `ADDED`, `MODIFIED` or `DELETED`, and the object as `parse` returns it.

        Raises:
            Problem: the server refuses, the connection fails, or the versions since then are no longer known.
        """
        selected: dict[str, Any] = dict(fields)

        def begin(client: Client) -> Iterator[tuple[str, Any]]:
            return client.watch(
                resource, fields=selected, server_timeout=_WATCH_SECONDS, resource_version=since or None
            )

        events = self.ask(permission, begin)
        while True:
            try:
                kind, found = next(events)
                parsed = parse(found)
            except _WatchEndedError:
                return
            except Exception as error:
                self.disconnect()
                raise self._problem(error, permission) from error
            yield kind, parsed

    def stop(self) -> None:
        """End the request in progress, and begin no other."""
        self.stopped = True
        transport = self._transport
        if transport is not None:
            transport.cut()

    def disconnect(self) -> None:
        """Close the connection. The next request makes a new one, with the credentials of that time."""
        client, self._client, self._transport = self._client, None, None
        if client is not None:
            client.close()

    def ask(self, permission: str, request: Callable[[Client], T]) -> T:
        """Return what `request` returns, which needs `permission`. If credentials have expired, ask once more.

        Raises:
            Problem: `request` has raised.
        """
        is_new = self._client is None
        try:
            return self._try(permission, request)
        except Problem as problem:
            if problem.kind != HTTPStatus.UNAUTHORIZED or is_new:
                raise
            return self._try(permission, request)  # the credentials have expired: these are new ones

    def _try(self, permission: str, request: Callable[[Client], T]) -> T:
        if self.stopped:
            raise Problem(kind="stopped", cause="the connection was closed")
        try:
            client = self._client or self._connect()
            if self._transport is not None:
                self._transport.begin_all()
            return request(client)
        except Exception as error:
            problem = self._problem(error, permission)
            if not isinstance(problem.kind, int) or problem.kind == HTTPStatus.UNAUTHORIZED:
                self.disconnect()
            raise problem from error

    def _problem(self, error: Exception, permission: str) -> Problem:
        return _problem(error, self.sentences or _node_sentences(self.node), permission)

    def _connect(self) -> Client:
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
        transport_type, seconds, limit = Transport, self.access.timeout, MAX_ANSWER
        if self.is_watch:
            transport_type, seconds, limit = _WatchTransport, seconds + _WATCH_SECONDS, MAX_WATCH
        self._transport = transport_type(
            context, seconds, headers, server_name=connection.server_name, proxy=connection.proxy, limit=limit
        )
        if self.stopped:  # `stop` may have come before there was a transport
            self._transport.cut()
        # Encryption and credentials are the transport's: lightkube knows neither deadlines nor all fields.
        config = KubeConfig.from_one(cluster=Cluster(server=connection.server, insecure=True), user=User())
        self._client = Client(config, transport=self._transport, trust_env=False)
        return self._client


class _WatchEndedError(Exception):
    """The server has ended the watch, as it was asked to."""


class _WatchTransport(Transport):
    """A transport for one watch, because lightkube would begin the next watch itself, at once and without end."""

    _is_used = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._is_used:
            self._is_used = False
            raise _WatchEndedError
        self._is_used = True
        return super().handle_request(request)


# These replace lightkube's classes, which check every field of a node.

_NODE = ResourceDef("", "v1", "Node")


@frozen
class _Metadata:
    resourceVersion: str | None  # noqa: N815 - as lightkube reads it


class Watched(GlobalResource, dict[str, Any]):
    """An object without a namespace, as the server sent it."""

    @property
    def metadata(self) -> _Metadata:
        """The part of the object that lightkube reads in a watch."""
        metadata = self.get("metadata")
        return _Metadata(metadata.get("resourceVersion") if isinstance(metadata, dict) else None)


class _Node(Watched):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["get", "list", "watch"])


class _NodeStatus(GlobalSubResource, dict[str, Any]):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["patch"], parent=_NODE, action="status")


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


def _problem(error: Exception, sentences: Mapping[int, str], permission: str) -> Problem:
    """Return the problem behind an error of a request."""
    for cause in _chain(error):
        match cause:
            case httpx2.HTTPStatusError(response=httpx2.Response() as response):  # lightkube may fail to read a Status
                return _refusal(response, sentences, permission)
            case ApiError(status=status):  # an event of a watch
                return Problem(status.code, f"the watch ended with status {status.code}: {_line(status.message)}")
            case ssl.SSLCertVerificationError(verify_message=why):
                return Problem("TLS", f"the API server's certificate is not trusted: {why}", is_unreachable=True)
            case ssl.SSLError(reason=why):
                return Problem("TLS", f"no TLS connection: {why or cause}", is_unreachable=True)
            case _:
                pass
    return Problem(type(error), _failure(error), is_unreachable=isinstance(error, _UNREACHABLE))


def refusal(error: Exception) -> tuple[int, str] | None:
    """Return the HTTP status of a refused request, and the server's reason; None if the server did not answer."""
    for cause in _chain(error):
        if isinstance(cause, httpx2.HTTPStatusError) and isinstance(cause.response, httpx2.Response):
            try:
                return cause.response.status_code, _message(cause.response)
            except Exception as failed:  # noqa: BLE001 - the body failed, and the status says more
                return cause.response.status_code, _failure(failed)
    return None


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


def _refusal(response: httpx2.Response, sentences: Mapping[int, str], permission: str) -> Problem:
    status = response.status_code
    try:
        message = _message(response)
    except Exception as error:  # noqa: BLE001 - the body failed, and the status says more
        message = _failure(error)
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
    )


def _message(response: httpx2.Response) -> str:
    """Return the reason that the server gives."""
    response.read()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    message = body.get("message") if isinstance(body, dict) else None
    return foreign_text(_line(str(message or response.text or response.reason_phrase)), _MAX_MESSAGE)


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
