"""What is observed in every call and every event of a run, regardless of what checks compare.

Law: what a check has itself reported is not reported a second time.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.text import counted, foreign_text
from devicecore.system.cdi import UnresolvableError
from devicecore_tools.conformance.dra.calls import CallObserver, devices_in
from devicecore_tools.conformance.dra.checks.cdi import directories, edits_of_names, own_paths
from devicecore_tools.conformance.dra.checks.prepare import Rows, difference, parts_of_claim, rows
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.model import Failure, Skip, some
from devicecore_tools.testing.api_server import ApiError, Json

CHANGED = "changed"
"""A prepared claim has changed."""
WRONG = "wrong"
"""An answer was wrong."""
HELD = "held"
"""The driver did not release a claim's devices."""
WRITTEN = "written"
"""The driver has changed a part of a claim that does not belong to it."""
LOST = "lost"
"""A device is no longer published."""

_BACK = 10.0  # seconds for a restarted driver to publish all of its devices

_BURST, _REFILLED = 10, 2.0
"""How many requests Kubernetes' Go client makes at once by default, and after how many seconds it can do so again."""

_Signature = Mapping[str, tuple[int, int, int]]  # inode, time of change and size of each file, by path
_Allocated = Sequence[tuple[str, str, str]]  # pool, device and request of each result


@frozen
class Took:
    """How long a driver took for a claim, in seconds.

    Attributes:
        whole: from the call to the answer.
        after: from the last request for a claim to the answer, because a client may limit its requests per second.
        is_free: whether the driver had made so few requests that its client delayed none of them.
    """

    whole: float
    after: float
    is_free: bool


@frozen
class _Kept:
    """A prepared claim: its allocation, the driver's answer, and what its containers get and mount."""

    claim: Claim
    allocated: _Allocated
    answer: Rows
    names: Sequence[str]
    edits: frozenset[str]
    mounted: Sequence[str]


