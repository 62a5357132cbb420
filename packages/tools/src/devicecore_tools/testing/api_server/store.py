"""The API server's objects, their versions and their history.

Laws: a single counter numbers all writes, so versions show the order of the writes. A write that changes nothing
creates no version and no event. A watcher that starts at a version sees every later event once and in order, or an
error that its version has expired.
"""

import copy
import json
import random
import re
import threading
import uuid
from base64 import b64encode
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, takewhile
from operator import itemgetter
from typing import NamedTuple

from attrs import frozen

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server import claim_rules, fields, pod_rules, status
from devicecore_tools.testing.api_server.causes import Field, label_causes, mapping_of, objects_in
from devicecore_tools.testing.api_server.kinds import DEFINITION, NAMESPACE, Kind, Kinds
from devicecore_tools.testing.api_server.selectors import Selector
from devicecore_tools.testing.api_server.shapes import tidy, wrong_types
from devicecore_tools.testing.api_server.status import ApiError, Cause, Json, copied
from devicecore_tools.testing.api_server.versions import LISTS

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_PREFIX = 58
"""How much of `generateName` is used in a name, so that the name is at most 63 characters long."""
_EXPONENT = re.compile(r"[eE][+-]?\d")  # a quantity with an exponent is stored as written
_SECTIONS = ("capacity", "allocatable")  # sections of a Node's status that contain quantities
_TYPE = ("apiVersion", "kind")
_SERVER_FIELDS = ("uid", "creationTimestamp", "selfLink", "generation", "managedFields", "deletionTimestamp")
_NOT_OWNED = (*_SERVER_FIELDS, "name", "namespace", "resourceVersion", "deletionGracePeriodSeconds")
MAX_EVENTS = 10_000
"""How many events are kept for watchers. A watcher that is further behind must list again."""

MAX_WEIGHT = 256 * 1024 * 1024
"""The approximate memory limit, in bytes, for all objects. A write beyond the limit is refused, as by a full etcd."""

MAX_HISTORY = 64 * 1024 * 1024
"""The approximate memory limit, in bytes, for the events kept for watchers."""

_VALUE_BYTES = 500  # bytes of memory for each value in an object, with its path and owners

_ADMIN_LABEL = "resource.kubernetes.io/admin-access"

_STATE = ("_objects", "_weight", "_events", "_history", "_version", "_forgotten")

Key = tuple[str, str]
"""A namespace, which is empty for kinds without namespaces, and a name."""


class ObjectPlace(NamedTuple):
    """Where an object is stored. The namespace is empty for kinds without namespaces."""

    kind: Kind
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """The namespace and the name."""
        return self.namespace, self.name


def weight(value: object) -> int:
    """Return the approximate memory use of a JSON value, in bytes."""
    text = json.dumps(value)
    return len(text) + _VALUE_BYTES * text.count(", ")


def _now() -> datetime:
    return datetime.now(UTC)


@frozen
class Stored:
    """A stored object, the owners of its fields, and its approximate memory use in bytes."""

    value: Json
    owners: fields.Owners
    weight: int


@frozen
class Event:
    """One write: the object before and after it (None if it does not exist at that point), and the object's weight."""

    version: int
    kind: Kind
    before: Json | None
    after: Json | None
    weight: int

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return str(((self.after or self.before) or {})["metadata"].get("namespace", ""))

    def seen_by(self, selector: Selector) -> tuple[str, Json] | None:
        """Return the type and object that a watcher with this selector receives, or None if it receives nothing.

        To the watcher, an object that no longer matches looks deleted, and an object that now matches looks added.
        """
        matched = self.before is not None and selector(self.before)
        matches = self.after is not None and selector(self.after)
        if matches and self.after is not None:
            return ("MODIFIED" if matched else "ADDED"), self.after
        if matched and self.before is not None:
            gone = copied(self.before)
            gone["metadata"]["resourceVersion"] = str(self.version)
            return "DELETED", gone
        return None


