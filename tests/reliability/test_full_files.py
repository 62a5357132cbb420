"""No driver or device plugin can fill a state file so that other pods are refused."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    Pod,
    PodUid,
    Refused,
    resource_name,
)
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.domain.device_list import DeviceList
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.errors import DriverAnswerTooLargeError, PrepareError
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.dra.state_file import ClaimEntry, encode
from devicecore.domain.errors import PluginAnswersTooLargeError
from devicecore.domain.json_size import MAX_OF_OWNER
from devicecore.domain.model import ContainerClaim, PluginId, PodClaim
from devicecore.dra_manager import DraManager
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.store import CheckpointStore
from devicecore.system.list_check import DeviceListError, ListCheck
from tests.adapters.peers import RawPlugin, register, wait_until
from tests.reliability.scale import scale

Caplog = pytest.LogCaptureFixture
GREEDY, MODEST = DriverName("greedy.example.com"), DriverName("modest.example.com")
GPU, NIC = resource_name("example.com/gpu"), resource_name("example.com/nic")
ENOUGH = 40  # this many answers filled the file before there were limits
TRIES = scale(2, ENOUGH)  # tries with an answer that is too large by itself; even the first is refused


class Driver(DraDriver):
    def __init__(self, name: DriverName, devices: Sequence[PreparedDevice]) -> None:
        self.name = name
        self.devices = tuple(devices)

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        return {claim.uid: PrepareResult(self.devices) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        return {claim.uid: UnprepareResult() for claim in claims}


class DraNode:
    """A manager with two drivers, each of which gives the same answer for all claims."""

    def __init__(self, store: CheckpointStore, devices: Sequence[PreparedDevice]) -> None:
        self.claims, transport = MemoryClaims(), MemoryDriverTransport()
        self.manager = DraManager(transport, self.claims, store)
        self.manager.start()
        self.greedy = Driver(GREEDY, devices)
        transport.register(self.greedy)
        transport.register(Driver(MODEST, [PreparedDevice("pool", "device")]))

    def pod(self, name: str, driver: DriverName) -> Pod:
        key, allocation = ClaimKey("default", name), (AllocatedDevice(driver, "pool", "device", "r"),)
        self.claims.put(ResourceClaim(key, ClaimUid(name), "", allocation, frozenset({name})))
        container = Container("main", claims=[ContainerClaim("claim")])
        return Pod(PodUid(name), name=name, claims=[PodClaim("claim", name)], containers=(container,))

    def refusal(self, name: str, driver: DriverName) -> DriverAnswerTooLargeError | None:
        """Prepare a pod, and return the error if the driver's answer is too large."""
        try:
            self.manager.prepare(self.pod(name, driver))
        except PrepareError as error:
            if isinstance(error.cause, DriverAnswerTooLargeError):
                return error.cause
            raise
        return None


def numbered(count: int, name: str = "device") -> list[PreparedDevice]:
    return [PreparedDevice("pool", f"{name}-{number}") for number in range(count)]


ANSWERS = {
    "many devices": numbered(9_999),
    "names of control characters": numbered(100, "\x01" * 4_000),
    "names of brackets": numbered(100, "{" * 4_000),
    "many CDI names": [PreparedDevice("pool", "device", cdi_ids=("n",) * 99_000)],
}


def test_no_name_in_a_refused_response_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    node = DraNode(MemoryStore(), ANSWERS["many CDI names"])
    monkeypatch.delattr("devicecore.domain.dra.answers.is_cdi_name")  # so that access to a name raises an error
    assert node.refusal("greedy", GREEDY) is not None
    node.greedy.devices = (PreparedDevice("pool", "device", cdi_ids=("n",)),)
    with pytest.raises(NameError):
        node.refusal("small", GREEDY)


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_that_are_too_large_are_refused_by_the_name_of_the_driver(answer: str, tmp_path: Path) -> None:
    node = DraNode(FileStore(tmp_path / "dra_manager_state"), ANSWERS[answer])
    for number in range(TRIES):
        error = node.refusal(f"greedy-{number}", GREEDY)
        assert error is not None
        assert str(error).startswith(f"DRA driver {GREEDY} sends too much: its answer for ResourceClaim greedy-")
    assert node.refusal("modest", MODEST) is None


def test_all_answers_of_a_driver_have_a_limit_and_a_warning(caplog: Caplog) -> None:
    node = DraNode(MemoryStore(), numbered(600))
    prepared = 0
    while (error := node.refusal(f"greedy-{prepared}", GREEDY)) is None:
        prepared += 1
        assert prepared < ENOUGH, "this driver is never refused"
    assert (error.driver, error.limit, error.is_sum) == (GREEDY, MAX_OF_OWNER, True)
    assert node.refusal("modest", MODEST) is None
    warning = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and GREEDY in record.getMessage()
    ]
    assert len([text for text in warning if text.startswith(f"answers from DRA driver {GREEDY}: ")]) == 1
    node.manager.unprepare(PodUid("greedy-0"))
    assert node.refusal("greedy-again", GREEDY) is None


