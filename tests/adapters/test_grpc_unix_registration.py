"""The kubelet's side over real sockets: which plugins may register, their events, and their answers to calls."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits, serve_plugin, server
from devicecore.domain import errors
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import DeviceId, Receipt
from devicecore.wire import deviceplugin
from tests.adapters.peers import PATIENCE, Gpus, RawPlugin, Recorder, environment, register, running

OK = (StatusCode.OK, "")
D0 = DeviceId("d0")


@pytest.fixture
def transport(directory: Path, recorder: Recorder, request: pytest.FixtureRequest) -> Iterator[GrpcUnixTransport]:
    with running(directory, recorder, limits=PluginLimits(dial=getattr(request, "param", PATIENCE))) as transport:
        yield transport


# --- Register ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("transport")
class TestRegister:
    def test_an_unsupported_version_is_refused_in_the_kubelets_words(self, directory: Path, recorder: Recorder) -> None:
        text = 'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]'
        assert register(directory, "p.sock", version="v1alpha") == (StatusCode.UNKNOWN, text)
        assert recorder.events == [RegistrationRequested("acme.io/gpu")]

    def test_an_invalid_name_is_refused_after_the_version(self, directory: Path, recorder: Recorder) -> None:
        refusal = (StatusCode.UNKNOWN, 'the ResourceName "cpu" is invalid')
        assert register(directory, "p.sock", "cpu") == refusal
        assert "version" in register(directory, "p.sock", "cpu", version="v0")[1]
        assert recorder.events == [RegistrationRequested("cpu")] * 2

    def test_a_socket_that_appears_just_after_the_call_is_found(
        self, directory: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A plugin that listens in one goroutine and registers in another may call Register before it listens."""
        monkeypatch.setattr(server, "SOCKET_PATIENCE", PATIENCE)
        with ThreadPoolExecutor(2) as callers:
            answers = [callers.submit(register, directory, "p.sock") for _ in range(2)]
            recorder.wait(RegistrationRequested, 2)
            with RawPlugin(directory / "p.sock", ["d0"]):
                assert [answer.result() for answer in answers] == [OK, OK]
                assert recorder.lists(recorder.plugin()) == [("d0",)]
        assert len(recorder.of(PluginRegistered)) == 1

    def test_a_socket_that_never_appears_is_an_error_and_the_next_call_fails_at_once(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A refused plugin may call again up to 600 times a second, so the second refusal must not wait."""
        refusal = register(directory, "missing.sock")
        assert refusal[0] is StatusCode.UNKNOWN
        assert refusal[1].startswith("failed to dial device plugin:")
        assert "no such file" in refusal[1]
        monkeypatch.setattr(server, "SOCKET_PATIENCE", PATIENCE)
        assert register(directory, "missing.sock") == refusal  # the refusal does not say that the dial timed out

    @pytest.mark.parametrize("transport", [1.0], indirect=True)
    def test_a_socket_without_a_listener_is_dialed_until_the_deadline(self, directory: Path) -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(directory / "p.sock"))
        said = "failed to dial device plugin: context deadline exceeded"
        assert register(directory, "p.sock") == (StatusCode.UNKNOWN, said)

    def test_a_server_that_starts_while_it_is_dialed_is_found(self, directory: Path, recorder: Recorder) -> None:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(directory / "p.sock"))
        with ThreadPoolExecutor(1) as caller:
            answer = caller.submit(register, directory, "p.sock")
            recorder.wait(RegistrationRequested)
            with RawPlugin(directory / "new.sock", ["d0"]):
                (directory / "new.sock").rename(directory / "p.sock")  # a socket exists at this path at all times
                assert answer.result() == OK
                assert register(directory, "p.sock") == OK
                assert recorder.lists(recorder.plugin()) == [("d0",)]
                # The registrations are counted before the plugin stops: a plugin that ends its stream this soon after
                # registering again is dialed again, and might still answer while it stops.
                assert len(recorder.of(PluginRegistered)) == 1

    @pytest.mark.parametrize("endpoint", ["../p.sock", "", ".", "..", "/p.sock", "a/b", "x" * 99, "\0", "kubelet.sock"])
    def test_an_endpoint_is_a_file_in_the_directory(self, directory: Path, recorder: Recorder, endpoint: str) -> None:
        with RawPlugin(directory.parent / f"{directory.name}.sock"):
            status, text = register(directory, endpoint.replace("p.sock", f"{directory.name}.sock"))
        assert status is StatusCode.UNKNOWN
        assert "is refused" in text
        assert not recorder.of(PluginRegistered)

    @pytest.mark.parametrize("kind", ["link", "file", "fifo", "directory"])
    def test_an_endpoint_is_a_socket_and_no_link_to_one(self, directory: Path, recorder: Recorder, kind: str) -> None:
        endpoint = directory / "p.sock"
        with RawPlugin(directory / "real.sock"):
            match kind:
                case "link":
                    endpoint.symlink_to("real.sock")
                case "file":
                    endpoint.touch()
                case "fifo":
                    os.mkfifo(endpoint)
                case _:
                    endpoint.mkdir()
            status, text = register(directory, "p.sock")
        assert status is StatusCode.UNKNOWN
        assert ("a symbolic link" if kind == "link" else "not a socket") in text
        assert not recorder.of(PluginRegistered)

    @pytest.mark.parametrize("endpoint", ["dp.1795220680", "amd.com_gpu", "gdp-c3F1YXQ==-17.sock", "100%#?ü .sock"])
    def test_any_file_name_is_an_endpoint(self, directory: Path, recorder: Recorder, endpoint: str) -> None:
        with RawPlugin(directory / "p.sock", ["d0"]):
            (directory / "p.sock").rename(directory / endpoint)
            assert register(directory, endpoint) == OK
            assert recorder.lists(recorder.plugin()) == [("d0",)]

    def test_a_plugin_that_does_not_return_its_options_is_refused(self, directory: Path, recorder: Recorder) -> None:
        class Failing(RawPlugin):
            def get_device_plugin_options(
                self, _: deviceplugin.Empty, context: grpc.ServicerContext
            ) -> deviceplugin.DevicePluginOptions:
                context.abort(StatusCode.UNKNOWN, "boom")

        with Failing(directory / "p.sock"):
            assert register(directory, "p.sock") == (
                StatusCode.UNKNOWN,
                "failed to get device plugin options: rpc error: code = Unknown desc = boom",
            )
        assert not recorder.of(PluginRegistered)

    def test_the_api_of_2017_is_not_implemented(self, directory: Path) -> None:
        status, _ = register(directory, "p.sock", method="/deviceplugin.Registration/Register")
        assert status is StatusCode.UNIMPLEMENTED


# --- instances --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("transport")
class TestInstances:
    def test_registering_twice_at_once_is_registering_once(self, directory: Path, recorder: Recorder) -> None:
        with RawPlugin(directory / "p.sock", ["d0"]), ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda _: register(directory, "p.sock"), range(8)))
            assert answers == [OK] * 8
            assert recorder.lists(recorder.plugin()) == [("d0",)]
            assert register(directory, "p.sock") == OK
            assert len(recorder.of(PluginRegistered)) == 1
        recorder.wait_lost(recorder.plugin())
        assert len(recorder.of(RegistrationRequested)) == 9

    def test_a_register_that_overtakes_the_end_of_the_old_stream_is_not_lost_with_it(
        self, directory: Path, recorder: Recorder
    ) -> None:
        with RawPlugin(directory / "p.sock", ["d0"]) as raw:
            assert register(directory, "p.sock") == OK
            assert register(directory, "p.sock") == OK
            raw.end_stream()
            first, second = recorder.plugin(1), recorder.plugin(2)
            assert recorder.about(first)[-1] == PluginLost(first)
            raw.report("d1")
            assert recorder.lists(second) == [("d1",)]
            raw.end_stream()
            recorder.wait_lost(second)
            assert register(directory, "p.sock") == OK
            assert len(recorder.of(PluginRegistered)) == 3

    def test_a_list_that_is_too_long_loses_the_plugin_and_the_log_says_why(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        with RawPlugin(directory / "p.sock", ["d" * 1000] * 5000):
            assert register(directory, "p.sock") == OK
            recorder.wait_lost(recorder.plugin())
        assert not recorder.of(DevicesReported)
        assert "ResourceExhausted" in caplog.text
        assert str(4 * 1024 * 1024) in caplog.text

    def test_a_slow_listener_delays_no_other_plugin(self, directory: Path) -> None:
        released, recorder = threading.Event(), Recorder()

        def listener(event: Event) -> None:
            if isinstance(event, DevicesReported) and event.plugin.resource == "acme.io/slow":
                released.wait(PATIENCE)
            recorder(event)

        elsewhere = directory / "other"
        with (
            running(elsewhere, listener),
            RawPlugin(elsewhere / "s.sock", ["s0"], ["s1"]),
            RawPlugin(elsewhere / "p.sock", ["d0"]),
        ):
            assert register(elsewhere, "s.sock", "acme.io/slow") == OK
            assert register(elsewhere, "p.sock") == OK
            assert recorder.lists(recorder.plugin(2)) == [("d0",)]
            released.set()
            assert recorder.lists(recorder.plugin(1), 2) == [("s0",), ("s1",)]

    # exceptions that are not devicecore's own
    @pytest.mark.parametrize("failure", [LookupError("bug"), SystemExit("bug")], ids=repr)
    def test_a_listener_that_fails_refuses_a_plugin_but_not_a_list(
        self, directory: Path, caplog: pytest.LogCaptureFixture, failure: BaseException
    ) -> None:
        recorder = Recorder()
        fails_on: tuple[type[Event], ...] = (PluginRegistered,)

        def listener(event: Event) -> None:
            recorder(event)
            if isinstance(event, fails_on):
                raise failure

        elsewhere = directory / "other"
        with running(elsewhere, listener), RawPlugin(elsewhere / "p.sock", ["d0"], ["d1"]):
            refusal = "failed to dial device plugin: the listener failed: bug"
            assert register(elsewhere, "p.sock") == (StatusCode.UNKNOWN, refusal)
            fails_on = (RegistrationRequested, DevicesReported)
            assert register(elsewhere, "p.sock") == OK
            assert recorder.lists(recorder.plugin(2), 2) == [("d0",), ("d1",)]
        assert type(failure).__name__ in caplog.text


CALLS_WITH_MUCH = """
import gc, sys
from pathlib import Path
from devicecore.domain.errors import PluginCallError
from devicecore.runtime import in_time
from tests.adapters.peers import Recorder, plugin_that_reads_no_more, register, running

directory, recorder, start, started = Path(sys.argv[1]), Recorder(), in_time.start_new_thread, []
in_time.start_new_thread = lambda *arguments: started.append(start(*arguments))
with plugin_that_reads_no_more(directory / "p.sock", sys.argv[2]):
    with running(directory, recorder, wipe=False) as transport:
        register(directory, "p.sock")
        for _ in range(2):
            try:
                transport.allocate(recorder.plugin(), [f"device-{number:020}" for number in range(20_000)], timeout=0.5)
            except PluginCallError as error:
                print(error, flush=True)
    del transport
    gc.collect()
with running(directory, recorder, wipe=False):
    print(register(directory, "none.sock")[1])
print(f"{len(started)} thread")
"""  # the requests take 580 KB, but a socket buffers only 200 KB


# --- calls ------------------------------------------------------------------------------------------------------------


class TestCalls:
    def test_a_plugins_long_message_is_returned_truncated_and_on_one_line(
        self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport
    ) -> None:
        """The message is sent in headers, of which grpc accepts 16 KiB by default."""

        class Talkative(Gpus):
            def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
                raise errors.DeviceRefusedError(self.resource, "\n" + 100_000 * "x")

        with serve_plugin(Talkative("d0"), directory), pytest.raises(errors.PluginCallError) as failed:
            transport.allocate(recorder.plugin(), [D0])
        text = str(failed.value)
        assert text.isprintable()
        assert text.startswith("rpc error: code = Unknown desc = invalid allocation request for acme.io/gpu")
        assert re.search(r"xxx\.\.\. \(\d+ characters\)$", text)
        assert len(text) <= 2000

    def test_an_answer_to_allocate_has_a_bound_and_the_error_says_it(
        self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport
    ) -> None:
        class Generous(Gpus):
            def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
                return ContainerAllocateResponse(envs={"A": "x" * int(devices[0])})

        fits = 256 * 1024 - 11  # protobuf adds 11 bytes to the value
        with serve_plugin(Generous("d0"), directory):
            plugin = recorder.plugin()
            assert len(transport.allocate(plugin, [DeviceId(str(fits))])) == 256 * 1024
            with pytest.raises(errors.PluginCallError, match=r": 262145 bytes, expected at most 262144 \(alloc"):
                transport.allocate(plugin, [DeviceId(str(fits + 1))])

    def test_the_first_response_is_the_answer_and_unknown_fields_stay_in_it(
        self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport
    ) -> None:
        future = deviceplugin.ContainerAllocateResponse.FromString(b"\xfa\x01\x03new")

        class Newer(RawPlugin):
            def allocate(
                self, _: deviceplugin.AllocateRequest, __: grpc.ServicerContext
            ) -> deviceplugin.AllocateResponse:
                second = deviceplugin.ContainerAllocateResponse(envs={"A": "B"})
                return deviceplugin.AllocateResponse(container_responses=[future, second])

        with Newer(directory / "p.sock"):
            assert register(directory, "p.sock") == OK
            receipt = transport.allocate(recorder.plugin(), [D0])
        assert receipt == b"\xfa\x01\x03new"
        assert transport.read(receipt).envs == {}

    def test_no_answer_is_an_error(self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport) -> None:
        with RawPlugin(directory / "p.sock"):
            assert register(directory, "p.sock") == OK
            with pytest.raises(errors.EmptyAllocateResponseError):
                transport.allocate(recorder.plugin(), [D0])
            assert transport.get_preferred_allocation(recorder.plugin(), [D0], [], 1) == ()

    def test_a_call_that_succeeds_without_an_answer_has_failed(
        self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport
    ) -> None:
        """The error has the same words as in a kubelet's gRPC library."""
        sentence = "code = Internal desc = cardinality violation: received no response message"
        with RawPlugin(directory / "p.sock", mute="GetDevicePluginOptions"):
            assert sentence in register(directory, "p.sock")[1]
        with RawPlugin(directory / "q.sock", mute="PreStartContainer"):
            assert register(directory, "q.sock") == OK
            with pytest.raises(errors.PluginCallError, match=sentence):
                transport.pre_start_container(recorder.plugin(), [D0])

    @pytest.mark.parametrize("over", ["deadline", "time", "plugin", "transport"])
    def test_no_call_outlives_its_deadline_its_time_its_plugin_or_its_transport(
        self, directory: Path, recorder: Recorder, over: str
    ) -> None:
        asked, released = threading.Event(), threading.Event()

        class Silent(RawPlugin):
            def allocate(
                self, _: deviceplugin.AllocateRequest, __: grpc.ServicerContext
            ) -> deviceplugin.AllocateResponse:
                asked.set()
                released.wait(PATIENCE)
                return deviceplugin.AllocateResponse()

        seconds = 2.0 if over == "deadline" else PATIENCE
        with (
            running(directory, recorder, limits=PluginLimits(allocate=seconds)) as transport,
            Silent(directory / "p.sock") as plugin,
            ThreadPoolExecutor(1) as caller,
        ):
            assert register(directory, "p.sock") == OK
            started = time.monotonic()
            timeout = 2.0 if over == "time" else None
            call = caller.submit(transport.allocate, recorder.plugin(), [D0], timeout=timeout)
            assert asked.wait(PATIENCE)
            if over == "plugin":
                plugin.end_stream()
            if over == "transport":
                transport.stop()
            with pytest.raises((errors.PluginCallError, errors.PluginStoppedError)) as failed:
                call.result()
            assert time.monotonic() - started < PATIENCE / 2
            if over in ("deadline", "time"):
                assert "code = DeadlineExceeded desc = context deadline exceeded" in str(failed.value)
            if over == "plugin":
                assert "code = Canceled" in str(failed.value)
            released.set()

    @pytest.mark.parametrize(
        "then", ["nothing", *(pytest.param(then, marks=pytest.mark.slow) for then in ("pings", "accept"))]
    )
    def test_a_call_that_its_plugin_does_not_read_ends_and_so_does_the_program(
        self, directory: Path, then: str
    ) -> None:
        """By itself, gRPC does not end such a call at its deadline or when it is canceled, and waits for it at exit.

        Only the first such call may keep a thread waiting. If the plugin ends later, nothing is logged in the next run
        of the transport, which uses a different event loop.
        """
        child = [sys.executable, "-c", CALLS_WITH_MUCH, str(directory), then]
        run = subprocess.run(child, env=environment(), capture_output=True, text=True, timeout=60, check=True)
        *late, refused, kept = run.stdout.splitlines()
        assert late == ["rpc error: code = DeadlineExceeded desc = context deadline exceeded"] * 2
        assert refused.startswith("failed to dial device plugin")
        assert kept == "1 thread"
        assert run.stderr == ""

    @pytest.mark.parametrize("timeout", [0.0, -1.0])
    def test_a_call_whose_deadline_has_passed_fails_at_once(
        self, directory: Path, recorder: Recorder, transport: GrpcUnixTransport, timeout: float
    ) -> None:
        with (
            serve_plugin(Gpus("d0"), directory),
            pytest.raises(errors.PluginCallError, match="context deadline exceeded"),
        ):
            transport.allocate(recorder.plugin(), [D0], timeout=timeout)


# --- start and stop ---------------------------------------------------------------------------------------------------


class TestStartAndStop:
    def test_a_missing_directory_is_created(self, directory: Path, recorder: Recorder) -> None:
        with running(directory / "new", recorder):
            assert (directory / "new").stat().st_mode & 0o777 == 0o750
            assert (directory / "new" / "kubelet.sock").is_socket()
        assert list((directory / "new").iterdir()) == []

    def test_a_directory_may_have_any_name(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The directory's name may contain bytes that cannot be decoded in this locale."""
        odd = directory / os.fsdecode(b"\xff %\xe9")
        with running(odd, recorder), RawPlugin(directory / "p.sock", ["d0"]) as raw:
            (directory / "p.sock").rename(odd / "p.sock")
            kubelet = directory / "kubelet.sock"
            kubelet.symlink_to(odd / "kubelet.sock")  # grpc's own client needs a path that can be decoded
            assert register(directory, "p.sock") == OK
            assert recorder.lists(recorder.plugin()) == [("d0",)]
            assert "\\udcff %\\udce9/q.sock: connect: no such file" in register(directory, "q.sock")[1]
            raw.end_stream()
            recorder.wait_lost(recorder.plugin())
        assert all(message.isprintable() for message in caplog.messages)

    def test_a_name_too_long_for_a_socket_is_refused_at_once(self, directory: Path, recorder: Recorder) -> None:
        deep = directory / ("x" * 100)
        with pytest.raises(errors.SocketPathTooLongError) as refused:
            GrpcUnixTransport(deep).start(recorder)
        assert refused.value.args == (str(deep / "kubelet.sock"), 107)
        assert not deep.exists()
        with pytest.raises(errors.SocketPathTooLongError, match=f"is {len(str(deep / 'kubelet.sock'))} bytes long"):
            GrpcUnixTransport(directory / os.fsdecode(b"\xff" * 100)).start(recorder)
        fits = directory / ("x" * (107 - len(str(directory)) - len("//kubelet.sock")))
        with running(fits, recorder):
            assert len(str(fits / "kubelet.sock")) == 107

    def test_a_directory_must_be_usable(self, directory: Path, recorder: Recorder) -> None:
        (directory / "file").touch()
        (directory / "kubelet.sock").touch()
        for path, cause in (
            (directory / "a" / "b", f"there is no directory {directory / 'a'}: create it first"),
            (directory / "file", "it is not a directory"),
            (directory, "kubelet.sock is in the way and is not a socket"),
        ):
            with pytest.raises(errors.DirectoryError) as refused:
                GrpcUnixTransport(path).start(recorder)
            assert refused.value.args == (str(path), cause)
        assert sorted(path.name for path in directory.iterdir()) == ["file", "kubelet.sock"]

    def test_only_sockets_are_cleaned_up(self, directory: Path, recorder: Recorder) -> None:
        for name in ("kubelet.sock", "nvidia-gpu.sock", ".hidden.sock"):
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(directory / name))
        for name in ("kubelet_internal_checkpoint", "DEPRECATION", "notes.txt"):
            (directory / name).touch()
        (directory / "sample").mkdir()
        (directory / "link.sock").symlink_to("nvidia-gpu.sock")
        (directory / "dangling").symlink_to("nothing")
        elsewhere = directory / "sample" / "other.sock"
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(elsewhere))
        (directory / "elsewhere.sock").symlink_to(elsewhere)
        with running(directory, recorder):
            pass
        kept = {"kubelet_internal_checkpoint", "DEPRECATION", "notes.txt", "sample", "dangling"}
        assert {path.name for path in directory.iterdir()} == kept
        assert elsewhere.is_socket()

    def test_one_directory_has_one_kubelet(self, directory: Path, recorder: Recorder) -> None:
        with running(directory, recorder) as transport, RawPlugin(directory / "p.sock", ["d0"]):
            assert register(directory, "p.sock") == OK
            transport.start(recorder)
            for second, listener in ((transport, Recorder()), (GrpcUnixTransport(directory), recorder)):
                with pytest.raises(errors.DirectoryInUseError):
                    second.start(listener)
            assert (directory / "p.sock").is_socket()
            assert register(directory, "p.sock") == OK

    def test_a_kubelet_without_a_lock_file_owns_its_directory_too(self, directory: Path, recorder: Recorder) -> None:
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(directory / "kubelet.sock"))
            kubelet.listen(0)
            for _ in ("it answers", "it is too busy to answer another one"):
                with pytest.raises(errors.DirectoryInUseError):
                    GrpcUnixTransport(directory).start(recorder)
        with running(directory, recorder):
            pass

    def test_stopping_waits_for_no_plugin_that_is_being_dialed(self, directory: Path, recorder: Recorder) -> None:
        limits = PluginLimits(dial=PATIENCE)
        with running(directory, recorder, limits=limits) as transport, ThreadPoolExecutor(1) as caller:
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(directory / "p.sock"))
            answer = caller.submit(register, directory, "p.sock")
            recorder.wait(RegistrationRequested)
            started = time.monotonic()
            transport.stop()
            assert time.monotonic() - started < PATIENCE / 2
        status, text = answer.result()
        assert status is StatusCode.UNAVAILABLE or text.endswith("the kubelet is stopping")
        assert recorder.events == [RegistrationRequested("acme.io/gpu")]

    def test_a_directory_that_many_transports_claim_has_one_owner(self, directory: Path) -> None:
        owners = threading.Semaphore(1)
        counts = {"owned": 0, "refused": 0}

        def compete(_: int) -> None:
            for _ in range(10):
                transport = GrpcUnixTransport(directory)
                try:
                    transport.start(Recorder())
                except errors.DirectoryInUseError:
                    counts["refused"] += 1
                    continue
                assert owners.acquire(blocking=False)
                counts["owned"] += 1
                owners.release()
                transport.stop()

        with ThreadPoolExecutor(8) as competitors:
            list(competitors.map(compete, range(8)))
        assert counts["owned"] + counts["refused"] == 80
        assert counts["owned"] > 1
        assert list(directory.iterdir()) == []

    def test_generations_go_on_after_a_restart(self, directory: Path, recorder: Recorder) -> None:
        transport = GrpcUnixTransport(directory)
        for number in (1, 2):
            transport.start(recorder)
            with RawPlugin(directory / "p.sock", ["d0"]):
                assert register(directory, "p.sock") == OK
                assert recorder.plugin(number).generation == number
                transport.stop()

    def test_a_listener_may_call_the_plugin_but_not_stop_the_transport(self, directory: Path) -> None:
        """A stop waits until the listener has returned, so a stop from the listener would wait for itself."""
        recorder = Recorder()
        answers: list[Receipt] = []

        def listener(event: Event) -> None:
            if isinstance(event, PluginRegistered):
                answers.append(own.allocate(event.plugin, [D0]))
            if isinstance(event, DevicesReported):
                with pytest.raises(errors.CalledFromInsideError):
                    own.stop()
                recorder(event)

        own = GrpcUnixTransport(directory)
        own.start(listener)
        with serve_plugin(Gpus("d0"), directory):
            recorder.wait(DevicesReported)
        own.stop()
        assert [own.read(answer).envs for answer in answers] == [{"GPUS": "d0"}]

    def test_a_program_ends_quietly_whether_or_not_it_stops_its_transport(self, directory: Path) -> None:
        script = (
            "import sys, threading\n"
            "from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin\n"
            "from devicecore.domain.events import DevicesReported\n"
            "from tests.adapters.peers import Gpus\n"
            "heard = threading.Event()\n"
            "transport = GrpcUnixTransport(sys.argv[1])\n"
            "transport.start(lambda event: isinstance(event, DevicesReported) and heard.set())\n"
            "served = serve_plugin(Gpus('d0'), sys.argv[1])\n"
            "assert heard.wait(60)\n"
            "if sys.argv[2] == 'transport first':\n"
            "    transport.stop()\n"
            "    served.stop()\n"
            "if sys.argv[2] == 'plugin first':\n"
            "    served.stop()\n"
            "    transport.stop()\n"
        )
        for way in ("transport first", "plugin first", "neither"):
            child = [sys.executable, "-c", script, str(directory), way]
            run = subprocess.run(child, env=environment(), capture_output=True, text=True, timeout=20, check=True)
            lines = [line for line in run.stderr.splitlines() if "lost:" not in line and "cannot register" not in line]
            assert lines == [], way


