"""A fleet: the loop that runs the nodes, and the commands from its user.

Laws: a node runs when something has woken it or when the time that it asked for has come, and it ticks every 10
seconds. Ticks are spread evenly, so a fleet sends its Leases one after another and never all at once. Nothing is
polled.
"""

import fnmatch
import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

from attrs import evolve, frozen

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import counted, foreign_text, listed
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.runtime.wake_up import WakeUp
from devicecore_fleet.fleet.commands import check_command, places_of
from devicecore_fleet.fleet.description import MAX_NODES, FleetDescription, GroupDescription, filled
from devicecore_fleet.fleet.schedule import Schedule
from devicecore_fleet.fleet.views import NodeView, Totals
from devicecore_fleet.fleet.virtual_node import NodeLink, SharedParts, VirtualNode

PERIOD = 10.0
"""Seconds between a node's ticks: the interval at which a kubelet renews its Lease."""

REBOOT = 30.0
"""How many seconds a rebooting node is down."""

_TOGETHER = 0.2  # seconds within which ticks are combined, so that a large fleet sleeps between two series of ticks
_MAX_ANSWERS = 20  # the maximum number of sentences in the answer to a command
_MAX_TIMES = 4  # the maximum number of queue entries per node, on average; only one entry of a node counts

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class NodeConnection(Protocol):
    """The connection of one node to its cluster, for as long as the fleet runs."""

    def link(self) -> NodeLink:
        """Return a new link, which starts over as a starting kubelet does."""

    def tick(self) -> None:
        """Do whatever is due for the Node and its Lease, without waiting.

        This method is called only while the node is running.
        """

    def publish(self, driver: str, unhealthy: frozenset[str]) -> None:
        """Publish a driver's devices in ResourceSlices, except unhealthy ones."""

    def cut(self, *, is_cut: bool) -> None:
        """Disconnect the node from the API server, or reconnect it."""

    def catch_up(self) -> None:
        """Read which pods are bound to the node, because this node is added while the fleet is running."""

    def change(self, group: GroupDescription) -> None:
        """Set the group whose description applies from the node's next start on."""

    def remove(self) -> None:
        """Delete the Node, and send nothing more about the node."""

    @property
    def is_gone(self) -> bool:
        """Whether someone has deleted the Node."""

    @property
    def refusal(self) -> str | None:
        """Why the Node with this name is left alone, or None if the Node is not refused."""


Connect = Callable[[str, GroupDescription, Callable[[], None]], NodeConnection]
"""Creates the connection of a node. The connection calls the given function when the node has something to do."""


_WRITTEN = {
    "add": "to add nodes, write add GROUP=N",
    "remove": "to remove nodes, write remove NODES",
    "reload": "to read the file again, write only reload",
}


@frozen
class FleetAnswer:
    """The answers of nodes to a command, and how many nodes executed it."""

    sentences: tuple[str, ...]
    obeyed: int = 0


