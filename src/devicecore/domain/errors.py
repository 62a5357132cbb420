"""Common errors, by what is to blame: request, life cycle, plugin, policy, file, disk, network or set-up.

Law: errors are values. Two errors of one class with equal fields are equal, have the same hash, and survive pickling;
`str(error)` is the kubelet's own message where a kubelet has one, and the fields carry the facts.

The library raises a `DeviceCoreError` if something outside the caller's program is to blame. A mistake in a call raises
the built-in error that Python programmers expect (`TypeError`, `ValueError`, `KeyError`), and a wait that takes too
long raises a `TimeoutError`. Docstrings of public functions name their errors. Any other error is a bug in the library.
"""

from typing import ClassVar

import attrs
from attrs import fields_dict, frozen, has

from devicecore.domain.text import foreign_text

_SHOWN_DEVICES = 8  # how many devices one sentence lists


class DeviceCoreError(Exception):
    """Base of all errors that this library raises on purpose, except for mistakes in a call.

    Subclasses are frozen attrs classes. attrs compares exceptions by identity, but this class compares them by value.
    This class defines `__repr__` as attrs would, because generating that method takes half the time that attrs spends
    on each subclass at program start. `_text` is an error's message, with its fields in braces.
    """

    _text: ClassVar[str] = ""

    def __str__(self) -> str:
        cls = type(self)
        if not self._text or not has(cls):
            return super().__str__()
        return self._text.format_map({name: getattr(self, name) for name in fields_dict(cls)})

    def __repr__(self) -> str:
        cls = type(self)
        if not has(cls):
            return super().__repr__()
        return f"{cls.__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in fields_dict(cls)])})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash, _values(self))))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), _values(self)


def _values(error: object) -> tuple[object, ...]:
    cls = type(error)
    if has(cls):
        return tuple([getattr(error, name) for name in fields_dict(cls)])
    return error.args if isinstance(error, BaseException) else ()


def _hash(value: object) -> int:
    try:
        return hash(value)
    except TypeError:  # `InvalidLimitError.limit` may be any object, such as a list
        return 0


# --- the request -----------------------------------------------------------------------------------------------------


class AdmissionError(DeviceCoreError):
    """The pod, or one of its containers, cannot have what it requests.

    `reason` is what a kubelet sets in the pod's status (kubelet: `admission.Error`).
    """

    reason: ClassVar[str] = "UnexpectedAdmissionError"


@frozen(repr=False)
class InvalidResourceNameError(DeviceCoreError, ValueError):
    """A resource name that a kubelet would not register. `advice` is for callers, and no kubelet logs it."""

    name: str
    advice: str = ""

    def __str__(self) -> str:
        return f'the ResourceName "{self.name}" is invalid' + (self.advice and f": {self.advice}")


@frozen(repr=False)
class InvalidQuantityError(DeviceCoreError, ValueError):
    """A string that is not a Kubernetes quantity."""

    text: str
    _text = '"{text}" is not a quantity such as 2, 500m or 1.5Gi'


@frozen(repr=False)
class InvalidLimitError(DeviceCoreError, ValueError):
    """A container's limit or request that is not a whole number of at least 0.

    `domain.quantity` reads quantities such as `500m`.
    """

    resource: str
    limit: object

    def __str__(self) -> str:
        limit = foreign_text(repr(self.limit), 100)
        return f"limit of {foreign_text(self.resource)}: expected a whole number of at least 0, got {limit}"


@frozen(repr=False)
class ContainerNotFoundError(DeviceCoreError, KeyError):
    """A caller named a container that the pod does not have. `containers` lists the pod's containers."""

    pod: str
    container: str
    containers: tuple[str, ...]

    def __str__(self) -> str:
        known = ", ".join(map(foreign_text, self.containers)) or "none"
        return f"pod {foreign_text(self.pod)} has no container {foreign_text(self.container)}; its containers: {known}"


@frozen(repr=False)
class ChangedRequestError(AdmissionError):
    """A container that already holds devices requests a different number of them."""

    pod: str
    container: str
    resource: str
    held: int
    requested: int
    _text = 'pod "{pod}" container "{container}" changed request for resource "{resource}" from {held} to {requested}'