class ObjectStore:
    """All objects, for use by several threads.

    Objects are copied when they are stored and, except by `select` and `events_after`, when they are returned.

    Args:
        kinds: the server's kinds, which change when definitions are stored.
        clock: returns the time, in UTC.
        seed: determines the uids and the random part of generated names.

    Attributes:
        similar_uids: whether new uids differ only in their last 12 digits, which reveals clients that truncate uids.
    """

    def __init__(self, kinds: Kinds, *, clock: Callable[[], datetime] = _now, seed: int = 0) -> None:
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - uids of a test server are not secret
        self.similar_uids = False
        self._kinds = kinds
        self._objects: defaultdict[str, dict[Key, Stored]] = defaultdict(dict)
        self._weight = 0  # the weight of all objects together
        self._events: deque[Event] = deque()
        self._history = 0  # the weight of all events
        self._version = 1000
        self._forgotten = self._version  # the version up to which events have been dropped
        self._changed = threading.Condition(threading.RLock())

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, place: ObjectPlace) -> Json:
        """Return one object. Raises ApiError if the object does not exist."""
        with self._changed:
            return copied(self._stored(place).value)

    def has(self, place: ObjectPlace) -> bool:
        """Return whether the object exists."""
        with self._changed:
            return place.key in self._objects[place.kind.resource]

    def select(self, kind: Kind, namespace: str | None, selector: Selector) -> tuple[list[Json], int]:
        """Return the selected objects in one namespace or in all, sorted by namespace and name, and the list's version.

        The returned objects are the stored ones, which are never modified, because each write creates a new object.
        """
        with self._changed:
            stored = sorted(self._objects[kind.resource].items(), key=itemgetter(0))
            values = [one.value for (found_in, _), one in stored if namespace in (None, found_in)]
            return list(filter(selector, values)), self._version

    def events_after(self, version: int, kind: Kind) -> tuple[list[Event], int]:
        """Return the events of a kind after `version`, and the version through which they are complete.

        Raises ApiError if the history does not reach back that far.
        """
        with self._changed:
            if version < self._forgotten:
                raise status.expired(version, self._forgotten)
            later = takewhile(lambda event: event.version > version, reversed(self._events))
            return [event for event in later if event.kind.resource == kind.resource][::-1], self._version

    def wait_for(self, condition: Callable[[], object], timeout: float) -> bool:
        """Wait at most `timeout` seconds for `condition` to become true, and return whether it has become true.

        The condition is evaluated after each write, and after each call of `wake`.
        """
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout))

    @property
    def version(self) -> int:
        """The version of the last write."""
        return self._version

    def wake(self) -> None:
        """Wake all waiting threads, so that they evaluate their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def forget_events(self) -> None:
        """Inject a fault: forget the history, so that watches from an older version get an `Expired` error."""
        with self._changed:
            self._events.clear()
            self._history = 0
            self._forgotten = self._version

    # --- writing ------------------------------------------------------------------------------------------------------

    def create(
        self, kind: Kind, namespace: str, body: Json, *, manager: str = "unknown", operation: str = "Update"
    ) -> Json:
        """Create an object. `status` is ignored for kinds with that subresource, except for Nodes and Namespaces.

        Raises ApiError if the object exists, or breaks the rules of its kind.
        """
        _refuse_wrong_types(kind, body, {})
        value = {**_tidied(kind, body), "apiVersion": kind.api_version, "kind": kind.kind}
        metadata = value["metadata"] = dict(value.get("metadata") or {})
        if metadata.get("resourceVersion"):
            raise ApiError(500, "InternalError", "resourceVersion should not be set on objects to be created")
        for name in _SERVER_FIELDS:
            metadata.pop(name, None)
        with self._changed:
            if not metadata.get("name") and metadata.get("generateName"):
                suffix = "".join(self._random.choices(_SUFFIX_LETTERS, k=5))
                metadata["name"] = metadata["generateName"][:_MAX_PREFIX] + suffix
            self._check_metadata(kind, namespace, metadata)
            if kind.namespaced:
                metadata["namespace"] = namespace
            place = ObjectPlace(kind, namespace, metadata["name"])
            if kind.has_status and kind.group:
                value.pop("status", None)
            self._apply_defaults(kind, value)
            me = (manager, operation, "")
            owned = _owned(body if operation == "Apply" else value)
            sent = fields.keyed({name: part for name, part in owned.items() if name != "status" or not kind.has_status})
            if operation == "Apply":
                _, owners = fields.applied({}, sent, {}, me, kind.api_version, force=True)
            else:
                owners = fields.updated({}, sent, {}, me)
            kind.complete(value)
            _refuse_if(
                kind,
                metadata["name"],
                [*label_causes(value), *kind.causes(value, None), *self._admin_access_causes(kind, namespace, value)],
            )
            _write_quantities(value, {})
            if place.key in self._objects[kind.resource]:
                is_ending = "deletionTimestamp" in self._stored(place).value["metadata"]
                raise status.already_exists(kind.resource, place.name, is_ending=is_ending)
            bits = 48 if self.similar_uids else 128
            metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(bits), version=4))
            metadata["creationTimestamp"] = self._timestamp()
            if kind.has_generation:
                metadata["generation"] = 1
            return self._write(place, value, owners, writer=me)

    def create_by_update(self, place: ObjectPlace, body: Json, *, manager: str) -> Json:
        """Create an object that an update names but that does not exist.

        Raises ApiError if the update is for an object that once existed, and in every case in which `create` raises it.
        """
        metadata = body.get("metadata") or {}
        _check_name(place, metadata)
        absent = {"name": place.name, "namespace": place.namespace, "uid": "", "resourceVersion": ""}
        _check_preconditions(place.kind, {"metadata": absent}, {"uid": metadata.get("uid")})
        sent = {name: value for name, value in metadata.items() if name != "resourceVersion"}
        return self.create(place.kind, place.namespace, {**body, "metadata": sent}, manager=manager)

    def update(self, place: ObjectPlace, body: Json, *, in_status: bool, manager: str = "unknown") -> Json:
        """Replace an object, or its status.

        Raises ApiError if the object does not exist, has a different UID or version than `body` states, or would break
        the rules of its kind.
        """
        with self._changed:
            known = self._objects[place.kind.resource].get(place.key)  # kube-apiserver reads the body first
            _refuse_wrong_types(place.kind, body, {} if known is None else known.value)
            sent = body.get("metadata") or {}
            _check_name(place, sent)
            stored = self._stored(place)
            before = stored.value
            if place.kind.needs_version and not sent.get("resourceVersion"):
                detail = "must be specified for an update"
                cause = Cause("metadata.resourceVersion", "Invalid value: 0", detail)
                raise status.invalid(place.kind.resource, place.name, [cause])
            _check_preconditions(place.kind, before, sent)
            after = _combined(place.kind, before, _tidied(place.kind, body), in_status=in_status)
            me = (manager, "Update", "status" if in_status else "")
            old, new = (fields.keyed(_owned(value)) for value in (before, after))
            owners = stored.owners
            named = sent.get("managedFields")
            if isinstance(named, list) and named != before["metadata"].get("managedFields", []):
                with suppress(ValueError, RecursionError):  # kube-apiserver also ignores invalid fields
                    owners = fields.owners_of(named)
            return self._replace(place, after, fields.updated(old, new, owners, me), writer=me)

    def patch(self, place: ObjectPlace, change: Callable[[Json], Json], *, in_status: bool, manager: str) -> Json:
        """Replace an object, or its status, with the result of `change`.

        Raises ApiError as `update` and `change` do.
        """
        with self._changed:
            before = self._stored(place).value
            changed = change(copied(before))
            if problem := _undecodable(place.kind, changed, before):
                shown = foreign_text(json.dumps(json.dumps(changed)), 100)
                raise status.invalid("", "", [Cause("patch", f"Invalid value: {shown}", problem)])
            uid = Field("", changed)["metadata"]["uid"]
            if uid.value:  # the UID in a patch is a change, not a precondition
                uid.unchanged(before["metadata"]["uid"])
            _refuse_if(place.kind, place.name, uid.causes)
            return self.update(place, changed, in_status=in_status, manager=manager)

    def apply(self, place: ObjectPlace, body: Json, *, in_status: bool, manager: str, force: bool) -> Json:
        """Apply an object on the server side. An object that does not exist is created, except through its status.

        Raises ApiError if another manager owns a field with a different value and `force` is not set, and in every case
        in which `update` raises it.
        """
        (kind, namespace, name), metadata = place, body.get("metadata") or {}
        if metadata.get("name", name) != name or body.get("kind", kind.kind) != kind.kind:
            raise status.bad_request("the object applied is not the one of the request")
        if "managedFields" in metadata:
            raise status.bad_request("metadata.managedFields must be nil")
        with self._changed:
            if in_status:
                self._stored(place)
            _refuse_wrong_types(kind, body, {})
            if place.key not in self._objects[kind.resource]:
                sent = {**body, "metadata": {**metadata, "name": name}}
                return self.create(kind, namespace, sent, manager=manager, operation="Apply")
            stored = self._stored(place)
            before = stored.value
            _check_preconditions(kind, before, metadata)
            sent = copied(_owned(body))
            _write_quantities(sent, before)
            if kind.has_status:
                sent = {name: part for name, part in sent.items() if (name == "status") is in_status}
            old, me = fields.keyed(_owned(before)), (manager, "Apply", "status" if in_status else "")
            free = _last_applied(before, old) if manager == "kubectl" else frozenset()
            applied, owners = fields.applied(
                old, fields.keyed(sent), stored.owners, me, kind.api_version, force=force, free=free
            )
            after = _tidied(kind, fields.unkeyed(applied))
            kept = {key: value for key, value in before["metadata"].items() if key in _NOT_OWNED}
            after |= {"metadata": {**kept, **after.get("metadata", {})}, **{key: before[key] for key in _TYPE}}
            return self._replace(place, after, owners, writer=None if applied == old else me)

    def bind(self, place: ObjectPlace, binding: Json) -> None:
        """Bind a pod to a node.

        Raises ApiError if the pod does not exist, is already bound, is being deleted, or is not the pod in the binding.
        """
        with self._changed:
            stored = self._stored(place)
            self._write(place, pod_rules.bound(stored.value, binding, self._clock()), stored.owners)

    def delete(
        self, place: ObjectPlace, preconditions: Mapping[str, str] | None = None, grace: int | None = None
    ) -> Json:
        """Delete an object, or mark it as terminating while it has finalizers or a grace period.

        Return the deleted object, or the object as marked.

        Raises ApiError if the object does not exist, or a precondition does not hold.
        """
        with self._changed:
            stored = self._stored(place)
            before, metadata = stored.value, stored.value["metadata"]
            for field, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                expected = (preconditions or {}).get(field)
                if expected is not None and expected != metadata[field]:
                    problem = _precondition(what, expected, metadata[field])
                    raise status.conflict(place.kind.qualified, place.name, problem)
            ended = place.kind.ending(before, grace, self._clock()) if place.kind.ending else None
            if ended is not None:
                before = self._write(place, ended, stored.owners)
                metadata = before["metadata"]
            if metadata.get("deletionGracePeriodSeconds"):
                return copied(before)
            if metadata.get("finalizers"):
                if "deletionTimestamp" in metadata:
                    return copied(before)
                ending = {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": 0}
                if metadata.get("generation"):
                    ending["generation"] = metadata["generation"] + 1
                return self._write(place, {**before, "metadata": {**metadata, **ending}}, stored.owners)
            return self._remove(place)

    def delete_collection(self, kind: Kind, namespace: str | None, selector: Selector) -> list[Json]:
        """Delete every matching object, and return the objects as they were. It is not an error if none matches."""
        with self._changed:
            found, _ = self.select(kind, namespace, selector)
            for one in [value["metadata"] for value in found]:
                self.delete(ObjectPlace(kind, one.get("namespace", ""), one["name"]))
            return copied(found)

    # --- the parts of a write -----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Block all other writes, so that a series of reads and writes is atomic."""
        with self._changed:
            yield

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """At the end of the block, undo all writes made in it, as for a dry run. No watch sees these writes."""
        with self._changed:
            before = {name: copy.copy(getattr(self, name)) for name in _STATE}
            self._objects = defaultdict(dict, {plural: dict(found) for plural, found in self._objects.items()})
            try:
                with self._kinds.rehearsal():
                    yield
            finally:
                for name, value in before.items():
                    setattr(self, name, value)

    def _stored(self, place: ObjectPlace) -> Stored:
        found = self._objects[place.kind.resource].get(place.key)
        if found is None:
            raise status.not_found(place.kind.resource, place.name)
        return found

    def _check_metadata(self, kind: Kind, namespace: str, metadata: Json) -> None:
        name = metadata.get("name")
        if not name:
            detail = "name or generateName is required"
            raise status.invalid(kind.qualified, "", [Cause("metadata.name", "Required value", detail)])
        if metadata.get("namespace", namespace) != namespace:
            message = (
                "the namespace of the provided object does not match the namespace sent on the request: "
                f"expected {namespace}, got {metadata['namespace']}"
            )
            raise status.bad_request(message)
        _refuse_if(kind, str(name), kind.name_causes(str(name)))
        if kind.namespaced:
            self._stored(ObjectPlace(NAMESPACE, "", namespace))

    def _replace(self, place: ObjectPlace, after: Json, owners: fields.Owners, *, writer: fields.Owner | None) -> Json:
        kind, stored = place.kind, self._stored(place)
        before = stored.value
        _write_quantities(after, before)
        self._apply_defaults(kind, after)
        _drop_stale_device_statuses(after, before)
        causes = [*label_causes(after), *_finalizer_causes(after, before), *kind.causes(after, before)]
        if after.get("status") != before.get("status"):
            causes += kind.status_causes(after, before)
        _refuse_if(kind, place.name, causes)
        if kind.has_generation and after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        pending = after["metadata"].get("finalizers") or after["metadata"].get("deletionGracePeriodSeconds")
        if "deletionTimestamp" in after["metadata"] and not pending:
            last = self._with_managed_fields(place, after, owners, writer)
            self._remove(place)  # watches see the old object, and the client gets the new object
            return last
        return self._write(place, after, owners, writer=writer)

    def _write(
        self, place: ObjectPlace, value: Json, owners: fields.Owners, *, writer: fields.Owner | None = None
    ) -> Json:
        kind, stored = place.kind, self._objects[place.kind.resource].get(place.key)
        before = None if stored is None else stored.value
        value = self._with_managed_fields(place, value, owners, writer)
        if before is not None and _is_same(before, value):
            return copied(before)
        added = weight(value)
        more = added - (0 if stored is None else stored.weight)
        if self._weight + more > MAX_WEIGHT:
            raise ApiError(500, "InternalError", "etcdserver: mvcc: database space exceeded")
        self._weight += more
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        value = copied(value)
        self._objects[kind.resource][place.key] = Stored(value, owners, added)
        if kind is DEFINITION:
            self._kinds.define(value)
        self._note(Event(self._version, kind, before, value, added))
        return copied(value)

    def _with_managed_fields(
        self, place: ObjectPlace, value: Json, owners: fields.Owners, writer: fields.Owner | None
    ) -> Json:
        """Return the written object with its `managedFields`."""
        stored = self._objects[place.kind.resource].get(place.key)
        earlier = [] if stored is None else stored.value["metadata"].get("managedFields", [])
        known = {} if stored is None else stored.owners
        managed = fields.managed_fields(
            owners, place.kind.api_version, known, earlier, now=self._timestamp(), writer=writer
        )
        metadata = {name: part for name, part in value["metadata"].items() if name != "managedFields"}
        metadata |= {"managedFields": managed} if managed else {}
        return {**value, "metadata": metadata}

    def _remove(self, place: ObjectPlace) -> Json:
        gone = self._objects[place.kind.resource].pop(place.key)
        self._weight -= gone.weight
        if place.kind is DEFINITION:
            kind = self._kinds.forget(gone.value)
            for key in [*self._objects[place.name]]:
                self._remove(ObjectPlace(kind, *key))
        self._version += 1
        self._note(Event(self._version, place.kind, gone.value, None, gone.weight))
        return copied(gone.value)

    def _note(self, event: Event) -> None:
        self._events.append(event)
        self._history += event.weight
        while len(self._events) > MAX_EVENTS or (len(self._events) > 1 and self._history > MAX_HISTORY):
            oldest = self._events.popleft()
            self._forgotten = oldest.version
            self._history -= oldest.weight
        self._changed.notify_all()

    def _apply_defaults(self, kind: Kind, value: Json) -> None:
        """Set the defaults that kube-apiserver sets."""
        kind.set_defaults(value)
        if kind.resource == "secrets":
            value.setdefault("type", "Opaque")
            for name, text in (value.pop("stringData", None) or {}).items():
                value["data"] = {**(value.get("data") or {}), name: b64encode((text or "").encode()).decode()}
        for exact in _requests(kind, value):
            exact["allocationMode"] = exact.get("allocationMode") or "ExactCount"
            if exact["allocationMode"] == "ExactCount":
                exact["count"] = exact.get("count") or 1  # protobuf sends 0 for a field that is not set
            for toleration in exact.get("tolerations") or []:
                toleration["operator"] = toleration.get("operator") or "Equal"
        if kind.plural == "resourceslices":
            for device in _entries(value, LISTS[kind.plural]):
                for taint in device.get("taints") or []:
                    taint.setdefault("timeAdded", self._timestamp())

    def _admin_access_causes(self, kind: Kind, namespace: str, value: Json) -> Iterator[Cause]:
        """Yield the causes for refusing admin access, which needs a label on the namespace."""
        if not any(exact.get("adminAccess") for exact in _requests(kind, value)):
            return
        labels = self._stored(ObjectPlace(NAMESPACE, "", namespace)).value["metadata"].get("labels") or {}
        if labels.get(_ADMIN_LABEL) != "true":
            detail = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
            yield Cause("spec.devices.requests", "Forbidden", detail)

    def _timestamp(self) -> str:
        return self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def _quantities(after: Json, before: Json) -> Iterator[tuple[Json, str, str]]:
    """Yield each changed quantity in a Node's status, with its map and its name."""
    for section in _SECTIONS:
        old, new = (mapping_of(mapping_of(of.get("status")).get(section)) for of in (before, after))
        yield from [(new, name, str(value)) for name, value in new.items() if name not in old or value != old[name]]


