"""Recorded histories of a kubelet's DRA manager, replayed through `DraManager` with in-memory adapters.

A history may differ only for one of these reasons in docs/dra.md, from the first step to which the reason applies:

* N1: the kubelet appends answers. A device that it lists twice is compared once, and older answers are not compared.
* N3: a pod releases a claim that it does not use (before 1.37). The rest of the history is not compared.
* N5: the kubelet's file is behind its memory. At such a step, the file may have the pod but lack the answer. A kubelet
  that then starts reads this file. If this has an effect, the rest of the history is not compared.
* N6: a pod that names a claim twice fails. The rest of the history is not compared.
* N12: in pod resources, a device also lists the CDI names of the devices before it. These names are ignored.
* N13: a driver has acknowledged a release, or left one unanswered, and is asked to prepare the claim again.
* D25 of docs/differences.md: a pod is refused while its claim is released. The rest of the history is not compared.
* N19: a pod whose status does not name a template's claim is unprepared without an error. The rest is compared.
* N21: pods are told of a change if a report names a device twice, or if, after a restart, a report repeats a message
  that was cut within a character. The rest of the history is not compared.

Steps without a recorded outcome are not compared, because from there on, the kubelet's own answer is random.

Each reason is recognized from the recording itself, so that it excuses no other difference.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pytest

from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.claims import ClaimInfo
from devicecore.domain.dra.errors import DraError, OldClaimError, UnprepareError
from devicecore.domain.dra.health import MAX_MESSAGE, HealthCache, HealthUpdate, pods_to_notify
from devicecore.domain.dra.lookup import claim_keys
from devicecore.domain.dra.model import ClaimKey, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.model import PodUid
from devicecore.domain.objects import pod_of
from tests import recorded
from tests.dra_histories import Replay

Json = Any  # recorded data, whose structure the comparison itself checks

HISTORIES = list(recorded.lines("dra/histories*.jsonl"))
HEALTH = list(recorded.lines("dra/health*.jsonl"))

# The histories in this repository that differ from some step on: their numbers and these steps, by reason.
N6 = (
    *((3, 21), (4, 6), (7, 7), (8, 6), (9, 20), (13, 7), (23, 7), (26, 7), (31, 31), (38, 25), (40, 7), (48, 7)),
    *((50, 7), (52, 28), (56, 7), (61, 7), (66, 25), (72, 6), (75, 14), (87, 12), (89, 5), (103, 20)),
    *((136, 30), (185, 6), (186, 7), (188, 11), (201, 6), (222, 6), (232, 6)),
)
D25 = ((80, 14), (99, 22), (158, 31))
DIFFERENT = {
    f"20261121-{number:04}": (step, reason) for reason, steps in (("N6", N6), ("D25", D25)) for number, step in steps
}

ARE_OURS = len(HISTORIES) == 180  # other recordings differ elsewhere, for the same reasons

FOREIGN = ("transport:", "unknown service", "json:")  # how error messages from Go's libraries begin


class Comparison:
    """What the recording of one history has shown so far, and the reason if the rest is not compared."""

    def __init__(self) -> None:
        self.replay = Replay()
        self.before: dict[ClaimKey, ClaimInfo] = {}  # as in the kubelet's file
        self.answered: dict[tuple[str, str], list[set[PreparedDevice]]] = {}  # by claim UID and driver
        self.has_repeated = False  # an answer listed a device twice
        self.released: dict[str, set[str]] = {}  # by claim UID: drivers that have released it, or may have
        self.is_behind = False  # the kubelet's file is behind its memory
        self.has_lost = False  # the kubelet has started with a file that was behind its memory
        self.has_restarted = False
        self.outcome: Json = None  # our last answer
        self.different: str | None = None

    def play(self, step: Json) -> None:
        """Play a step and compare its outcome with the recorded one.

        Raises:
            AssertionError: the outcome differs for an unknown reason.
        """
        expect = step["expect"]
        self.outcome = self.replay.play(step)
        self.has_restarted |= step["op"] == "restart"
        self.different = self._reason(step)
        if step["op"] == "restart" and self.is_behind:
            self.has_lost |= state_of(expect["state"]) != kept(self.outcome["state"].claims)
        if self.different is None:
            try:
                self._compare(step, self.outcome)
            except AssertionError:
                if not self.has_lost:
                    raise
                self.different = "N5"
        self._learn(expect)

    def _reason(self, step: Json) -> str | None:
        """Return the reason why this step and later steps may differ, or None."""
        error = step["expect"].get("error", "")
        if self._is_asked_twice(step["expect"]["calls"]):
            return "N6"
        if error.endswith("is being unprepared") and (self._prepares() or self._meets_an_old_claim(step)):
            return "D25"
        if step["op"] == "unprepare" and self._takes_a_claim_away(step):
            return "N3"
        if step["op"] == "health" and self._is_told_without_a_change(step):
            return "N21"
        if step["op"] == "prepare" and step["expect"]["ok"]:
            again = {call[4] for call in self.replay.calls if call[3] == PREPARE}
            asked = {uid for claims in again for _, _, uid in claims}
            recorded_ = {claim["uid"] for call in step["expect"]["calls"] for claim in call["claims"]}
            if asked - recorded_ and all(self.released.get(uid) for uid in asked - recorded_):
                return "N13"
        return None

    def _is_asked_twice(self, calls: Json) -> bool:
        """Return whether the kubelet names a claim twice in a call to a driver, and we name it once."""
        twice = any(len({claim["uid"] for claim in call["claims"]}) < len(call["claims"]) for call in calls)
        once = [(*call[:4], tuple(dict.fromkeys(call[4]))) for call in map(call_of, calls)]
        return twice and set(once) <= set(self.outcome["calls"])

    def _is_told_without_a_change(self, step: Json) -> bool:
        """Return whether only the kubelet tells pods of a device that a report names twice, or of a cut message."""
        ours, theirs = self.outcome["updates"], step["expect"].get("updates")
        if not theirs or {**self.outcome, "updates": theirs} != step["expect"]:
            return False
        counts = Counter((one["Pool"], one["Device"]) for one in step.get("devices", ()))
        repeated = {
            (one["Pool"], one["Device"])
            for one in step.get("devices", ())
            if counts[one["Pool"], one["Device"]] > 1 or (self.has_restarted and _is_cut_in_two(one["Message"]))
        }
        changed = HealthUpdate(HealthCache(), frozenset((step["name"], *device) for device in repeated))
        told, more = set(chain(*ours)), pods_to_notify(changed, self.replay.manager.claims)
        return told < set(chain(*theirs)) <= told.union(more)

    def _prepares(self) -> bool:
        """Return whether we prepare the pod, or would if no driver failed or were missing."""
        outcome = self.outcome
        asked = any(call[3] == PREPARE for call in outcome["calls"])
        failed = "NodePrepareResources: rpc error" in outcome.get("error", "")  # even if no call reached it
        return bool(outcome["ok"]) or asked or failed or outcome["error"].endswith("is not registered")

    def _meets_an_old_claim(self, step: Json) -> bool:
        """Return whether we refuse a pod because the kubelet's file has an old UID for another of the pod's claims."""
        pod, error = pod_of(self.replay.manifests[step["pod"]]), step["expect"]["error"]
        for key in claim_keys(pod):
            known, claim = self.before.get(key), self.replay.source.claims.get(key)
            if known and claim and known.uid != claim.uid and f" {key.name} is being" not in error:
                return bool(self.outcome["error"].endswith(str(OldClaimError(key.name, known.uid))))
        return False

    def _takes_a_claim_away(self, step: Json) -> bool:
        """Return whether the kubelet releases a claim that another pod uses, or tries to."""
        pod = pod_of(self.replay.manifests[step["pod"]])
        called = {claim["name"] for call in step["expect"]["calls"] for claim in call["claims"]}
        if any(
            self.before[key].pods - {pod.uid} for key in self.before.keys() - state_of(step["expect"]["state"]).keys()
        ):
            return True  # no driver has a device of the claim, so none is called
        error = step["expect"].get("error", "")
        if not error.endswith("is not registered"):
            return any(self.before[key].pods - {pod.uid} for key in self.before if key.name in called)
        tried = claim_keys(pod)
        return any(
            self.before[key].pods and pod.uid not in self.before[key].pods for key in tried if key in self.before
        )

    def _compare(self, step: Json, outcome: Json) -> None:
        expect = step["expect"]
        if outcome["ok"] and step["op"] == "unprepare" and not expect["ok"]:
            assert expect["error"] == self._refusal_without_names(step)  # N19
        else:
            assert outcome["ok"] == expect["ok"], outcome.get("error")
            assert own_text(outcome.get("error", "")) == own_text(expect.get("error", ""))
        assert outcome["calls"] == sorted(map(call_of, expect["calls"]))
        if "state" in expect:
            self._compare_states(expect, dict(outcome["state"].claims))
            assert outcome["prepared"] == sorted(expect["prepared"] or ())
        for name, container in expect.get("containers", {}).items():
            self._compare_containers(outcome["containers"][name], container)
        for key in ("value", "logged_error", "applied", "updates"):
            assert outcome.get(key) == expect.get(key)
        if "dynamic_resources" in expect:
            listed = [own_ids(resource) for resource in expect["dynamic_resources"] or ()]
            self._compare_lists(outcome["dynamic_resources"], listed)
        if "allocatedResourcesStatus" in expect:
            assert statuses(outcome["allocatedResourcesStatus"]) == statuses(expect["allocatedResourcesStatus"])

    def _refusal_without_names(self, step: Json) -> str | None:
        """Return the kubelet's error if the pod's status does not name the claim of a template, or else None."""
        try:
            claim_keys(pod_of(self.replay.manifests[step["pod"]]))
        except DraError as unnamed:
            return str(UnprepareError(unnamed))
        return None

    def _compare_states(self, expect: Json, ours: dict[ClaimKey, ClaimInfo]) -> None:
        theirs = state_of(expect["state"])
        assert ours.keys() == theirs.keys()
        for key, claim in ours.items():
            other = theirs[key]
            assert (claim.uid, claim.drivers.keys()) == (other.uid, other.drivers.keys())
            is_behind = not expect["memory_is_state"]  # N5
            assert claim.pods == other.pods or (is_behind and claim.pods < other.pods)
            for driver, devices in claim.drivers.items():
                former = other.drivers[driver]
                if devices != former and not (is_behind and devices == self._last_answer(expect, claim, driver)):
                    self._is_last_answer(claim, driver, expect, devices or (), former or ())

    def _is_last_answer(
        self,
        claim: ClaimInfo,
        driver: DriverName,
        expect: Json,
        ours: tuple[PreparedDevice, ...],
        theirs: tuple[PreparedDevice, ...],
    ) -> None:
        """Check that the kubelet's additional devices come from earlier answers (N1)."""
        answers = self.answered.get((claim.uid, driver), [])
        before = set().union(*answers)
        is_answered = self._call_about(expect, claim, driver) is not None
        last = self._last_answer(expect, claim, driver) or ()  # a driver may answer without devices
        assert set(ours) == set(last if is_answered else answers[-1])
        assert set(theirs) - set(ours) <= before

    def _last_answer(self, expect: Json, claim: ClaimInfo, driver: DriverName) -> tuple[PreparedDevice, ...] | None:
        """Return the devices in the driver's answer for the claim in this step, or None if there are none."""
        call = self._call_about(expect, claim, driver)
        return tuple(dict.fromkeys(answered_devices(call, claim.uid))) or None if call else None

    def _call_about(self, expect: Json, claim: ClaimInfo, driver: DriverName) -> Json:
        """Return the call of this step in which the driver answers for the claim, or None."""
        calls = (call for call in expect["calls"] if call["driver"] == driver and call["method"] == PREPARE)
        return next((call for call in calls if claim.uid in (call.get("answer") or {})), None)

    def _compare_containers(self, ours: Json, theirs: Json) -> None:
        assert (ours["ok"], ours.get("error")) == (theirs["ok"], theirs.get("error"))
        if theirs["ok"] and ours["cdi"] != (theirs["cdi"] or []):
            self._compare_lists(ours["cdi"], theirs["cdi"])

    def _compare_lists(self, ours: Json, theirs: Json) -> None:
        """Check that two lists are equal, or would be if no driver had answered twice (N1)."""
        if ours == theirs:
            return
        assert self.has_repeated or any(len(answers) > 1 for answers in self.answered.values())
        mine, other = flat(ours), flat(theirs)
        stale = flat_ids(device for answers in self.answered.values() for answer in answers for device in answer)
        assert set(mine) <= set(other)
        assert {item for item in other if item not in mine} <= stale

    def _learn(self, expect: Json) -> None:
        """Record what drivers returned and what the kubelet saved."""
        for call in expect["calls"]:
            for uid, result in (call.get("answer") or {}).items():
                if call["method"] == PREPARE and not (result or {}).get("error"):
                    devices = answered_devices(call, uid)
                    self.answered.setdefault((uid, call["driver"]), []).append(set(devices))
                    self.has_repeated |= len(set(devices)) < len(devices)
                    self.released.pop(uid, None)
                if call["method"] == UNPREPARE and not (result or {}).get("error"):
                    self.released.setdefault(uid, set()).add(call["driver"])
            if call["method"] == UNPREPARE:
                for claim in call["claims"]:
                    if claim["uid"] not in (call.get("answer") or {}):
                        self.released.setdefault(claim["uid"], set()).add(call["driver"])
        if "state" in expect:
            self.is_behind = not expect["memory_is_state"]
            self.before = state_of(expect["state"])
            here = {claim.uid for claim in self.before.values()}
            self.answered = {key: value for key, value in self.answered.items() if key[0] in here}


