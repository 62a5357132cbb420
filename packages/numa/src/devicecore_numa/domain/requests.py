"""The parts of a pod that the CPU manager and the memory manager use.

Law: a container's missing request equals its limit, because that is how the API server and the kubelet fill it in.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from attrs import field, frozen

from devicecore.domain.quantity import Quantity

CPU, MEMORY, HUGE_PAGES = "cpu", "memory", "hugepages-"

_ABSENT = Quantity(0)
_NANOS_PER_MILLI = 10**6
_ALWAYS = "Always"


class Amount(NamedTuple):
    """A request for memory in bytes. `is_int64` says whether Go represents the quantity as an integer."""

    bytes: int
    is_int64: bool


@frozen
class ContainerRequest:
    """One container: the number of its exclusive CPUs, if any, and its memory by resource, including huge pages.

    `ends` says whether the container is an init container that finishes before the next container starts.
    """

    name: str
    cpus: int = 0
    memory: Mapping[str, Amount] = field(factory=dict)
    is_init: bool = False
    restartable: bool = False

    @property
    def ends(self) -> bool:
        """Whether this container finishes before the next container starts, so later containers can reuse its share."""
        return self.is_init and not self.restartable


@frozen
class PodRequest:
    """A pod's containers in the order of their admission, and whether these containers get exclusive CPUs and memory.

    `is_exclusive` is false unless the pod's QoS class is Guaranteed. `is_exclusive` is also false for a pod with
    pod-level resources, because Kubernetes' managers ignore such pods unless the feature gate PodLevelResourceManagers,
    which is off by default, is on.
    """

    uid: str
    containers: tuple[ContainerRequest, ...] = ()
    is_exclusive: bool = False

    def container(self, name: str) -> ContainerRequest:
        """Return the container with this name. Raises KeyError if the pod has no such container."""
        for one in self.containers:
            if one.name == name:
                return one
        raise KeyError(name)

    @property
    def cpus(self) -> int:
        """The number of exclusive CPUs for the whole pod (Kubernetes: `podGuaranteedCPUs`)."""
        return _total([(one, one.cpus) for one in self.containers])

    @property
    def memory(self) -> dict[str, int]:
        """The memory for the whole pod, for each resource that an app container requests.

        Kubernetes: `getPodRequestedResources`.
        """
        names = [name for one in self.containers if not one.is_init for name in one.memory]
        return {
            name: _total([(one, one.memory[name].bytes) for one in self.containers if name in one.memory])
            for name in dict.fromkeys(names)
        }


def _total(requests: Iterable[tuple[ContainerRequest, int]]) -> int:
    running = sidecars = peak = 0
    for container, amount in requests:
        if not container.is_init:
            running += amount
        elif container.restartable:
            sidecars += amount
        else:
            peak = max(peak, sidecars + amount)
    return max(peak, running + sidecars)


def read_pod(pod: Mapping[str, Any]) -> PodRequest:
    """Return the parts of `pod`, an API object, that the managers use.

    Raises:
        InvalidQuantityError: a request or a limit is not a quantity.
    """
    spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
    resources = [
        (one, _Resources.read(one), is_init)
        for is_init, listed in ((True, spec.get("initContainers")), (False, spec.get("containers")))
        for one in listed or ()
    ]
    of_pod = _Resources.read(spec)
    is_pod_level = any(name in (CPU, MEMORY) or name.startswith(HUGE_PAGES) for name in of_pod.named)
    qos = status.get("qosClass")
    if qos:
        is_guaranteed = qos == "Guaranteed"
    else:
        is_guaranteed = bool(resources) and all(one.is_guaranteed for _, one, _ in resources)
    containers = tuple(
        ContainerRequest(
            str(one.get("name", "")),
            cpus=_whole_cpus(own.requests.get(CPU, _ABSENT)),
            memory={
                name: Amount(amount.whole, amount.is_int64)
                for name, amount in sorted(own.requests.items())
                if name == MEMORY or name.startswith(HUGE_PAGES)
            },
            is_init=is_init,
            restartable=is_init and one.get("restartPolicy") == _ALWAYS,
        )
        for one, own, is_init in resources
    )
    uid = str(_mapping(pod.get("metadata")).get("uid", ""))
    return PodRequest(uid, containers, is_exclusive=is_guaranteed and not is_pod_level)


class _Resources(NamedTuple):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]

    @classmethod
    def read(cls, owner: Mapping[str, Any]) -> "_Resources":
        given = _mapping(owner.get("resources"))
        limits = {str(name): Quantity.parse(str(text)) for name, text in _mapping(given.get("limits")).items()}
        requests = {str(name): Quantity.parse(str(text)) for name, text in _mapping(given.get("requests")).items()}
        return cls({**limits, **requests}, limits)

    @property
    def named(self) -> set[str]:
        return {*self.requests, *self.limits}

    @property
    def is_guaranteed(self) -> bool:
        """Whether the requests for CPU and memory are above 0 and equal the limits (Kubernetes: `requirementsQOS`)."""
        pairs = [(self.requests.get(name, _ABSENT), self.limits.get(name, _ABSENT)) for name in (CPU, MEMORY)]
        return all(request.nanos == limit.nanos != 0 for request, limit in pairs)


def _whole_cpus(cpu: Quantity) -> int:
    """Return the number of CPUs in a quantity, or 0 if it is not an integer (Kubernetes: `isIntegralCPUAmount`)."""
    return cpu.whole if cpu.whole * 1000 == -(-cpu.nanos // _NANOS_PER_MILLI) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