def _write_quantities(after: Json, before: Json) -> None:
    """Normalize the quantities in a Node's status in place, as Kubernetes does."""
    for section, name, text in _quantities(after, before):
        if not _EXPONENT.search(text):
            section[name] = str(Quantity.parse(text))


def _wrong_quantities(after: Json, before: Json) -> Iterator[str]:
    for section, name, text in _quantities(after, before):
        try:
            Quantity.parse("0" if section[name] is None else text)
        except InvalidQuantityError:
            yield "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _refuse_if(kind: Kind, name: str, causes: list[Cause]) -> None:
    if causes:
        raise status.invalid(kind.qualified, name, causes)


def _finalizer_causes(after: Json, before: Json) -> Iterator[Cause]:
    """Yield causes for new finalizers on an object that is being deleted."""
    old, new = (objects["metadata"].get("finalizers") or [] for objects in (before, after))
    if "deletionTimestamp" in before["metadata"] and (more := sorted({*new} - {*old})):
        shown = f"[]string{{{', '.join(json.dumps(one) for one in more)}}}"
        detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {shown}"
        yield Cause("metadata.finalizers", "Forbidden", detail)


def _tidied(kind: Kind, body: Json) -> Json:
    return copied(body) if kind.is_custom else tidy(kind.kind, body, kind.api_version)


