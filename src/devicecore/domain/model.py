"""The basic values of the domain.

Law: text from outside is parsed once, by a function in this module. After that, each `ResourceName` is valid and each
health is a `Health`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NewType

from attrs import field, frozen

from devicecore.domain.checks import checked, expected, is_flag, is_name, is_text, items, repeated, tuple_of
from devicecore.domain.errors import ContainerNotFoundError, InvalidLimitError, InvalidResourceNameError
from devicecore.domain.names import is_qualified_name

DeviceId = NewType("DeviceId", str)
"""A device's id: any string, unique within its resource."""

NumaNode = NewType("NumaNode", int)
"""The number of one of the machine's NUMA nodes."""

NO_TOPOLOGY = NumaNode(-1)
"""The number under which a checkpoint keeps devices without a NUMA node (kubelet: `nodeWithoutTopology`)."""

PodUid = NewType("PodUid", str)
"""A pod's UID, which no other pod ever has."""

Receipt = NewType("Receipt", bytes)
"""A plugin's answer to Allocate for one container, as bytes in the format of the transport that received it."""

ResourceName = NewType("ResourceName", str)
"""An extended resource name such as `nvidia.com/gpu`. Create a name with the function `resource_name`."""

MAX_DEVICE_ID_LENGTH = 63
"""The maximum length of a device id.

A comment in the device plugin API requires this limit, but no kubelet checks it.
"""

_QUOTA_PREFIX = "requests."
_STANDARD = frozenset({"cpu", "ephemeral-storage", "memory"})
_HUGE_PAGES = "hugepages-"
_NATIVE = "kubernetes.io/"
_ONLY_INTS = frozenset({int})


def resource_name(text: str) -> ResourceName:
    """Parse an extended resource name.

    Raises:
        InvalidResourceNameError: `text` is not `domain/name`, is native to Kubernetes, or is too long.
    """
    if not is_extended_resource(checked(text, str, "resource_name")):
        raise InvalidResourceNameError(text, "expected a name such as example.com/gpu")
    return ResourceName(text)


def is_extended_resource(text: str) -> bool:
    """Return whether `resource_name` accepts `text` (kubelet: `IsExtendedResourceName`, kubelet.md 2.7)."""
    is_native = "/" not in text or _NATIVE in text or text.startswith(_QUOTA_PREFIX)
    return not is_native and is_qualified_name(_QUOTA_PREFIX + text)


def is_container_resource(text: str) -> bool:
    """Return whether a container can have a limit for `text` (Kubernetes: `validateContainerResourceName`)."""
    return is_native_resource(text) or is_extended_resource(text)


def is_native_resource(text: str) -> bool:
    """Return whether `text` is a resource of Kubernetes itself, such as `cpu` or `hugepages-2Mi`."""
    if text in _STANDARD:
        return True
    return (text.startswith(_HUGE_PAGES) or _NATIVE in text) and is_qualified_name(text)


class Health(Enum):
    """Whether a device may be allocated."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"

    @classmethod
    def parse(cls, text: str) -> "Health":
        """Read a plugin's text: anything but exactly `Healthy` is unhealthy (kubelet.md 3.4)."""
        return cls.HEALTHY if text == "Healthy" else cls.UNHEALTHY


def _health(value: Health | str) -> Health:
    return Health.parse(value) if isinstance(value, str) else checked(value, Health, "Device.health")


def _topology(value: Iterable[int] | None) -> tuple[NumaNode, ...] | None:
    if value is None or (type(value) is tuple and _ONLY_INTS.issuperset(map(type, value))):  # nearly always
        return value
    return tuple([NumaNode(int(checked(node, int, "Device.topology"))) for node in items(value, "Device.topology")])


@frozen
class Device:
    """One device as its plugin reports it.

    `topology` (the device plugin API's term) lists the device's NUMA nodes in the plugin's order. None (the plugin sent
    no topology) and an empty tuple (it sent a topology without nodes) have different effects on hints and in the
    pod-resources API. If `health` is a string, `Health.parse` reads it.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: the id is empty.
    """

    id: DeviceId = field(validator=is_name)
    health: Health = field(default=Health.HEALTHY, converter=_health)
    topology: tuple[NumaNode, ...] | None = field(default=None, converter=_topology)

    @property
    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes, or none without topology."""
        return self.topology or ()


@frozen
class PluginOptions:
    """A plugin's answer to GetDevicePluginOptions.

    Raises:
        TypeError: a value is neither True nor False.
    """

    pre_start_required: bool = field(default=False, validator=is_flag)
    get_preferred_allocation_available: bool = field(default=False, validator=is_flag)


@frozen
class PluginId:
    """One plugin instance: its resource, its socket, and its number among the transport's instances.

    A later instance has a larger `generation`, so two instances that used the same socket path are never confused.
    """

    resource: ResourceName
    socket: str
    generation: int


@frozen
class ContainerKey:
    """One container of one pod."""

    pod: PodUid
    container: str


def _limits(value: Mapping[str, int]) -> dict[str, int]:
    # Typed as object because a type checker would call the check below unreachable; a caller may pass anything.
    given: object = value
    if not isinstance(given, Mapping):
        message = expected("Container.limits", "a mapping of resource names to counts", value)
        raise TypeError(message)
    limits = dict(value)
    unchecked: Mapping[str, object] = limits
    for resource, count in unchecked.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InvalidLimitError(resource, count)
        checked(resource, str, "Container.limits")
    return limits


@frozen
class ContainerClaim:
    """An element of a container's `resources.claims`; an empty `request` means the whole claim."""

    name: str
    request: str = ""