def _is_cut_in_two(message: str) -> bool:
    """Return whether the length limit cuts the message within a character."""
    text = message.encode()
    return len(text) > MAX_MESSAGE and text[MAX_MESSAGE - len("...")] & 0b1100_0000 == 0b1000_0000


def own_text(error: str) -> str:
    """Return the part of an error message that does not come from a Go library."""
    for foreign in FOREIGN:
        error = error.partition(foreign)[0]
    return error


def call_of(call: Json) -> Json:
    claims = sorted((claim["namespace"], claim["name"], claim["uid"]) for claim in call["claims"])
    return call["driver"], call["instance"], call["version"], call["method"], tuple(claims)


def state_of(state: Json) -> dict[ClaimKey, ClaimInfo]:
    """Return the claims in the kubelet's file, with equal devices listed once (N1)."""
    claims: dict[ClaimKey, ClaimInfo] = {}
    for row in state["claims"] or ():
        key = ClaimKey(row["Namespace"], row["ClaimName"])
        drivers: dict[DriverName, tuple[PreparedDevice, ...] | None] = {
            driver: None if listed["Devices"] is None else tuple(dict.fromkeys(map(saved_device, listed["Devices"])))
            for driver, listed in (row["DriverState"] or {}).items()
        }
        claims[key] = ClaimInfo(key, ClaimUid(row["ClaimUID"]), frozenset(map(PodUid, row["PodUIDs"])), drivers)
    return claims


