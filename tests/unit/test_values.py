"""Values check or convert their arguments, refusals are values, and verdicts and plugins name mistakes in calls."""

import inspect
import pickle

import pytest
from attrs import evolve, fields, has

from devicecore import (
    Admitted,
    Allocation,
    Container,
    ContainerAllocateResponse,
    ContainerKey,
    Device,
    DeviceId,
    DevicePlugin,
    DeviceSet,
    Health,
    NodeState,
    NotReady,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    Refused,
    pod_of,
    resource_name,
)
from devicecore.domain import errors
from devicecore.domain.device_list import DeviceList
from devicecore.domain.errors import ContainerNotFoundError, DeviceCoreError, InvalidLimitError, NoHealthyDevicesError
from devicecore.domain.go_text import utf8
from devicecore.domain.json_size import MAX_OF_OWNER
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ExtendedClaim, Receipt, RequestMapping
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests.memory_manager import MemoryManager

GPU = resource_name("example.com/gpu")
ERRORS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DeviceCoreError) and (has(cls) or cls is DeviceCoreError)
]


def made(cls: type[DeviceCoreError], text: str) -> DeviceCoreError:
    """Return an error whose fields contain `text`."""
    values = {"int": len(text), "float": 1.5, "tuple[str, ...]": (text,)}
    names = fields(cls) if has(cls) else ()
    return cls(*[values.get(str(field.type).removeprefix("<class '").removesuffix("'>"), text) for field in names])


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_health_may_be_a_text_and_is_read_as_a_kubelet_reads_it() -> None:
    assert Device(DeviceId("x"), "Healthy").health is Health.HEALTHY
    assert Device(DeviceId("x"), "Unhealthy").health is Health.UNHEALTHY
    assert Device(DeviceId("x"), "healthy").health is Health.UNHEALTHY
    assert Device(DeviceId("x"), "Unhealthy") == Device(DeviceId("x"), Health.UNHEALTHY)


def test_a_topology_becomes_a_tuple_of_numbers() -> None:
    listed = [NumaNode(1), NumaNode(0)]
    device = Device(DeviceId("x"), topology=listed)
    listed.clear()
    assert device.topology == device.numa_nodes == (1, 0)
    assert Device(DeviceId("x"), topology=iter([0])).topology == (0,)
    assert Device(DeviceId("x"), topology=None).topology is None


def test_limits_are_copied() -> None:
    """A later change to the caller's dict cannot bypass the check."""
    limits: dict[str, int] = {GPU: 1}
    container = Container("main", limits)
    limits[GPU] = -3
    assert container.limits == {GPU: 1}


def test_containers_become_tuples() -> None:
    containers = [Container("main")]
    pod = Pod(PodUid("p"), containers=containers, init_containers=(Container(name) for name in "ab"))
    containers.clear()
    assert [container.name for container in pod.in_start_order] == ["a", "b", "main"]
    extended = ExtendedClaim("shared", (RequestMapping("main", resource) for resource in (GPU,)))
    assert Pod(PodUid("p"), extended_claim=extended).claimed == {("main", GPU)}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_errors_are_values(cls: type[DeviceCoreError]) -> None:
    """Errors with equal fields, and only those, are equal. They have the same hash and text, even after pickling."""
    error, same, other = made(cls, "a"), made(cls, "a"), made(cls, "bb")
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own pickle
    assert error == same == copied
    assert hash(error) == hash(same) == hash(copied)
    assert (str(copied), repr(copied), type(copied)) == (str(error), repr(error), cls)
    assert (error == other) == (not has(cls) or not fields(cls))
    assert error != "a"
    given = ", ".join(f"{field.name}={getattr(error, field.name)!r}" for field in fields(cls)) if has(cls) else ""
    assert repr(error) == f"{cls.__name__}({given})"


def test_errors_of_different_classes_differ() -> None:
    assert made(errors.EndpointNotFoundError, "a") != made(errors.PluginStoppedError, "a")


def test_an_error_with_an_unhashable_field_has_a_hash() -> None:
    assert hash(InvalidLimitError(GPU, [1])) == hash(InvalidLimitError(GPU, [1]))


def test_refusals_are_values() -> None:
    one, other = (Refused(NoHealthyDevicesError(GPU), "main") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own pickle
    assert evolve(one, container="other") != one


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_only_an_admission_is_true() -> None:
    """`if manager.admit(pod):` asks whether the pod was admitted."""
    error = NoHealthyDevicesError(GPU)
    assert Admitted(Pod(PodUid("p")))
    assert not Refused(error)
    assert not NotReady(error, GPU)


def test_a_misspelled_container_is_named_with_those_that_exist() -> None:
    pod = Pod(PodUid("p"), containers=(Container("main"), Container("side")), init_containers=(Container("setup"),))
    with pytest.raises(ContainerNotFoundError, match="pod p has no container mian; its containers: setup, main, side"):
        Admitted(pod).devices("mian")
    with pytest.raises(KeyError, match="pod p has no container mian"):
        pod.container("mian")
    assert Admitted(pod).devices("side") == {}


# --- plugins ----------------------------------------------------------------------------------------------------------


class Plain(DevicePlugin):
    resource = GPU

    def devices(self) -> tuple[Device, ...]:
        return ()

    def allocate(self, devices: object) -> ContainerAllocateResponse:
        return ContainerAllocateResponse()


class Preferring(Plain):
    def get_preferred_allocation(self, available: object, must_include: object, size: int) -> tuple[DeviceId, ...]:
        return ()


class Preparing:
    def pre_start_container(self, devices: object) -> None:
        pass


class Both(Preparing, Preferring):
    pass


class Silent(Both):
    options = PluginOptions()


class Later(Silent):
    pass


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        (Plain, PluginOptions()),
        (Preferring, PluginOptions(get_preferred_allocation_available=True)),
        (Both, PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)),
        (Silent, PluginOptions()),
        (Later, PluginOptions()),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_plugin_announces_the_methods_that_it_has(plugin: type[Plain], options: PluginOptions) -> None:
    """Options that a plugin declares itself take precedence, and are inherited by its subclasses."""
    assert plugin.options == plugin().options == options


