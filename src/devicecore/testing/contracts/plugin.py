"""The contract of `DevicePlugin`.

Law: every healthy device in the list can be allocated at any time, from any thread, and repeatedly.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import DeviceId, Health, resource_name
from devicecore.ports.plugin import DevicePlugin
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, Suite, expect

MakePlugin = Callable[[], DevicePlugin]
"""Creates a plugin that lists at least one healthy device."""

DEVICE_PLUGIN: Suite[MakePlugin] = Suite()
"""The checks for every plugin."""


@DEVICE_PLUGIN.check
def has_a_valid_resource_name(make: MakePlugin) -> None:
    """`resource` is a valid extended resource name."""
    name = make().resource
    expect("the resource name after parsing", resource_name(name), name)


@DEVICE_PLUGIN.check
def lists_each_device_once(make: MakePlugin) -> None:
    """`devices` returns the complete list: at least one healthy device, and no device twice."""
    ids = [device.id for device in make().devices()]
    expect("ids that are listed twice", sorted({device for device in ids if ids.count(device) > 1}), [])
    _healthy(make())


@DEVICE_PLUGIN.check
def lists_the_same_while_nothing_changes(make: MakePlugin) -> None:
    """Calling `devices` or `allocate` does not change the list."""
    plugin = make()
    before = tuple(plugin.devices())
    plugin.allocate(_healthy(plugin)[:1])
    expect("the list after calls to devices and to allocate", tuple(plugin.devices()), before)


@DEVICE_PLUGIN.check
def prepares_every_healthy_device(make: MakePlugin) -> None:
    """`allocate` answers for each healthy device alone and for all of them together."""
    plugin = make()
    healthy = _healthy(plugin)
    for devices in (*([device] for device in healthy), healthy):
        answer = plugin.allocate(devices)
        expect(f"the type of the answer to allocate({devices!r})", type(answer), ContainerAllocateResponse)


@DEVICE_PLUGIN.check
def prepares_the_same_devices_again(make: MakePlugin) -> None:
    """Allocating the same devices again is not an error. A kubelet repeats an allocation after a failed start."""
    plugin = make()
    devices = _healthy(plugin)
    plugin.allocate(devices)
    plugin.allocate(devices)


@DEVICE_PLUGIN.check
def prefers_what_it_may_choose_from(make: MakePlugin) -> None:
    """If the plugin offers preferences, it prefers `size` available devices, including all of `must_include`."""
    plugin = make()
    if not plugin.options.get_preferred_allocation_available:
        return
    healthy = _healthy(plugin)
    for size in range(1, len(healthy) + 1):
        for must_include in ([], healthy[:1]):
            preferred = plugin.get_preferred_allocation(healthy, must_include, size)
            question = f"get_preferred_allocation({healthy!r}, {must_include!r}, {size})"
            expect(f"the number of devices from {question}", len(set(preferred)), size)
            expect(f"unavailable devices from {question}", set(preferred) - set(healthy), set())
            expect(f"devices missing from {question}", set(must_include) - set(preferred), set())


@DEVICE_PLUGIN.check
def accepts_a_start(make: MakePlugin) -> None:
    """If the plugin requires `pre_start_container`, that method accepts devices that were allocated."""
    plugin = make()
    if plugin.options.pre_start_required:
        devices = _healthy(plugin)
        plugin.allocate(devices)
        plugin.pre_start_container(devices)


@DEVICE_PLUGIN.check
def answers_several_threads_at_once(make: MakePlugin) -> None:
    """Several threads may call the methods at once, and each thread gets its own answer."""
    plugin = make()
    healthy = _healthy(plugin)
    listed = tuple(plugin.devices())
    alone = {device: plugin.allocate([device]) for device in healthy}
    together = threading.Barrier(8, timeout=EVENT_TIMEOUT)
    problems: list[str] = []

    def ask(first: int) -> None:
        together.wait()
        for turn in range(20):
            device = healthy[(first + turn) % len(healthy)]
            try:
                if (answer := plugin.allocate([device])) != alone[device] or tuple(plugin.devices()) != listed:
                    problems.append(f"{answer!r} for {device}")
            except Exception as error:  # noqa: BLE001 - it is reported below, in the calling thread
                problems.append(repr(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(EVENT_TIMEOUT)
    expect("threads still waiting for an answer", [thread for thread in threads if thread.is_alive()], [])
    expect("answers that differ from those to a single thread", problems, [])


@DEVICE_PLUGIN.check
def ends_a_subscription(make: MakePlugin) -> None:
    """`subscribe` returns a function that ends the subscription."""
    plugin = make()
    end = plugin.subscribe(lambda: None)
    expect("whether the return value of subscribe is callable", callable(end), expected=True)
    end()


def _healthy(plugin: DevicePlugin) -> list[DeviceId]:
    healthy = [device.id for device in plugin.devices() if device.health is Health.HEALTHY]
    if not healthy:
        message = f"devices: expected at least one healthy device, got {tuple(plugin.devices())!r}"
        raise AssertionError(message)
    return healthy


class ChangingPlugin(Protocol):
    """A plugin whose list can change, and a way to change it."""

    @property
    def plugin(self) -> DevicePlugin:
        """The plugin."""

    def change(self) -> None:
        """Make `devices` return a different list from now on."""


MakeChangingPlugin = Callable[[], ChangingPlugin]
"""Creates a plugin that lists at least one healthy device, and whose list can be changed."""

CHANGING_DEVICE_PLUGIN: Suite[MakeChangingPlugin] = Suite()
"""Additional checks for plugins whose list may change."""


@CHANGING_DEVICE_PLUGIN.check
def notifies_its_subscribers_of_a_change(make: MakeChangingPlugin) -> None:
    """Every subscriber is called when the list changes, and `devices` returns the new list by then."""
    harness = make()
    subscribers = [_Subscriber(), _Subscriber()]
    ends = [harness.plugin.subscribe(subscriber.notify) for subscriber in subscribers]
    for turn in range(2):
        before = tuple(harness.plugin.devices())
        harness.change()
        for number, subscriber in enumerate(subscribers):
            subscriber.wait(f"a call to subscriber {number} after change {turn}")
        if tuple(harness.plugin.devices()) == before:
            message = f"devices after a change: expected a different list than before, got the same list {before!r}"
            raise AssertionError(message)
    for end in ends:
        end()


@CHANGING_DEVICE_PLUGIN.check
def does_not_notify_after_a_subscription_has_ended(make: MakeChangingPlugin) -> None:
    """After the end of its subscription, a subscriber is no longer called. Other subscribers are not affected."""
    harness = make()
    former, present = _Subscriber(), _Subscriber()
    end_former, end_present = harness.plugin.subscribe(former.notify), harness.plugin.subscribe(present.notify)
    end_former()
    harness.change()
    present.wait("a call to the other subscriber")
    expect("calls to a subscriber after the end of its subscription", former.calls, 0)
    end_present()


class _Subscriber:
    """A subscriber that counts its calls, and can wait for the next call."""

    def __init__(self) -> None:
        self.calls = self._seen = 0
        self._changed = threading.Condition()

    def notify(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()

    def wait(self, what: str) -> None:
        """Wait until there has been a call since the last wait."""
        __tracebackhide__ = True
        with self._changed:
            if not self._changed.wait_for(lambda: self.calls > self._seen, EVENT_TIMEOUT):
                message = f"expected {what} within {EVENT_TIMEOUT:g} s, but there was none"
                raise AssertionError(message)
            self._seen = self.calls