@frozen(repr=False)
class UnregisteredDeviceError(AdmissionError):
    """The resource is known, but no plugin has sent a list for it, or the resource has expired."""

    resource: str
    _text = "cannot allocate unregistered device {resource}"


@frozen(repr=False)
class NoHealthyDevicesError(AdmissionError):
    """The resource is registered, but none of its devices is healthy."""

    resource: str
    _text = "no healthy devices present; cannot allocate unhealthy devices {resource}"


@frozen(repr=False)
class DevicesNoLongerHealthyError(AdmissionError):
    """A device that the container already holds has become unhealthy."""

    resource: str
    _text = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"


@frozen(repr=False)
class NotEnoughDevicesError(AdmissionError):
    """Too few healthy devices are free. `requested` is the number still missing after reuse."""

    resource: str
    requested: int
    available: int
    _text = "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"


@frozen(repr=False)
class TopologyAffinityError(AdmissionError):
    """The topology policy admits no set of NUMA nodes."""

    reason: ClassVar[str] = "TopologyAffinityError"

    pod: str
    container: str | None = None
    _text = "Resources cannot be allocated with Topology locality"


@frozen(repr=False)
class AdmissionTimeoutError(AdmissionError):
    """Plugins took too long, so the admission was cancelled. `budget` is in seconds, for all plugins together."""

    pod: str
    budget: float
    _text = 'admission of pod "{pod}" took longer than {budget:g} seconds'


@frozen(repr=False)
class DeviceHeldError(DeviceCoreError):
    """A reservation would have given a device a second owner. The manager prevents this; other callers may cause it."""

    resource: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"devices {', '.join(self.devices)} of {self.resource} are already held"


@frozen(repr=False)
class NoDevicesAllocatedError(DeviceCoreError):
    """A container without devices is about to start."""

    pod: str
    container: str
    resource: str
    _text = "no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"


# --- the lifecycle ----------------------------------------------------------------------------------------------------


@frozen(repr=False)
class ManagerStoppedError(AdmissionError):
    """The device manager is not running: it was not started, or it was stopped during the call."""

    _text = "the device manager is not running: call start() again"


@frozen(repr=False)
class ManagerNotStartedError(ManagerStoppedError):
    """The device manager was never started."""

    _text = "the device manager is not started: call start() first, or use the manager in a with statement"


@frozen(repr=False)
class NotStartedError(DeviceCoreError, RuntimeError):
    """An object that is not running was used: it was not started, or it was stopped."""

    name: str
    _text = "{name} is not started: call start() first, or use it in a with statement"


@frozen(repr=False)
class StoppedWhileStartingError(DeviceCoreError, RuntimeError):
    """A start failed because `stop` was called in the meantime. Nothing is running."""

    name: str
    _text = "{name} was stopped while it was starting"


@frozen(repr=False)
class CalledFromInsideError(DeviceCoreError, RuntimeError):
    """A call would deadlock, because `method` is called from inside `inside` in the same thread."""

    method: str
    inside: str
    _text = (
        "{method} was called from inside {inside} and would wait for itself: "
        "call it after {inside} has returned, or from another thread that nothing here waits for"
    )


@frozen(repr=False)
class ForkedError(DeviceCoreError, RuntimeError):
    """An object was used in a fork of the process that started it. Both fields contain process ids."""

    started_in: int
    process: int
    _text = (
        "an object that was started in process {started_in} was used in process {process}, a fork without the object's "
        "threads and locks. Use it in process {started_in}, or start a new process instead of forking"
    )


# --- the plugin ------------------------------------------------------------------------------------------------------


class PluginError(DeviceCoreError):
    """A device plugin failed, or sent something that the manager cannot use."""


@frozen(repr=False)
class UnsupportedVersionError(PluginError):
    """A plugin registers with an API version other than `supported`."""

    version: str
    supported: tuple[str, ...]

    def __str__(self) -> str:
        supported = " ".join(f'"{version}"' for version in self.supported)
        return f'requested API version "{self.version}" is not supported by kubelet. Supported version is [{supported}]'


