"""Every device plugin meets the contract, and broken ones are caught."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceRefusedError
from devicecore.domain.model import Device, DeviceId, PluginOptions, ResourceName
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.plugin import DevicePlugin
from devicecore.testing.contracts import (
    CHANGING_DEVICE_PLUGIN,
    DEVICE_PLUGIN,
    ChangingPlugin,
    MakeChangingPlugin,
    MakePlugin,
)
from devicecore.testing.contracts import plugin as contract

Check = Callable[[MakePlugin], None]
ChangeCheck = Callable[[MakeChangingPlugin], None]
Make = Callable[[Path], ChangingPlugin]


class Simulated:
    """A simulated plugin that gets one more device with each change."""

    def __init__(self, _: Path) -> None:
        self.plugin: SimulatedPlugin = SimulatedPlugin("example.com/gpu", simulated_devices("gpu", 4, unhealthy=[2]))
        self._sizes = count(5)

    def change(self) -> None:
        self.plugin.set_devices(simulated_devices("gpu", next(self._sizes)))


class Directory:
    """A plugin for a directory, to which each change adds a file."""

    def __init__(self, path: Path) -> None:
        self._numbers = count()
        self._path = path
        self.change()
        self.change()
        self.plugin = DirectoryPlugin("example.com/file", path, poll_interval=0.01)

    def change(self) -> None:
        (self._path / f"device-{next(self._numbers)}").touch()


@contextmanager
def empty_directories() -> Iterator[Callable[[], Path]]:
    """Yield a function that creates an empty directory on each call."""
    with tempfile.TemporaryDirectory() as directory:
        yield lambda: Path(tempfile.mkdtemp(dir=directory))


@pytest.mark.parametrize("make", [Simulated, Directory])
@pytest.mark.parametrize("check", DEVICE_PLUGIN)
def test_a_plugin_keeps_the_contract(check: Check, make: Make) -> None:
    """SimulatedPlugin and DirectoryPlugin meet every sentence of the port."""
    with empty_directories() as directory:
        check(lambda: make(directory()).plugin)


@pytest.mark.parametrize("make", [Simulated, Directory])
@pytest.mark.parametrize("check", CHANGING_DEVICE_PLUGIN)
def test_a_plugin_notifies_of_changes(check: ChangeCheck, make: Make) -> None:
    """SimulatedPlugin and DirectoryPlugin meet the rules about lists that change."""
    with empty_directories() as directory:
        check(lambda: make(directory()))


class Minimal(DevicePlugin):
    """A plugin with nothing but the three members that the port requires."""

    resource = ResourceName("example.com/minimal")

    def devices(self) -> Sequence[Device]:
        return (Device(DeviceId("one")),)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(envs={"DEVICES": ",".join(devices)})


@pytest.mark.parametrize("check", DEVICE_PLUGIN)
def test_resource_devices_and_allocate_are_all_a_plugin_needs(check: Check) -> None:
    """A plugin that keeps all of the port's defaults meets every sentence of the contract."""
    check(Minimal)


# --- the contract can fail -------------------------------------------------------------------------------------------


class HasABadName(Minimal):
    resource = ResourceName("minimal")


class ListsTwice(Minimal):
    def devices(self) -> Sequence[Device]:
        return (*super().devices(), *super().devices())


class RemovesAllocatedDevices(Minimal):
    def __init__(self) -> None:
        self.gone: set[DeviceId] = set()

    def devices(self) -> Sequence[Device]:
        listed = (Device(DeviceId("one")), Device(DeviceId("two")))
        return [device for device in listed if device.id not in self.gone]

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self.gone.update(devices)
        return super().allocate(devices)


class AnswersNothing(Minimal):
    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return None  # type: ignore[return-value]  # this is the mistake being tested


class PreparesOnce(Minimal):
    def __init__(self) -> None:
        self.prepared: set[DeviceId] = set()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        for device in devices:
            if device in self.prepared:
                raise DeviceRefusedError(self.resource, device)
            self.prepared.add(device)
        return super().allocate(devices)


class PrefersNothing(Minimal):
    options = PluginOptions(get_preferred_allocation_available=True)


class RefusesEveryStart(Minimal):
    options = PluginOptions(pre_start_required=True)

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        raise DeviceRefusedError(self.resource, devices[0])


class AnswersTheCallBefore(Minimal):
    """Answers each request with the answer to the previous request."""

    def __init__(self) -> None:
        self.last: Sequence[DeviceId] = ()

    def devices(self) -> Sequence[Device]:
        return (Device(DeviceId("one")), Device(DeviceId("two")))

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        last, self.last = self.last, devices
        return super().allocate(last)


class EndsNoSubscription(Minimal):
    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return None  # type: ignore[return-value]  # this is the mistake being tested


BROKEN: dict[Check, MakePlugin] = {
    contract.has_a_valid_resource_name: HasABadName,
    contract.lists_each_device_once: ListsTwice,
    contract.lists_the_same_while_nothing_changes: RemovesAllocatedDevices,
    contract.prepares_every_healthy_device: AnswersNothing,
    contract.prepares_the_same_devices_again: PreparesOnce,
    contract.prefers_what_it_may_choose_from: PrefersNothing,
    contract.accepts_a_start: RefusesEveryStart,
    contract.answers_several_threads_at_once: AnswersTheCallBefore,
    contract.ends_a_subscription: EndsNoSubscription,
}


@pytest.mark.parametrize("check", DEVICE_PLUGIN)
def test_each_check_catches_a_plugin_that_breaks_its_sentence(check: Check) -> None:
    """A check that never fails tests nothing."""
    with pytest.raises(AssertionError):
        check(BROKEN[check])


class NotifiesWithoutAChange(Simulated):
    """Notifies its subscribers, although nothing has changed."""

    def change(self) -> None:
        self.plugin.set_devices(self.plugin.devices())


class NeverUnsubscribes(SimulatedPlugin):
    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        super().subscribe(changed)
        return lambda: None


class NotifiesAfterTheEnd(Simulated):
    """Notifies a subscriber whose subscription has ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.plugin = NeverUnsubscribes("example.com/gpu")


BROKEN_CHANGES: dict[ChangeCheck, Make] = {
    contract.notifies_its_subscribers_of_a_change: NotifiesWithoutAChange,
    contract.does_not_notify_after_a_subscription_has_ended: NotifiesAfterTheEnd,
}


@pytest.mark.parametrize("check", CHANGING_DEVICE_PLUGIN)
def test_each_check_catches_a_plugin_that_is_wrong_about_changes(check: ChangeCheck) -> None:
    """A check that never fails tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: BROKEN_CHANGES[check](Path()))