def kept(claims: Mapping[ClaimKey, ClaimInfo]) -> dict[ClaimKey, ClaimInfo]:
    """Return the claims, reduced to what a file contains."""
    return {key: ClaimInfo(key, claim.uid, claim.pods, claim.drivers) for key, claim in claims.items()}


def saved_device(row: Json) -> PreparedDevice:
    requests, ids = row["RequestNames"], row["CDIDeviceIDs"]
    return device_of(row["PoolName"], row["DeviceName"], row["ShareID"], requests, ids)


def answered_devices(call: Json, uid: str) -> tuple[PreparedDevice, ...]:
    """Return the devices in a driver's answer. `v1beta1` has no share ids."""
    return tuple(
        device_of(
            row.get("pool", ""),
            row.get("device", ""),
            row.get("share_id") if call["version"] == "v1" else None,
            row.get("requests"),
            row.get("cdi"),
        )
        for row in (call["answer"][uid] or {}).get("devices") or ()
    )


def device_of(pool: str, device: str, share: str | None, requests: Json, ids: Json) -> PreparedDevice:
    return PreparedDevice(pool, device, share, tuple(requests or ()) or None, tuple(ids or ()) or None)


def own_ids(resource: Json) -> Json:
    """Return a resource of pod resources with only the devices' own CDI names (N12)."""
    assert resource.keys() == {"claim", "namespace", "resources"}
    before: dict[str, int] = {}
    rows = []
    for row in resource["resources"] or ():
        ids = row.get("cdi") or []
        rows.append({**row, "cdi": ids[before.get(row["driver"], 0) :]})
        before[row["driver"]] = len(ids)
    return {**resource, "resources": rows}


