"""The nouns everything else is made of.

Law: text from outside becomes one of these through a parser here, once; inside, a name is valid and a health is known.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import NewType

from attrs import field, frozen

from devicecore.domain.errors import InvalidLimitError, InvalidResourceNameError

DeviceId = NewType("DeviceId", str)
"""A device's id: opaque, unique within its resource."""

NumaNode = NewType("NumaNode", int)
"""The number of a NUMA node of the machine."""

NO_TOPOLOGY = NumaNode(-1)
"""Devices without a NUMA node: a checkpoint keeps them under this number (kubelet: `nodeWithoutTopology`)."""

PodUid = NewType("PodUid", str)
"""A pod's UID, which no other pod ever has."""

Receipt = NewType("Receipt", bytes)
"""What a plugin answered to Allocate for one container, as the transport that got it wrote it down. Opaque here."""

ResourceName = NewType("ResourceName", str)
"""An extended resource name such as `nvidia.com/gpu`. Get one from `resource_name`."""

MAX_DEVICE_ID_LENGTH = 63
"""Characters: what the device plugin API's comment asks for, and no kubelet checks."""

_QUOTA_PREFIX = "requests."
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_PREFIX_LENGTH = 253  # bytes, a DNS subdomain
_MAX_NAME_LENGTH = 63  # bytes, a DNS label
_STANDARD = frozenset({"cpu", "ephemeral-storage", "memory"})
_HUGE_PAGES = "hugepages-"
_NATIVE = "kubernetes.io/"


def resource_name(text: str) -> ResourceName:
    """Parse an extended resource name (kubelet: `IsExtendedResourceName`, kubelet.md 2.7).

    Raises:
        InvalidResourceNameError: `text` is not `domain/name`, is native to Kubernetes, or is too long.
    """
    if "/" not in text or _NATIVE in text or text.startswith(_QUOTA_PREFIX) or not _is_qualified(_QUOTA_PREFIX + text):
        raise InvalidResourceNameError(text)
    return ResourceName(text)


def is_extended_resource(text: str) -> bool:
    """Whether `resource_name` accepts `text`."""
    try:
        resource_name(text)
    except InvalidResourceNameError:
        return False
    return True


def is_container_resource(text: str) -> bool:
    """Whether a container can have a limit of `text` (Kubernetes: `validateContainerResourceName`)."""
    if text in _STANDARD or is_extended_resource(text):
        return True
    return (text.startswith(_HUGE_PAGES) or _NATIVE in text) and _is_qualified(text)


def _is_qualified(text: str) -> bool:
    """Whether it is `name` or `domain/name` (Kubernetes: `IsQualifiedName`)."""
    prefix, slash, name = text.rpartition("/")
    return (
        len(prefix) <= _MAX_PREFIX_LENGTH
        and len(name) <= _MAX_NAME_LENGTH
        and (not slash or _PREFIX.fullmatch(prefix) is not None)
        and _NAME.fullmatch(name) is not None
    )


class Health(Enum):
    """Whether a device may be handed out."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"

    @classmethod
    def parse(cls, text: str) -> "Health":
        """Read a plugin's word: anything but exactly `Healthy` is unhealthy (kubelet.md 3.4)."""
        return cls.HEALTHY if text == "Healthy" else cls.UNHEALTHY


@frozen
class Device:
    """One device as its plugin reports it.

    `topology` holds the NUMA nodes the device is attached to, in the plugin's order. None (the plugin sent no
    topology) and an empty tuple (it sent one without nodes) differ in hints and in the pod-resources API.
    """

    id: DeviceId
    health: Health = Health.HEALTHY
    topology: tuple[NumaNode, ...] | None = None

    @property
    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes, empty without topology."""
        return self.topology or ()


@frozen
class PluginOptions:
    """What a plugin answers to GetDevicePluginOptions."""

    pre_start_required: bool = False
    get_preferred_allocation_available: bool = False


@frozen
class PluginId:
    """Which plugin instance: what it serves, where, and the how-manieth instance the transport has seen.

    A later instance has a larger `generation`, so two instances that used one socket path are never confused.
    """

    resource: ResourceName
    socket: str
    generation: int


@frozen
class ContainerKey:
    """Which container of which pod."""

    pod: PodUid
    container: str


@frozen
class Container:
    """The part of a container's spec that matters here.

    `limits` maps resource names to whole counts, native resources such as `cpu` included: they are passed over.
    `restartable` is an init container's `restartPolicy: Always`, which makes it a sidecar.

    Raises:
        InvalidLimitError: a limit is not a whole number, or below 0.
    """

    name: str
    limits: Mapping[str, int] = field(factory=dict)
    restartable: bool = False

    @limits.validator
    def _are_counts(self, _: object, limits: Mapping[str, object]) -> None:
        for resource, count in limits.items():
            if not isinstance(count, int) or count < 0:
                raise InvalidLimitError(resource, count)


@frozen
class Pod:
    """The part of a pod that matters here.

    `claimed` names (container, resource) pairs that dynamic resource allocation serves instead of a device plugin
    (kubelet: `extendedResourceClaimStatus.requestMappings`).
    """

    uid: PodUid
    name: str = ""
    namespace: str = "default"
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    claimed: frozenset[tuple[str, str]] = frozenset()

    @property
    def in_start_order(self) -> tuple[Container, ...]:
        """All containers in the order in which a kubelet admits them: init containers first."""
        return self.init_containers + self.containers

    def container(self, name: str) -> Container:
        """The container called `name`; of an init container and an app container, the init container.

        Raises:
            KeyError: the pod has no such container.
        """
        for container in self.in_start_order:
            if container.name == name:
                return container
        raise KeyError(name)

    def key(self, container: Container) -> ContainerKey:
        """The key of one of this pod's containers."""
        return ContainerKey(self.uid, container.name)

    def is_reusable(self, container: Container) -> bool:
        """Whether later containers may reuse its devices: it is an init container that ends (kubelet.md 5.2)."""
        return not container.restartable and any(container.name == init.name for init in self.init_containers)
