"""The input of an allocation: devices in slices, classes, claims, the node, and what is already allocated.

Law: the values in this module contain what the API objects contain, and nothing else. Quantities are exact, and two
attributes are equal only if their types are.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from attrs import field, frozen

from devicecore.domain.quantity import Quantity

MAX_RESULTS = 32
"""The maximum number of devices in one claim."""


class DeviceKey(NamedTuple):
    """Identifies a device among all devices of the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


@frozen
class Attribute:
    """The value of an attribute. `kind` is the API field that contains the value, or empty if no known field does.

    `values` contains all elements of a list, or one element if the attribute is not a list.
    """

    kind: str
    values: tuple[bool | int | str, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether the attribute is a list (KEP-5491)."""
        return self.kind.endswith("s")

    @cached_property
    def elements(self) -> frozenset[tuple[str, bool | int | str]]:
        """The values, each with its type, as constraints compare them."""
        kind = self.kind.removesuffix("s")
        return frozenset((kind, value) for value in self.values)

    def __str__(self) -> str:
        shown = [f'"{value}"' if isinstance(value, str) else str(value).lower() for value in self.values]
        return f"[{', '.join(shown)}]" if self.is_list else "".join(shown)


@frozen
class RequestPolicy:
    """The amounts of a capacity that a share may consume. At most one of `values` and `minimum` is set."""

    default: Quantity | None = None
    values: tuple[Quantity, ...] = ()
    minimum: Quantity | None = None
    maximum: Quantity | None = None
    step: Quantity | None = None


@frozen
class Capacity:
    """A capacity of a device."""

    value: Quantity
    policy: RequestPolicy | None = None


@frozen
class Taint:
    """A taint of a device or of a Node."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{'=' * bool(self.value)}{self.value}:{self.effect}"


@frozen
class Toleration:
    """The taints that a request or a pod tolerates. Empty strings stand for any key and any effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether the toleration covers a taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


@frozen
class DeviceToleration(Toleration):
    """A toleration of a request. `source` is the API object, which the allocation repeats."""

    source: Mapping[str, object] = field(factory=dict, eq=False)


@frozen
class NodeRule:
    """The nodes on which devices are available: one node by name, all nodes, or the nodes that `matches` accepts.

    `source` is the API's NodeSelector, or None if there is no NodeSelector.
    """

    node: str = ""
    all_nodes: bool = False
    source: Mapping[str, object] | None = field(default=None, eq=False)
    matches: "Callable[[TargetNode], bool] | None" = field(default=None, eq=False)

    def requirements(self, part: str) -> list[object]:
        """Return the requirements in `matchFields` or `matchExpressions` of a selector that has only one term."""
        terms = (self.source or {}).get("nodeSelectorTerms")
        term = terms[0] if isinstance(terms, list) and len(terms) == 1 else {}
        found = term.get(part) if isinstance(term, Mapping) else None
        return found if isinstance(found, list) else []

    def accepts(self, node: "TargetNode") -> bool:
        """Return whether `node` is one of the nodes."""
        if self.node:
            return self.node == node.name
        return self.all_nodes or (self.matches is not None and self.matches(node))


@frozen
class TargetNode:
    """The facts that decide whether slices are available on a node."""

    name: str
    labels: Mapping[str, str] = field(factory=dict)


Use = tuple[str, str]
"""The name of a counter set, and the name of a counter."""

CounterUse = tuple[tuple[str, Mapping[str, Quantity]], ...]
"""Counter quantities by name, grouped by the name of their set."""


@frozen(eq=False)
class PoolDevice:
    """A device of a ResourceSlice. Devices are compared by identity, so each is equal only to itself."""

    key: DeviceKey
    attributes: Mapping[str, Attribute] = field(factory=dict)
    capacity: Mapping[str, Capacity] = field(factory=dict)
    taints: tuple[Taint, ...] = ()
    counters: CounterUse = ()
    is_shared: bool = False  # API: allowMultipleAllocations
    place: NodeRule | None = None  # None: available where the slice is
    binds_to_node: bool = False
    conditions: tuple[str, ...] = ()
    failure_conditions: tuple[str, ...] = ()

    @cached_property
    def uses(self) -> Mapping[Use, Quantity]:
        """The amount that the device consumes of each counter."""
        return {(name, counter): amount for name, one in self.counters for counter, amount in one.items()}

    def attribute(self, name: str) -> Attribute | None:
        """Return the attribute with this fully qualified name (`domain/name`), or None."""
        if (found := self.attributes.get(name)) is not None:
            return found
        domain, _, identifier = name.partition("/")
        return self.attributes.get(identifier) if domain == self.key.driver else None


@frozen(eq=False)
class PoolSlice:
    """A ResourceSlice. `place` is None if each device has its own place (API: perDeviceNodeSelection)."""

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    place: NodeRule | None = field(factory=NodeRule)
    devices: tuple[PoolDevice, ...] = ()
    counters: CounterUse = ()
    skip_node_operations: tuple[str, ...] = ()  # the calls that none of the devices need (Kubernetes 1.37)

    def place_of(self, device: PoolDevice) -> NodeRule:
        """Return the nodes on which a device of the slice is available."""
        return self.place or device.place or NodeRule()

    def targets(self, node: TargetNode) -> bool:
        """Return whether the slice, or one of its devices, is available on the node."""
        if self.place is not None:
            return self.place.accepts(node)
        return any(self.place_of(device).accepts(node) for device in self.devices)


@frozen
class DeviceClass:
    """A DeviceClass: the expressions that a device must satisfy, and parameters for drivers.

    A selector that is not a CEL expression is None.
    """

    name: str
    selectors: tuple[str | None, ...] = ()
    config: tuple[Mapping[str, object], ...] = ()


@frozen(eq=False)
class DeviceRequest:
    """A request of a claim, or one of its alternatives. `parent` is empty if the request is not an alternative.

    A request is equal only to itself, because two requests may have equal fields.
    """

    name: str
    parent: str = ""
    device_class: str = ""
    selectors: tuple[str | None, ...] = ()
    mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None

    @property
    def wants_all(self) -> bool:
        """Whether the request is for all devices that match."""
        return self.mode == "All"

    @property
    def result_name(self) -> str:
        """The name in an allocation: `request`, or `request/alternative`."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which constraints and parameters refer to the request."""
        return (self.parent, self.result_name) if self.parent else (self.name,)


class Rule(Enum):
    """What a constraint requires of an attribute."""

    MATCH = "matchAttribute"
    DISTINCT = "distinctAttribute"


@frozen
class Constraint:
    """A constraint of a claim on the devices of `requests`, or on all of the claim's devices.

    `rule` is None if the rule is unknown.
    """

    rule: Rule | None
    attribute: str = ""
    requests: frozenset[str] = frozenset()

    def applies_to(self, request: DeviceRequest) -> bool:
        """Return whether the constraint applies to devices of a request."""
        return not self.requests or not self.requests.isdisjoint(request.names)


@frozen
class UnallocatedClaim:
    """A claim to allocate. Each element of `requests` contains alternatives, one of which must be satisfied."""

    name: str
    requests: tuple[tuple[DeviceRequest, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Mapping[str, object], ...] = ()

    @property
    def alternatives(self) -> Iterator[DeviceRequest]:
        """All alternatives of all requests."""
        return chain.from_iterable(self.requests)


@frozen
class Held:
    """A device or a share of a device that is already allocated, with the claim and the pods if they are known."""

    device: DeviceKey
    claim: str = ""
    pods: tuple[str, ...] = ()
    is_share: bool = False
    consumed: Mapping[str, Quantity] = field(factory=dict)

    def __str__(self) -> str:
        pods = f" of pod {', '.join(self.pods)}" if self.pods else ""
        return f"claim {self.claim}{pods}" if self.claim else "another claim"


@frozen
class Features:
    """The feature gates of a scheduler that change what it allocates, with the defaults of Kubernetes 1.36 and 1.37."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = False


Matches = Callable[[str, PoolDevice], bool]
"""Says whether a CEL expression selects a device. Raises `SelectorError` if the expression cannot be evaluated."""
