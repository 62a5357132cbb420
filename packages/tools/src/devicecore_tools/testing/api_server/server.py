"""A small, strict API server, so that drivers and adapters run without a cluster.

Law: what a test does to objects obeys the same rules, and is seen by the same watches, as what a client does.
"""

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import evolve

from devicecore.ports.context import Runs
from devicecore.runtime.lifecycle import Lifecycle
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
"""About how many bytes of memory the details of requests may take that are kept in `LocalApiServer.requests`."""

_MAX_PATH = 200  # characters of the path of a request that is kept without details

DEFAULT_NAMESPACES = ("default", "kube-system", "kube-node-lease")


class LocalApiServer(Runs):
    """Serves the kinds of `resource.k8s.io`, and what drivers need next to them, on a free port of this machine.

    These are Nodes, Pods, Namespaces, Events, ConfigMaps, Secrets, ServiceAccounts, Leases, and what
    CustomResourceDefinitions define, which are created like other objects.

    Use it as a context manager, or call `start` and `stop`; after a stop, `start` serves the same objects on the same
    port. It knows the verbs get, list, watch (with bookmarks and initial events), create, update, patch (of all four
    kinds), delete and deletecollection, versions and conflicts, owners of fields, finalizers, and the rules of each
    kind; of pods binding, eviction and the grace period. It does not know CEL and garbage collection, and of admission
    only the taint of a new Node and NodeRestriction. No controller runs: a test marks a Node whose Lease is late. It
    answers in JSON, and it also reads the objects of these kinds that a client sends as protobuf, except
    `skipNodeOperations`.

    Args:
        tls: the server's context for TLS; None for plain HTTP.
        bearer: the token that clients must show. It is None if they need none.
        resource_versions: the versions of `resource.k8s.io` that are served, the preferred one first: `v1`, `v1beta2`
            and `v1beta1` are known. Objects are kept as `v1`.
        clock: the time, for timestamps.
        watch_seconds: how long a watch lasts if the client does not say.
        bookmark_seconds: how often a watch sends a bookmark.
        serves_watch_list: whether a watch may ask for initial events, as client-go does since 1.35.
        seed: decides the UIDs and the random part of generated names.
        users: the user of each token that clients may show instead of `bearer`. `system:node:NAME` may do what the
            node authorizer and the admission plugin NodeRestriction leave to a node; other users may do everything.
    """

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
        """Verbs with their resource, such as `patch nodes/status`, that are refused. Also those that the change of a
        claim's status needs: `update resourceclaims/binding`, and `associated-node:update resourceclaims/driver`, the
        latter for one driver alone with its name: `associated-node:update resourceclaims/driver gpu.example.com`."""
        self.requests: list[Request] = []
        """What clients asked so far, in the order in which they were read. Very many are kept without details."""
        self.bugs: list[BaseException] = []
        """Exceptions of this server's own. `stop` raises the first."""
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
        """The versions in which each group is served, the preferred one first; the core group is empty."""
        return self.kinds.versions

    def start(self) -> None:
        """Listen. A second start does nothing."""
        self._lifecycle.start(self._begin, self._end)

    def stop(self) -> None:
        """End all connections and stop listening. The objects stay. A second stop does nothing.

        Raises:
            Exception: the first bug of the server that a request has met.
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
        """Its URL, as a kubeconfig has it."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self._port

    def kubeconfig(
        self, path: Path, user: Mapping[str, Any] = {}, *, authority: Path | None = None, namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig for this server to `path`, whose only user has these credentials. Return `path`.

        `authority` is the file of the certificate authority that clients are to trust.
        """
        credentials = dict(user) or ({"token": self.bearer} if self.bearer else {})
        cluster: Json = {"server": self.url}
        if authority is not None:
            cluster["certificate-authority"] = str(authority)
        name = "devicecore"
        context = {"cluster": name, "user": name, "namespace": namespace}
        parts = {"clusters": ("cluster", cluster), "users": ("user", credentials), "contexts": ("context", context)}
        lists = {part: [{"name": name, field: value}] for part, (field, value) in parts.items()}
        config = {"apiVersion": "v1", "kind": "Config", **lists, "current-context": name}
        path.touch(mode=0o600)  # it may hold a token
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")  # JSON is YAML
        return path

    # --- objects ------------------------------------------------------------------------------------------------------

    def create(self, body: Json, *, manager: str = "other") -> Json:
        """Create an object whose `kind` says what it is. A claim's or a Node's `status` is taken, too.

        Raises:
            ApiError: it exists, or breaks the rules of its kind.
            UnknownKindError: the server has no such kind.
        """
        given = str((body.get("metadata") or {}).get("namespace") or "default")
        kind, namespace, _ = self._place(str(body.get("kind")), "", given, str(body.get("apiVersion", "")))
        with self.store.transaction():
            created = self.store.create(kind, namespace, body, manager=manager)
            if kind.has_status and body.get("status"):
                whole = {**created, "status": {**created.get("status", {}), **body["status"]}}
                place = ObjectPlace(kind, namespace, created["metadata"]["name"])
                return self.store.update(place, whole, in_status=True, manager=manager)
            return created

    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        """An object as it is now.

        Raises:
            ApiError: it does not exist.
        """
        return self.store.get(self._place(kind, name, namespace))

    def objects(self, kind: str, namespace: str | None = None) -> list[Json]:
        """All objects of a kind, or those of one namespace, by name."""
        self._check_process()
        return copied(self.store.select(self.kinds.named(kind), namespace, lambda _: True)[0])

    def change(
        self,
        kind: str,
        name: str,
        change: Callable[[Json], object],
        namespace: str = "default",
        *,
        manager: str = "other",
    ) -> Json:
        """Change an object in place, its status included, as another client would.

        Raises:
            ApiError: it does not exist, or breaks the rules of its kind afterwards.
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

    def bind(self, pod: str, node: str, namespace: str = "default") -> None:
        """Bind a pod to a node, as a scheduler does.

        Raises:
            ApiError: the pod does not exist, is bound or is being deleted.
        """
        self.store.bind(self._place("Pod", pod, namespace), {"target": {"name": node}})

    def delete(self, kind: str, name: str, namespace: str = "default", grace: int | None = None) -> Json:
        """Delete an object. `grace` is the grace period of a pod, in seconds. Return what it was.

        Raises:
            ApiError: it does not exist.
        """
        return self.store.delete(self._place(kind, name, namespace), grace=grace)

    def _check_process(self) -> None:
        """Raise ForkedError in a fork: its copy of the objects is not what the server serves."""
        self._lifecycle.check_process()

    def _place(self, kind: str, name: str, namespace: str, api_version: str = "") -> ObjectPlace:
        self._check_process()
        found = self.kinds.named(kind, api_version)
        return ObjectPlace(found, namespace if found.namespaced else "", name)

    # --- faults, and looking on ---------------------------------------------------------------------------------------

    def inject(
        self,
        *faults: Fault,
        verb: str = "",
        resource: str = "",
        method: str = "",
        times: int | None = 1,
        every: int = 1,
    ) -> None:
        """Apply these faults, one after another, each to the next `times` requests that fit. None means all."""
        with self._lock:
            self._planned += [PlannedFault(fault, verb, resource, method, times, every) for fault in faults]

    def clear_faults(self) -> None:
        """Forget the faults that were not applied yet."""
        with self._lock:
            self._planned.clear()

    def cut_watches(self, *, within_line: bool = False) -> None:
        """End every watch that is open now. With `within_line` it is after half of an event."""
        self.cuts_lines = within_line
        self.watch_generation += 1
        self.store.wake()

    def release(self) -> None:
        """End all requests that hang or are delayed."""
        self._released.set()

    def wait_for(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until something is true, which is evaluated after each request and each write.

        Raises:
            TimeoutError: it was not true within `timeout` seconds.
        """
        if not self.store.wait_for(condition, timeout):
            asked = [f"{request.method} {request.path}" for request in self.requests[-5:]]
            raise TimeoutError(f"condition not met within {timeout:g} s; the last requests were {asked}")

    # --- called while a request is served -----------------------------------------------------------------------------

    def next_fault(self, request: Request) -> Fault | None:
        """Note a request. Return what to do with it, None for the usual."""
        self.note(request)
        with self._lock:
            planned = next((one for one in self._planned if one.fits(request)), None)
            fault = planned.fault if planned is not None and planned.is_due() else None
            self._planned = [one for one in self._planned if one.times != 0]
        self.store.wake()
        return fault

    def note(self, request: Request) -> None:
        """Note a request. If the others already take much memory, note only what it is for."""
        added = weight([request.path, request.query, request.headers, request.body])
        with self._lock:
            self._noted += added
            if self._noted > MAX_NOTED:
                request = evolve(request, path=request.path[:_MAX_PATH], query={}, headers={}, body=None)
            self.requests.append(request)

    def authorize(self, request: Request, target: Target | None) -> None:
        """Refuse a client that has not shown a token, or may not do this.

        Raises:
            ApiError: it is refused.
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
        """Refuse a client that may not make this change in the status of a claim.

        Raises:
            ApiError: it is refused, or the request would be.
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
        """Wait to be released."""
        self._released.wait()

    def wait(self, seconds: float) -> None:
        """Wait this long, or to be released."""
        self._released.wait(seconds)
