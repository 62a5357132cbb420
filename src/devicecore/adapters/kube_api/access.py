"""The way to an API server: credentials, requests, and what can go wrong with them in words.

Law: whatever a file, the network or the server does, it ends as the node or as a `Problem`.
"""

import re
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator
from http import HTTPStatus
from os import PathLike
from typing import Any

import httpx2  # lightkube's HTTP client: its timeouts and its errors are part of lightkube's interface
from attrs import frozen
from lightkube import Client, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef
from lightkube.types import PatchType

from devicecore.adapters.kube_api.patches import Json, NodeObject
from devicecore.domain.errors import DeviceCoreError, SetUpError

_LONGEST_PAUSE = 3600.0  # seconds that a Retry-After can ask for
_LONGEST_MESSAGE = 300  # characters of an answer that are repeated in a sentence
_EXEC_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))


@frozen
class ApiAccessError(SetUpError):
    """There is no way to the API server: the kubeconfig or the service account is missing or cannot be used."""

    source: str
    cause: str

    def __str__(self) -> str:
        return f"cannot use {self.source}: {self.cause}"


@frozen
class NodeNameError(SetUpError, ValueError):
    """A name that no Node object can have."""

    name: str

    def __str__(self) -> str:
        return f"{self.name!r} cannot be the name of a node: it is made of a-z, 0-9, '-' and '.'"


@frozen
class Problem(Exception):  # noqa: N818 - it never leaves this adapter
    """Why the node does not show what is wanted.

    `kind` tells one problem from another when there may be many of each. `pause` is how long the server wants to be
    left alone, in seconds. `is_stale` says that the node is no longer the one that was read.
    """

    kind: object
    cause: str
    pause: float = 0.0
    is_stale: bool = False

    def __str__(self) -> str:
        return self.cause


@frozen
class Access:
    """Where the API server is, and who we are to it."""

    kubeconfig: str | PathLike[str] | None
    context: str | None
    service_account: str | PathLike[str]
    timeout: float

    def connect(self) -> Client:
        """A client with the credentials as they are now; it connects with its first request.

        Raises:
            ApiAccessError: they are missing or cannot be used.
        """
        try:
            if self.kubeconfig is None:
                config = KubeConfig.from_env(service_account=self.service_account)
            else:
                config = KubeConfig.from_file(self.kubeconfig)
            chosen = config.get(self.context)
            _check_address(chosen.cluster.server if chosen else "")
            if chosen and chosen.user:
                _complete(chosen, chosen.user)
            return Client(chosen, timeout=httpx2.Timeout(self.timeout))
        except Exception as error:
            raise ApiAccessError(self._source, _reason(error)) from error

    @property
    def _source(self) -> str:
        if self.kubeconfig is not None:
            return f"kubeconfig {str(self.kubeconfig)!r}"
        return f"the service account in {str(self.service_account)!r}, $KUBECONFIG or ~/.kube/config"


