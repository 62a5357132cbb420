"""A small kube-apiserver: Nodes over HTTP, with the three kinds of patches on real JSON, and faults on cue.

What it knows: GET of `nodes/NAME` and `nodes/NAME/status`, a watch of one node, PATCH of `nodes/NAME/status`; resource
versions and
conflicts; who owns which field of the status (`metadata.managedFields`), for lists as a whole; bearer tokens; which
verbs are forbidden; quantities written the way an API server writes them ("4000" becomes "4k").
"""

import copy
import json
import re
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from attrs import field, frozen

from tests.adapters import tls

Json = Any
Path_ = tuple[str, ...]  # to a field of a Node, such as ("status", "capacity", "cpu")

JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@frozen
class Request:
    """What somebody asked."""

    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    headers: Mapping[str, str] = field(factory=dict)
    body: Json = None

    @property
    def is_watch(self) -> bool:
        """Whether it asks for events."""
        return self.query.get("watch") == "true"


@frozen
class Answer:
    """What is said instead of the right answer. A body that is no text is sent as JSON."""

    status: int
    body: Json = None
    headers: Mapping[str, str] = field(factory=dict)


@frozen
class Drop:
    """The connection ends without an answer; with `after`, once the request was carried out."""

    after: bool = False


@frozen
class Hang:
    """No answer, until the server is stopped or `release`d; then the connection ends."""


@frozen
class Meanwhile:
    """Something happens, and then the request is carried out as usual."""

    action: Callable[[], object]


@frozen
class Stream:
    """These bytes instead of the right answer, with status 200, sent as they are made."""

    parts: Iterable[bytes]


Cue = Answer | Drop | Hang | Meanwhile | Stream


class Refusal(Exception):  # noqa: N818 - the API server's word for it is Status
    """A request that is answered with a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Json:
        """What is sent."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


