"""The result of an allocation: the devices for each claim in the API's form, or why the claims cannot be allocated.

Law: the same arguments give the same result, except for share ids, which the caller may choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID, uuid5

from attrs import frozen

from devicecore.domain.allocation.errors import ExpressionError
from devicecore.domain.allocation.faults import Cause, Release, names_of
from devicecore.domain.allocation.model import DeviceClass, DeviceRequest, Features, TargetNode, UnallocatedClaim
from devicecore.domain.allocation.reasons import DeviceVerdict
from devicecore.domain.allocation.search import Taken

ApiObject = dict[str, object]

_SHARES = UUID("6f0a3c4e-5d0b-4b57-9a5e-3f0f6f1c2d11")
"""The namespace of share ids."""


@frozen
class DeviceAllocation:
    """The devices that claims get on a node.

    Attributes:
        claims: the claims, in the order in which they were given.
        taken: the devices, in the order in which they were taken.
        causes: what keeps the release's scheduler from finding correct devices; empty if it finds them, or if its
            answer is unknown.
    """

    claims: tuple[UnallocatedClaim, ...]
    node: TargetNode
    classes: Mapping[str, DeviceClass]
    features: Features
    taken: tuple[Taken, ...]
    causes: tuple[Cause, ...] = ()
    release: Release = Release.V1_37

    @property
    def faults(self) -> tuple[str, ...]:
        """The causes, by the names that docs/claims.md uses."""
        return names_of(self.causes)

    def devices(self, claim: int = 0) -> tuple[Taken, ...]:
        """Return the devices of the claim at this position."""
        return tuple(one for one in self.taken if one.claim == claim)

    def results(self, share_ids: Iterator[str] | None = None) -> list[ApiObject]:
        """Return the `status.allocation` of each claim.

        Args:
            share_ids: the ids of shares. The ids must be UUIDs that no other share has. Without these ids, each id is
                derived from the claim's name, the device and the share's position in the claim, so claims with
                different names get different ids.
        """
        return [
            self._result(number, claim, share_ids or self._ids(number, claim))
            for number, claim in enumerate(self.claims)
        ]

    def _ids(self, number: int, claim: UnallocatedClaim) -> Iterator[str]:
        shares = (one for one in self.devices(number) if one.candidate.device.is_shared)
        for place, taken in enumerate(shares):
            yield str(uuid5(_SHARES, f"{claim.name} {taken.key} {place}"))

    def _result(self, number: int, claim: UnallocatedClaim, ids: Iterator[str]) -> ApiObject:
        taken = self.devices(number)
        devices: ApiObject = {"results": [self._device(one, ids) for one in taken]}
        if config := self._config(claim, taken):
            devices["config"] = config
        selector = self._node_selector(taken)
        return {"devices": devices, "nodeSelector": selector} if selector else {"devices": devices}

    def _device(self, taken: Taken, ids: Iterator[str]) -> ApiObject:
        request, device = taken.request, taken.candidate.device
        driver, pool, name = taken.key
        result: ApiObject = {"request": request.result_name, "driver": driver, "pool": pool, "device": name}
        if request.admin_access:
            result["adminAccess"] = True
        if request.tolerations:
            result["tolerations"] = [one.source for one in request.tolerations]
        if device.is_shared and self.features.consumable_capacity:
            result["shareID"] = next(ids)
            if taken.consumed:
                result["consumedCapacity"] = {name: str(amount) for name, amount in taken.consumed.items()}
        if device.conditions and self.features.binding_conditions:
            result["bindingConditions"] = list(device.conditions)
            if device.failure_conditions:
                result["bindingFailureConditions"] = list(device.failure_conditions)
        if skipped := taken.candidate.slice.skip_node_operations:
            result["skipNodeOperations"] = list(skipped)
        return result

    def _config(self, claim: UnallocatedClaim, taken: Sequence[Taken]) -> list[ApiObject]:
        """Return the classes' parameters, and then the claim's parameters.

        Since Kubernetes 1.37, parameters that apply to all requests name no request.
        """
        chosen = [
            next(one for one in alternatives if any(device.request is one for device in taken))
            for alternatives in claim.requests
        ]
        of_class: dict[str, list[str]] = {}
        for request in chosen:
            of_class.setdefault(request.device_class, []).append(request.result_name)
        config: list[ApiObject] = [
            {"source": "FromClass", "requests": requests, **entry}
            for name, requests in of_class.items()
            for entry in self.classes[name].config
        ]
        for entry in claim.config:
            names = entry.get("requests") or []
            every = {name: value for name, value in entry.items() if name != "requests"}
            if not names:
                config.append({**every, "source": "FromClaim"})
            elif isinstance(names, list):
                about = [request for request in chosen if any(name in names for name in request.names)]
                # Before 1.37, there is a copy of the parameters for each request.
                copies = about[:1] if not self.release.is_before_1_37 else about
                config += [{**entry, "source": "FromClaim", "requests": names} for _ in copies]
        if not self.release.is_before_1_37:  # no names: all requests
            config = [_without_requests(one) if _is_for(one, chosen) else one for one in config]
        return config

    def _node_selector(self, taken: Sequence[Taken]) -> ApiObject | None:
        """Return the nodes on which the devices can be used, or None if they can be used on all nodes."""
        term: dict[str, list[object]] = {"matchFields": [], "matchExpressions": []}
        for one in taken:
            place = one.candidate.slice.place_of(one.candidate.device)
            if place.node or one.candidate.device.binds_to_node:
                fields = [{"key": "metadata.name", "operator": "In", "values": [self.node.name]}]
                return {"nodeSelectorTerms": [{"matchFields": fields}]}
            for part, requirements in term.items():
                for requirement in place.requirements(part):
                    if requirement not in requirements:
                        requirements.append(requirement)
        written = {part: requirements for part, requirements in term.items() if requirements}
        return {"nodeSelectorTerms": [written]} if written else None


def _is_for(config: ApiObject, requests: Sequence[DeviceRequest]) -> bool:
    """Return whether parameters name every request."""
    names = config.get("requests")
    return isinstance(names, list) and all(any(name in names for name in one.names) for one in requests)


def _without_requests(config: ApiObject) -> ApiObject:
    return {name: value for name, value in config.items() if name != "requests"}


@frozen
class NoAllocation:
    """Why the claims get no devices on a node. Like the refusal of a pod, this object counts as false.

    Attributes:
        problem: why there are no devices, in one sentence.
        verdicts: for each request and each device in the node's pools, the first reason for rejecting the device, if
            there is one.
        is_error: whether a scheduler reports an error: the problem is not the devices but the claims, the classes, an
            expression or a pool.
        stops_pod: whether the error keeps a scheduler from trying other nodes.
        is_unknown: whether the search was abandoned, in which case the answer is unknown.
        causes: the faults that make a scheduler of the release allocate devices against the rules.
        unusable: the pools that provide no devices, each with the reason.
        expression_error: the error, if an expression caused the problem.
    """

    problem: str
    verdicts: tuple[DeviceVerdict, ...] = ()
    is_error: bool = False
    stops_pod: bool = False
    is_unknown: bool = False
    causes: tuple[Cause, ...] = ()
    unusable: tuple[str, ...] = ()
    expression_error: ExpressionError | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """The causes, by the names that docs/claims.md uses."""
        return names_of(self.causes)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.problem