@pytest.mark.slow
def test_a_file_of_claims_beyond_the_limits_is_read_and_only_shrinks() -> None:
    large = tuple(numbered(9_999))
    entries = [ClaimEntry(name, name, "default", (name,), {GREEDY: large}) for name in ("a", "b", "c", "d", "e")]
    node = DraNode(MemoryStore(encode(entries)), large)
    assert node.manager.restored.claims == len(entries)
    assert node.refusal("a", GREEDY) is None  # the answer is unchanged
    assert node.refusal("new", GREEDY) is not None
    node.greedy.devices = (*large, *numbered(1, "another"))
    assert node.refusal("b", GREEDY) is not None
    node.greedy.devices = large[:5_000]
    assert node.refusal("c", GREEDY) is None


class Plugin(DevicePlugin):
    """A plugin whose answers contain an annotation of `size` bytes."""

    def __init__(self, resource: str, size: int) -> None:
        self.resource = resource_name(resource)
        self.size = size

    def devices(self) -> Sequence[Device]:
        return [Device(DeviceId(f"d{number}")) for number in range(1_000)]

    def allocate(self, device_ids: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(annotations={"size": "x" * self.size})


def pod_with(resource: str, uid: str) -> Pod:
    return Pod(PodUid(uid), containers=[Container("main", {resource: 1})])


@pytest.mark.parametrize("in_memory", [True, False])
def test_large_answers_of_a_plugin_have_a_limit_and_a_warning(in_memory: bool, tmp_path: Path, caplog: Caplog) -> None:
    store = MemoryStore() if in_memory else FileStore(tmp_path / "checkpoint")
    transport, greedy = MemoryTransport(), Plugin(GPU, 250_000)
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(greedy)
        transport.connect(Plugin(NIC, 10))
        verdicts = [manager.admit(pod_with(GPU, f"greedy-{number}")) for number in range(ENOUGH)]
        admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
        refused = [verdict.error for verdict in verdicts if isinstance(verdict, Refused)]
        assert len(admitted) == MAX_OF_OWNER // (250_000 * 4 // 3 + 100)
        assert {type(error) for error in refused} == {PluginAnswersTooLargeError}
        assert str(refused[0]).startswith(
            "the answers to Allocate from the device plugin for example.com/gpu would take"
        )
        assert isinstance(manager.admit(pod_with(NIC, "modest")), Admitted)
        texts = [record.getMessage() for record in caplog.records]
        warning = f"answers from the device plugin for {GPU}: "
        assert len([text for text in texts if text.startswith(warning)]) == 1
        greedy.size = 1_000
        assert isinstance(manager.admit(pod_with(GPU, "small")), Admitted)
        greedy.size = 250_000
        manager.evict([PodUid("greedy-0")])
        assert isinstance(manager.admit(pod_with(GPU, "after")), Admitted)


def test_a_checkpoint_beyond_the_limit_is_read_and_large_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store, plugin = MemoryStore(), Plugin(GPU, 250_000)
    with monkeypatch.context() as patch:
        patch.setattr("devicecore.domain.node_state.MAX_OF_OWNER", 10 * MAX_OF_OWNER)
        transport = MemoryTransport()
        with DeviceManager(transport, store, MemorySink()) as manager:
            transport.connect(plugin)
            assert all(manager.admit(pod_with(GPU, f"greedy-{number}")) for number in range(ENOUGH))
    transport = MemoryTransport()
    with DeviceManager(transport, store, MemorySink()) as manager:
        transport.connect(plugin)
        assert len(manager.state.ledger.allocations) == ENOUGH
        assert isinstance(manager.admit(pod_with(GPU, "large")), Refused)
        plugin.size = 1_000
        assert isinstance(manager.admit(pod_with(GPU, "small")), Admitted)


def test_commas_in_device_ids_count_as_values_in_the_checkpoint() -> None:
    """Eight plugins with such lists used to make the checkpoint unreadable."""
    devices = DeviceList.of(Device(DeviceId(f"{number}".rjust(4_000, ","))) for number in range(85))
    with pytest.raises(DeviceListError, match=r"would take up 11,\d{3},\d{3} bytes in the checkpoint"):
        ListCheck(PluginId(GPU, "plugin.sock", 1), None).look(85 * 4_000, devices)


def test_the_list_of_a_plugin_has_a_limit_in_the_checkpoint_and_a_warning(directory: Path, caplog: Caplog) -> None:
    """Each control character takes six bytes in the file, so eight lists of 1 MB used to fill the file."""
    plugins = scale(3, 8)
    lists = [[f"{number}".rjust(4_000, "\x01") for number in range(count)] for count in (100, 101, 200)]
    transport = GrpcUnixTransport(directory)
    with DeviceManager(transport, FileStore.in_directory(directory), MemorySink()) as manager, ExitStack() as stack:
        for number in range(plugins):
            stack.enter_context(RawPlugin(directory / f"greedy-{number}.sock", *lists))
            register(directory, f"greedy-{number}.sock", f"example.com/greedy-{number}")
        stack.enter_context(serve_plugin(Plugin(NIC, 10), directory))
        wait_until(lambda: caplog.text.count("would take up 4,79") == plugins, "refusals")
        manager.wait_for(lambda state: state.inventory.current_report(NIC), timeout=60)
        assert isinstance(manager.admit(pod_with(NIC, "modest")), Admitted)
    for number in range(plugins):
        warning = f"the list from example.com/greedy-{number}: 2,39"
        assert len([text for text in caplog.messages if text.startswith(warning)]) == 1