def _refuse_wrong_types(kind: Kind, body: Json, before: Json) -> None:
    if problem := _undecodable(kind, body, before):
        text = f'{kind.kind} in version "{kind.api_version.rpartition("/")[2]}" cannot be handled as a {kind.kind}'
        raise status.bad_request(f"{text}: {problem}")


def _undecodable(kind: Kind, after: Json, before: Json) -> str:
    """Return why an object cannot be decoded into the Go type of its kind, or an empty string."""
    wrong = (
        f"json: {problem}" for problem in wrong_types("" if kind.is_custom else kind.kind, after, kind.api_version)
    )
    return next(chain(wrong, _wrong_quantities(after, before)), "")


def _precondition(what: str, expected: str, actual: str) -> str:
    end = "deleted and then recreated" if what == "UID" else "modified"
    return (
        f"the {what} in the precondition ({expected}) does not match the {what} in record ({actual}). "
        f"The object might have been {end}"
    )


def _check_name(place: ObjectPlace, sent: Json) -> None:
    if sent.get("name") not in (None, "", place.name):
        message = f"the name of the object ({sent['name']}) does not match the name on the URL ({place.name})"
        raise status.bad_request(message)


def _check_preconditions(kind: Kind, before: Json, sent: Json) -> None:
    """Refuse a write that was meant for a different object, or for a different version of this object."""
    metadata = before["metadata"]
    name, place = metadata["name"], metadata.get("namespace")
    if sent.get("uid") not in (None, "", metadata["uid"]):
        key = "/registry/" + "/".join(part for part in (kind.plural, place, name) if part)
        problem = (
            f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition "
            f"failed: UID in precondition: {sent['uid']}, UID in object meta: {metadata['uid']}"
        )
        raise status.conflict(kind.resource, name, problem)
    if sent.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
        raise status.modified(kind.resource, name)


