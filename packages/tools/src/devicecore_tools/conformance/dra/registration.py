"""The registration of a driver: which instance a kubelet calls, and how the driver comes back after restarts.

Law: a check finds the driver registered even if the previous check stopped it. If the driver cannot be
brought back, the check is skipped.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field, frozen

from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverInstance, DriverKubelet, no_sockets_in
from devicecore_tools.conformance.dra.process import DriverProcess
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.model import Skip, skip_if
from devicecore_tools.conformance.process import LATER_START

_COMES_BACK = 2.0  # seconds for a driver that is about to register
_SOON = 2.0  # seconds from the registration to the devices; checks wait only for drivers that take longer
_DIAL = 5.0  # seconds to reach a service


@frozen
class Return:
    """How the driver came back after an event.

    Attributes:
        seconds: how long the driver took to register again, or None if it did not register.
        problem: why the driver did not register, or an empty string.
        exits: a sentence for each time the process exited on its own in the meantime.
    """

    seconds: float | None
    problem: str = ""
    exits: tuple[str, ...] = ()


@define(eq=False)
class DriverRegistration:
    """The driver's registration with the kubelet.

    Attributes:
        returns: how the driver came back after the events in this run, by event name.
        warm_up: seconds from the driver's registration until it had published devices, at its first start.
        was_seen: whether the driver has created a registration socket or sent a request.
        known_name: the driver's name, or an empty string if unknown.
    """

    environment: Environment
    kubelet: DriverKubelet
    process: DriverProcess
    settings: DriverTestSettings
    returns: dict[str, Return] = field(factory=dict)
    warm_up: float = 0.0
    was_seen: bool = False
    known_name: str = ""
    _held: DriverInstance | None = None
    _is_lost: bool = False
    _was_registered: bool = False
    _finding: threading.RLock = field(factory=threading.RLock)

    def wait_for_first(self) -> DriverInstance | None:
        """Wait until a driver's registration has succeeded or failed. Return the instance, or None if there is none."""

        def look() -> DriverInstance | None:
            self.was_seen = self.was_seen or bool(self.kubelet.instances or self.environment.api.requests)
            found = self.kubelet.instances
            return next((one for one in found if one.registered_at or (one.problem and one.stage != "dial")), None)

        if not self.kubelet.instances or look() is None:
            left = self.process.started_at + self.settings.starting - time.monotonic()
            self.process.wait(look, max(left, 0.0))
        found = look() or next(iter(self.kubelet.instances), None)
        if found is not None and found.registered_at and not self._was_registered:
            self._was_registered = True
            self.process.allow_for(found.registered_at - self.process.started_at)
        return found

    @property
    def first(self) -> DriverInstance:
        """The first instance that was found, whether registered or refused. Raises Skip if no instance was found."""
        first = self.wait_for_first()
        if first is None:
            raise Skip(f"the driver created no registration socket in {self.environment.registry}")
        return first

    @property
    def instance(self) -> DriverInstance:
        """The instance that a kubelet calls. If the driver is not registered, it is restarted once.

        Raises Skip if there is no such instance.
        """
        with self._finding:  # checks make concurrent calls
            self.wait_for_first()
            found = self.kubelet.newest
            if found is None and not self._is_lost:
                found = self._bring_back()
            if found is None:
                raise Skip(f"the driver is not registered: {self.why_not()}")
            self._is_lost = False
            return found

    @property
    def reachable(self) -> DriverInstance:
        """The instance that a kubelet calls, with a reachable service. Raises Skip if there is no such instance."""
        if self._held is not None:
            return self._held
        found = self.instance
        if problem := self.unreachable_because(found):
            raise Skip(problem)
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        """Use the instance that is reachable now for all calls in this block.

        Raises Skip if there is no such instance.
        """
        self._held = self.reachable
        try:
            yield
        finally:
            self._held = None

    @staticmethod
    def unreachable_because(found: DriverInstance) -> str:
        """Return why the service of an instance is unreachable, or an empty string if it is reachable."""
        found.is_unreachable = not found.connection.dial(0.1 if found.is_unreachable else _DIAL)
        return f"the driver's service is unreachable: {found.connection.why_not()}" if found.is_unreachable else ""

    @property
    def name(self) -> str:
        """The driver's name. Raises Skip if the name is not known."""
        if not self.known_name:
            info = self.first.info
            self.known_name = info.name if info is not None else ""
        skip_if(not self.known_name, f"the driver is not registered: {self.why_not()}")
        return self.known_name

    def why_not(self) -> str:
        """Return why the driver is not registered. If the driver's process has exited, the reason includes its exit."""
        present = [one for one in self.kubelet.instances if not one.is_gone]
        exits = self.process.exits_since(0)[-1:]
        if present and not (exits and present[-1].stage == "dial"):
            return present[-1].problem or "the registration is in progress"
        registry = self.environment.registry
        socket = present[-1].problem if present else f"there is no socket in {registry}"
        return "; ".join(part for part in (*exits, socket, no_sockets_in(registry)) if part)

    def _bring_back(self) -> DriverInstance | None:
        """Restart a lost driver without its previous sockets, as if in a new container."""
        self._is_lost = True
        if not any(one.registered_at for one in self.kubelet.history):
            return None  # another start would change nothing
        found = self.process.wait(lambda: self.kubelet.newest, min(_COMES_BACK, self.settings.returning))
        if found is None:
            self.process.needs_clean_directories = True
            self.process.start()
            found = self.process.wait(lambda: self.kubelet.newest, self.settings.returning)
            self.process.needs_clean_directories = found is not None
        self._is_lost = found is None
        return found

    # --- restarts -----------------------------------------------------------------------------------------------------

    def after(self, start: Callable[[], object]) -> Return:
        """Start the driver or the kubelet, and wait for an instance that is found after the start."""
        began = time.monotonic()
        start()
        return self.wait(began)

    def wait(self, since: float) -> Return:
        """Wait for an instance that is found at or after `since`, a `time.monotonic()` timestamp."""

        def look() -> DriverInstance | None:
            return next((one for one in reversed(self.kubelet.registered) if one.found_at >= since), None)

        exits, began = len(self.process.exits), time.monotonic()
        limit = max(self.settings.returning, LATER_START * self.process.start_seconds)
        found = self.process.wait(look, limit)
        ended = tuple(self.process.exits_since(exits))
        if found is None:
            waited = time.monotonic() - began
            took = counted(round(waited), "second") + (" (--returning gives more)" if waited >= limit else "")
            return Return(None, f"the driver was not registered again within {took}: {self.why_not()}", ended)
        return Return(found.registered_at - since, exits=ended)

    def restart(self, event: str, meanwhile: Callable[[], object] = lambda: None) -> Return:
        """Kill the registered driver, run an action, and start the driver.

        Record in `returns` how the driver came back, and return that record.

        Raises Skip if the driver is not registered.
        """
        _ = self.instance
        return self.start_again(event, meanwhile)

    def start_again(self, event: str, meanwhile: Callable[[], object]) -> Return:
        """Do the same as `restart` for a driver that does not have to be registered.

        A driver that published its devices late at its first start is again given that much time, because a kubelet
        also keeps trying to prepare a pod's claims until the devices are there.
        """
        self.process.kill()
        meanwhile()
        back = self.returns[event] = self.after(self.process.start)
        if self.warm_up > _SOON and not back.problem:
            self.process.pause(self.warm_up)
        return back
