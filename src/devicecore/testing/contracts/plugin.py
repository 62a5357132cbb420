"""The contract of `DevicePlugin`.

Law: what is listed can be had, by anybody, at any time, and again.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import DeviceId, Health, resource_name
from devicecore.ports.plugin import DevicePlugin
from devicecore.testing.contracts.expecting import PATIENCE, a_check, expect

MakePlugin = Callable[[], DevicePlugin]
"""Makes a plugin that lists at least one healthy device."""


@a_check
def has_a_resource_name_that_a_kubelet_takes(make: MakePlugin) -> None:
    """`resource` is a valid extended resource name."""
    name = make().resource
    expect("the resource, once it was parsed", resource_name(name), name)


@a_check
def lists_each_device_once(make: MakePlugin) -> None:
    """`devices` is the complete list: at least one device that can be had, and none twice."""
    ids = [device.id for device in make().devices()]
    expect("ids that are listed twice", sorted({device for device in ids if ids.count(device) > 1}), [])
    _healthy(make())


@a_check
def lists_the_same_while_nothing_changes(make: MakePlugin) -> None:
    """To ask for the list, or for devices, does not change it."""
    plugin = make()
    before = tuple(plugin.devices())
    plugin.allocate(_healthy(plugin)[:1])
    expect("the list after it was asked for once and a device was allocated", tuple(plugin.devices()), before)


@a_check
def prepares_every_healthy_device(make: MakePlugin) -> None:
    """`allocate` answers for each device on its own and for all together, with what a container must be given."""
    plugin = make()
    healthy = _healthy(plugin)
    for devices in (*([device] for device in healthy), healthy):
        answer = plugin.allocate(devices)
        expect(f"the kind of answer to allocate({devices!r})", type(answer), ContainerAllocateResponse)


@a_check
def prepares_the_same_devices_again(make: MakePlugin) -> None:
    """Asking again for the same devices is no error: a kubelet does after a failed start."""
    plugin = make()
    devices = _healthy(plugin)
    plugin.allocate(devices)
    plugin.allocate(devices)


@a_check
def prefers_what_it_may_choose_from(make: MakePlugin) -> None:
    """Asked for `size` of some devices, it names that many of them, with those it must include; if it says it can."""
    plugin = make()
    if not plugin.options.get_preferred_allocation_available:
        return
    healthy = _healthy(plugin)
    for size in range(1, len(healthy) + 1):
        for must_include in ([], healthy[:1]):
            named = plugin.get_preferred_allocation(healthy, must_include, size)
            question = f"get_preferred_allocation({healthy!r}, {must_include!r}, {size})"
            expect(f"how many devices {question} names", len(set(named)), size)
            expect(f"devices {question} was not offered", set(named) - set(healthy), set())
            expect(f"devices {question} must include and does not", set(must_include) - set(named), set())


@a_check
def takes_note_of_a_start(make: MakePlugin) -> None:
    """`pre_start_container` has no objection to devices that were allocated; if it asked to be told."""
    plugin = make()
    if plugin.options.pre_start_required:
        devices = _healthy(plugin)
        plugin.allocate(devices)
        plugin.pre_start_container(devices)


@a_check
def answers_several_threads_at_once(make: MakePlugin) -> None:
    """Methods may be called from several threads at once: each gets its own answer."""
    plugin = make()
    healthy = _healthy(plugin)
    listed = tuple(plugin.devices())
    alone = {device: plugin.allocate([device]) for device in healthy}
    together = threading.Barrier(8, timeout=PATIENCE)
    problems: list[str] = []

    def ask(first: int) -> None:
        together.wait()
        for turn in range(20):
            device = healthy[(first + turn) % len(healthy)]
            try:
                if (answer := plugin.allocate([device])) != alone[device] or tuple(plugin.devices()) != listed:
                    problems.append(f"{answer!r} for {device}")
            except Exception as error:  # noqa: BLE001 - it is reported below, in the thread that was asked
                problems.append(repr(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    expect("threads still waiting for an answer", [thread for thread in threads if thread.is_alive()], [])
    expect("answers that were not those of a single thread", problems, [])


@a_check
def ends_a_subscription(make: MakePlugin) -> None:
    """`subscribe` gives the way to end it, which works at once."""
    plugin = make()
    end = plugin.subscribe(lambda: None)
    expect("whether what subscribe gives can be called", callable(end), expected=True)
    end()


def _healthy(plugin: DevicePlugin) -> list[DeviceId]:
    healthy = [device.id for device in plugin.devices() if device.health is Health.HEALTHY]
    if not healthy:
        message = f"devices: expected at least one that is healthy, and {tuple(plugin.devices())!r} came"
        raise AssertionError(message)
    return healthy


DEVICE_PLUGIN: tuple[Callable[[MakePlugin], None], ...] = (
    has_a_resource_name_that_a_kubelet_takes,
    lists_each_device_once,
    lists_the_same_while_nothing_changes,
    prepares_every_healthy_device,
    prepares_the_same_devices_again,
    prefers_what_it_may_choose_from,
    takes_note_of_a_start,
    answers_several_threads_at_once,
    ends_a_subscription,
)
"""For every plugin."""


class ChangingPlugin(Protocol):
    """A plugin whose list changes, and the way to make it."""

    @property
    def plugin(self) -> DevicePlugin:
        """The plugin."""

    def change(self) -> None:
        """Make `devices` answer differently from now on, every time another way."""


MakeChangingPlugin = Callable[[], ChangingPlugin]
"""Makes a plugin that lists at least one healthy device, and whose list can be changed."""


@a_check
def tells_its_subscribers_of_a_change(make: MakeChangingPlugin) -> None:
    """Every subscriber is called whenever `devices` would answer differently, and then it does."""
    harness = make()
    heard = [_Bell(), _Bell()]
    ends = [harness.plugin.subscribe(bell.ring) for bell in heard]
    for turn in range(2):
        before = tuple(harness.plugin.devices())
        harness.change()
        for number, bell in enumerate(heard):
            bell.wait(f"that subscriber {number} is called after change {turn}")
        if tuple(harness.plugin.devices()) == before:
            message = f"devices after a change: expected another list than {before!r}, and the same came"
            raise AssertionError(message)
    for end in ends:
        end()


@a_check
def tells_nobody_whose_subscription_has_ended(make: MakeChangingPlugin) -> None:
    """Who has ended a subscription is not called again; the others are."""
    harness = make()
    former, present = _Bell(), _Bell()
    end_former, end_present = harness.plugin.subscribe(former.ring), harness.plugin.subscribe(present.ring)
    end_former()
    harness.change()
    present.wait("that the subscriber who is left is called")
    expect("calls of a subscriber who has ended the subscription", former.rung, 0)
    end_present()


class _Bell:
    """Counts how often it was rung; can be waited for."""

    def __init__(self) -> None:
        self.rung = self._heard = 0
        self._changed = threading.Condition()

    def ring(self) -> None:
        with self._changed:
            self.rung += 1
            self._changed.notify_all()

    def wait(self, what: str) -> None:
        """Wait until it was rung since the last time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.rung > self._heard, PATIENCE):
                message = f"waited {PATIENCE:g} seconds {what}, in vain"
                raise AssertionError(message)
            self._heard = self.rung


CHANGING_DEVICE_PLUGIN: tuple[Callable[[MakeChangingPlugin], None], ...] = (
    tells_its_subscribers_of_a_change,
    tells_nobody_whose_subscription_has_ended,
)
"""Besides, for plugins whose list may change."""