# --- resource use -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_plugins_need_few_threads(directory: Path, recorder: Recorder) -> None:
    tasks = Path("/proc/self/task")
    before, tasks_before = threading.active_count(), len(list(tasks.iterdir()))  # earlier tests may leave threads
    with running(directory, recorder) as transport:
        served = [serve_plugin(Gpus("d0", resource=f"acme.io/gpu{number}"), directory) for number in range(100)]
        plugins = [event.plugin for event in recorder.wait(PluginRegistered, 100)]
        recorder.wait(DevicesReported, 100)
        with ThreadPoolExecutor(8) as callers:
            receipts = list(callers.map(lambda plugin: transport.allocate(plugin, [D0]), plugins))
        assert [transport.read(receipt).envs for receipt in receipts] == [{"GPUS": "d0"}] * 100
        assert threading.active_count() - before <= 32
        assert len(list(tasks.iterdir())) - tasks_before <= 64  # this includes grpc's own threads
        for each in served:
            each.stop()
        recorder.wait(PluginLost, 100)


def test_fifty_starts_and_stops_leave_nothing_behind(directory: Path) -> None:
    def once() -> None:
        recorder = Recorder()
        with running(directory, recorder), serve_plugin(Gpus("d0"), directory):
            recorder.wait(DevicesReported)

    def held() -> list[str]:
        descriptors = [str(descriptor.resolve()) for descriptor in Path("/proc/self/fd").iterdir()]
        return sorted([*(thread.name for thread in threading.enumerate()), *descriptors])

    for _ in range(3):
        once()
    before = held()
    for _ in range(50):
        once()
    few = len(before) + 25  # the pools of grpc and of Python may grow a little; a leak would add 50
    deadline = time.monotonic() + PATIENCE
    while len(held()) > few and time.monotonic() < deadline:
        time.sleep(0.05)  # idle workers soon end on their own
    assert len(held()) <= few, (before, held())
    assert list(directory.iterdir()) == []