def flat(listed: Json) -> list[str]:
    """Return the CDI names in a list of names or in pod resources."""
    return [id_ for item in listed for id_ in (_ids(item) if isinstance(item, dict) else [item])]


def _ids(resource: Json) -> Iterator[str]:
    for row in resource["resources"]:
        yield from row["cdi"]


def flat_ids(devices: Iterator[PreparedDevice]) -> set[str]:
    return {id_ for device in devices for id_ in device.cdi_ids or ()}


def statuses(containers: Json) -> Json:
    """Return the containers' statuses in sorted order, because a kubelet's order of a claim's drivers is arbitrary."""
    return {
        name: [
            {**row, "resources": sorted(row["resources"], key=lambda one: str(one["resourceID"]))}
            for row in sorted(rows, key=lambda row: str(row["name"]))
        ]
        for name, rows in containers.items()
        if rows
    }


SOME = {history["id"] for history in recorded.share(HISTORIES, 6)}
SHARE = [history for history in HISTORIES if history["id"] in SOME | DIFFERENT.keys()]
SOME_HEALTH = recorded.share(HEALTH, 4)


@pytest.mark.parametrize("history", SHARE, ids=[history["id"] for history in SHARE])
def test_a_history_of_claims_gives_the_same_results_as_a_kubelet(history: Json) -> None:
    """Every step of every recorded history has the recorded outcome, or differs for a reason listed above."""
    comparison = Comparison()
    for number, step in enumerate(history["steps"]):
        if "expect" not in step:
            break
        try:
            comparison.play(step)
        except Exception as error:
            error.add_note(f"step {number}: {step['op']}")
            raise
        if comparison.different:
            assert not ARE_OURS or DIFFERENT.get(history["id"]) == (number, comparison.different)
            return
    assert not ARE_OURS or history["id"] not in DIFFERENT


@pytest.mark.parametrize("history", SOME_HEALTH, ids=[history["id"] for history in SOME_HEALTH])
def test_a_history_of_health_gives_the_same_results_as_a_kubelet(history: Json) -> None:
    comparison = Comparison()
    for step in history["steps"]:
        comparison.play(step)
        assert comparison.different is None
