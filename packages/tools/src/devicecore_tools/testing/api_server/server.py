"""A small, strict API server, which lets drivers and adapters run without a cluster.

Law: a test's changes to objects obey the same rules, and are seen by the same watches, as a client's changes.
"""

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import evolve

from devicecore.domain.checks import checked
from devicecore.domain.errors import NotStartedError
from devicecore.ports.context import Runs
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.system.arguments import checks_arguments
from devicecore_tools.testing.api_server.causes import mapping_of
from devicecore_tools.testing.api_server.claim_permissions import STATUS, permission_causes
from devicecore_tools.testing.api_server.faults import Fault, PlannedFault, Request
from devicecore_tools.testing.api_server.http import HttpServer
from devicecore_tools.testing.api_server.kinds import NAMESPACE, Kinds
from devicecore_tools.testing.api_server.node_rules import NODE_USER, NodeRequest
from devicecore_tools.testing.api_server.operations import Target, carry_out
from devicecore_tools.testing.api_server.status import ApiError, Json, copied, invalid
from devicecore_tools.testing.api_server.store import ObjectPlace, ObjectStore, weight

MAX_NOTED = 128 * 1024 * 1024
"""The approximate memory limit, in bytes, for the details of requests in `LocalApiServer.requests`."""

_MAX_PATH = 200  # maximum path length of a request without details

DEFAULT_NAMESPACES = ("default", "kube-system", "kube-node-lease")


