"""The actions of the simulation: each is one method, and a `Random` chooses the next one.

Law: everything runs in one thread. While the manager waits for a plugin, it holds no lock, and other threads could call
it. At these points, the simulation takes further actions, nested at most `MAX_DEPTH` deep.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NoReturn, TypeVar

from attrs import frozen

from devicecore.domain.admission import Admitted, Refused, Verdict
from devicecore.domain.errors import DeviceCoreError, PluginAlreadyConnectedError, StoreError
from devicecore.domain.events import DevicesReported, PluginLost
from devicecore.domain.inventory import GRACE_PERIOD
from devicecore.domain.model import (
    Container,
    Device,
    DeviceId,
    ExtendedClaim,
    Health,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    RequestMapping,
    ResourceName,
)
from devicecore.domain.topology import Policy, Scope, Topology
from devicecore.testing import faults
from tests.simulation import laws
from tests.simulation.laws import Violations
from tests.simulation.world import BUDGET, Holdings, ManagerType, PowerCutError, World, holdings

T = TypeVar("T")

GPU, NIC, FPGA = RESOURCES = tuple(ResourceName(f"example.com/{name}") for name in ("gpu", "nic", "fpga"))
UNSERVED = ResourceName("example.com/unserved")

MAX_DEVICES = 8
MAX_PODS = 7
MAX_DEPTH = 3

_PLUGIN_FAULTS: tuple[faults.Fault, ...] = (
    faults.Fails("the plugin refuses"),
    faults.FailsAfterwards("the plugin crashed"),
    faults.NeverAnswers(),
    faults.AnswersLate(),
    faults.AnswersNothing(),
    faults.TakesTime(20.0),
    faults.TakesTime(BUDGET + 1),
)
_PREFERENCES: tuple[faults.Fault, ...] = (
    faults.AnswersShort(),
    faults.AnswersTooLong(),
    faults.AnswersForeign(),
    faults.AnswersForeign(("gpu-0", "gpu-0", "nic-0", "fpga-5", "")),
    faults.AnswersRepeated(),
)


@frozen
class LawBrokenError(BaseException):
    """Raised when a law is broken. It is not an `Exception`, because the manager catches the exceptions of plugins."""

    law: str
    violation: str


class Steps:
    """The steps of one run.

    `step` is the number of the last step. `trace` contains a line for each action; actions during a call to a plugin
    are indented.
    """

    def __init__(self, chance: Random, manager: ManagerType) -> None:
        self.trace: list[str] = []
        self._chance = chance
        self.step = 0
        self._depth = 0
        self._pods = 0
        policy = self._chance.choice((Policy.NONE, Policy.NONE, *Policy))
        topology = Topology((NumaNode(0), NumaNode(1)), policy, self._chance.choice(tuple(Scope)))
        self.world = World(manager, topology)

    # --- steps --------------------------------------------------------------------------------------------------------

    def take_step(self) -> None:
        """Take one action, and further actions during its calls to plugins, and check the laws.

        Raises:
            LawBrokenError: a law is broken.
        """
        self.step += 1
        try:
            self._act(self.ANY_TIME + self.BETWEEN)
        except PowerCutError:
            self._log("a new manager starts")
            self.start()
        self._check(laws.AT_REST)

    def _act(self, actions: Sequence[tuple[int, str]]) -> None:
        """Take one of `actions`, which are pairs of a weight and a method's name, and check the laws."""
        weights, names = zip(*actions, strict=True)
        (name,) = self._chance.choices(names, weights)
        self.world.actions_done += 1
        try:
            getattr(self, name)()
        except Exception as error:  # noqa: BLE001 - any error here is a defect of the manager
            self._stop("nothing_but_its_own_errors_leaves_the_manager", repr(error))
        self._check(laws.AT_ANY_TIME)

    def _check(self, all_laws: Sequence[Callable[..., Violations]], *evidence: object) -> None:
        for law in all_laws:
            for violation in law(self.world, *evidence):
                self._stop(law.__name__, violation)

    def _stop(self, law: str, violation: str) -> NoReturn:
        self._log(f"BROKEN: {law}: {violation}")
        raise LawBrokenError(law, violation)

    def _log(self, text: str) -> None:
        self.trace.append(f"{self.step:5}{'  ' * self._depth} {text}")

    def _one_of(self, things: Sequence[T]) -> list[T]:
        """Return a list with one of `things`, or an empty list if there are none."""
        return [self._chance.choice(things)] if things else []

    def _with_probability(self, probability: float) -> bool:
        return self._chance.random() < probability

    # --- the machine --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a manager with the disk's content.

        Raises:
            LawBrokenError: a law is broken.
        """
        world = self.world
        world.script.clear()
        world.listing.clear()
        self._depth = 0
        world.pods.ready = self._with_probability(0.3)
        for method in (faults.ALLOCATE, faults.GET_PREFERRED_ALLOCATION, faults.PRE_START_CONTAINER):
            world.script.always(method, self._while_a_plugin_is_asked)
        world.listing.always(faults.LIST_AND_WATCH, self._while_a_plugin_lists)
        if self._with_probability(0.02):
            world.script.on("load", faults.Fails())
            if self._with_probability(0.5):
                world.script.on("set_aside", faults.Fails("Read-only file system"))
        try:
            world.boot()
        except StoreError as error:
            self._log(f"the manager does not start: {error}")
            world.boot()
        self._log(f"a manager has started: {world.manager.restored}")
        self._check(laws.AFTER_A_START)
        self._check(laws.AT_ANY_TIME)

    def restart(self) -> None:
        """Stop the manager and start another one. The containers continue to run."""
        self.world.manager.stop()
        self._log("restart")
        self.start()

    def reboot(self) -> None:
        """Restart the machine, so that no containers are still running."""
        self.world.pods.running = set()
        self._log("reboot")
        raise PowerCutError

    def cut_power(self) -> NoReturn:
        """End the manager at once, without completing the calls in progress."""
        self._log("the manager dies")
        self.world.disk.has_power = False
        raise PowerCutError

    def _cut_power_before_a_save(self, call: faults.Call) -> NoReturn:
        del call
        self.cut_power()

    def _cut_power_after_a_save(self, call: faults.Call) -> faults.Answer:
        call.proceed()
        self.cut_power()

    def pass_time(self) -> None:
        """Advance the clock by seconds or minutes."""
        shorter, longer = (0.5, 1.0, 5.0, 20.0), (BUDGET + 1, GRACE_PERIOD - 1, GRACE_PERIOD + 1)
        seconds = self._chance.choice(shorter if self._with_probability(0.8) else longer)
        self.world.clock.advance(seconds)
        self._log(f"{seconds:g} seconds pass")
        if self._with_probability(0.7):
            self.tick()

    def break_the_disk(self) -> None:
        """Make one save or all later saves fail, or cut the power before or after a save."""
        dishonest = (faults.Loses(), faults.Tears(), faults.Tears(0.9))  # the port forbids these faults
        honest = (faults.Fails(), faults.FailsAfterwards(), self._cut_power_before_a_save, self._cut_power_after_a_save)
        if self._with_probability(0.2):
            self.world.script.always("save", faults.DISK_FULL)
            self._log("the disk is full")
        else:
            fault = self._chance.choice(dishonest if self._with_probability(0.05) else honest)
            self.world.script.on("save", fault, nth=self._chance.randint(1, 3))
            self._log(f"one of the next saves has the fault {getattr(fault, '__name__', fault)}")

    def repair_the_disk(self) -> None:
        """Make all later saves succeed."""
        self.world.script.clear("save")
        self._log("the disk works")

    def break_the_sink(self) -> None:
        """Make the next call to the sink fail."""
        self.world.script.on("publish", faults.Fails("connection refused"))
        self._log("the next call to the sink fails")

    # --- plugins ------------------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Register a new instance: alongside old ones, after a lost one, or on a socket that is in use."""
        unserved = [resource for resource in RESOURCES if not self.world.plugin_record.live(resource)]
        resource = self._chance.choice(unserved if unserved and self._with_probability(0.8) else RESOURCES)
        socket = f"{resource.partition('/')[2]}-{self._chance.randrange(3)}.sock"
        occupied = any(plugin.socket == socket for plugin in self.world.plugin_record.live(resource))
        options = PluginOptions(
            pre_start_required=self._with_probability(0.3),
            get_preferred_allocation_available=self._with_probability(0.6),
        )
        self._log(f"{socket} registers{' on a socket in use' if occupied else ''}")
        try:
            self.world.connect(resource, socket, self._devices(resource), options)
        except PluginAlreadyConnectedError:
            if not occupied:
                self._stop("only_an_occupied_socket_is_refused", socket)
        else:
            if occupied:
                self._stop("an_occupied_socket_is_refused", socket)

    def lose_a_plugin(self) -> None:
        """Disconnect an instance. Its `PluginLost` arrives at once, twice or late."""
        world = self.world
        for instance in self._one_of(world.instances):
            world.instances.remove(instance)
            how = self._chance.choice(("at once", "twice", "late", "late"))
            self._log(f"{instance} is lost, reported {how}")
            if how == "late":
                world.late_disconnects.append(faults.Delayed())
                world.script.on("PluginLost", world.late_disconnects[-1])
            elif how == "twice":
                world.script.on("PluginLost", faults.DeliveredTwice())
            instance.connection.disconnect()

    def deliver_a_late_disconnect(self) -> None:
        """Deliver a delayed `PluginLost`."""
        for disconnect in self._one_of(self.world.late_disconnects):
            self.world.late_disconnects.remove(disconnect)
            self._log("a late PluginLost arrives")
            disconnect.release()

    def deliver_an_event_of_a_lost_instance(self) -> None:
        """Deliver a list or a `PluginLost` from an instance that is no longer connected."""
        lists = self.world.plugin_record.lists
        for plugin in self._one_of([one for one in self.world.all_instances if one not in lists]):
            self._log(f"an event from the lost {plugin.socket} arrives")
            listed = DevicesReported(plugin, tuple(self._devices(plugin.resource)))
            self.world.transport.notify(self._chance.choice((listed, PluginLost(plugin))))

    def list_the_same_devices_again(self) -> None:
        """Make an instance send its list again, perhaps twice."""
        for instance in self._one_of(self.world.instances):
            if self._with_probability(0.3):
                self.world.script.on("DevicesReported", faults.DeliveredTwice())
            self._log(f"{instance} lists its devices")
            instance.connection.report()

    def change_the_health_of_a_device(self) -> None:
        """Make a device unhealthy, or healthy again."""
        for instance in self._one_of(self.world.instances):
            for device in self._one_of(instance.plugin.devices()):
                health = Health.UNHEALTHY if device.health is Health.HEALTHY else Health.HEALTHY
                self._log(f"{device.id} of {instance} is {health.value}")
                instance.plugin.set_health(device.id, health)

    def change_the_devices(self) -> None:
        """Change the devices that a plugin lists."""
        for instance in self._one_of(self.world.instances):
            devices = self._devices(instance.plugin.resource)
            self._log(f"{instance} has {' '.join(device.id for device in devices)}")
            instance.plugin.set_devices(devices)

    def break_a_plugin(self) -> None:
        """Inject a fault into the next call of one method."""
        method = self._chance.choice(
            (faults.ALLOCATE, faults.ALLOCATE, faults.GET_PREFERRED_ALLOCATION, faults.PRE_START_CONTAINER)
        )
        possible = _PLUGIN_FAULTS + (_PREFERENCES if method == faults.GET_PREFERRED_ALLOCATION else ())
        fault = self._chance.choice(possible)
        self.world.script.on(method, fault)
        self._log(f"the next {method} has the fault {fault}")

    def _devices(self, resource: ResourceName) -> list[Device]:
        """Return some of the possible devices, most of them healthy. A device never changes its NUMA nodes."""
        kind = resource.partition("/")[2]
        numbers = sorted(self._chance.sample(range(MAX_DEVICES), self._chance.randint(1, MAX_DEVICES)))
        return [
            Device(
                DeviceId(f"{kind}-{number}"),
                Health.HEALTHY if self._with_probability(0.85) else Health.UNHEALTHY,
                _topology(resource, number),
            )
            for number in numbers
        ]

    def _while_a_plugin_lists(self, call: faults.Call) -> faults.Answer:
        if self._with_probability(0.2):
            self._meanwhile()
        return call.proceed()

    def _while_a_plugin_is_asked(self, call: faults.Call) -> faults.Answer:
        attempt = self.world.in_flight[-1]
        self.world.note_a_locked_call(call.method)
        if call.method == faults.ALLOCATE:
            attempt.called += 1
            self._check(laws.WHEN_A_PLUGIN_IS_ASKED, attempt, call)
        self._meanwhile()
        answer = call.proceed()
        attempt.answered_at = self.world.clock.now
        return answer

    def _meanwhile(self) -> None:
        if self._depth == MAX_DEPTH:
            return
        self._depth += 1
        while self._with_probability(0.5):
            self._act(self.ANY_TIME)
        self._depth -= 1

    # --- pods ---------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Admit a new pod, or a pod that was admitted before, as after a restart."""
        for pod in self._applicants():
            self._log(f"admit {pod.uid}: {_spec(pod)}")
            ask = partial(self.world.manager.admit, pod)
            self._conclude(pod, self._await(pod, pod.in_start_order, ask, laws.WHEN_A_POD_IS_ANSWERED))

    def admit_by_container(self) -> None:
        """Admit the containers of a pod one by one, until one is refused."""
        for pod in self._applicants():
            verdict: Verdict = Admitted(pod)
            for container in pod.in_start_order:
                if isinstance(verdict, Admitted) and pod.uid in self.world.specs:
                    self._log(f"admit {container.name} of {pod.uid}: {_spec(pod)}")
                    ask = partial(self.world.manager.allocate, pod, container.name)
                    verdict = self._await(pod, (container,), ask, laws.WHEN_A_POD_IS_ANSWERED)
            self._conclude(pod, verdict)

    def _applicants(self) -> list[Pod]:
        """Return a list with a pod to admit, or an empty list."""
        is_new = len(self.world.specs) < MAX_PODS and self._with_probability(0.6 if self.world.pods.ready else 0.2)
        return [self._new_pod()] if is_new else self._one_of(self._idle())

    def _conclude(self, pod: Pod, verdict: Verdict) -> None:
        """Make an admitted pod active, or delete a refused pod in half of all cases."""
        if pod.uid in self.world.specs:
            if isinstance(verdict, Admitted):
                self.world.pods.active.add(pod.uid)
                self.world.answers[pod.uid] = holdings(verdict.allocations)
            elif isinstance(verdict, Refused) and self._with_probability(0.5):
                self.world.forget(pod.uid)

    def start_a_container(self) -> None:
        """Start a container of an admitted pod. Earlier init containers have ended, and earlier sidecars run."""
        for pod in self._one_of([pod for pod in self._idle() if pod.uid in self.world.answers]):
            container = self._chance.choice((pod.containers[-1], *pod.in_start_order))
            self._log(f"start {container.name} of {pod.uid}")
            self._await(pod, (), partial(self._start, pod, container), laws.WHEN_A_CONTAINER_HAS_STARTED)

    def _start(self, pod: Pod, container: Container) -> Verdict:
        try:
            options = self.world.manager.start_container(pod, container.name)
        except DeviceCoreError as error:
            return Refused(error, container.name)
        given = frozenset(",".join(options.envs.values()).split(",")) if options else frozenset()
        held = self.world.node.ledger.of_container(pod.key(container))
        if given != frozenset(id_ for allocation in held for id_ in allocation.devices):
            self._stop("a_started_container_is_given_what_it_holds", f"{container.name} is given {sorted(given)}")
        if pod.uid in self.world.specs:
            for before in pod.in_start_order[: pod.in_start_order.index(container)]:
                self.world.pods.running.discard(pod.key(before))
                if before.restartable or before in pod.containers:
                    self.world.pods.running.add(pod.key(before))
            self.world.pods.running.add(pod.key(container))
        return Admitted(pod, self.world.node.ledger.of_pod(pod.uid))

    def _await(
        self,
        pod: Pod,
        containers: tuple[Container, ...],
        ask: Callable[[], Verdict],
        all_laws: Sequence[Callable[..., Violations]],
    ) -> Verdict:
        """Call `ask`, and check whether its verdict obeys the laws."""
        world = self.world
        attempt = world.begin(pod, containers)
        verdict = ask()
        world.in_flight.remove(attempt)
        result = _text(holdings(verdict.allocations)) if isinstance(verdict, Admitted) else str(verdict)
        self._log(f"{pod.uid}: {type(verdict).__name__}: {result}")
        self._check(all_laws, attempt, verdict)
        if isinstance(verdict, Admitted) and pod.uid in world.pods.active:
            world.answers[pod.uid] = holdings(verdict.allocations)
        return verdict

    def finish_a_pod(self) -> None:
        """End a pod without calling `evict`."""
        for pod in self._one_of(list(self.world.specs)):
            self._log(f"{pod} has ended")
            self.world.forget(pod)

    def evict_a_pod(self) -> None:
        """End a pod and call `evict`."""
        for pod in self._one_of(list(self.world.specs)):
            self._log(f"evict {pod}")
            self.world.forget(pod)
            self.world.manager.evict([pod])

    def collect_garbage(self) -> None:
        """Free the devices of pods that have ended."""
        self._log("collect garbage")
        self.world.manager.update_allocated_devices()
        self._check(laws.AFTER_GARBAGE_COLLECTION)

    def make_all_pods_known(self) -> None:
        """Make all pod sources ready."""
        self.world.pods.ready = True
        self._log("all pods are known")

    def tick(self) -> None:
        """Call `tick`, as a kubelet does every ten seconds."""
        status = self.world.manager.tick()
        self.world.plugin_record.reported -= set(status.removed)
        self._log(f"capacity: {dict(status.capacity)}")

    def ask_for_hints(self) -> None:
        """Request topology hints, as a topology manager does."""
        for pod in self._one_of(list(self.world.specs.values())):
            names = [None, *(container.name for container in pod.in_start_order)]
            hints = self.world.manager.topology_hints(pod, self._chance.choice(names))
            self._log(f"hints for {pod.uid}: {sorted(hints)}")

    def _idle(self) -> list[Pod]:
        return [pod for pod in self.world.specs.values() if pod.uid not in self.world.admitting]

    def _new_pod(self) -> Pod:
        self._pods += 1
        init = [
            self._container(f"init-{number}", restartable=self._with_probability(0.4))
            for number in range(self._chance.choice((0, 0, 0, 1, 1, 2)))
        ]
        number_of_apps = self._chance.choice((1, 1, 1, 2))
        apps = [self._container(f"app-{number}", restartable=False) for number in range(number_of_apps)]
        claim = ExtendedClaim("extended", [RequestMapping(apps[0].name, NIC)]) if self._with_probability(0.05) else None
        pod = Pod(PodUid(f"pod-{self._pods}"), containers=apps, init_containers=init, extended_claim=claim)
        self.world.specs[pod.uid] = pod
        if self._with_probability(0.7):  # a pod in admission need not be active
            self.world.pods.active.add(pod.uid)
        return pod

    def _container(self, name: str, *, restartable: bool) -> Container:
        wanted = self._chance.sample(RESOURCES, self._chance.choice((0, 1, 1, 1, 2)))
        limits = {"cpu": 1, **{str(resource): self._chance.choice((0, 1, 1, 1, 1, 2, 3)) for resource in wanted}}
        if self._with_probability(0.05):
            limits[UNSERVED] = 1
        return Container(name, limits, restartable)

    # --- weights and names of all actions -----------------------------------------------------------------------------

    ANY_TIME = (
        *((40, "admit"), (10, "admit_by_container"), (24, "start_a_container"), (12, "finish_a_pod")),
        *((6, "evict_a_pod"), (5, "collect_garbage"), (4, "make_all_pods_known"), (6, "tick")),
        *((3, "ask_for_hints"), (16, "register"), (7, "lose_a_plugin"), (5, "deliver_a_late_disconnect")),
        *((5, "deliver_an_event_of_a_lost_instance"), (5, "list_the_same_devices_again")),
        *((8, "change_the_health_of_a_device"), (4, "change_the_devices"), (10, "pass_time")),
        *((10, "break_a_plugin"), (4, "break_the_disk"), (6, "repair_the_disk"), (2, "break_the_sink")),
        (1, "cut_power"),
    )
    BETWEEN = ((5, "restart"), (1, "reboot"))


def _topology(resource: ResourceName, number: int) -> tuple[NumaNode, ...] | None:
    """Return the NUMA nodes of a device: one node for a GPU, two or none for an FPGA, and an unknown node for a NIC."""
    if resource == GPU:
        return (NumaNode(number % 2),)
    if resource == FPGA:
        return (NumaNode(0), NumaNode(1)) if number % 3 == 0 else ()
    return None


def _spec(pod: Pod) -> str:
    return "; ".join(
        " ".join((container.name, *(f"{name.partition('/')[2] or name} {size}" for name, size in limits)))
        for container in pod.in_start_order
        if (limits := sorted(container.limits.items()))
    )


def _text(held: Holdings) -> str:
    return " ".join(sorted(id_ for devices in held.values() for id_ in devices)) or "nothing"