class ApiServer:
    """The server, on a free port of this machine, in threads of its own. Use it as a context manager.

    `bearer` is the token to be shown, None if nobody asks for one. `forbidden` are verbs with their resource,
    such as "patch nodes/status". Both can be changed at any time. With `mutual`, clients show the node's certificate.
    """

    def __init__(self, *, secure: bool = False, mutual: bool = False, bearer: str | None = None) -> None:
        self.bearer = bearer
        self.forbidden: set[str] = set()
        self.requests: list[Request] = []
        self.watches: list[Request] = []
        self._events: list[tuple[int, str, Json]] = []  # of all watches: version, type and node
        self.bugs: list[BaseException | None] = []
        self._secure = secure
        self._mutual = mutual
        self._nodes: dict[str, Json] = {}
        self._version = 1000
        self._cues: dict[str, deque[Cue]] = {"GET": deque(), "PATCH": deque(), "WATCH": deque()}
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._http: _HttpServer | None = None
        self._port = 0

    # --- running it ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen; again on the same port if it has been stopped."""
        self._released.clear()
        self._http = _HttpServer(self, self._port, _server_context(mutual=self._mutual) if self._secure else None)
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Be gone, with all connections. The nodes are kept."""
        self.release()
        if self._http is not None:
            self._http.stop()
            self._http = None

    def release(self) -> None:
        """End all that hangs, and all watches."""
        with self._changed:
            self._released.set()
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        assert not self.bugs, self.bugs

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self._port

    @property
    def url(self) -> str:
        """Its URL, as a kubeconfig has it."""
        return f"http{'s' if self._secure else ''}://127.0.0.1:{self._port}"

    def kubeconfig(self, directory: Path, user: Mapping[str, Any] = {}) -> Path:
        """Write a kubeconfig for this server, whose only user has these credentials."""
        authority = directory / "ca.crt"
        authority.write_text(tls.AUTHORITY)
        # Named also where it is not needed: with one authority a client is made in no time, with all of them in 0.1 s.
        cluster = {"server": self.url, "certificate-authority": str(authority)}
        path = directory / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": dict(user)}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(config))  # which is YAML too
        return path

    # --- nodes --------------------------------------------------------------------------------------------------------

    def add_node(self, name: str, status: Json = None, *, manager: str = "kubelet") -> None:
        """Create a Node; `manager` has written its status. Without `status` it has none."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"tests": "yes"}}, "spec": {}}
        if status is not None:
            node["status"] = copy.deepcopy(status)
        owners = {path: {(manager, "Update")} for path, _ in leaves(status, ("status",))} if status else {}
        with self._changed:
            _check_quantities({}, node)
            self._keep(node, owners)

    def delete_node(self, name: str) -> None:
        """Delete a Node."""
        with self._changed:
            self._version += 1
            node = self._nodes.pop(name)
            self._note("DELETED", {**node, "metadata": {**node["metadata"], "resourceVersion": str(self._version)}})

    def forget_events(self) -> None:
        """Forget what has happened: a watch from an earlier version ends with 410 Gone."""
        with self._changed:
            self._version += 1
            self._events = [(self._version, "FORGOTTEN", None)]
            self._changed.notify_all()

    def node(self, name: str) -> Json:
        """A Node as it is now."""
        with self._changed:
            return copy.deepcopy(self._nodes[name])

    def status(self, name: str) -> Json:
        """The status of a Node as it is now."""
        return self.node(name).get("status")

    def write(self, name: str, change: Callable[[Json], object], *, manager: str = "kubelet") -> None:
        """Change a Node's status in place, as somebody else would."""
        with self._changed:
            node = copy.deepcopy(self._nodes[name])
            change(node.setdefault("status", {}))
            self._update(self._nodes[name], node, manager)

    # --- faults, and looking on ---------------------------------------------------------------------------------------

    def cue(self, method: str, *cues: Cue) -> None:
        """Do these with the next requests of that method, one with each."""
        with self._changed:
            self._cues[method].extend(cues)

    def clear_cues(self) -> None:
        """Forget what was not done yet."""
        with self._changed:
            for cues in self._cues.values():
                cues.clear()

    def wait_for(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until something is true, which is looked at after every request and every change of a node."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), self.requests[-5:]

    def patches(self) -> list[Request]:
        """The patches so far, also those that were refused."""
        with self._changed:
            return [request for request in self.requests if request.method == "PATCH"]

    # --- answering ----------------------------------------------------------------------------------------------------

    def next_cue(self, request: Request) -> Cue | None:
        """Note a request; what to do with it, None for the usual."""
        with self._changed:
            (self.watches if request.is_watch else self.requests).append(request)
            self._changed.notify_all()
            cues = self._cues["WATCH" if request.is_watch else request.method]
            return cues.popleft() if cues else None

    def hang(self) -> None:
        """Wait to be released."""
        self._released.wait()

    def answer(self, request: Request) -> Json:
        """Carry out a request; the Node afterwards.

        Raises:
            Refusal: it cannot be done.
        """
        match re.fullmatch(r"/api/v1/(nodes)/([^/]+)(/status)?", request.path):
            case None:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            case matched:
                kind, name, status = matched.groups(default="")
        self._check_access(request, request.method.lower(), kind + status, name)
        with self._changed:
            if name not in self._nodes:
                raise Refusal(404, "NotFound", f'nodes "{name}" not found')
            if request.method == "PATCH":
                if not status:
                    raise Refusal(405, "MethodNotAllowed", "these tests patch nothing but the status")
                self._patched(self._nodes[name], request)
            return copy.deepcopy(self._nodes[name])

    def _check_access(self, request: Request, verb: str, resource: str, name: str) -> None:
        if self.bearer is not None and request.headers.get("Authorization") != f"Bearer {self.bearer}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if f"{verb} {resource}" in self.forbidden:
            message = f'nodes "{name}" is forbidden: User "tests" cannot {verb} resource "{resource}"'
            raise Refusal(403, "Forbidden", message)

    def watch(self, request: Request) -> Iterator[Json]:
        """The events of one node: first, without a version, the node as it is; then until time or server end.

        Raises:
            Refusal: the caller may not watch.
        """
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        self._check_access(request, "watch", "nodes", name)
        end = time.monotonic() + float(request.query.get("timeoutSeconds", "300"))
        return self._watch(name, int(request.query.get("resourceVersion", "0")), end)

    def _watch(self, name: str, since: int, end: float) -> Iterator[Json]:
        if not since:
            with self._changed:
                since, node = self._version, copy.deepcopy(self._nodes.get(name))
            if node is not None:
                yield {"type": "ADDED", "object": node}
        while True:
            with self._changed:
                news = [event for event in self._events if event[0] > since]
                since = self._version
            for _, kind, node in news:
                if kind == "FORGOTTEN":
                    yield {"type": "ERROR", "object": Refusal(410, "Expired", "too old resource version").status}
                    return
                if node["metadata"]["name"] == name:
                    yield {"type": kind, "object": node}
            with self._changed:
                seconds = end - time.monotonic()
                if seconds <= 0 or self._released.is_set():
                    return
                self._changed.wait_for(lambda: self._version > since or self._released.is_set(), seconds)  # noqa: B023 - called at once

    def _note(self, kind: str, node: Json) -> None:
        self._events.append((self._version, kind, copy.deepcopy(node)))
        self._changed.notify_all()

    def _patched(self, node: Json, request: Request) -> None:
        manager = request.query.get("fieldManager") or request.headers.get("User-Agent", "unknown").partition("/")[0]
        kind = request.headers.get("Content-Type")
        if kind != "application/apply-patch+yaml" and "force" in request.query:
            raise Refusal(422, "Invalid", "PatchOptions: force: Forbidden: may not be specified for non-apply patch")
        match kind:
            case "application/json-patch+json":
                self._update(node, json_patched(node, request.body), manager)
            case "application/strategic-merge-patch+json":
                self._update(node, merged(node, request.body), manager)
            case "application/apply-patch+yaml":
                if "fieldManager" not in request.query:
                    raise Refusal(422, "Invalid", "PatchOptions: fieldManager: Required value: is required for apply")
                self._apply(node, request.body, manager, force=request.query.get("force") == "true")
            case other:
                raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {other}")

    def _update(self, before: Json, sent: Json, manager: str) -> None:
        """Somebody wrote a whole node: what they changed is theirs, and nobody's else."""
        _check_version(before, sent)
        after = copy.deepcopy(before)
        if sent.get("status") is not None:
            after["status"] = sent["status"]
        _check_quantities(before, after)
        old, new = (dict(leaves(node.get("status"), ("status",))) for node in (before, after))
        owners = {path: holders for path, holders in _owners(before).items() if path in new}
        owners |= {path: {(manager, "Update")} for path in new if path not in old or old[path] != new[path]}
        self._keep(after, owners)

    def _apply(self, before: Json, sent: Json, manager: str, *, force: bool) -> None:
        """Server-side apply: what is sent is theirs; what they applied before and no longer send is deleted.

        Unless somebody else owns it too.
        """
        name = before["metadata"]["name"]
        if (sent.get("apiVersion"), sent.get("kind"), sent["metadata"].get("name")) != ("v1", "Node", name):
            raise Refusal(400, "BadRequest", "the object applied is not the one of the request")
        if "managedFields" in sent["metadata"]:
            raise Refusal(400, "BadRequest", "metadata.managedFields must be nil")
        _check_version(before, sent)
        after, me = copy.deepcopy(before), (manager, "Apply")
        owners = _owners(before)
        _check_quantities(before, sent)
        old, new = (dict(leaves(node.get("status"), ("status",))) for node in (before, sent))
        for path, value in new.items():
            others = owners.get(path, set()) - {me}
            if others and value != {} and old.get(path) != value:
                if not force:
                    raise Refusal(409, "Conflict", f"Apply failed with conflict with {others}: .{'.'.join(path)}")
                others = set()
            owners[path] = {*others, me}
            _set(after, path, value)
        for path in [path for path, holders in owners.items() if me in holders and path not in new]:
            owners[path] -= {me}
            if not owners[path]:
                del owners[path]
                _delete(after, path)
        self._keep(after, owners)

    def _keep(self, node: Json, owners: Mapping[Path_, set[tuple[str, str]]]) -> None:
        """Store a node. A write that changes nothing makes no new version."""
        metadata = node["metadata"]
        managed = _managed_fields(owners)
        before = self._nodes.get(metadata["name"])
        if before and before.get("status") == node.get("status") and before["metadata"]["managedFields"] == managed:
            return
        self._version += 1
        metadata |= {"resourceVersion": str(self._version), "managedFields": managed}
        self._nodes[metadata["name"]] = node
        self._note("MODIFIED" if before else "ADDED", node)


# --- the three kinds of patches ---------------------------------------------------------------------------------------


def json_patched(document: Json, operations: Json) -> Json:
    """RFC 6902, without `move` and `copy`.

    Raises:
        Refusal: an operation does not fit.
    """
    document = copy.deepcopy(document)
    for operation in operations:
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        try:
            parent = document
            for part in above:
                parent = parent[int(part) if isinstance(parent, list) else part]
            _operate(parent, last, operation)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise Refusal(422, "Invalid", f"the server rejected our request: {operation}: {error!r}") from error
    return document


def _operate(parent: Json, last: str, operation: Json) -> None:
    key: Json = last
    if isinstance(parent, list):
        key = len(parent) if last == "-" else int(last)
    match operation["op"], parent:
        case "add", list():
            parent.insert(key, operation["value"])
        case "add", dict():
            parent[key] = operation["value"]
        case "remove", _:
            del parent[key]
        case "replace", _:
            parent[key]  # which has to be there
            parent[key] = operation["value"]
        case "test", _:
            if parent[key] != operation["value"]:
                problem = "test failed"
                raise ValueError(problem)
        case other, _:
            problem = f"unknown operation {other}"
            raise ValueError(problem)


def merged(document: Json, change: Json) -> Json:
    """A strategic merge, which for maps is a merge patch (RFC 7386); lists are replaced."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result = copy.deepcopy(document) if isinstance(document, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


# --- fields and who owns them -----------------------------------------------------------------------------------------


def leaves(value: Json, above: Path_ = ()) -> Iterator[tuple[Path_, Json]]:
    """Every field that is no map, or an empty one, with its path."""
    if isinstance(value, dict) and (value or not above):
        for key, below in value.items():
            yield from leaves(below, (*above, key))
    elif value is not None:
        yield above, value


def _set(document: Json, path: Path_, value: Json) -> None:
    *above, last = path
    for part in above:
        if document.get(part) is None:
            document[part] = {}
        document = document[part]
    if value != {} or not document.get(last):  # an empty map is merged with what is there, like any other
        document[last] = copy.deepcopy(value)


def _delete(document: Json, path: Path_) -> None:
    *above, last = path
    for part in above:
        document = document.get(part) or {}
    document.pop(last, None)


def _managed_fields(owners: Mapping[Path_, set[tuple[str, str]]]) -> list[Json]:
    by_manager: dict[tuple[str, str], Json] = {}
    for path, holders in sorted(owners.items()):
        for holder in holders:
            _set(by_manager.setdefault(holder, {}), tuple(f"f:{part}" for part in path), {})
    return [
        {
            "manager": manager,
            "operation": operation,
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
            "subresource": "status",
        }
        for (manager, operation), fields in sorted(by_manager.items())
    ]


def _owners(node: Json) -> dict[Path_, set[tuple[str, str]]]:
    owners: dict[Path_, set[tuple[str, str]]] = {}
    for entry in node["metadata"].get("managedFields", ()):
        for path, _ in leaves(entry["fieldsV1"]):
            plain = tuple(part.removeprefix("f:") for part in path)
            owners.setdefault(plain, set()).add((entry["manager"], entry["operation"]))
    return owners


# --- what an API server checks ----------------------------------------------------------------------------------------


def _check_version(node: Json, sent: Json) -> None:
    version = sent.get("metadata", {}).get("resourceVersion")
    if version is not None and version != node["metadata"]["resourceVersion"]:
        message = f'Operation cannot be fulfilled on nodes "{node["metadata"]["name"]}": the object has been modified'
        raise Refusal(409, "Conflict", message)


def _check_quantities(before: Json, node: Json) -> None:
    """Refuse what is new and no quantity, and write the others as an API server does."""
    for section in ("capacity", "allocatable"):
        old, new = ((of.get("status") or {}).get(section) or {} for of in (before, node))
        for name, value in new.items():
            if name in old and value == old[name]:
                continue
            if before and not re.fullmatch(r"[0-9.]+(e[+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", str(value)):
                raise Refusal(400, "BadRequest", f"quantities must match the regular expression: {name}: {value!r}")
            new[name] = canonical(value)


def canonical(quantity: Json) -> Json:
    """A whole number the way an API server writes it; anything else as it is."""
    if not re.fullmatch(r"\d+", str(quantity)):
        return quantity
    number, suffixes = int(quantity), iter(("k", "M", "G", "T", "P", "E"))
    suffix = ""
    while number and number % 1000 == 0 and suffix != "E":
        number, suffix = number // 1000, next(suffixes)
    return f"{number}{suffix}"


# --- HTTP -------------------------------------------------------------------------------------------------------------


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: ApiServer, port: int, context: ssl.SSLContext | None) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()
        self._context = context
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context is not None:  # the handshake is for the connection's own thread: it may fail, and take long
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the standard library
        error = sys.exception()
        if not isinstance(error, OSError):  # connections that end early are what these tests are about
            self.api.bugs.append(error)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in tuple(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has just gone by itself


def _server_context(*, mutual: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if mutual:
        context.load_verify_locations(cadata=tls.NODE_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as chain:  # the ssl module takes them from files only
        chain.write(tls.CERTIFICATE + tls.KEY)
        chain.flush()
        context.load_cert_chain(chain.name)
    return context


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the whole answer in one packet, ...
    disable_nagle_algorithm = True  # ... at once: otherwise each takes 44 ms
    server: _HttpServer

    def do_GET(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
        """Say nothing."""

    def _serve(self) -> None:
        api, body = self.server.api, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        headers = {key.title(): value for key, value in self.headers.items()}
        request = Request(self.command, url.path, query, headers, json.loads(body) if body else None)
        match api.next_cue(request):
            case Answer(status, said, extra):
                self._send(status, said, extra)
                return
            case Hang():
                api.hang()
                self.close_connection = True
                return
            case Drop(after):
                if after:
                    api.answer(request)
                self.close_connection = True
                return
            case Meanwhile(action):
                action()
            case Stream(parts):
                self._stream(parts)
                return
            case None:
                pass
        try:
            if request.is_watch:
                self._stream_events(api.watch(request))
            else:
                self._send(200, api.answer(request), {})
        except Refusal as refusal:
            self._send(refusal.code, refusal.status, {})

    def _stream_events(self, events: Iterator[Json]) -> None:
        self._stream(json.dumps(event).encode() + b"\n" for event in events)

    def _stream(self, parts: Iterable[bytes]) -> None:
        self._begin_stream()
        for part in parts:
            self._chunk(part)
        self._chunk(b"")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, said: Json, extra: Mapping[str, str]) -> None:
        text = isinstance(said, str)
        body = said.encode() if text else b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "text/plain" if text else "application/json", **extra}.items():
            if value:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
