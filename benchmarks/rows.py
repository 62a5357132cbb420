"""The rows of the table. Each row yields durations forever; code outside the timer is not measured."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from tempfile import TemporaryDirectory

import grpc
from attrs import evolve
from google.protobuf.message import Message
from workload import CONTAINER, RESOURCE, Bench, Size, checkpoint, devices, running

from devicecore import DeviceId, NumaNode, Policy, Topology
from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits
from devicecore.domain.checkpoint import decode, encode
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.topology import generate_hints, merge
from devicecore.wire import deviceplugin
from tools.make_peers import program

IDS = (DeviceId("dev-000000"),)
LARGE = 3000  # after a list with about this many devices or more, the manager pauses before it reads the next list
Times = Generator[float, None, None]
"""Measured CPU seconds, or wall-clock seconds for `bare_write` and if another process does part of the work."""
TWO_NODES = Topology((NumaNode(0), NumaNode(1)), Policy.BEST_EFFORT)


def timed(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds that a call takes."""
    began = clock()
    work()
    return clock() - began


def _admissions(bench: Bench, clock: Callable[[], float] = time.process_time) -> Times:
    while True:
        newcomer = bench.newcomer()
        bench.pods.active[newcomer.uid] = None
        yield timed(lambda: bench.admit(newcomer), clock)  # noqa: B023 - called before the next iteration
        bench.forget(newcomer.uid)
        bench.manager.update_allocated_devices()


def admit(size: Size) -> Times:
    """Admit one more pod."""
    with running(size) as bench:
        yield from _admissions(bench)


def admit_after_a_pod_has_gone(size: Size) -> Times:
    """Admit one more pod; during the admission, the manager notices that a different pod is gone."""
    with running(size) as bench:
        while True:
            newcomer = bench.newcomer()
            bench.forget(bench.any_pod())
            bench.pods.active[newcomer.uid] = None
            yield timed(lambda: bench.admit(newcomer))  # noqa: B023 - called before the next iteration


def admit_with_hints(size: Size) -> Times:
    """Admit one more pod with an affinity to one of two NUMA nodes."""
    with running(size, TWO_NODES) as bench:
        yield from _admissions(bench)


def hints(size: Size) -> Times:
    """Only request hints, without an admission."""
    with running(size, TWO_NODES) as bench:
        newcomer = bench.newcomer()
        while True:
            yield timed(lambda: bench.manager.topology_hints(newcomer, CONTAINER))


def encode_from_scratch(size: Size) -> Times:
    """Encode entries that have not been encoded before."""
    data = checkpoint(size)
    while True:
        fresh = evolve(data, entries=tuple(evolve(entry) for entry in data.entries or ()))
        yield timed(lambda: encode(fresh))  # noqa: B023 - called before the next iteration


def decode_and_verify(size: Size) -> Times:
    """Decode a checkpoint and verify its checksum."""
    blob = encode(checkpoint(size))
    while True:
        yield timed(lambda: decode(blob).verified())


def bare_write(size: Size) -> Times:
    """Write a file as large as the checkpoint, fsync it and rename it: the least that any implementation must do."""
    with running(size) as bench:
        blob = bench.path.read_bytes()
        new, target = f"{bench.path}.bare", f"{bench.path}.target"

        def write() -> None:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, blob)
            os.fsync(descriptor)
            os.close(descriptor)
            os.rename(new, target)  # noqa: PTH104 - bare

        while True:
            yield timed(write, time.perf_counter)


PLUGIN = program("oracle")  # `oracle plugin` is a plugin in Go, which the measurements of Kubernetes use, too


@contextmanager
def _plugin() -> Iterator[Callable[[str], object]]:
    """Run a plugin in another process.

    Yield a function that sends the plugin a command: `register DIRECTORY COUNT` or `list COUNT`.
    """
    with subprocess.Popen(
        [PLUGIN, "plugin"],
        stdin=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C must reach only the benchmark's process
    ) as process:
        orders = process.stdin
        assert orders
        try:
            yield lambda order: print(order, file=orders, flush=True)
        finally:
            process.kill()  # the caller no longer needs the plugin, and may never have sent it a command