def _combined(kind: Kind, before: Json, sent: Json, *, in_status: bool) -> Json:
    """Return the result of writing a whole object, which replaces either all but the status or only the status."""
    if in_status:
        return {**before, "status": copied(sent.get("status") or {}), "metadata": dict(before["metadata"])}
    after = copied(sent)
    after["metadata"] = {**(after.get("metadata") or {}), "name": before["metadata"]["name"]}
    for name in (*_SERVER_FIELDS, "resourceVersion", "namespace", "deletionGracePeriodSeconds"):
        after["metadata"].pop(name, None)
        if name in before["metadata"]:
            after["metadata"][name] = before["metadata"][name]
    if kind.has_status:
        after.pop("status", None)
        if "status" in before:
            after["status"] = copied(before["status"])
    return {"apiVersion": before.get("apiVersion"), "kind": before.get("kind"), **after}


def _drop_stale_device_statuses(after: Json, before: Json) -> None:
    """Drop the statuses of devices that this write deallocates from a claim."""
    written, known = (((of.get("status") or {}).get("devices") or []) for of in (after, before))
    if written and (before.get("status") or {}).get("allocation") != after["status"].get("allocation"):
        results = ((after["status"].get("allocation") or {}).get("devices") or {}).get("results") or []
        allocated = [claim_rules.device_key(result) for result in results]
        after["status"]["devices"] = [
            entry for entry in written if entry not in known or claim_rules.device_key(entry) in allocated
        ]


