"""A transport is not affected by plugins or other processes that send too much or too often."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits
from devicecore.adapters.grpc_unix.limits import RegistrationRate, TooManyRegistrationsError
from devicecore.domain.errors import DirectoryError
from devicecore.domain.events import PluginRegistered, RegistrationRequested
from devicecore.domain.model import resource_name
from devicecore.testing.faults import ManualClock
from devicecore.wire import deviceplugin
from tests.adapters.peers import RawPlugin, Recorder, register, running

OK = (StatusCode.OK, "")
GPU = resource_name("acme.io/gpu")
MEGABYTE = "x" * 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def umask() -> Iterator[Callable[[int], object]]:
    """Yield a function that sets the umask until the test is over."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


class TestWhatIsSaid:
    @pytest.mark.parametrize(
        ("request_", "beginning"),
        [
            ({"version": MEGABYTE}, 'requested API version "xxx'),
            ({"resource": f"acme.io/{MEGABYTE}"}, 'the ResourceName "acme.io/xxx'),
            ({"resource": f"{MEGABYTE}/gpu"}, 'the ResourceName "xxx'),
            ({"endpoint": MEGABYTE}, 'the endpoint "xxx'),
        ],
        ids=["version", "resource's name", "resource's domain", "endpoint"],
    )
    def test_a_megabyte_is_refused_in_one_sentence_and_never_repeated(
        self,
        directory: Path,
        recorder: Recorder,
        caplog: pytest.LogCaptureFixture,
        request_: dict[str, str],
        beginning: str,
    ) -> None:
        with running(directory, recorder):
            status, text = register(directory, **{"endpoint": "p.sock", **request_})
        assert status is StatusCode.UNKNOWN
        assert text.startswith(beginning)
        assert re.search(r"\.\.\. \(1\d{6} characters\)", text)
        assert len(text) < 500
        assert beginning in caplog.text
        assert len(caplog.text) < 1500
        (event,) = recorder.events
        assert isinstance(event, RegistrationRequested)
        assert len(event.resource) <= 320

    def test_a_registration_cannot_write_lines_of_its_own_into_the_log(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(directory, recorder):
            for request in ({"endpoint": "a\nCRITICAL"}, {"version": "\x1b[2J\n"}, {"resource": "x\r\ny"}):
                register(directory, **{"endpoint": "p\nsock", **request})
        assert len(caplog.messages) == 3
        assert all(message.isprintable() for message in caplog.messages)

    @pytest.mark.parametrize("says", ["x\nCRITICAL", MEGABYTE], ids=["lines", "a megabyte"])
    def test_the_error_of_a_plugin_is_logged_in_one_short_line(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture, says: str
    ) -> None:
        class Failing(RawPlugin):
            def get_device_plugin_options(
                self, request: deviceplugin.Empty, context: grpc.ServicerContext
            ) -> deviceplugin.DevicePluginOptions:
                if self.path.name == "options.sock":
                    context.abort(StatusCode.INTERNAL, says)
                return super().get_device_plugin_options(request, context)

            def list_and_watch(
                self, _: deviceplugin.Empty, context: grpc.ServicerContext
            ) -> Iterator[deviceplugin.ListAndWatchResponse]:
                context.abort(StatusCode.INTERNAL, says)

        with running(directory, recorder), Failing(directory / "options.sock"), Failing(directory / "stream.sock"):
            status, text = register(directory, "options.sock")
            assert register(directory, "stream.sock") == OK
            recorder.wait_lost(recorder.plugin())
        assert status is StatusCode.UNKNOWN
        refused, lost = [message for message in caplog.messages if "code = Internal" in message]
        assert all(message.isprintable() and len(message) < 2200 for message in (text, refused, lost))

    def test_device_ids_may_be_too_long_and_the_log_says_so_once_per_instance(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        fits, long = "x" * 63, "y" * 500
        with running(directory, recorder):
            for number in (1, 2):
                with RawPlugin(directory / "p.sock", [fits], [fits, long, f"{long}2"], [long]):
                    assert register(directory, "p.sock") == OK
                    plugin = recorder.plugin(number)
                    assert recorder.lists(plugin, 3) == [(fits,), (fits, long, f"{long}2"), (long,)]
                recorder.wait_lost(plugin)
        told = [message for message in caplog.messages if "device ids" in message]
        assert len(told) == 2
        assert "2 device ids of more than 63 characters" in told[0]
        assert len(told[0]) < 500

    def test_one_long_device_id_is_logged_in_the_singular(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(directory, recorder), RawPlugin(directory / "p.sock", ["y" * 64]):
            assert register(directory, "p.sock") == OK
            recorder.lists(recorder.plugin())
        assert "has 1 device id of more than 63 characters" in caplog.text

    def test_a_device_id_has_a_limit_and_the_error_says_it(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(directory, recorder), RawPlugin(directory / "p.sock", ["y" * 4096], ["y" * 2_000_000]):
            assert register(directory, "p.sock") == OK
            recorder.wait_lost(recorder.plugin())
            assert len(recorder.lists(recorder.plugin())) == 1
        assert "a list from acme.io/gpu has a device id of 2000000 characters, expected at most 4096" in caplog.text

    def test_a_list_near_the_limit_is_reported_once_with_what_would_fit(
        self, directory: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = [f"gpu-{number:04}" for number in range(1000)]  # each id takes 21 bytes, including health and framing
        with (
            running(directory, recorder, limits=PluginLimits(message_bytes=25_000)),
            RawPlugin(directory / "p.sock", ids[:950], ids, ids, [*ids, *(f"more-{n:03}" for n in range(191))]),
        ):
            assert register(directory, "p.sock") == OK
            plugin = recorder.plugin()
            recorder.wait_lost(plugin)
            assert [len(listed) for listed in recorder.lists(plugin)] == [950, 1000, 1000]
        told = [message for message in caplog.messages if "unless message_bytes is" in message]
        assert len(told) == 1
        assert "lists 1,000 devices in 21000 bytes, and a message may be up to 25000 bytes long" in told[0]
        assert "more than about 1190 devices" in told[0]  # 1,191 devices were too many
        assert "ResourceExhausted" in caplog.text


class TestHowOften:
    def test_a_resource_that_registers_too_often_learns_when_to_try_again(
        self, directory: Path, recorder: Recorder, clock: ManualClock
    ) -> None:
        few = PluginLimits(registrations_per_second=0.5, registration_burst=3)
        with (
            running(directory, recorder, limits=few, clock=clock),
            RawPlugin(directory / "p.sock", ["d0"]),
            RawPlugin(directory / "q.sock", ["q0"]),
        ):
            assert [register(directory, "p.sock") for _ in range(3)] == [OK] * 3
            text = "acme.io/gpu registers too often, more than 3 times at once and 0.5 times a second: try again in 2 s"
            refusal = (StatusCode.UNKNOWN, text)
            assert [register(directory, "p.sock") for _ in range(50)] == [refusal] * 50
            assert register(directory, "q.sock", "acme.io/nic") == OK  # another resource's calls do not count
            clock.now = 2.0
            assert register(directory, "p.sock") == OK
            assert register(directory, "p.sock") == refusal
            assert len(recorder.of(PluginRegistered)) == 2
        assert len(recorder.of(RegistrationRequested)) == 56  # all calls are counted, whether refused or not

    @pytest.mark.slow
    def test_a_plugin_that_calls_600_times_a_second_while_it_is_refused_gets_in_at_last(
        self, directory: Path, recorder: Recorder, clock: ManualClock
    ) -> None:
        """A widely used plugin calls Register as often as this, and creates its socket only after a second."""
        with running(directory, recorder, clock=clock):
            answers = []
            for call in range(600):
                clock.now = call / 600
                answers.append(register(directory, "p.sock")[1])
            too_often = sum("try again" in answer for answer in answers)
            assert 340 < too_often < 360  # only 200 calls at once, and 50 more during the second, passed the limit
            assert sum("no such file" in answer for answer in answers) == 600 - too_often
            with RawPlugin(directory / "p.sock", ["d0"]):
                tries = 0
                while register(directory, "p.sock") != OK:
                    tries += 1
                    clock.now += 1 / 600
                assert tries <= 12

    def test_plugins_that_register_once_a_restart_never_reach_the_limit(
        self, directory: Path, recorder: Recorder, clock: ManualClock
    ) -> None:
        """The calls stand for sixteen plugins that register at the same time, three times each."""
        with running(directory, recorder, clock=clock), RawPlugin(directory / "p.sock", ["d0"]):
            assert {register(directory, "p.sock") for _ in range(3 * 16)} == {OK}

    def test_without_a_limit_all_calls_pass(self, directory: Path, recorder: Recorder, clock: ManualClock) -> None:
        with (
            running(directory, recorder, limits=PluginLimits(registrations_per_second=None), clock=clock),
            RawPlugin(directory / "p.sock", ["d0"]),
        ):
            assert {register(directory, "p.sock") for _ in range(300)} == {OK}

    @pytest.mark.parametrize(("per_second", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
    def test_a_rate_that_refuses_every_call_is_an_error(self, directory: Path, per_second: float, burst: int) -> None:
        limits = PluginLimits(registrations_per_second=per_second, registration_burst=burst)
        with pytest.raises(ValueError, match="would refuse every call"):
            GrpcUnixTransport(directory, limits=limits)

    def test_the_limit_forgets_resources_that_have_not_registered_lately(self, clock: ManualClock) -> None:
        """A client can invent any number of resource names, and each name takes memory."""
        rate = RegistrationRate(1.0, 10, clock)
        for number in range(10_000):
            rate.take(resource_name(f"acme.io/r{number}"))
            clock.now += 0.001
        assert len(rate._buckets) <= 2001  # noqa: SLF001 - it is about memory
        for _ in range(10):
            rate.take(GPU)
        for _ in range(1500):  # these resources fill the table
            clock.now += 0.0001
            rate.take(resource_name(f"acme.io/s{clock.now:.4f}"))
        with pytest.raises(TooManyRegistrationsError) as refused:
            rate.take(GPU)  # this resource is not forgotten
        assert refused.value.args == ("acme.io/gpu", 10, 1.0, pytest.approx(0.85))


class TestWhere:
    @pytest.mark.parametrize("mode", [0o775, 0o757, 0o720, 0o1777])
    def test_a_directory_that_others_may_write_is_refused(self, directory: Path, recorder: Recorder, mode: int) -> None:
        directory.chmod(mode)
        with pytest.raises(DirectoryError) as refused:
            GrpcUnixTransport(directory).start(recorder)
        assert str(refused.value) == (
            f"cannot use directory '{directory}': its mode is {mode:04o}, so others may put files there: "
            "`chmod go-w` it, choose a different directory, or allow it with --allow-shared-directory "
            "(in Python: allow_shared_directory=True)"
        )
        assert list(directory.iterdir()) == []
        allowed = GrpcUnixTransport(directory, allow_shared_directory=True)
        allowed.start(recorder)
        allowed.stop()
        directory.chmod(mode & ~0o022)  # what the message suggests
        with running(directory, recorder):
            pass

    def test_a_link_to_a_directory_is_refused(self, directory: Path, recorder: Recorder) -> None:
        shared, link = directory / "shared", directory / "link"
        shared.mkdir()
        shared.chmod(0o777)
        link.symlink_to(shared)
        with pytest.raises(DirectoryError, match="it is a symbolic link"):
            GrpcUnixTransport(link).start(recorder)

    @pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
    def test_a_directory_that_others_may_read_is_fine(self, directory: Path, recorder: Recorder, mode: int) -> None:
        directory.chmod(mode)
        with running(directory, recorder):
            pass

    @pytest.mark.parametrize("mask", [0o000, 0o002, 0o022])
    def test_a_created_directory_is_not_shared_whatever_the_umask(
        self, directory: Path, recorder: Recorder, umask: Callable[[int], object], mask: int
    ) -> None:
        umask(mask)
        with running(directory / "new", recorder):
            assert (directory / "new").stat().st_mode & 0o7777 == 0o750
