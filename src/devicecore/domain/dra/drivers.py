"""The registered drivers: their instances, the instance that is called, and the time at which slices are wiped.

Laws: a call goes to the newest connected instance of a driver, or to the newest instance if none is connected
(kubelet-dra.md 3). Apart from a registration, an event of an instance that is not registered changes nothing. Each
start deletes the ResourceSlices of all drivers. After that, a driver's ResourceSlices are deleted only after the driver
has had no connection for 30 seconds in a row (kubelet-dra.md 11).
"""

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from devicecore.domain.dra.errors import (
    DriverAlreadyRegisteredError,
    DriverNotRegisteredError,
    UnsupportedServicesError,
)
from devicecore.domain.dra.health import ReportedHealth
from devicecore.domain.dra.model import DriverName

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The known services, as drivers name them when they register."""

WIPE_DELAY = 30.0
"""The number of seconds for which a driver may have no connection before its ResourceSlices are deleted."""

FIRST_WIPE_RETRY, LAST_WIPE_RETRY = 1.0, 300.0
"""The first and the longest pause between attempts to delete ResourceSlices, in seconds.

Each pause is twice the previous one, but never longer than the longest.
"""


@frozen
class InstanceId:
    """One driver instance: its driver, endpoint and service, and its number among the transport's instances.

    A later instance has a larger `generation`, so two instances that used the same endpoint are never confused.
    """

    driver: DriverName
    endpoint: str
    service: str
    generation: int


def choose_service(driver: str, endpoint: str, offered: Sequence[str]) -> str:
    """Return the first known service that the driver lists (kubelet: `validateSupportedServices`).

    Raises UnsupportedServicesError if the driver lists no known service.
    """
    for service in offered:
        if service in SERVICES:
            return service
    raise UnsupportedServicesError(driver, endpoint, tuple(offered), SERVICES)


# --- events ----------------------------------------------------------------------------------------------------------


@frozen
class DriverRegistered:
    """An instance has registered. The instance is not connected yet."""

    instance: InstanceId


@frozen
class DriverConnected:
    """The connection to an instance is established."""

    instance: InstanceId


@frozen
class DriverDisconnected:
    """The connection to an instance has ended. The instance stays registered."""

    instance: InstanceId


@frozen
class DriverRemoved:
    """An instance is no longer registered."""

    instance: InstanceId


@frozen
class HealthReported:
    """An instance has reported the health of devices."""

    instance: InstanceId
    devices: tuple[ReportedHealth, ...]


@frozen
class HealthEnded:
    """An open health stream of an instance has ended."""

    instance: InstanceId


DriverEvent = DriverRegistered | DriverConnected | DriverDisconnected | DriverRemoved | HealthReported | HealthEnded
"""The events of driver instances."""


# --- the instances ---------------------------------------------------------------------------------------------------


@frozen
class Wipe:
    """A deletion of ResourceSlices that is due at `due`, in seconds of the manager's clock, after `tries` failures."""

    due: float
    tries: int = 0

    def after_failure(self, now: float) -> "Wipe":
        """Return the next attempt.

        A kubelet gives up after nine attempts. This manager keeps trying, because no other program deletes the slices.
        """
        return Wipe(now + min(FIRST_WIPE_RETRY * 2.0**self.tries, LAST_WIPE_RETRY), self.tries + 1)