class Fleet(HasLifecycle):
    """Runs nodes in the thread that calls `step`. `command` and `totals` may be called from any thread.

    Args:
        description: the nodes and the commands.
        shared: the shared parts of the nodes.
        connect: connects each node to the cluster.
        wake: called from other threads when `step` has something to do.
        disconnect: called with the name of a removed node.
        read: reads the description again, or None if the description cannot be read again.
    """

    def __init__(
        self,
        description: FleetDescription,
        shared: SharedParts,
        connect: Connect,
        wake: Callable[[], None] = lambda: None,
        *,
        disconnect: Callable[[str], None] = lambda _: None,
        read: Callable[[], FleetDescription] | None = None,
    ) -> None:
        self._shared = shared
        self._connect = connect
        self._disconnect = disconnect
        self._read = read
        self._groups = description.groups
        self._clock = shared.clock
        self._wake = wake
        self._ready = SimpleQueue[str]()
        self._is_ready: set[str] = set()
        self._asked = SimpleQueue[Callable[[], None]]()
        self._due: list[tuple[float, str]] = []
        self._due_of: dict[str, float] = {}
        self._cut: set[str] = set()
        self._down: set[str] = set()
        self._rebooting: dict[str, float] = {}  # when each node comes up again, unless a different command comes first
        self._commands = description.commands
        self._schedule = Schedule((), 0.0)
        self._ticks = 0
        self._began = 0.0
        self._thread = 0  # the thread that calls `step`
        self._lifecycle = Lifecycle("the fleet")
        self.connections: dict[str, NodeConnection] = {}
        """The connection of each node to the cluster, by the node's name."""
        self.nodes: dict[str, VirtualNode] = {}
        """The nodes by name, in the order of the file."""
        for name, group in description.nodes():
            self._make(name, group)
        self._order_of_ticks = tuple(self.nodes)
        self.version: int = 0
        """A number that changes whenever a view may have changed."""

    def _make(self, name: str, group: GroupDescription) -> None:
        self.connections[name] = connection = self._connect(name, group, self._waker(name))
        self.nodes[name] = VirtualNode(name, group, self._shared, connection.link, self._waker(name))

    def _begin(self) -> None:
        self._began = self._clock()
        self._schedule = Schedule(self._commands, self._began)
        for name in self.nodes:
            self._start(name)
        _log.info("%s started", counted(len(self.nodes), "node"))

    def _start(self, name: str) -> None:
        connection = self.connections[name]
        self.nodes[name].start()
        connection.cut(is_cut=name in self._cut)
        connection.tick()
        for driver in self.nodes[name].group.drivers:
            self._publish(name, str(driver.name))

    def _end(self) -> None:
        for node in self.nodes.values():
            node.stop()

    def _waker(self, name: str) -> Callable[[], None]:
        def wake() -> None:
            if name not in self._is_ready:
                self._is_ready.add(name)
                self._ready.put(name)
                if threading.get_ident() != self._thread:  # `step` itself processes the node before it returns
                    self._wake()

        return wake

    # --- the loop -----------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do everything that is due.

        Return when to call this method again, in monotonic seconds. If the fleet calls `wake`, call it earlier.
        """
        self._thread = threading.get_ident()
        while not self._asked.empty():
            self._asked.get()()
        for nodes, command in self._schedule.due(self._clock()):
            self.command_now(nodes, command)
        for name in [name for name, at in self._rebooting.items() if at <= self._clock()]:
            self.command_now(name, ("up",))
        for name in self._woken():
            self._advance(name)
        while self._due and self._due[0][0] <= self._clock():
            at, name = heapq.heappop(self._due)
            if self._due_of.get(name) == at and name in self.nodes:
                self._advance(name)
        self._tick()
        now = self._clock()
        if not self._ready.empty() or not self._asked.empty():
            return now
        due = self._due[0][0] if self._due else float("inf")
        return min(due, self._schedule.next_due, *self._rebooting.values(), max(self._next_tick, now + _TOGETHER))

    def _woken(self) -> Iterator[str]:
        """Yield the nodes that were woken before this call."""
        for _ in range(self._ready.qsize()):
            name = self._ready.get()
            self._is_ready.discard(name)  # cleared before the node runs, so that a wake-up during the run counts
            if name in self.nodes:  # the node may have been removed
                yield name

    def _advance(self, name: str) -> None:
        self._due_of[name] = due = self.nodes[name].advance()
        if due < float("inf"):
            heapq.heappush(self._due, (due, name))
        if len(self._due) > _MAX_TIMES * len(self.nodes):  # most entries are from an earlier run, and may be days ahead
            self._due = [(at, one) for one, at in self._due_of.items() if at < float("inf")]
            heapq.heapify(self._due)
        self.version += 1

    @property
    def _next_tick(self) -> float:
        if not self._order_of_ticks:
            return float("inf")
        return self._began + self._ticks * PERIOD / len(self._order_of_ticks)

    def _tick(self) -> None:
        now = self._clock()
        if not self._order_of_ticks:
            return
        missed = int((now - self._next_tick) / PERIOD) * len(self._order_of_ticks)
        self._ticks += max(0, missed)  # after a pause of the machine, each node ticks once, not once per missed period
        while self._next_tick <= now:
            name = self._order_of_ticks[self._ticks % len(self._order_of_ticks)]
            self._ticks += 1
            if name not in self._down:
                self.nodes[name].tick()
                self.connections[name].tick()

    # --- commands -----------------------------------------------------------------------------------------------------

    def command(self, nodes: str, command: Sequence[str], patience: float = 10.0) -> FleetAnswer:
        """Execute a command on nodes, and return their answers.

        Args:
            nodes: a name, or a pattern with `*`, `?` and `[...]`.
            command: the command.
            patience: seconds to wait for the answers.
        """
        answer = self._ask(lambda: self.command_now(nodes, tuple(command)), patience)
        late = f"the fleet has not answered within {patience:g} s; it will execute the command as soon as it can"
        return answer or FleetAnswer((late,))

    def _ask(self, what: Callable[[], _T], patience: float) -> _T | None:
        """Run a function in the thread that calls `step`.

        Return the function's result, or None if the result is late.
        """
        answers: list[_T] = []
        wake_up = WakeUp()

        def answer() -> None:
            answers.append(what())
            wake_up.wake()

        self._asked.put(answer)
        self._wake()
        return answers[0] if wake_up.wait(patience) else None

    def command_now(self, pattern: str, command: tuple[str, ...]) -> FleetAnswer:
        """Execute `command` at once. Only the thread that calls `step` may call this method."""
        if (change := self._change_of(pattern, command)) is not None:
            self.version += 1
            return change()
        names = [name for name in self.nodes if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            return self._no_node(pattern)
        said, obeyed = [], 0
        for name in names:
            problem = check_command(command, self.nodes[name].group)
            sentence = f"node {name}: {problem or self._obey_one(name, command)}"
            obeyed += not problem
            said.append(sentence)
            if not problem:
                _log.info("%s", sentence)
        more = [f"... and {counted(len(said) - _MAX_ANSWERS, 'more node')}"] if len(said) > _MAX_ANSWERS else []
        self.version += 1
        return FleetAnswer((*said[:_MAX_ANSWERS], *more), obeyed)

    # --- the set of nodes ---------------------------------------------------------------------------------------------

    def _change_of(self, first: str, rest: tuple[str, ...]) -> Callable[[], FleetAnswer] | None:
        """Return the function for a command that changes the set of nodes, or None for other commands.

        Nodes may have the same names as commands.
        """
        match (first, *rest):
            case ["reload"]:
                return self._reload
            case ["add", text] if "=" in text:
                return lambda: self._add(text)
            case ["remove", pattern] if "remove" not in self.nodes:
                return lambda: self._remove(
                    [name for name in self.nodes if fnmatch.fnmatchcase(name, pattern)], pattern
                )
            case _:
                return None

    def _add(self, text: str) -> FleetAnswer:
        title, _, count = text.rpartition("=")
        groups = [one for one in self._groups if title in (one.title, one.pattern)]
        most = MAX_NODES - sum(not one.is_gone for one in self.connections.values())
        if len(groups) != 1:
            known = ", ".join(one.pattern for one in self._groups[:_MAX_ANSWERS])
            why = f"expected one of the groups {known}" if not groups else "expected the complete pattern of one group"
            return FleetAnswer((f"{why}, got {foreign_text(title, 100)!r}",))
        if "{number" not in groups[0].pattern:
            return FleetAnswer((f"the name {groups[0].pattern} has no {{number}}, so only one node can have it",))
        if not (count.isascii() and count.isdecimal() and 0 < int(count[:9]) <= most):
            return FleetAnswer((f"expected a number of nodes from 1 to {most}, got {foreign_text(count, 20)!r}",))
        group, names, number = groups[0], list[str](), groups[0].first
        while len(names) < int(count):
            name = filled(group.pattern, number)
            if name not in self.nodes or self.connections[name].is_gone:  # someone may have deleted the Node
                names.append(name)
            number += 1
        if not is_dns_subdomain(names[-1], 63):
            return FleetAnswer((f"{names[-1]} is too long for a node name",))
        self._take_away([name for name in names if name in self.nodes])
        return self._changed([self._begin_late(name, group) for name in names])

    def _begin_late(self, name: str, group: GroupDescription) -> str:
        self._make(name, group)
        try:
            self._start(name)
        except DeviceCoreError as error:
            self._down.add(name)
            return f"node {name} was added, but cannot start: {error}"
        self.connections[name].catch_up()
        return f"node {name} was added"

    def _remove(self, names: Sequence[str], pattern: str) -> FleetAnswer:
        return self._changed(self._take_away(names)) if names else self._no_node(pattern)

    def _no_node(self, pattern: str) -> FleetAnswer:
        known = listed([*self.nodes]) or "none"
        hint = f": {_WRITTEN[pattern]}" if pattern in _WRITTEN else f"; nodes: {known}"
        return FleetAnswer((f"there is no node {foreign_text(pattern, 100)}{hint}",))

    def _take_away(self, names: Sequence[str]) -> list[str]:
        for name in names:
            self.nodes[name].stop()
            self.connections[name].remove()
            self._disconnect(name)
            del self.nodes[name], self.connections[name]
            self._due_of.pop(name, None)
            self._rebooting.pop(name, None)
            for some in (self._cut, self._down):
                some.discard(name)
        return [f"node {name} was removed" for name in names]

    def _reload(self) -> FleetAnswer:
        """Apply the current content of the file. A node whose description has changed restarts with its pods."""
        if self._read is None:
            return FleetAnswer(("this fleet has no file",))
        try:
            description = self._read()
        except (DeviceCoreError, OSError) as error:
            return FleetAnswer((f"nothing was changed, because the file cannot be read: {error}",))
        wanted = dict(description.nodes())
        self._groups = description.groups
        if description.commands != self._commands:
            self._commands = description.commands
            self._schedule = Schedule(self._commands, self._clock())
        said = self._take_away([name for name in self.nodes if name not in wanted])
        for name, group in wanted.items():
            if name not in self.nodes:
                said.append(self._begin_late(name, group))
            elif self.nodes[name].group != group or self.connections[name].is_gone:
                said.append(self._begin_anew(name, group))
        return self._changed(said or ["the file has not changed"])

    def _begin_anew(self, name: str, group: GroupDescription) -> str:
        self.nodes[name].stop()
        self.nodes[name].change(group)
        self.connections[name].change(group)
        if name in self._down:
            return f"node {name} was changed, and is down"
        self._down.add(name)
        said = self._come_up(name)
        return f"node {name} was changed, and {said}"

    def _changed(self, said: Sequence[str]) -> FleetAnswer:
        """Record that the set of nodes has changed, and spread the ticks again. Return the answer."""
        self._order_of_ticks = tuple(self.nodes)
        self._began, self._ticks = self._clock(), 0
        for sentence in said:
            _log.info("%s", sentence)
        more = [f"... and {counted(len(said) - _MAX_ANSWERS, 'more node')}"] if len(said) > _MAX_ANSWERS else []
        return FleetAnswer((*said[:_MAX_ANSWERS], *more), len(said))

    def _obey_one(self, name: str, command: tuple[str, ...]) -> str:
        node = self.nodes[name]
        match command:
            case ["partition" | "heal"]:
                return self._set_cut(name, is_cut=command[0] == "partition")
            case ["down" | "reboot"]:
                self._down.add(name)
                self._rebooting.pop(name, None)
                self.connections[name].cut(is_cut=True)
                node.stop()
                if command[0] == "reboot":
                    self._rebooting[name] = self._clock() + REBOOT
                return "it is down" if command[0] == "down" else f"it is down, and will come up in {REBOOT:g} s"
            case ["up"]:
                return self._come_up(name)
            case _:
                sentence, what = node.obey(command), command[-1]
                changed = {what, *(provider for provider, _ in places_of(what, node.group))}
                for driver in node.group.drivers:
                    if driver.name in changed:
                        self._publish(name, str(driver.name))
                return sentence

    def _come_up(self, name: str) -> str:
        if name not in self._down:
            return "it is up"
        self._rebooting.pop(name, None)
        try:
            self._start(name)
        except DeviceCoreError as error:
            return f"it cannot start: {error}"
        self._down.discard(name)
        return "it is up"

    def _set_cut(self, name: str, *, is_cut: bool) -> str:
        (self._cut.add if is_cut else self._cut.discard)(name)
        if name not in self._down:
            self.connections[name].cut(is_cut=is_cut)
        return "it is separated from the API server" if is_cut else "it is connected to the API server"

    def _publish(self, name: str, driver: str) -> None:
        unhealthy = self.nodes[name].unhealthy_of(driver)
        if unhealthy is not None:
            self.connections[name].publish(driver, unhealthy)

    # --- views --------------------------------------------------------------------------------------------------------

    def views(self) -> Iterator[NodeView]:
        """Yield the current views of the nodes. Only the thread that calls `step` may call this method."""
        for name, node in self.nodes.items():
            view = node.view(is_cut=name in self._cut)
            yield evolve(view, is_refused=self.connections[name].refusal is not None)

    def totals(self, patience: float = 5.0) -> Totals | None:
        """Count nodes, pods and devices in the thread that calls `step`.

        Args:
            patience: seconds to wait for the counts.

        Returns: The counts, or None if the counts are late.
        """
        return self._ask(lambda: Totals.of(self.views()), patience)