class ApiServer:
    """Reads and patches one node. Not thread-safe, but for `stopped`: once it is set, no further request is begun."""

    def __init__(self, node: str, access: Access, field_manager: str) -> None:
        self._node = node
        self._access = access
        self._field_manager = field_manager
        self._client: Client | None = None
        self.stopped = False

    def read(self) -> NodeObject:
        """The node as it is.

        Raises:
            Problem: it did not come.
        """
        return self._ask("get nodes", lambda client: client.get(_Node, self._node))

    def write(self, kind: PatchType, body: Json) -> NodeObject:
        """The node after a patch of its status.

        Raises:
            Problem: it was refused, or nobody knows what became of it.
        """
        return self._ask(
            "patch nodes/status",
            lambda client: client.patch(
                _NodeStatus,
                self._node,
                body,
                patch_type=kind,
                field_manager=self._field_manager,
                force=kind is PatchType.APPLY,
            ),
        )

    def disconnect(self) -> None:
        """Let go of the connection; the next request makes a new one, with the credentials as they are then."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, permission: str, request: Callable[[Client], Json]) -> NodeObject:
        if self.stopped:
            raise Problem(kind="stopped", cause="it was closed meanwhile")
        try:
            self._client = self._client or self._access.connect()
            return NodeObject.parse(request(self._client))
        except Exception as error:
            problem = _problem(error, self._node, permission)
            if not isinstance(problem.kind, int) or problem.kind == HTTPStatus.UNAUTHORIZED:
                self.disconnect()  # the next try is with new credentials, on a new connection
            raise problem from error


# Not lightkube's own classes: those check every field of a node, these leave alone what is none of our business.

_NODE = ResourceDef("", "v1", "Node")


class _Node(GlobalResource, dict[str, Any]):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["get"])


class _NodeStatus(GlobalSubResource, dict[str, Any]):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["patch"], parent=_NODE, action="status")


# --- what went wrong, in words ----------------------------------------------------------------------------------------


def _check_address(url: str) -> None:
    if not re.match(r"https?://[^/]", url):
        problem = f"its server {url!r} is no http:// or https:// address"
        raise ValueError(problem)


def _complete(config: SingleConfig, user: User) -> None:
    """Do what lightkube leaves undone, and refuse now what it would refuse with the first request, or nameless."""
    for name, data in {
        "certificate-authority-data": config.cluster.certificate_auth_data,
        "client-certificate-data": user.client_cert_data,
        "client-key-data": user.client_key_data,
    }.items():
        try:
            b64decode(data or "")
        except ValueError as error:
            problem = f"{name} is not base64: {error}"
            raise ValueError(problem) from error
    if user.token_file:
        user.token_file = str(config.abs_file(user.token_file))
    if user.exec:
        if user.exec.apiVersion not in _EXEC_VERSIONS:
            problem = f"exec: {user.exec.apiVersion!r} is none of {', '.join(_EXEC_VERSIONS)}"
            raise ValueError(problem)
        user.exec.apiVersion = _EXEC_VERSIONS[1]  # as far as tokens go, v1 is the same, but lightkube does not know it


def _reason(error: Exception) -> str:
    """Why credentials cannot be used: lightkube lets most errors of a broken file through."""
    said = " ".join(str(error).split())
    match error:
        case FileNotFoundError(filename=None) | ssl.SSLError():
            return f"a certificate or key that it names cannot be read: {said}"
        case KeyError():
            return f"{said} is missing"
        case AttributeError() | TypeError():
            return f"it does not hold what it should: {said}"
        case _:
            return said or type(error).__name__


def _problem(error: Exception, node: str, permission: str) -> Problem:
    """Why there is no node."""
    for cause in _chain(error):
        match cause:
            case httpx2.HTTPStatusError(response=response):  # lightkube fails over one that holds no proper Status
                return _refusal(response, node, permission)
            case ssl.SSLCertVerificationError(verify_message=why):
                return Problem("TLS", f"the API server's certificate is not to be trusted: {why}")
            case ssl.SSLError(reason=why):
                return Problem("TLS", f"no TLS connection: {why or cause}")
            case _:
                pass
    return Problem(type(error), _failure(error))


def _failure(error: Exception) -> str:
    """Why there is no answer."""
    match error:
        case httpx2.TimeoutException():
            return "no answer in time"
        case httpx2.TransportError():
            return f"no connection: {str(error) or type(error).__name__}"
        case DeviceCoreError() | ValueError():
            return str(error)
        case _:  # a token file, or the program that makes tokens, has gone
            return f"{_reason(error)} ({type(error).__name__})"


def _refusal(response: httpx2.Response, node: str, permission: str) -> Problem:
    status, said = response.status_code, _message(response)
    sentences = {
        401: "unauthorized: the credentials are not known, or have expired",
        403: f"forbidden: this takes the permission to {permission!r}",
        404: f"there is no node {node!r}",
        409: "others keep changing the node",
        429: "too many requests",
    }
    pause = re.fullmatch(r"\s*(\d{1,9})\s*", response.headers.get("Retry-After", ""))
    return Problem(
        status,
        f"{sentences.get(status, f'HTTP status {status}')} ({said})",
        pause=min(float(pause[1]), _LONGEST_PAUSE) if pause else 0.0,
        # A JSON patch that removes what has just gone is invalid before it is a conflict.
        is_stale=status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY},
    )


def _message(response: httpx2.Response) -> str:
    """What the server said of it."""
    try:
        body = response.json()
    except ValueError:
        body = None
    said = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(said or response.text or response.reason_phrase).split())[:_LONGEST_MESSAGE]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
