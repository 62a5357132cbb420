"""The driver's process: how it exits, what it costs, and what it survives.

Law: limits are several times what a good driver needs, because the machine may be busy.
"""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.domain.text import counted
from devicecore_tools.conformance.connection import CallFailedError, SocketConnection
from devicecore_tools.conformance.dra.checks.events import QUIET, TERM
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.kubelet import DriverInstance
from devicecore_tools.conformance.dra.steps import Parts, across, at_the_end, check
from devicecore_tools.conformance.model import Failure, Severity, Skip, in_context, require, skip_if, skipping, some
from devicecore_tools.conformance.processes import MAX_CPU, MAX_PRINTED, ProcessorUse, Usage, open_files, stopped
from devicecore_tools.testing.api_server import Hang
from devicecore_tools.testing.process import PluginProcess

MUST, SHOULD = Severity.MUST, Severity.SHOULD

MAX_ATTEMPTS = 20
"""How many connections per second a driver may attempt while the API server is down."""

# claims, claims before the first measurement, maximum seconds
_CLAIMS, _FIRST_CLAIMS, _CLAIM_SECONDS = 120, 8, 4.0
_FEWEST_CLAIMS, _MOST_SECONDS = 20, 30.0  # the first claims, for which a longer limit, in seconds, applies
_SHORT_PAUSE = 0.3  # seconds
_FEW_WRITES = 3
_ANSWER = 5.0  # seconds for a call without claims
_CONNECTIONS = 100
_CYCLES, _FIRST_CYCLES, _CYCLE_SECONDS = 200, 50, 15.0
_SHARE = 0.1  # the share of the remaining time that replaces a shorter limit
_SAMPLED = range(_FIRST_CYCLES - 20, _FIRST_CYCLES + 1)  # the cycles after which the early counts are made
_EACH, _LATEST = 5, 10  # later counts are made after every fifth cycle, and the last ten matter
_MORE = 5  # how many more open files are allowed
_PAUSE = 3.0  # seconds for which the driver is suspended
_AWAY = 4.0  # seconds for which the API server is down
_SLOW = 20.0  # seconds for a prepare call while the API server does not answer
_GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x20\x01",  # an incomplete frame
    b"\x00" * 1000,
)


def own_process(driver: DriverUnderTest) -> PluginProcess:
    """Return the registered driver's process. Raises Skip if there is no such process."""
    _ = driver.registration.reachable
    if driver.process.running is None or driver.process.running.status is not None:
        raise Skip("the driver's process has exited")
    return driver.process.running


def require_answer(driver: DriverUnderTest, after: str) -> None:
    """Call the driver without claims. If the driver does not respond, raise a Failure that starts with `after`."""
    try:
        driver.registration.reachable.prepare((), _ANSWER)
    except (CallFailedError, Skip) as error:
        raise Failure(f"{after}: {error}") from None


def ask_anew(instance: DriverInstance) -> None:
    """Call a driver without claims, on a new connection. Raises CallFailedError if the call failed."""
    method = calls.PREPARE_METHODS[instance.service]
    with closing(SocketConnection(instance.endpoint)) as connection:
        connection.call(method, method.request(), _ANSWER)


# --- its costs --------------------------------------------------------------------------------------------------------


@across(
    QUIET,
    SHOULD,
    core=True,
    expected=f"less than {MAX_CPU:.0%} of one processor",
    clause="A node runs many drivers, which have nothing to do most of the time.",
)
def uses_little_processor_time(driver: DriverUnderTest) -> Parts:
    """The processor time of the driver's processes is measured while the driver is idle."""
    process = own_process(driver)
    before = ProcessorUse.of(process)
    yield
    if driver.process.running is not process or process.status is not None:
        raise Skip("the driver's process exited in the meantime")
    share = before.require_little_until(ProcessorUse.of(process), "driver")
    return f"the driver used {share:.1%} of one processor"


