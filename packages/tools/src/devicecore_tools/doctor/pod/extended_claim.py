"""Builds the claim that a scheduler creates for a pod's extended resources from DeviceClasses.

Law: the requests, their order and their mapping to containers equal those of Kubernetes' `createRequestsAndMappings`.
"""

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from devicecore.domain.allocation import UnallocatedClaim
from devicecore.domain.allocation.model import DeviceRequest
from devicecore.domain.model import Container, Pod, RequestMapping
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.doctor.pod.cluster_objects import may_be_of_a_class

OF_LIMITS = "-extended-resources"
"""What a scheduler appends to a pod's name, before a random suffix, to name the claim for its extended resources.

Our stand-in for that claim has no random suffix.
"""

_MAX_SHOWN = 4  # the maximum number of requests in a sentence


@frozen(eq=False)
class ExtendedRequest(DeviceRequest):
    """A request for the devices that a container needs beyond the devices that it may share with other containers."""

    container: str = ""
    resource: str = ""
    limit: int = 0  # how many devices of the resource the container requests in total


@frozen
class ExtendedResourceClaim(UnallocatedClaim):
    """The claim for a pod's extended resources, with the pod, each resource's class, and the users of each request."""

    pod: Pod | None = None
    classes: Mapping[str, str] = {}
    mappings: tuple[RequestMapping, ...] = ()

    def with_limits(self, limits: Mapping[tuple[str, str], int]) -> "ExtendedResourceClaim":
        """Return the claim for the pod with different limits, given by container and resource."""
        assert self.pod is not None  # noqa: S101 - for mypy: `extended_claim` sets it
        init, main = ([_limited(one, limits) for one in of] for of in (self.pod.init_containers, self.pod.containers))
        made = extended_claim(evolve(self.pod, init_containers=init, containers=main), self.classes)
        return self if made is None else evolve(made, name=self.name)

    @property
    def users(self) -> str:
        """The purpose of each request in words, because a request's name contains only indices."""
        users: dict[tuple[str, str], list[str]] = {}
        for one in self.mappings:
            users.setdefault((one.request, one.resource), []).append(one.container)
        shown = [f"{name} is {resource} of {' and '.join(of)}" for (name, resource), of in sorted(users.items())]
        return foreign_text(listed(shown, _MAX_SHOWN))

    def sizes(self, resource: str) -> dict[str, int]:
        """Return how many devices of a resource each container requests, if any."""
        containers = self.pod.in_start_order if self.pod is not None else ()
        return {one.name: size for one in containers if (size := _size(one, resource))}


def extended_resources(pod: Pod) -> list[str]:
    """Return the pod's resources that DeviceClasses may serve and no claim of the pod covers yet."""
    served = {one.resource for one in pod.extended_claim.mappings} if pod.extended_claim is not None else set()
    names = dict.fromkeys(name for one in pod.in_start_order for name in (*one.limits, *one.requests))
    return [
        name
        for name in names
        if name not in served
        and may_be_of_a_class(name)
        and any(_size(container, name) for container in pod.in_start_order)
    ]


def extended_claim(pod: Pod, classes: Mapping[str, str]) -> ExtendedResourceClaim | None:
    """Return the claim for the resources that classes serve, or None if the pod requests no such resource."""
    requests: list[ExtendedRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        long_lived: dict[int, ExtendedRequest] = {}
        for index, container in enumerate(pod.in_start_order):
            if not _ends(pod, index) and (request := _request(index, container, resource, classes[resource], ())):
                long_lived[index] = request
        requests += long_lived.values()
        mappings += (RequestMapping(one.container, resource, one.name) for one in long_lived.values())
        made, mapped = _of_init_containers(pod, resource, classes[resource], long_lived)
        requests += made
        mappings += mapped
    requests.sort(key=lambda one: one.name)
    if not requests:
        return None
    name = f"{pod.namespace}/{pod.name}{OF_LIMITS}"
    return ExtendedResourceClaim(name, tuple((one,) for one in requests), (), (), pod, classes, tuple(mappings))


def _of_init_containers(
    pod: Pod, resource: str, device_class: str, long_lived: Mapping[int, ExtendedRequest]
) -> tuple[Sequence[ExtendedRequest], Sequence[RequestMapping]]:
    """Return the request that init containers other than sidecars share (the largest), and each request's users."""
    made: list[ExtendedRequest] = []
    mappings: list[RequestMapping] = []
    for index, container in enumerate(pod.in_start_order):
        if not _ends(pod, index):
            continue
        # Containers that start later are not running yet, so their devices are free.
        later = [one for number, one in long_lived.items() if number >= index]
        used = list(_used(later, _size(container, resource)))
        mappings += (RequestMapping(container.name, resource, one.name) for one in used)
        if request := _request(index, container, resource, device_class, used):
            made.append(request)
            mappings.append(RequestMapping(container.name, resource, request.name))
    if not made:
        return (), mappings
    largest = max(made, key=lambda one: one.count)  # the first request if several are equally large
    own = {one.name for one in made}
    return [largest], [evolve(one, request=largest.name) if one.request in own else one for one in mappings]


def _used(later: Sequence[ExtendedRequest], size: int) -> Iterator[ExtendedRequest]:
    """Yield the requests of other containers that a container can use before it needs a request of its own."""
    total = 0
    for one in later:
        if total >= size:
            return
        total += one.count
        yield one


def _request(
    index: int, container: Container, resource: str, device_class: str, used: Sequence[ExtendedRequest]
) -> ExtendedRequest | None:
    """Return the request for a container's additional devices, or None if the devices that it can share suffice."""
    size, has = _size(container, resource), sum(one.count for one in used)
    if size <= has:
        return None
    # An API server sets requests from limits, so a container with limits has both.
    number = sorted({*container.limits, *container.requests}).index(resource)
    return ExtendedRequest(
        f"container-{index}-request-{number}",
        "",
        device_class,
        count=size - has,
        container=container.name,
        resource=resource,
        limit=size,
    )


def _ends(pod: Pod, index: int) -> bool:
    """Return whether the container at this position in start order is an init container but not a sidecar."""
    return index < len(pod.init_containers) and not pod.init_containers[index].restartable


def _size(container: Container, resource: str) -> int:
    return container.requests.get(resource, container.limits.get(resource, 0))


def _limited(container: Container, limits: Mapping[tuple[str, str], int]) -> Container:
    own = {resource: size for (name, resource), size in limits.items() if name == container.name}
    if not own:
        return container
    requests = {name: size for name, size in container.requests.items() if name not in own}
    return evolve(container, limits={**container.limits, **own}, requests=requests)