def _container_claims(value: Iterable[ContainerClaim]) -> tuple[ContainerClaim, ...]:
    return tuple_of(value, ContainerClaim, "Container.claims")


@frozen
class Container:
    """The parts of a container's spec that the managers use.

    `limits` maps resource names to whole counts. `limits` is copied; native resources such as `cpu` are allowed and
    ignored. `restartable` is an init container's `restartPolicy: Always`, which makes it a sidecar. `claims` are the
    entries of the pod's `claims` that the container uses. `requests` contains the requests that differ from the limits:
    a claim can serve an extended resource that a container requests.

    Raises:
        InvalidLimitError: a limit or request is not a whole number, or is below 0.
        TypeError: a value has the wrong type.
        ValueError: the name is empty.
    """

    name: str = field(validator=is_name)
    limits: Mapping[str, int] = field(factory=dict, converter=_limits)
    restartable: bool = field(default=False, validator=is_flag)
    claims: tuple[ContainerClaim, ...] = field(default=(), converter=_container_claims, kw_only=True)
    requests: Mapping[str, int] = field(factory=dict, converter=_limits, kw_only=True)


@frozen
class PodClaim:
    """An entry of a pod's `spec.resourceClaims`. One of `claim` and `template` is set, if the pod is valid."""

    name: str
    claim: str | None = None
    template: str | None = None


@frozen
class RequestMapping:
    """The request of the extended claim that serves a resource of a container."""

    container: str
    resource: str
    request: str = ""


def _mappings(value: Iterable[RequestMapping]) -> tuple[RequestMapping, ...]:
    return tuple_of(value, RequestMapping, "ExtendedClaim.mappings")


@frozen
class ExtendedClaim:
    """The claim behind a pod's extended resources (API: `status.extendedResourceClaimStatus`)."""

    claim: str
    mappings: tuple[RequestMapping, ...] = field(default=(), converter=_mappings)


def _containers(value: Iterable[Container]) -> tuple[Container, ...]:
    return tuple_of(value, Container, "Pod.containers")


def _pod_claims(value: Iterable[PodClaim]) -> tuple[PodClaim, ...]:
    return tuple_of(value, PodClaim, "Pod.claims")


def _generated_claims(value: Mapping[str, str | None]) -> dict[str, str | None]:
    return dict(checked(value, Mapping, "Pod.generated_claims"))  # type: ignore[type-abstract]  # isinstance accepts it


def _extended_claim(value: ExtendedClaim | None) -> ExtendedClaim | None:
    return None if value is None else checked(value, ExtendedClaim, "Pod.extended_claim")


@frozen
class Pod:
    """The parts of a pod that the managers use.

    `generated_claims` maps the names in `claims` to the ResourceClaims that were created for them (API:
    `status.resourceClaimStatuses`); None means that the entry needs no claim. `claimed` contains the (container,
    resource) pairs that `extended_claim` serves instead of a device plugin. `in_start_order` contains all containers in
    the order in which a kubelet admits them: init containers first.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: the uid is empty, or two containers have the same name, which the API server refuses.
    """

    uid: PodUid = field(validator=is_name)
    name: str = field(default="", validator=is_text, kw_only=True)
    namespace: str = field(default="default", validator=is_text, kw_only=True)
    containers: tuple[Container, ...] = field(default=(), converter=_containers, kw_only=True)
    init_containers: tuple[Container, ...] = field(default=(), converter=_containers, kw_only=True)
    claims: tuple[PodClaim, ...] = field(default=(), converter=_pod_claims, kw_only=True)
    generated_claims: Mapping[str, str | None] = field(factory=dict, converter=_generated_claims, kw_only=True)
    extended_claim: ExtendedClaim | None = field(default=None, converter=_extended_claim, kw_only=True)
    # The following fields are computed once, because each admission needs them.
    in_start_order: tuple[Container, ...] = field(init=False, eq=False, repr=False)
    claimed: frozenset[tuple[str, str]] = field(init=False, eq=False, repr=False)

    @init_containers.validator
    def _have_different_names(self, _: object, __: object) -> None:
        if len(self.init_containers) + len(self.containers) < 2:
            return
        if twice := repeated(container.name for container in self.in_start_order):
            raise ValueError(expected("Pod.containers", "different names", twice) + " twice")

    @in_start_order.default
    def _in_start_order(self) -> tuple[Container, ...]:
        return self.init_containers + self.containers

    @claimed.default
    def _claimed(self) -> frozenset[tuple[str, str]]:
        mappings = self.extended_claim.mappings if self.extended_claim else ()
        return frozenset([(mapping.container, mapping.resource) for mapping in mappings])

    @property
    def has_claims(self) -> bool:
        """Whether dynamic resource allocation has anything to prepare for the pod."""
        return bool(self.claims) or self.extended_claim is not None

    def container(self, name: str) -> Container:
        """Return the container called `name`.

        Raises:
            ContainerNotFoundError: the pod has no such container. This error is also a KeyError.
            TypeError: `name` is not a string but, for example, a `Container`.
        """
        for container in self.in_start_order:
            if container.name == name:
                return container
        checked(name, str, "Pod.container")
        raise ContainerNotFoundError(self.uid, name, tuple([container.name for container in self.in_start_order]))

    def key(self, container: Container) -> ContainerKey:
        """Return the key of one of this pod's containers."""
        return ContainerKey(self.uid, container.name)

    def is_reusable(self, container: Container) -> bool:
        """Return whether this is an init container that ends, whose devices others may reuse (kubelet.md 5.2)."""
        return not container.restartable and any(container.name == init.name for init in self.init_containers)