@contextmanager
def _listening(size: Size) -> Iterator[tuple[Bench, str]]:
    """Run a manager that plugins can register with. Yield the manager and the directory of its socket."""
    with TemporaryDirectory(dir="/tmp") as sockets:
        transport = GrpcUnixTransport(sockets, limits=PluginLimits(message_bytes=64 << 20))
        with running(size, transport=transport) as bench:
            yield bench, sockets


@contextmanager
def _over_grpc(size: Size) -> Iterator[tuple[Bench, Callable[[str], object], str]]:
    """Run a manager, and a registered plugin in another process.

    Yield the manager, the function that sends the plugin a command, and the path of the plugin's socket.
    """
    with _listening(size) as (bench, sockets), _plugin() as order:
        order(f"register {sockets} {size.devices}")
        bench.sink.wait_for(size.devices)
        yield bench, order, f"{sockets}/bench.sock"


def first_list_over_grpc(size: Size) -> Times:
    """Measure the time from a plugin's registration with a new manager until capacity shows the plugin's devices."""
    with _plugin() as order:
        while True:
            with _listening(size) as (bench, sockets):
                began = time.perf_counter()
                order(f"register {sockets} {size.devices}")
                bench.sink.wait_for(size.devices)
                yield time.perf_counter() - began


def list_over_grpc(size: Size) -> Times:
    """Measure the time from sending a list with one device more or fewer over gRPC until capacity shows the change."""
    with _over_grpc(size) as (bench, order, _):
        for count in cycle((size.devices - 1, size.devices)):
            began = time.perf_counter()
            order(f"list {count}")
            bench.sink.wait_for(count)
            seconds = time.perf_counter() - began
            yield seconds
            if size.devices >= LARGE:
                time.sleep(4 * seconds)  # the manager throttles a plugin that sends large lists without a pause


def admit_over_grpc(size: Size) -> Times:
    """Admit one more pod, with the plugin in another process."""
    with _over_grpc(size) as (bench, _, _):
        yield from _admissions(bench, time.perf_counter)


def bare_call_over_grpc(size: Size) -> Times:
    """Call a plugin's Allocate with plain grpcio, over a separate connection."""
    with (
        _over_grpc(size) as (_, _, path),
        grpc.insecure_channel(f"unix:{path}", [("grpc.default_authority", "localhost")]) as channel,
    ):
        allocate: Callable[[Message], Message] = channel.unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            deviceplugin.AllocateRequest.SerializeToString,
            deviceplugin.AllocateResponse.FromString,
        )
        container = deviceplugin.ContainerAllocateRequest(devices_ids=["dev-000000"])
        request = deviceplugin.AllocateRequest(container_requests=[container])
        while True:
            yield timed(lambda: allocate(request), time.perf_counter)


def call_over_grpc(size: Size) -> Times:
    """Call a plugin's Allocate through the transport, without an admission."""
    with _over_grpc(size) as (bench, _, _):
        plugin = bench.manager.state.inventory.resources[RESOURCE].plugin
        assert plugin
        while True:
            yield timed(lambda: bench.manager._transport.allocate(plugin.id, IDS), time.perf_counter)  # noqa: SLF001 - the benchmark made it


def _settled(nodes: int, per_node: int) -> Times:
    machine = Topology(tuple(map(NumaNode, range(nodes))), Policy.BEST_EFFORT)
    report = DeviceReport.of(devices(nodes * per_node, nodes))

    def choose() -> None:
        hints = [generate_hints(report, report.healthy, DeviceSet(), size, machine.numa_nodes) for size in (3, 5)]
        merge(machine, [{"a": hints[0], "b": hints[1]}])

    while True:
        yield timed(choose)


def settle_36_nodes(_size: Size) -> Times:
    """Generate hints for two resources spread over 36 NUMA nodes, and merge them."""
    yield from _settled(36, 28)


def _process(*arguments: str) -> Times:
    command = [sys.executable, *arguments]
    while True:
        work = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL, process_group=0)
        yield timed(work, time.perf_counter)


def python_alone(_size: Size) -> Times:
    """Run `python -c pass`."""
    yield from _process("-c", "pass")


def import_devicecore(_size: Size) -> Times:
    """Run `python -c 'import devicecore'`."""
    yield from _process("-c", "import devicecore")


def command_line_help(_size: Size) -> Times:
    """Run `devicecore --help`."""
    yield from _process("-m", "devicecore_tools", "--help")