@frozen(repr=False)
class NoSupportedVersionError(PluginError):
    """A plugin that the plugin watcher found supports none of the API versions in `supported`."""

    supported: tuple[str, ...]
    offered: tuple[str, ...]

    def __str__(self) -> str:
        ours, theirs = ", ".join(self.supported), " ".join(self.offered)
        return f"manager version, {ours}, is not among plugin supported versions [{theirs}]"


@frozen(repr=False)
class UnhandledPluginTypeError(PluginError):
    """The plugin watcher found a plugin of a type for which there is no handler."""

    type: str
    socket: str
    _text = "no handler registered for plugin type: {type} at socket {socket}"


@frozen(repr=False)
class InvalidEndpointError(PluginError):
    """The endpoint that a plugin or driver has registered cannot be used. `problem` says why."""

    endpoint: str
    problem: str
    _text = 'the endpoint "{endpoint}" is refused: {problem}'


@frozen(repr=False)
class PluginAlreadyConnectedError(PluginError):
    """Another instance is already connected over the same socket."""

    resource: str
    socket: str
    _text = "device plugin already connected: {socket}"


@frozen(repr=False)
class PluginConnectError(PluginError):
    """The plugin could not be connected, for example because its socket does not answer."""

    resource: str
    socket: str
    cause: str
    _text = "failed to dial device plugin: {cause}"


@frozen(repr=False)
class PluginOptionsError(PluginError):
    """The plugin was reached, but GetDevicePluginOptions failed."""

    resource: str
    cause: str
    _text = "failed to get device plugin options: {cause}"


@frozen(repr=False)
class PluginStoppedError(PluginError):
    """The plugin has disconnected, so nothing was sent."""

    resource: str
    _text = "endpoint {resource} has been stopped"


@frozen(repr=False)
class TransportNotStartedError(PluginStoppedError):
    """A plugin in the same process registers before its transport's manager has started, or after it has stopped."""

    resource: str
    _text = "{resource} cannot register, because the transport is not started: start its DeviceManager first"


@frozen(repr=False)
class EndpointNotFoundError(PluginError):
    """No plugin has ever served the resource in this run."""

    resource: str
    _text = "endpoint not found in cache for a registered resource: {resource}"


@frozen(repr=False)
class PluginCallError(PluginError):
    """A call to the plugin failed. `cause` is the text from the plugin or the transport."""

    resource: str
    method: str
    cause: str

    def __str__(self) -> str:
        if self.method == "Allocate":
            return self.cause  # a kubelet adds no text to this error
        return f"device plugin {self.method} rpc failed with err: {self.cause}"


@frozen(repr=False)
class EmptyAllocateResponseError(PluginError):
    """The plugin's answer to Allocate has no container response."""

    resource: str
    _text = "no containers return in allocation response of {resource}"


@frozen(repr=False)
class UnreadableReceiptError(PluginError):
    """A stored answer to Allocate cannot be read."""

    cause: str
    _text = "the plugin's answer to Allocate cannot be read: {cause}"


@frozen(repr=False)
class DeviceRefusedError(PluginError):
    """A caller requested a device that the plugin does not have."""

    resource: str
    device: str
    _text = "invalid allocation request for {resource}: unknown device: {device}"


@frozen(repr=False)
class DeviceNotFoundError(DeviceCoreError, KeyError):
    """A program names a device that its plugin does not have. `devices` lists the plugin's devices."""

    resource: str
    device: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        known = foreign_text(", ".join(self.devices[:_SHOWN_DEVICES]) or "none")
        more = f" and {len(self.devices) - _SHOWN_DEVICES} more" if len(self.devices) > _SHOWN_DEVICES else ""
        return f"{foreign_text(self.resource)} has no device {foreign_text(self.device)}; its devices: {known}{more}"


@frozen(repr=False)
class PluginAnswersTooLargeError(PluginError):
    """A plugin's answers to Allocate would take up too much of the checkpoint. `size` and `limit` are in bytes."""

    resource: str
    size: int
    limit: int
    _text = (
        "the answers to Allocate from the device plugin for {resource} would take up {size:,} bytes in the checkpoint, "
        "expected at most {limit:,}"
    )