@frozen
class DriverRegistry:
    """The registered instances of each driver, the connected instances, and the wipes that are scheduled.

    Instances are listed oldest first.

    The wipe under None deletes the slices of all drivers. This wipe is due at each start.
    """

    instances: Mapping[DriverName, tuple[InstanceId, ...]] = field(factory=dict)
    connected: frozenset[InstanceId] = frozenset()
    reporting: frozenset[InstanceId] = frozenset()
    wipes: Mapping[DriverName | None, Wipe] = field(factory=dict)

    def __contains__(self, driver: object) -> bool:
        return driver in self.instances

    def choose(self, driver: DriverName) -> InstanceId:
        """Return the instance to call. Raises DriverNotRegisteredError if the driver has no instance."""
        known = self.instances.get(driver)
        if not known:
            raise DriverNotRegisteredError(driver)
        return next((instance for instance in reversed(known) if instance in self.connected), known[-1])

    def is_registered(self, instance: InstanceId) -> bool:
        """Return whether this instance is registered."""
        return instance in self.instances.get(instance.driver, ())

    def apply(self, event: DriverEvent, now: float) -> "DriverRegistry":
        """Return the registry after an event at `now`.

        Raises DriverAlreadyRegisteredError if an instance registers at an endpoint where its driver is registered.
        """
        instance = event.instance
        if isinstance(event, DriverRegistered):
            return _with_wipe(self._register(instance), instance.driver, now)
        if not self.is_registered(instance):
            return self
        match event:
            case DriverConnected():
                after = evolve(self, connected=self.connected | {instance})
            case DriverDisconnected():
                after = evolve(self, connected=self.connected - {instance})
            case DriverRemoved():
                after = self._remove(instance)
            case HealthReported():
                return evolve(self, reporting=self.reporting | {instance})
            case HealthEnded():
                return evolve(self, reporting=self.reporting - {instance})
        return _with_wipe(after, instance.driver, now)

    def still_reports(self, driver: DriverName) -> bool:
        """Return whether the health stream of any instance of the driver is open."""
        return any(instance.driver == driver for instance in self.reporting)

    def due(self, now: float) -> tuple[DriverName | None, ...]:
        """Return the drivers whose wipes are due at `now`. None means all drivers."""
        return tuple(driver for driver, wipe in self.wipes.items() if wipe.due <= now)

    def is_connected(self, driver: DriverName) -> bool:
        """Return whether any instance of the driver is connected."""
        return any(instance.driver == driver for instance in self.connected)

    def wiped(self, driver: DriverName | None) -> "DriverRegistry":
        """Return the registry without the wipe for a driver, or without the wipe under None if `driver` is None."""
        return evolve(self, wipes={name: wipe for name, wipe in self.wipes.items() if name != driver})

    def _register(self, instance: InstanceId) -> "DriverRegistry":
        known = self.instances.get(instance.driver, ())
        if any(other.endpoint == instance.endpoint for other in known):
            raise DriverAlreadyRegisteredError(instance.driver, instance.endpoint)
        return evolve(self, instances={**self.instances, instance.driver: (*known, instance)})

    def _remove(self, instance: InstanceId) -> "DriverRegistry":
        left = tuple(other for other in self.instances[instance.driver] if other != instance)
        instances = {name: listed for name, listed in self.instances.items() if name != instance.driver}
        if left:
            instances[instance.driver] = left
        gone = {instance}
        return evolve(self, instances=instances, connected=self.connected - gone, reporting=self.reporting - gone)


def has_stopped_reporting(before: DriverRegistry, after: DriverRegistry, event: DriverEvent) -> bool:
    """Return whether `event` ended the last health stream of the event's driver.

    A stream may end without a report. In that case, the health that was saved before a restart also stops counting.
    """
    driver = event.instance.driver
    if after.still_reports(driver):
        return False
    if isinstance(event, HealthEnded):
        return before.is_registered(event.instance)
    return isinstance(event, DriverRemoved) and before.still_reports(driver)


def _with_wipe(registry: DriverRegistry, driver: DriverName, now: float) -> DriverRegistry:
    """If the driver has no connection, schedule a wipe unless one is scheduled; otherwise, cancel the driver's wipe."""
    wipe = registry.wipes.get(driver)
    if registry.is_connected(driver):
        return registry.wiped(driver) if wipe else registry
    return registry if wipe else evolve(registry, wipes={**registry.wipes, driver: Wipe(now + WIPE_DELAY)})