def test_a_plugin_without_devices_cannot_be_made() -> None:
    class Half(DevicePlugin):
        resource = GPU

        def allocate(self, devices: object) -> ContainerAllocateResponse:
            return ContainerAllocateResponse()

    with pytest.raises(TypeError, match=r"abstract .*devices"):
        Half()  # type: ignore[abstract]  # this is the mistake being tested


# --- reprs ------------------------------------------------------------------------------------------------------------


def test_the_repr_of_a_large_state_is_one_short_line() -> None:
    with MemoryManager(SimulatedPlugin(GPU, simulated_devices("gpu", 5_000))) as manager:
        pod = Pod(PodUid("p"), containers=(Container("main", {GPU: 4_000}),))
        verdict = manager.admit(pod)
        state = manager.state
    report = state.inventory.current_report(GPU)
    assert report is not None
    assert repr(state) == (
        "<NodeState: <Inventory: 5,000 devices of 1 resource>, "
        "<Ledger: 4,000 devices in use by 1 pod, 1 allocation, 0 reservations>>"
    )
    (held,) = state.ledger.of_pod(pod.uid)
    assert repr(held) == "<Allocation: 4,000 devices of example.com/gpu, container main of pod p>"
    assert repr(report) == "<DeviceReport: 5,000 devices, 5,000 healthy>"
    assert repr(report.healthy) == "DeviceSet(gpu-0, gpu-1, gpu-2, ... 5,000 devices)"
    assert repr(report.devices) == "<DevicesById: 5,000 devices>"
    assert repr(verdict) == "<Admitted: pod p with 4,000 devices>"
    assert repr(DeviceList.of(report.devices.values())) == "<DeviceList: 5,000 devices>"
    shown = f"<Resource example.com/gpu: a plugin is connected and has sent its list, {report!r}>"
    assert repr(state.inventory.resources[GPU]) == shown


def test_a_repr_escapes_what_others_wrote() -> None:
    strange = Allocation(ContainerKey(PodUid("p\x1b[31m"), "c\n"), GPU, {DeviceId("x"): ()}, Receipt(b""))
    assert repr(strange) == "<Allocation: 1 device of example.com/gpu, container c\\n of pod p\\x1b[31m>"
    assert repr(DeviceSet.of([DeviceId("a\nb")])) == "DeviceSet(a\\nb)"


def test_device_lists_are_equal_if_all_their_devices_are() -> None:
    devices = simulated_devices("gpu", 2)
    one, sick = DeviceList.of(devices), [evolve(device, health=Health.UNHEALTHY) for device in devices]
    assert one == DeviceList.of(devices) == tuple(devices)
    assert one != DeviceList.of(sick)
    assert one != DeviceList.of(simulated_devices("nic", 2))
    assert one != tuple(sick)


def test_a_pod_keeps_the_requests_that_a_claim_may_serve() -> None:
    """A request equal to its limit is not kept.

    CPU requests are kept, because a scheduler numbers all requests of a container.
    """
    resources = {"limits": {GPU: "1"}, "requests": {"cpu": "2", GPU: "1", "example.com/nic": "3"}}
    container = {"name": "main", "resources": resources}
    pod = pod_of({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}})
    assert pod.containers[0].requests == {"cpu": 2, "example.com/nic": 3}
    assert pod.containers[0].limits == {GPU: 1}


def test_a_device_that_no_plugin_lists_any_more_is_allocated_without_numa_nodes() -> None:
    key, devices = ContainerKey(PodUid("u"), "main"), DeviceSet.of([DeviceId("gpu-0")])
    state = NodeState(ledger=Ledger().reserve(key, GPU, devices)).confirm(key, GPU, Receipt(b""))
    (allocation,) = state.ledger
    assert allocation.numa_nodes == {"gpu-0": ()}


def test_the_answers_of_a_plugin_may_take_up_its_share_of_the_file() -> None:
    """In the file, answers are encoded in base64, which takes four characters for three bytes."""
    one, other = ContainerKey(PodUid("u"), "one"), ContainerKey(PodUid("u"), "other")
    devices = [DeviceSet.of([DeviceId(name)]) for name in ("gpu-0", "gpu-1")]
    ledger = Ledger().reserve(one, GPU, devices[0]).reserve(other, GPU, devices[1])
    half = Receipt(b"x" * (MAX_OF_OWNER * 3 // 8))
    state = NodeState(ledger=ledger).confirm(one, GPU, half)
    assert state.confirm(other, GPU, half).ledger.reservations == ()
    with pytest.raises(errors.PluginAnswersTooLargeError):
        state.confirm(other, GPU, Receipt(half + b"xxx"))


def test_what_cannot_be_saved_is_shown_with_20_characters_on_each_side() -> None:
    with pytest.raises(
        errors.UnencodableCheckpointError, match=f"'{'x' * 20}.ud800{'y' * 20}' contains a lone surrogate"
    ):
        utf8("x" * 100 + "\ud800" + "y" * 100)
    with pytest.raises(errors.UnencodableCheckpointError, match=r"'x.ud800y' contains a lone surrogate"):
        utf8("x\ud800y")