@define(eq=False)
class CallWatch(CallObserver):
    """Observes all calls that a run makes one after another. Calls that overlap are left to the checks that make them.

    Attributes:
        found: for each kind of problem (this module's constants), a sentence for each check during which it was seen.
        made: how many answers were examined.
        failed: the names of the checks that have failed, with their groups.
        ended: the UIDs of claims that were prepared and unprepared since the driver last lost files.
        took: for each process of the driver, how long it took for each claim for one device, in order.
    """

    driver: DriverUnderTest
    found: dict[str, dict[str, str]] = field(factory=dict)
    made: int = 0
    failed: dict[str, str] = field(factory=dict)
    ended: set[str] = field(factory=set)
    took: dict[int, list[Took]] = field(factory=dict)
    _began: float = 0.0
    _asked: int = 0  # how many requests the API server had received before the call
    _alive: set[str] = field(factory=set)  # the UIDs of claims that were prepared, but not unprepared
    _check: str = ""
    _group: str = ""
    _kept: dict[str, _Kept] = field(factory=dict)
    _seen: _Signature = field(factory=dict)
    _version: int = 0
    _thread: int = field(factory=threading.get_ident)
    _were_resolved: bool = False

    def begins_check(self, name: str, group: str) -> None:
        """Note which check runs from now on."""
        self._check, self._group = name, group

    def ends_check(self, *, is_failed: bool) -> None:
        """Note how the check ended. If it failed, nothing that was seen during the check is reported again."""
        if is_failed:
            self.failed[self._check] = self._group
            for of_check in self.found.values():
                of_check.pop(self._check, None)

    def note(self, what: str, sentence: str) -> None:
        """Note that something was wrong, once for each check."""
        if self.is_paused:
            return
        self.found.setdefault(what, {}).setdefault(self._check, sentence)

    # --- calls --------------------------------------------------------------------------------------------------------

    def begins(self, claims: Sequence[Claim], *, is_unprepare: bool) -> None:
        """Remember the API server's state before a call, and forget which claims the call may change."""
        is_mine = threading.get_ident() == self._thread
        for claim in claims:
            if is_unprepare or not is_mine:
                self._kept.pop(claim.uid, None)
            if not is_unprepare or not is_mine:
                self.ended.discard(claim.uid)
            if not is_mine:
                self._alive.discard(claim.uid)
            # Kubernetes' helper names a directory after a claim's name; a kubelet knows one claim of a name at a time.
            for uid, one in list(self._kept.items()):
                if uid != claim.uid and one.claim.ref.key == claim.ref.key:
                    del self._kept[uid]
        if is_mine:
            self._version = self.driver.api.store.version
            self._began, self._asked = time.monotonic(), len(self.driver.api.requests)

    def ends(self, claims: Sequence[Claim], answer: Mapping[str, Any], *, is_unprepare: bool) -> None:
        """Examine the answers to a call, and check the other claims."""
        if threading.get_ident() != self._thread:
            return
        done = "unprepared" if is_unprepare else "prepared"
        if not is_unprepare:
            self._measure(claims, answer)
        if is_unprepare:
            uids = {claim.uid for claim in claims if claim.uid in answer and not answer[claim.uid].error}
            self.ended |= self._alive & uids
            self._alive -= uids
        with suppress(OSError, Skip):  # such as a directory that was removed, which other checks report
            self._compare_objects(done)
            if not is_unprepare:
                for claim in claims:
                    is_twice = claims.count(claim) > 1  # the answer may then list each device twice
                    if claim.uid in answer and not answer[claim.uid].error and not is_twice:
                        self._alive.add(claim.uid)
                        self._examine(claim, devices_in(answer, claim))
            self._look(f"when another claim was {done}")

    def _measure(self, claims: Sequence[Claim], answer: Mapping[str, Any]) -> None:
        """Note how long the driver took for a new claim for one device."""
        now, process = time.monotonic(), self.driver.process.running
        (claim, *others) = claims or (None,)
        if claim is None or others or process is None or claim.uid in self._alive or len(claim.devices) != 1:
            return
        if claim.uid in answer and not answer[claim.uid].error:
            requests = self.driver.api.requests
            asked = [one.at for one in requests[self._asked :] if "resourceclaims" in one.resource]
            before = takewhile(lambda one: one.at > self._began - _REFILLED, reversed(requests))
            took = Took(now - self._began, now - max([self._began, *asked]), sum(1 for _ in before) <= _BURST)
            self.took.setdefault(process.pid, []).append(took)

    def drops(self) -> None:
        """Forget all claims."""
        for uids in (self._kept, self._alive, self.ended):
            uids.clear()

    def keeps_devices(self, claims: Sequence[Claim], why: str) -> None:
        """Note that the driver has not released the devices of these claims."""
        devices = [str(device) for claim in claims for device in claim.devices]
        self.note(HELD, f"{some(devices)} stayed in use: {why}")

    def happens(self, what: str, *, keeps_claims: bool) -> None:
        """Check the claims after an event, or forget them if the event may change them."""
        if not keeps_claims:
            self.drops()
        with suppress(OSError, Skip):
            if self._kept:
                _ = self.driver.slices.catalogue  # after a start, the devices may have other names
            self._look(f"when {what}")

    def lacks_devices(self, before: Mapping[tuple[str, str], object], what: str) -> None:
        """Note devices that are no longer published some time after an event, unless others have taken their place."""
        slices = self.driver.slices

        def lost() -> set[tuple[str, str]]:
            _ = slices.catalogue
            now = slices.by_key.keys()
            return set() if now - before.keys() else before.keys() - now

        with suppress(Skip):
            if lost() and not slices.expects_changes and not self.driver.process.wait(lambda: not lost(), _BACK):
                self.note(LOST, f"after {what}, {some(sorted('/'.join(key) for key in lost()))} was not published")

    def _examine(self, claim: Claim, devices: Sequence[Any]) -> None:
        """Compare an answer with the claim's allocation and with an earlier answer."""
        self.made += 1
        former = self._kept.pop(claim.uid, None)
        allocated = self._allocated(claim)
        if not allocated or not {key[:2] for key in allocated} <= self.driver.slices.by_key.keys():
            return  # a driver should refuse a claim for a device that it does not publish, as other checks report
        answer = rows(devices)
        for problem in self._problems(answer, allocated):
            self.note(WRONG, f"the answer for {_of(claim)} {problem}")
        names = sorted({name for row in answer for name in row.cdi})
        try:
            edits = edits_of_names(self.driver, names)
        except UnresolvableError as error:
            if self._were_resolved and self.driver.environment.has_cdi:
                self.note(WRONG, f"the answer for {_of(claim)} contains CDI devices that cannot be used: {error}")
            return
        self._were_resolved = self._were_resolved or bool(names)
        mounted = own_paths(self.driver, names)
        if missing := [path for path in mounted if not Path(path).exists()]:
            self.note(WRONG, f"containers with {_of(claim)} use {some(missing)}, which does not exist")
        if former is not None and former.allocated == allocated:
            if former.answer != answer:
                text = f"the answer for {_of(claim)} differs from an earlier one"
                self.note(CHANGED, f"{text}: {difference(former.answer, answer)}")
            elif former.edits != edits:
                text = f"the edits for {_of(claim)} differ from the earlier ones"
                self.note(CHANGED, f"{text} in {some(sorted(former.edits ^ edits))}")
        self._kept[claim.uid] = _Kept(claim, allocated, answer, names, edits, mounted)

    def _allocated(self, claim: Claim) -> _Allocated:
        """Return the driver's devices in the claim's allocation, or nothing if the claim's object is gone."""
        try:
            body = self.driver.api.get("ResourceClaim", claim.name, claim.namespace)
        except ApiError:
            return []
        allocation = (body.get("status") or {}).get("allocation") or {}
        if body["metadata"]["uid"] != claim.uid:
            return []
        results: Sequence[Json] = (allocation.get("devices") or {}).get("results") or ()
        own = self.driver.registration.known_name
        return [(one["pool"], one["device"], one["request"]) for one in results if one["driver"] == own]

    @staticmethod
    def _problems(answer: Rows, allocated: _Allocated) -> Iterator[str]:
        keys = {(pool, device) for pool, device, _ in allocated}
        requests: dict[tuple[str, str], set[str]] = {}
        for pool, device, request in allocated:
            requests.setdefault((pool, device), set()).add(request.partition("/")[0])
        others = [f"{row.pool}/{row.device}" for row in answer if (row.pool, row.device) not in keys]
        if others := [foreign_text(one) for one in others if not one.startswith("/") and not one.endswith("/")]:
            yield f"contains {some(others)}, which is not allocated to it"
        for row in answer:
            if more := set(row.requests) - requests.get((row.pool, row.device), set(row.requests)):
                names = some([foreign_text(one) for one in sorted(more)])
                yield f"associates {foreign_text(row.device)} with {names}"
            if invalid := [foreign_text(name) for name in row.cdi if not is_cdi_name(name)]:
                yield f"contains the invalid CDI name {some(invalid)}"

    def _look(self, when: str) -> None:
        """Compare the prepared claims with their previous state."""
        if not self.driver.environment.has_cdi:
            return
        now = dict(self._signature())
        have_changed, self._seen = now != self._seen, now
        for uid, one in list(self._kept.items()):
            is_known = {key[:2] for key in one.allocated} <= self.driver.slices.by_key.keys()
            if one.claim.is_deleted or not is_known:  # the driver may forget the claim
                del self._kept[uid]
                continue
            problem = self._change(one, have_changed=have_changed)
            if problem:
                del self._kept[uid]  # each change is reported only once
                self.note(CHANGED, f"{when}, {problem}")

    def _change(self, one: _Kept, *, have_changed: bool) -> str:
        """Return how a claim has changed, or an empty string. CDI devices are read only if files have changed."""
        if gone := [path for path in one.mounted if not Path(path).exists()]:
            return f"containers with {_of(one.claim)} use {some(gone)}, which is gone"
        if not have_changed:
            return ""
        try:
            edits = edits_of_names(self.driver, one.names)
        except UnresolvableError as error:
            return f"the CDI devices of {_of(one.claim)} were lost: {error}"
        return (
            "" if edits == one.edits else f"the edits for {_of(one.claim)} changed: {some(sorted(edits ^ one.edits))}"
        )

    def _signature(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        for directory in directories(self.driver):
            with suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        yield entry.path, (found.st_ino, found.st_mtime_ns, found.st_size)

    def _compare_objects(self, done: str) -> None:
        """Compare the claims that were written during the call with their previous state."""
        store, own = self.driver.api.store, self.driver.registration.known_name
        if store.version == self._version:
            return
        with suppress(ApiError):  # too much was written in between
            events, self._version = store.events_after(self._version, self.driver.api.kinds.named("ResourceClaim"))
            for event in events:
                if event.before is None:
                    continue
                name = event.before["metadata"]["name"]
                if event.after is None:
                    self.note(WRITTEN, f"when a claim was {done}, the claim {name} was deleted")
                    continue
                before, after = (parts_of_claim(one, own) for one in (event.before, event.after))
                if changed := sorted(part for part, value in before.items() if after[part] != value):
                    self.note(WRITTEN, f"when a claim was {done}, {some(changed)} of the claim {name} changed")


def _of(claim: Claim) -> str:
    return f"the claim for {some(list(map(str, claim.devices))) or 'no device'}"


def watch_of(driver: DriverUnderTest) -> CallWatch:
    """Return what has observed the calls of this run. Raises Skip if the calls were not observed."""
    watch = driver.calls.observer
    if not isinstance(watch, CallWatch):
        raise Skip("the calls were not observed")
    return watch


def report(driver: DriverUnderTest, what: str, *groups: str) -> int:
    """Return how many answers were examined, if nothing was wrong.

    Raises Failure with what was wrong during the run. Raises Skip as `skip_if_reported` does.
    """
    watch = watch_of(driver)
    if found := watch.found.get(what):
        check, sentence = next(iter(found.items()))
        skip_if_reported(watch, sentence, *groups)
        more = f"; the same happened in {counted(len(found) - 1, 'more check')}" if len(found) > 1 else ""
        raise Failure(f"during {check}, {sentence}{more}")
    return watch.made


def skip_if_reported(watch: CallWatch, sentence: str, *groups: str) -> None:
    """Raise Skip with `sentence` if a check in one of the groups has failed, perhaps for the same reason."""
    if others := sorted(name for name, group in watch.failed.items() if group in groups):
        raise Skip(f"the failure of {some(others)} may be the reason for this: {sentence}")