class LocalApiServer(Runs):
    """Serves the kinds of `resource.k8s.io`, and whatever else drivers need, on a free port of this machine.

    The other kinds are Nodes, Pods, Namespaces, Events, ConfigMaps, Secrets, ServiceAccounts, Leases, and those that
    CustomResourceDefinitions define; these definitions are created like other objects.

    Use the server as a context manager, or call `start` and `stop`; after a stop, `start` serves the same objects on
    the same port. The server supports the verbs get, list, watch (with bookmarks and initial events), create, update,
    patch (all four kinds), delete and deletecollection. It also implements versions and conflicts, field ownership,
    finalizers, and the rules of each kind, and for pods, binding, eviction and the grace period. The server supports
    neither CEL nor garbage collection, and the only admission plugins are NodeRestriction and TaintNodesByCondition.
    The taint of a Node follows its condition Ready. No other controller runs: the test itself must change the condition
    of a Node whose Lease is late. The server answers in JSON, but also reads protobuf for all built-in kinds except
    CustomResourceDefinitions, without the field `skipNodeOperations`.

    Args:
        tls: the server's TLS context, or None for plain HTTP.
        bearer: the token that clients must present, or None.
        resource_versions: the served versions of `resource.k8s.io`, preferred version first: `v1`, `v1beta2`
            and `v1beta1` are known. Objects are stored as `v1`.
        clock: returns the time, for timestamps.
        watch_seconds: how long a watch lasts if the client does not say.
        bookmark_seconds: how often a watch sends a bookmark.
        serves_watch_list: whether a watch may request initial events, as client-go does from 1.35 on.
        seed: determines the UIDs and the random part of generated names.
        users: maps each token that clients may present instead of `bearer` to its user. `system:node:NAME` may do what
            the node authorizer and the NodeRestriction admission plugin allow a node to do; other users may do
            everything.
    """

    @checks_arguments()
    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        bearer: str | None = None,
        resource_versions: tuple[str, ...] = ("v1",),
        clock: Callable[[], datetime] | None = None,
        watch_seconds: float = 300.0,
        bookmark_seconds: float = 60.0,
        serves_watch_list: bool = True,
        seed: int = 0,
        users: Mapping[str, str] = {},
    ) -> None:
        self.users: Mapping[str, str] = dict(users)
        self.kinds: Kinds = Kinds(resource_versions)
        times = {} if clock is None else {"clock": clock}
        self.store: ObjectStore = ObjectStore(self.kinds, seed=seed, **times)
        self.bearer = bearer
        self.forbidden: set[str] = set()
        """Refused verbs with their resource, such as `patch nodes/status`.

        The set may also contain permissions to change a claim's status, such as `update resourceclaims/binding` and
        `associated-node:update resourceclaims/driver`. A driver's name limits such a permission to this driver:
        `associated-node:update resourceclaims/driver gpu.example.com`.
        """
        self.requests: list[Request] = []
        """The clients' requests so far, in the order in which they were read.

        Once their details exceed `MAX_NOTED`, further requests are stored without details.
        """
        self.bugs: list[BaseException] = []
        """Exceptions caused by bugs in this server. `stop` raises the first such exception."""
        self.watch_seconds = watch_seconds
        self.bookmark_seconds = bookmark_seconds
        self.serves_watch_list = serves_watch_list
        self.watch_generation: int = 0
        self.cuts_lines = False
        self.is_stopping = False
        self._tls = tls
        self._noted = 0
        self._planned: list[PlannedFault] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._lifecycle = Lifecycle("the API server for tests")
        self._http: HttpServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0
        for namespace in DEFAULT_NAMESPACES:
            self.store.create(NAMESPACE, "", {"metadata": {"name": namespace}})

    # --- running it ---------------------------------------------------------------------------------------------------

    @property
    def versions(self) -> Mapping[str, tuple[str, ...]]:
        """The versions in which each group is served, preferred version first. The core group has an empty name."""
        return self.kinds.versions

    def start(self) -> None:
        """Start listening. A second start does nothing."""
        self._lifecycle.start(self._begin, self._end)

    def stop(self) -> None:
        """Close all connections and stop listening. The objects are kept. A second stop does nothing.

        Raises:
            Exception: the first server bug that a request triggered.
        """
        self._lifecycle.stop(self._end)
        if self.bugs:
            raise self.bugs[0]

    def _begin(self) -> None:
        self._released.clear()
        self.is_stopping = False
        self._http = HttpServer(self, self._port, self._tls)
        self._port = self._http.listen()
        serve = {"poll_interval": 0.01}
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs=serve, name="api-server", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self.release()
        self.is_stopping = True
        self.cut_watches()
        if self._http is not None:
            self._http.stop(self._thread)

    def __repr__(self) -> str:
        return f"<LocalApiServer at {self.url}, {len(self.requests)} requests>"

    @property
    def url(self) -> str:
        """The server's URL, as in a kubeconfig."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        """The server's host and port."""
        return "127.0.0.1", self._port

    @checks_arguments()
    def kubeconfig(
        self,
        path: str | PathLike[str],
        user: Mapping[str, Any] = {},
        *,
        authority: str | PathLike[str] | None = None,
        namespace: str = "default",
    ) -> Path:
        """Write a kubeconfig for this server to `path`, and return the path.

        The kubeconfig's only user has the credentials `user`; by default, the token `bearer`. `authority` is the
        certificate file of the authority that clients should trust. Raises NotStartedError before the first start,
        which chooses the port.
        """
        if not self._port:
            raise NotStartedError("the API server")
        credentials = dict(user) or ({"token": self.bearer} if self.bearer else {})
        cluster: Json = {"server": self.url}
        if authority is not None:
            cluster["certificate-authority"] = str(authority)
        name = "devicecore"
        context = {"cluster": name, "user": name, "namespace": namespace}
        parts = {"clusters": ("cluster", cluster), "users": ("user", credentials), "contexts": ("context", context)}
        lists = {part: [{"name": name, field: value}] for part, (field, value) in parts.items()}
        config = {"apiVersion": "v1", "kind": "Config", **lists, "current-context": name}
        file = Path(path)
        file.touch(mode=0o600)  # the file may contain a token
        file.write_text(json.dumps(config, indent=2), encoding="utf-8")  # JSON is YAML
        return file

    # --- objects ------------------------------------------------------------------------------------------------------

    @checks_arguments("body")
    def create(self, body: Json, *, manager: str = "other") -> Json:
        """Create an object of the kind that `body` names. The object's `status` is also stored.

        Raises:
            ApiError: the object exists, or breaks the rules of its kind.
            UnknownKindError: the server has no such kind.
        """
        checked(body, dict, "create: the object, as parsed JSON")
        given = str((body.get("metadata") or {}).get("namespace") or "default")
        kind, namespace, _ = self._place(str(body.get("kind")), "", given, str(body.get("apiVersion", "")))
        with self.store.transaction():
            created = self.store.create(kind, namespace, body, manager=manager)
            if kind.has_status and body.get("status"):
                whole = {**created, "status": {**created.get("status", {}), **body["status"]}}
                place = ObjectPlace(kind, namespace, created["metadata"]["name"])
                return self.store.update(place, whole, in_status=True, manager=manager)
            return created

    @checks_arguments()
    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        """Return the current object.

        Raises:
            ApiError: the object does not exist.
        """
        return self.store.get(self._place(kind, name, namespace))

    @checks_arguments()
    def objects(self, kind: str, namespace: str | None = None) -> list[Json]:
        """Return the objects of a kind, in one namespace or in all, sorted by namespace and name."""
        self._check_process()
        return copied(self.store.select(self.kinds.named(kind), namespace, lambda _: True)[0])

    @checks_arguments()
    def change(
        self,
        kind: str,
        name: str,
        change: Callable[[Json], object],
        namespace: str = "default",
        *,
        manager: str = "other",
    ) -> Json:
        """Change an object in place, including its status, as another client would.

        Raises:
            ApiError: the object does not exist, or breaks the rules of its kind afterwards.
        """
        place = self._place(kind, name, namespace)
        with self.store.transaction():
            before = self.store.get(place)
            after = copied(before)
            change(after)
            if place.kind.has_status and after.get("status") != before.get("status"):
                written = self.store.update(place, after, in_status=True, manager=manager)
                managed = written["metadata"].get("managedFields", [])
                version = written["metadata"]["resourceVersion"]
                after["metadata"] |= {"managedFields": managed, "resourceVersion": version}
            return self.store.update(place, after, in_status=False, manager=manager)

    @checks_arguments()
    def bind(self, pod: str, node: str, namespace: str = "default") -> None:
        """Bind a pod to a node, as a scheduler does.

        Raises:
            ApiError: the pod does not exist, is bound or is being deleted.
        """
        self.store.bind(self._place("Pod", pod, namespace), {"target": {"name": node}})

    @checks_arguments()
    def delete(self, kind: str, name: str, namespace: str = "default", grace: int | None = None) -> Json:
        """Delete an object, and return it as it was deleted or as it is while it terminates.

        `grace` is the grace period of a pod, in seconds.

        Raises:
            ApiError: the object does not exist.
        """
        return self.store.delete(self._place(kind, name, namespace), grace=grace)

    def _check_process(self) -> None:
        """Raise ForkedError in a forked process: its copy of the objects is not what the server serves."""
        self._lifecycle.check_process()

    def _place(self, kind: str, name: str, namespace: str, api_version: str = "") -> ObjectPlace:
        self._check_process()
        found = self.kinds.named(kind, api_version)
        return ObjectPlace(found, namespace if found.namespaced else "", name)

    # --- faults and observation ---------------------------------------------------------------------------------------

    @checks_arguments()
    def inject(
        self,
        *faults: Fault,
        verb: str = "",
        resource: str = "",
        method: str = "",
        times: int | None = 1,
        every: int = 1,
    ) -> None:
        """Inject these faults one after another, each into the next `times` matching requests.

        If `times` is None, the first fault applies to all matching requests.
        """
        with self._lock:
            self._planned += [PlannedFault(fault, verb, resource, method, times, every) for fault in faults]

    def clear_faults(self) -> None:
        """Discard the faults that have not been injected yet."""
        with self._lock:
            self._planned.clear()

    @checks_arguments()
    def cut_watches(self, *, within_line: bool = False) -> None:
        """End every open watch. With `within_line`, cut each watch off in the middle of an event."""
        self.cuts_lines = within_line
        self.watch_generation += 1
        self.store.wake()

    def release(self) -> None:
        """Release all hanging or delayed requests."""
        self._released.set()

    @checks_arguments()
    def wait_for(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until a condition is true. The condition is evaluated after each request and each write.

        Raises:
            TimeoutError: the condition was not true within `timeout` seconds.
        """
        if not self.store.wait_for(condition, timeout):
            asked = [f"{request.method} {request.path}" for request in self.requests[-5:]]
            raise TimeoutError(f"condition not met within {timeout:g} s; the last requests were {asked}")

    # --- called while a request is served -----------------------------------------------------------------------------

    def next_fault(self, request: Request) -> Fault | None:
        """Record a request, and return the request's fault, or None."""
        self.note(request)
        with self._lock:
            planned = next((one for one in self._planned if one.fits(request)), None)
            fault = planned.fault if planned is not None and planned.is_due() else None
            self._planned = [one for one in self._planned if one.times != 0]
        self.store.wake()
        return fault

    def note(self, request: Request) -> None:
        """Record a request, without its query, headers and body if the requests already use a lot of memory."""
        added = weight([request.path, request.query, request.headers, request.body])
        with self._lock:
            self._noted += added
            if self._noted > MAX_NOTED:
                request = evolve(request, path=request.path[:_MAX_PATH], query={}, headers={}, body=None)
            self.requests.append(request)

    def authorize(self, request: Request, target: Target | None) -> None:
        """Refuse a client that has not presented a valid token, or lacks permission for the request.

        Raises:
            ApiError: the client is refused.
        """
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if (self.bearer is not None or self.users) and token not in (self.bearer, *self.users):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if target is None:
            return
        user, (kind, namespace, name), reason = self.users.get(token, ""), target.place, ""
        if user.startswith(NODE_USER):
            resource = kind.resource + (f"/{target.subresource}" if target.subresource else "")
            body = mapping_of(request.body)
            reason = NodeRequest(
                user, request.verb, resource, namespace, name, request.query, body, self._find
            ).refusal()
        if reason or f"{request.verb} {request.resource}" in self.forbidden:
            shown = f'{kind.resource} "{name}"' if name else kind.resource
            scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            message = (
                f'{shown} is forbidden: User "{user or "devicecore"}" cannot {request.verb} resource '
                f'"{request.resource}" in API group "{kind.group}" {scope}'
            )
            raise ApiError(403, "Forbidden", f"{message}: {reason}" if reason else message)

    def _find(self, plural: str, namespace: str, name: str) -> Json | None:
        try:
            return self.get(plural, name, namespace)
        except ApiError:
            return None

    def authorize_change(self, request: Request, target: Target) -> None:
        """Refuse a client that may not make this change to a claim's status.

        Raises:
            ApiError: the change or the request itself is refused.
        """
        if request.resource != STATUS or request.verb == "get" or not self.forbidden:
            return
        before = self.store.get(target.place)
        with self.store.rehearsal():
            carry_out(self.store, request, target)
            after = self.store.get(target.place)
        if causes := permission_causes(self.forbidden, request.verb, before, after):
            raise invalid(target.kind.qualified, before["metadata"]["name"], causes)

    def hang(self) -> None:
        """Wait until `release` is called or the server stops."""
        self._released.wait()

    @checks_arguments()
    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until `release` is called or the server stops."""
        self._released.wait(seconds)
