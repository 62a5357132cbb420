"""The registrations of a plugin: its connection to the kubelet, and its return after restarts.

Law: a check finds the plugin registered even if the previous check stopped it. If the plugin cannot be brought back,
the check is skipped. The check that tests the plugin's return fails, so a lost plugin never passes.
"""

import time

from attrs import define

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection, Registration
from devicecore_tools.conformance.device_plugin.process import ProcessUnderTest
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import Failure, Skip, TookTooLong, does_not_apply_if, skip_if, some
from devicecore_tools.conformance.process import LATER_START

_FIRST_LIST = 3.0  # seconds in which the plugin should list devices, if it has other resources
_MAX_TRIED = 3  # resources
_AFTER_NO_RETURN = 4.0  # seconds to return, for a plugin that failed to return before
_RETURN_FACTOR = 1.3  # a multiple of the plugin's slowest return so far


@define(eq=False)
class PluginRegistration:
    """The plugin's registrations."""

    kubelet: BareKubelet
    process: ProcessUnderTest
    settings: Settings
    lost_stream: str = ""
    """Why the list stream of a restarted plugin ended, or an empty string if the plugin has come back."""
    missing: frozenset[str] = frozenset()
    """Devices that were listed before, but not again after the plugin came back."""
    sick: frozenset[str] = frozenset()
    """Devices that were healthy before, but not again after the plugin came back."""
    absent: frozenset[str] = frozenset()
    """Other resources that had devices before, but not again after the plugin came back."""
    has_returned: bool = False
    was_held_up: bool = False
    """Whether the plugin was held up for most of the time in which its other resources should have returned."""
    _lost: str = ""  # what the plugin did instead of coming back
    _waited_for: PluginConnection | None = None
    _waited_for_first: bool = False
    _slowest_return: float = 0.0
    _first_return: float = 0.0  # seconds from the start of the process
    _returns: bool = True

    @property
    def first(self) -> Registration:
        """The first registration, successful or not.

        The first use waits for the registration. Raises Skip if there is no registration.
        """
        self.wait_for_first()
        skip_if(not self.kubelet.registrations, "the plugin did not register")
        return self.kubelet.registrations[0]

    def wait_for_first(self) -> None:
        """On the first call, wait until the plugin has registered and received the answer, or the time is up."""
        if not self._waited_for_first:
            self._waited_for_first = True
            registrations = self.kubelet.registrations
            self.process.wait(lambda: registrations, min(self.settings.first, self.settings.budget))
            if registrations:
                first = registrations[0]
                self.process.wait(lambda: first.problem or first.answered, 4 * self.settings.timeout)
                self._first_return = first.at - self.process.started_at if self.process.is_ours else 0.0
                self._choose_resource()
            self.process.deadline = time.monotonic() + self.settings.budget

    def _choose_resource(self) -> None:
        """If the process has several resources and the first resource has no devices, test one that lists devices."""
        kubelet = self.kubelet
        if self.settings.resource or not self.process.is_ours:
            return
        first = kubelet.resource

        def lists_devices() -> bool:
            connection = kubelet.connection
            return bool(connection and connection.list_count and connection.last_list.devices)

        if self.process.wait(lists_devices, _FIRST_LIST):  # the other resources may register a moment later
            return
        others = [one for one in sorted(kubelet.others)[:_MAX_TRIED] if kubelet.lists_healthy_devices_of(one)]
        for resource in others:
            self._start_with(resource)
            if self.process.wait(lists_devices, self.after_a_start):
                return
        if others:
            self._start_with(first)
            self.process.wait(lambda: kubelet.connection, self.after_a_start)

    def _start_with(self, resource: str) -> None:
        """Restart the kubelet and the plugin to test another resource."""
        self.process.stop()
        self.kubelet.leave()
        self.kubelet.wipe()
        self.kubelet.others[self.kubelet.resource] = self.process.started_at
        self.kubelet.others.pop(resource, None)
        self.kubelet.resource = resource
        self.kubelet.registrations.clear()
        self.kubelet.serve()
        self.process.start()

    def wait_registered(self, number: int, timeout: float, *, with_healthy: bool = False) -> PluginConnection | None:
        """Skip the first `number` registrations, and wait for one that succeeds and is followed by a list.

        Return the connection, or None after `timeout` seconds.

        Some plugins register twice in a row and close their first socket, so only an open connection counts. A plugin
        that has never sent a list does not need to send one. If `with_healthy` is true, the list must contain a healthy
        device, unless the plugin has never listed one.
        """
        former = [one.connection for one in self.kubelet.registrations[:number] if one.connection]
        listed = any(one.list_count for one in former)
        with_healthy = with_healthy and any(one.lists_healthy for one in former)

        def look() -> PluginConnection | None:
            for registration in self.kubelet.registrations[number:]:
                connection = registration.connection
                is_open = registration.answered and connection is not None and not connection.ended
                if connection is None or not is_open or not (connection.list_count or not listed):
                    continue
                if connection.lists_healthy or not with_healthy:
                    return connection
            return None

        return self.process.wait(look, timeout)

    def connected(self) -> PluginConnection:
        """Return the connection to the plugin. If there is no connection, restart the kubelet and the plugin first.

        Raises Skip if the plugin did not register.
        """
        self.wait_for_first()
        connection = self.kubelet.connection
        if connection is not None and not self.process.has_exited:  # gRPC does not always notice the end of the process
            self._lost = self.lost_stream = ""
            return connection
        if not any(registration.answered for registration in self.kubelet.registrations):
            silence = "" if self.kubelet.registrations else f": {self.kubelet.silence} in {self.kubelet.directory}"
            raise Skip(f"the plugin did not register successfully{silence}")
        self.process.wait_for_exit()
        return self.restarted()

    def require_preferences(self) -> None:
        """Raise DoesNotApply unless the plugin announces GetPreferredAllocation."""
        announced = self.connected().options.get_preferred_allocation_available
        does_not_apply_if(not announced, "the plugin does not announce this method")

    def require_pre_start(self) -> None:
        """Raise DoesNotApply unless the plugin announces PreStartContainer."""
        does_not_apply_if(not self.connected().options.pre_start_required, "the plugin does not require this call")

    def restarted(self) -> PluginConnection:
        """Restart the kubelet, which deletes all sockets, and the plugin's process. Return the new connection.

        Raises Skip if the plugin did not register again, now or after the last such restart.
        """
        reason = "the plugin is no longer registered and did not register again"
        if self._lost:
            raise Skip(reason)
        self.process.stop()
        number, began = len(self.kubelet.registrations), time.monotonic()
        self.kubelet.leave()
        self.kubelet.wipe()
        self.kubelet.serve()
        self.process.start()
        connection = self.wait_registered(number, self.after_a_start)
        if connection is None:
            self._lost = self._last_try(number, began)
            self.lost_stream = self._ended_stream(number)
            raise Skip(reason)
        self._lost = self.lost_stream = ""
        return connection

    def require_return(self) -> None:
        """Raise Failure if the plugin is lost, and Skip if it never registered successfully."""
        try:
            self.connected()
        except Skip:
            if not self._lost:
                raise
            raise TookTooLong(
                f"the plugin and the kubelet were restarted, and the plugin did not come back: {self._lost}"
            ) from None

    def streaming(self) -> PluginConnection:
        """Wait for the connection's first list, and return the connection. Only then can plugins notice a stream's end.

        Raises Skip if the plugin did not register.
        """
        connection = self.connected()
        if connection is not self._waited_for:  # once, because some plugins never send a list
            self._waited_for = connection
            self.process.wait(lambda: connection.list_count or connection.ended, self.settings.timeout)
        return connection

    @property
    def usual_return(self) -> float:
        """Seconds in which the plugin registers again, if it takes no longer than so far."""
        return max(self.settings.noticing, self._slowest_return * _RETURN_FACTOR)

    @property
    def after_a_start(self) -> float:
        """Seconds to register after the process starts. A later start may take twice as long as the first."""
        return max(self.settings.returning, LATER_START * self._first_return)

    def restart_kubelet(self, *, wipe: bool, pause: float | None = None) -> int:
        """Restart the kubelet, which is down for `pause` seconds, by default as in the settings.

        Return the number of registrations before the restart.
        """
        self.streaming()
        number = len(self.kubelet.registrations)
        self.kubelet.leave()
        self.process.pause(self.settings.restarting if pause is None else pause)
        if wipe:
            self.kubelet.wipe()
        self.kubelet.serve()
        return number

    def see_it_return(self, number: int, *, noticing: bool = False, with_others: bool = True) -> str:
        """Wait for another registration that is followed by a list, and return a sentence about that registration.

        Args:
            number: the number of earlier registrations.
            noticing: whether the plugin must notice something other than deleted sockets; if so, the wait may be
                shorter.
            with_others: whether the plugin's other resources must also return.

        Raises:
            Failure: the plugin did not register in time, or no longer listed a healthy device.
        """
        limits = {"--returning": self.after_a_start}  # the plugin may exit and be restarted
        if noticing:
            limits["--noticing"] = self.usual_return
        if not self._returns:
            limits[""] = max(_AFTER_NO_RETURN, self._slowest_return * _RETURN_FACTOR)
        option, limit = min(limits.items(), key=lambda one: one[1])
        began = time.monotonic()
        before = len(self.process.exits)
        connection = self.wait_registered(number, limit)
        exits = self.process.exits[before:]
        restarted = f"; it had exited and was restarted: {exits[-1]}" if exits else ""
        if connection is None:
            self._returns = self._returns and (noticing or bool(exits))
            waited = min(limit, time.monotonic() - began)
            after = counted(round(waited, 1), "second")
            after += f" ({option} gives more)" if option and waited == limit else ""
            was_refused = any(one.problem for one in self.kubelet.registrations[number:]) or self._others_since(began)
            text = f"the plugin was not back after {after}: {self._last_try(number, began)}{restarted}"
            raise (Failure if was_refused else TookTooLong)(text)
        took = time.monotonic() - began
        if self.wait_registered(number, self.settings.timeout, with_healthy=True) is None:
            seconds = counted(self.settings.timeout, "second")
            raise TookTooLong(
                f"the plugin was back after {took:.1f} seconds, but {seconds} later: {self._last_try(number, began)}"
            )
        self._slowest_return = max(self._slowest_return, took)
        self._note_missing(number)
        if with_others and not noticing:
            self.note_absent()
        return f"the plugin was back after {took:.1f} seconds{restarted}"

    def _note_missing(self, number: int) -> None:
        """Record the devices that are missing, or no longer healthy, after the last return.

        Once some are recorded, later calls do not wait for them again.
        """
        former = next((one.connection for one in self.kubelet.registrations[:number][::-1] if _has_list(one)), None)
        before = _ids_of(former)

        # Some devices may appear a while after each start.
        late = {
            id_
            for one in self.kubelet.registrations
            if one.connection
            for id_, seconds in one.connection.appeared.items()
            if LATER_START * seconds > self.settings.timeout
        }

        def missing() -> frozenset[str]:
            now = _ids_of(self.kubelet.connection)
            return before - now - late if now < before else frozenset()  # another check covers changed ids

        if not self.missing:
            self.process.wait(lambda: not missing(), self.settings.timeout)
            self.missing = missing()

        healthy = _healthy_ids_of(former)

        def sick() -> frozenset[str]:
            """Return the devices that are listed again, but no longer healthy."""
            now = self.kubelet.connection
            return (healthy & _ids_of(now)) - _healthy_ids_of(now)

        if not self.sick and not self.kubelet.expects_changes:
            self.process.wait(lambda: not sick(), self.after_a_start)
            self.sick = sick()

    def note_absent(self) -> None:
        """Record the other resources that have not returned in time. Once there are any, later calls do not wait."""
        began = max(self.kubelet.served_at, self.process.started_at)

        self.has_returned = True
        if not self.absent:
            before, limit = self.process.waits, self.after_a_start
            self.process.wait(lambda: not self.kubelet.others_missing(began), limit)
            self.absent = self.kubelet.others_missing(began)
            self.was_held_up = before.until(self.process.waits) > limit / 2

    def _last_try(self, number: int, since: float) -> str:
        """Return what the plugin has done since a given time, after the first `number` registrations."""
        tries = self.kubelet.registrations[number:]
        refused = [registration.problem for registration in tries if registration.problem]
        if ended := self._ended_stream(number):
            return f"it registered, but its stream of lists ended ({ended})"
        if answered := [one.connection for one in tries if one.answered and one.connection]:
            if not answered[-1].list_count:
                return "it registered, but sent no list of its devices"
            number_of_devices = counted(len(answered[-1].last_list.devices), "device")
            return f"it registered, but none of its {number_of_devices} is healthy"
        if refused:
            return f"its last registration was refused: {refused[-1]}"
        others = self._others_since(since)
        only = f" for {foreign_text(self.kubelet.resource)}, only for {some(others)}" if others else ""
        return f"it made no {self.kubelet.attempt}{only}"

    def _others_since(self, since: float) -> list[str]:
        """Return the other resources that have registered since a `time.monotonic()` timestamp."""
        return sorted(name for name, at in self.kubelet.others.items() if at > since)

    def _ended_stream(self, number: int) -> str:
        connections = [one.connection for one in self.kubelet.registrations[number:] if one.answered and one.connection]
        return connections[-1].ended if connections else ""

    def wait_for_stream(self, connection: PluginConnection) -> None:
        """Wait until the stream of lists has been open long enough to assume that it will stay open."""
        left = connection.opened + self.settings.alone - time.monotonic()
        self.process.wait(lambda: connection.ended, max(left, 0.0))


def _has_list(registration: Registration) -> bool:
    return bool(registration.connection and registration.connection.list_count)


def _ids_of(connection: PluginConnection | None) -> frozenset[str]:
    """Return the ids in the last list of a connection, or none if the connection has no list."""
    listed = connection.last_list.devices if connection and connection.list_count else ()
    return frozenset(device.ID for device in listed)


def _healthy_ids_of(connection: PluginConnection | None) -> frozenset[str]:
    """Return the ids of the healthy devices in the last list of a connection, or none if the connection has no list."""
    listed = connection.last_list.devices if connection and connection.list_count else ()
    return frozenset(device.ID for device in listed if device.health == "Healthy")