@across(
    QUIET,
    SHOULD,
    core=True,
    expected=f"at most {MAX_PRINTED // 1000} kB per second",
    clause="The node stores the output of containers on its disk.",
)
def prints_little(driver: DriverUnderTest) -> Parts:
    """The driver's output is measured while the driver is idle."""
    process, began = own_process(driver), time.monotonic()
    before = process.printed
    yield
    rate = (process.printed - before) / (time.monotonic() - began)
    require(rate <= MAX_PRINTED, f"the driver printed {rate:.0f} bytes per second")
    return f"the driver printed {rate:.0f} bytes per second"


@check(
    MUST,
    expected="success each time",
    clause="A driver runs for months, and pods come and go.",
)
def prepares_many_claims(driver: DriverUnderTest) -> str:
    """Up to 120 new claims are prepared and unprepared one after another, in limited time."""
    driver.calls.require_preparing()
    driver.calls.require_unpreparing()
    process, number, began = own_process(driver), 0, time.monotonic()
    first, driver.seen.growth, before = None, None, Usage.of(process)
    files = set[Path]()
    asked, most = len(driver.api.requests), max(_MOST_SECONDS, _SHARE * driver.process.time_left)
    driver.process.pause(_SHORT_PAUSE)
    idle = before.printed_until(Usage.of(process))

    def seconds() -> float:
        return _CLAIM_SECONDS if number >= _FEWEST_CLAIMS else most

    while number < _CLAIMS and time.monotonic() - began < seconds():
        claim = driver.claims.new(1)
        with in_context(f"claim {number + 1} of many"):
            driver.calls.prepared(claim)
            driver.calls.unprepared(claim)
        driver.calls.clean_up()
        number += 1
        if number == _FIRST_CLAIMS:
            first, files = Usage.of(process), driver.environment.files()
    if first is not None and number >= 2 * _FIRST_CLAIMS and process.status is None:
        more = len(driver.environment.files()) - len(files)
        left = [f"{more} more files on disk"] if more > (number - _FIRST_CLAIMS) / 2 else []
        usage = first.growth_until(Usage.of(process), number - _FIRST_CLAIMS, idle)
        driver.seen.growth = ", ".join([*filter(None, [usage]), *left])
    others = round(driver.seen.idle_writes * (time.monotonic() - began))  # these writes have a different cause
    driver.seen.writes = max(len(driver.slices.writes(asked)) - others, 0) if number > _FIRST_CLAIMS else None
    return f"{counted(number, 'claim')} prepared and unprepared"


@check(
    SHOULD,
    core=True,
    expected=f"at most {_FEW_WRITES} slice writes",
    clause="Slices show which devices exist, not which are in use. Each write reaches all schedulers and "
    "drivers that watch slices. (ResourceSlice, API reference)",
)
def writes_no_slices_for_claims(driver: DriverUnderTest) -> str:
    """The slice writes during prepares-many-claims are counted."""
    if driver.seen.writes is None:
        raise Skip("too few claims were prepared")
    text = counted(driver.seen.writes, "write")
    require(driver.seen.writes <= _FEW_WRITES, text)
    return text


@check(
    SHOULD,
    core=True,
    expected="memory, threads, open files, zombie processes, output and files on disk that do not grow with each claim",
    clause="A driver runs for months, and the node needs its memory and its disk for pods.",
)
def grows_with_no_claim(driver: DriverUnderTest) -> str:
    """The driver's resource usage is compared before and after most of the claims in prepares-many-claims."""
    if driver.seen.growth is None:
        raise Skip("too few claims were prepared")
    require(not driver.seen.growth, driver.seen.growth)
    return "the driver uses no more than before"


# --- what the driver survives ---------------------------------------------------------------------------------------


@check(
    MUST,
    expected="an answer on every connection",
    clause="A kubelet that restarts connects again. (kubelet, DRA manager)",
)
def serves_new_connections(driver: DriverUnderTest) -> str:
    """One hundred connections are opened one after another, with one call on each."""
    instance = driver.calls.require_answering()
    for number in range(_CONNECTIONS):
        with in_context(f"on connection {number + 1}"):
            ask_anew(instance)
    return f"the driver answered on {counted(_CONNECTIONS, 'connection')}"