def _owned(value: Json) -> Json:
    """Return the part of an object whose fields have owners."""
    metadata = {name: part for name, part in mapping_of(value.get("metadata")).items() if name not in _NOT_OWNED}
    rest = {name: part for name, part in value.items() if name not in (*_TYPE, "metadata")}
    return {**rest, **({"metadata": metadata} if metadata else {})}


def _last_applied(before: Json, old: Json) -> fields.Fields:
    """Return the fields unchanged since a client-side `kubectl apply`, which a server-side apply may change."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):  # users may have changed what kubectl wrote
        text = before["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
        last = fields.keyed(_owned(mapping_of(json.loads(text))))
        return frozenset(fields.fields_of(last)).difference(*fields.changes(last, old))
    return frozenset()


def _is_same(before: Json, after: Json) -> bool:
    """Return whether a write changes neither the object nor the ownership of its fields."""
    if _without_version(before) != _without_version(after):
        return False
    first, second = (value["metadata"].get("managedFields", []) for value in (before, after))
    return _without_times(first) == _without_times(second)


def _without_version(value: Json) -> Json:
    metadata = {
        name: part for name, part in value["metadata"].items() if name not in ("resourceVersion", "managedFields")
    }
    return {**value, "metadata": metadata}


def _without_times(entries: list[Json]) -> list[Json]:
    return [{name: part for name, part in entry.items() if name != "time"} for entry in entries]


def _requests(kind: Kind, value: Json) -> list[Json]:
    """Return a claim's or a template's exact requests and alternatives."""
    requests = _entries(value, LISTS[kind.plural]) if kind.plural.startswith("resourceclaim") else []
    exact = [request["exactly"] for request in requests if isinstance(request.get("exactly"), dict)]
    return exact + [one for request in requests for one in objects_in(request.get("firstAvailable"))]


def _entries(value: Json, path: tuple[str, ...]) -> list[Json]:
    """Return the objects in the list at a path in an object."""
    *above, last = path
    for name in above:
        value = mapping_of(value.get(name))
    return objects_in(value.get(last))