# --- the policy -------------------------------------------------------------------------------------------------------


@frozen(repr=False)
class PolicyError(DeviceCoreError):
    """The caller's allocation policy failed, or the policy's answer is unusable. `policy` is the policy's name."""

    policy: str
    resource: str
    cause: str
    _text = "the policy {policy} for {resource}: {cause}"


# --- the file --------------------------------------------------------------------------------------------------------


@frozen(repr=False)
class DocumentError(DeviceCoreError, ValueError):
    """An unusable document: a manifest, an API object, a kubeconfig.

    `line` counts from 1, and is None if unknown. `field` is the path to the value, or empty for the whole document.
    """

    file: str = attrs.field(converter=foreign_text)
    line: int | None
    field: str = attrs.field(converter=foreign_text)
    problem: str = attrs.field(converter=foreign_text)

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.field}: {self.problem}" if self.field else f"{where}: {self.problem}"


class CheckpointError(DeviceCoreError):
    """The checkpoint cannot be used."""


@frozen(repr=False)
class MalformedCheckpointError(CheckpointError, ValueError):
    """The file is not a checkpoint."""

    problem: str
    _text = "checkpoint is malformed: {problem}"


@frozen(repr=False)
class CorruptCheckpointError(CheckpointError):
    """The file is a checkpoint, but the checksum shows that the file was changed."""

    stored: int
    computed: int
    explanation: str = ""

    def __str__(self) -> str:
        because = f" ({self.explanation})" if self.explanation else ""
        return f"checkpoint is corrupted: checksum is {self.computed}, the file says {self.stored}{because}"


@frozen(repr=False)
class UnencodableCheckpointError(CheckpointError, ValueError):
    """Data that no kubelet can write, such as a string that is not Unicode. Nothing was written."""

    problem: str
    _text = "checkpoint cannot be written: {problem}"


# --- the disk and the network ----------------------------------------------------------------------------------------


@frozen(repr=False)
class StoreError(DeviceCoreError):
    """The checkpoint store failed. `action` says what it failed to do with the file: `read`, `write` or `set aside`."""

    name: str
    action: str
    cause: str
    _text = 'failed to {action} checkpoint file "{name}": {cause}'


@frozen(repr=False)
class SinkError(DeviceCoreError):
    """The node's status could not be published."""

    sink: str
    cause: str
    _text = "failed to publish the node's status to {sink}: {cause}"


@frozen(repr=False)
class LockedError(DeviceCoreError):
    """Another process holds the lock."""

    name: str
    path: str
    _text = "another process holds {name!r} in {path}"


# --- the set-up ------------------------------------------------------------------------------------------------------


class SetUpError(DeviceCoreError):
    """An adapter cannot be used with its arguments, for example because a directory or a port is not available."""


@frozen(repr=False)
class SocketPathTooLongError(SetUpError):
    """A unix socket path is too long for the operating system to bind. `limit` is in bytes."""

    path: str
    limit: int

    def __str__(self) -> str:
        length = len(self.path.encode(errors="surrogateescape"))  # a file name may not be valid text
        return (
            f"socket path {self.path!r} is {length} bytes long, more than the {self.limit} a unix socket can have: "
            "choose a directory with a shorter name"
        )


@frozen(repr=False)
class DirectoryInUseError(SetUpError):
    """Another kubelet serves this directory."""

    directory: str
    _text = "directory {directory!r} belongs to another running kubelet: stop it or choose a different directory"


@frozen(repr=False)
class TransportInUseError(SetUpError):
    """A running manager uses this transport."""

    transport: str
    _text = "a running manager uses this {transport}: stop that manager, or pass each manager a {transport} of its own"


@frozen(repr=False)
class DirectoryError(SetUpError):
    """A directory cannot be used: for example, it does not exist, is not a directory, or is not writable."""

    directory: str
    cause: str
    _text = "cannot use directory {directory!r}: {cause}"