@check(
    SHOULD,
    expected="the driver keeps working, and answers a kubelet",
    clause="Any root process on the node can connect to the sockets, for example a port scanner or a monitor.",
)
def survives_other_clients(driver: DriverUnderTest) -> str:
    """Non-gRPC clients and one hundred silent clients connect to both sockets. Then the driver is called."""
    process, instance = own_process(driver), driver.registration.reachable
    with skipping(CallFailedError):
        ask_anew(instance)
    with ExitStack() as stack:
        for path in (instance.endpoint, instance.path):
            for data in (*_GARBAGE, *[b""] * (_CONNECTIONS // 2)):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(1.0)
                with suppress(OSError):  # the driver may refuse the connection
                    client.connect(path)
                    client.sendall(data)
        require(process.status is None, f"the driver has exited with status {process.status}")
        require_answer(driver, "while these clients are connected")
        ask_anew(instance)
    require(process.status is None, f"the driver has exited with status {process.status}")
    return "the driver keeps working"


@check(
    SHOULD,
    expected=f"at most {_MORE} more open files than after the first {_FIRST_CYCLES} cycles",
    clause="A driver runs for months, and fails when it reaches its limit of open files.",
)
def closes_its_files(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared many times, and open files are counted after early and late cycles."""
    own_process(driver)
    claim, marker = driver.calls.ready(), driver.environment.marker
    cycles, early, late, began = 0, [0], [], time.monotonic()
    limit = max(_CYCLE_SECONDS, _SHARE * driver.process.time_left)
    while cycles < _CYCLES and time.monotonic() - began < limit:
        with skipping(Failure):
            driver.calls.unprepared(claim)
            driver.calls.prepared(claim)
        cycles += 1
        if cycles in _SAMPLED:
            early.append(open_files(marker))
        elif cycles % _EACH == 0:
            late.append(open_files(marker))
    skip_if(cycles <= _FIRST_CYCLES, f"the driver completed only {counted(cycles, 'cycle')} in {limit:.0f} seconds")
    before, deadline = max(early), time.monotonic() + _ANSWER
    late.append(open_files(marker))
    while min(late[-_LATEST:]) > before + _MORE and time.monotonic() < deadline:
        driver.process.pause(0.1)
        late.append(open_files(marker))
    more = min(late[-_LATEST:]) - before
    times = f"after {counted(cycles - _FIRST_CYCLES, 'more cycle')}"
    require(more <= _MORE, f"{times}, the driver has {counted(more, 'more open file')}")
    return f"{times}, the driver has {counted(max(more, 0), 'more open file')}"


@at_the_end(
    SHOULD,
    expected="calls are answered again, and the slices are complete",
    clause="A node can be suspended, and a process can be starved for seconds.",
)
def goes_on_after_a_pause(driver: DriverUnderTest) -> str:
    """The driver is stopped with SIGSTOP for a few seconds, continued with SIGCONT, and asked to prepare a claim."""
    process, claim = own_process(driver), driver.claims.new()
    driver.calls.require_answering()
    with stopped(driver.environment.marker):
        driver.process.pause(_PAUSE)
    driver.process.wait(lambda: process.status is not None, 0.5)
    require(process.status is None, f"the driver exited with status {process.status}")
    require_answer(driver, "after the driver was continued")
    driver.calls.prepared(claim)
    require(driver.slices.wait_complete(), "the driver's pools are not complete", late=True)
    return f"the driver kept working after a pause of {counted(_PAUSE, 'second')}"


@at_the_end(
    SHOULD,
    expected="the driver keeps running",
    clause=(
        "Pods also end while the API server is down. A kubelet then calls NodeUnprepareResources, which needs no "
        "object from the API server. (kubelet, DRA manager)"
    ),
)
def stays_while_the_api_server_is_away(driver: DriverUnderTest) -> str:
    """The API server is stopped for a few seconds, and the driver is called meanwhile."""
    process = own_process(driver)
    driver.calls.require_answering()
    with _without_api_server(driver):
        driver.process.wait(lambda: process.status is not None, _AWAY)
        require(process.status is None, f"the driver exited with status {process.status}")
        require_answer(driver, "while the API server is down")
    return f"the driver answered after {counted(_AWAY, 'second')} without the API server"


@at_the_end(
    SHOULD,
    expected=f"at most {MAX_ATTEMPTS} connections per second",
    clause="When an API server comes back, all drivers of all nodes connect to it. (Kubernetes API concepts, backoff)",
)
def waits_between_connections_to_the_api_server(driver: DriverUnderTest) -> str:
    """The API server is replaced by a server that closes every connection, and the connections are counted."""
    own_process(driver)
    # Another process may have taken the port.
    with skipping(OSError), _without_api_server(driver), _counted_connections(driver.api.address) as connections:
        driver.process.pause(_AWAY)
        number = len(connections)
    rate = number / _AWAY
    text = f"the driver connected {counted(number, 'time')} in {counted(_AWAY, 'second')}"
    require(rate <= MAX_ATTEMPTS, text)
    return text


@check(
    MUST,
    expected="the process never exits on its own",
    clause="While a driver is gone, no pod that uses its devices can start or end. (kubelet, DRA manager)",
)
def stays_up(driver: DriverUnderTest) -> str:
    """The driver's exits so far are counted, except those that other checks have reported."""
    exits = [one for one in driver.process.exits if one.pid not in driver.process.reported]
    require(
        not exits, f"the driver exited {counted(len(exits), 'time')}; first: {some([str(one) for one in exits[:1]])}"
    )
    return "the driver never exited on its own"


# --- its end ----------------------------------------------------------------------------------------------------------


@at_the_end(
    SHOULD,
    expected="the driver exits within its grace period, and prepares the claim after its next start",
    clause="Kubernetes may send SIGTERM at any time, and kills what is still running after "
    "terminationGracePeriodSeconds. (Pod lifecycle)",
)
def ends_during_a_call(driver: DriverUnderTest) -> str:
    """SIGTERM is sent during a prepare call while requests for claims hang. Then the driver is restarted."""
    process, claim = own_process(driver), driver.claims.new()
    driver.api.inject(Hang(), resource="resourceclaims", times=None)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = len(driver.api.requests)
            call = pool.submit(driver.calls.prepare, claim, timeout=_SLOW)
            driver.process.wait(lambda: call.done() or len(driver.api.requests) > asked, 1.0)
            status, seconds = driver.process.terminate()
            if status is None:
                process.kill()
            with suppress(CallFailedError):
                call.result()
    finally:
        driver.api.clear_faults()
        driver.api.stop()  # this ends hanging calls
        driver.api.start()
        driver.process.start()
    require(
        status is not None, f"the driver is still running after {counted(driver.settings.grace, 'second')}", late=True
    )
    _ = driver.registration.reachable
    driver.calls.prepared(claim)
    return f"the driver exited after {seconds:.1f} seconds with status {status}"


@across(
    TERM,
    SHOULD,
    core=True,
    expected="the driver exits within its grace period",
    clause=(
        "Kubernetes sends SIGTERM, and kills what is still running after terminationGracePeriodSeconds. (Pod lifecycle)"
    ),
)
def ends_on_sigterm(driver: DriverUnderTest) -> Parts:
    """SIGTERM is sent, and the process must exit."""
    own_process(driver)
    yield
    after = driver.seen.ending
    require(
        after.status is not None,
        f"the driver is still running after {counted(driver.settings.grace, 'second')}",
        late=True,
    )
    require(not after.crash, f"the driver crashed: {after.crash}")
    return f"the driver exited after {after.seconds:.1f} seconds with status {after.status}"


@contextmanager
def _without_api_server(driver: DriverUnderTest) -> Iterator[None]:
    """Stop the API server for this block, then wait until the slices are complete."""
    try:
        with driver.without_api_server():
            yield
    finally:
        driver.slices.wait_complete()


@contextmanager
def _counted_connections(address: tuple[str, int]) -> Iterator[list[float]]:
    """Accept and close connections in this block.

    Yield a growing list of the times at which connections were opened.
    """
    times: list[float] = []
    with socket.create_server(address, backlog=100) as listener:
        listener.settimeout(0.1)
        is_over = threading.Event()

        def accept() -> None:
            while not is_over.is_set():
                with suppress(TimeoutError):
                    listener.accept()[0].close()
                    times.append(time.monotonic())

        thread = threading.Thread(target=accept, name="conformance-connections")
        thread.start()
        try:
            yield times
        finally:
            is_over.set()
            thread.join()
