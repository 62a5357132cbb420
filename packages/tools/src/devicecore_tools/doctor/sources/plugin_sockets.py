"""What plugins answer when they are asked who they are, for their options, and for one list. Nothing is allocated.

Laws: each plugin is asked at most three things: GetInfo (in the plugin watcher's directory only), its options, and one
list. The result is a `PluginSeen` for any answer, and also if there is none. A plugin whose socket went or was replaced
while it was asked is left out, because a kubelet that starts deletes the sockets, and a plugin then serves a new one.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from attrs import define, field, frozen
from google.protobuf.message import DecodeError

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED, in_time
from devicecore.system.grpc_settings import channel_options, target
from devicecore.system.sockets import SocketIdentity, is_served, socket_identity
from devicecore.wire import deviceplugin, pluginregistration
from devicecore.wire.conversion import to_options
from devicecore.wire.device_lists import read_devices
from devicecore_tools.doctor.look import NOBODY_LISTENS, PluginSeen, Reading

MAX_PLUGINS = 256
"""How many plugins are asked at most."""

MAX_LIST_BYTES = 16 * 1024 * 1024
"""Bytes of a list that is read: four times what a kubelet accepts, so that the size of a larger one is known."""

_AT_ONCE = 16
_LISTENERS_AT_ONCE = 64  # their answers are small
_AGAIN = 1.0  # seconds for one that was silent before
_CALLS = 3  # GetInfo, the options and a list
_MAX_NAME = 320


def read_plugins(
    directory: str, sockets: Iterable[str], registry: str, registry_sockets: Iterable[str], timeout: float = 10.0
) -> Reading[tuple[PluginSeen, ...]]:
    """Ask the plugins at `sockets` in `directory`, and the device plugins at `registry_sockets` in `registry`.

    Each has `timeout` seconds for each call. Drivers of other types are left out.
    """
    asked = [(name, str(Path(directory) / name), False) for name in sockets]
    asked += [(name, str(Path(registry) / name), True) for name in registry_sockets]
    notes = () if len(asked) <= MAX_PLUGINS else (f"only {MAX_PLUGINS} of {len(asked):,} sockets were asked",)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="devicecore-doctor") as pool:
        answers = pool.map(lambda one: _ask_in_time(*one, timeout=timeout), asked[:MAX_PLUGINS])
        return Reading.of(directory, tuple(seen for seen in answers if seen is not None), notes)


@define
class Listeners:
    """Ask the processes at sockets who they are, in several looks, within one time for all.

    Laws:
    1. The looks together take at most the time for all, and `NOTICED` more for each look.
    2. A process that had less time to answer than others is not called silent: nothing is known of it.
    3. A socket whose process was silent is asked once more only briefly, as long as it is the same file.

    Args:
        answer: seconds for an answer.
        left: seconds that all answers together may take from now on.
        now: seconds of a clock that never goes back.
    """

    answer: float
    left: float
    now: Callable[[], float] = time.monotonic
    _before: dict[tuple[str, SocketIdentity], tuple[str, str] | str] = field(factory=dict, init=False)

    def ask(self, sockets: Mapping[str, str]) -> tuple[dict[str, tuple[str, str]], dict[str, str], tuple[str, ...]]:
        """Ask the process at each socket who it is, as a kubelet does.

        A plugin in the kubelet's own directory has no name to tell, so it is asked for its options. If no time is
        left, what a process said in a look before counts.

        Args:
            sockets: paths by the names that the results have, which say in which directory a socket is.

        Returns:
            The type and the name of each plugin that answered, why others did not, and who was not asked long enough.
        """
        began = self.now()
        served = [(name, path, identity) for name, path in sockets.items() if (identity := socket_identity(path))]
        first = sorted(served[:MAX_PLUGINS], key=lambda one: isinstance(self._before.get(one[1:]), str))
        with ThreadPoolExecutor(_LISTENERS_AT_ONCE, thread_name_prefix="devicecore-doctor") as pool:
            found = dict(zip(first, pool.map(lambda one: self._ask(*one, end=began + self.left), first), strict=True))
        self.left = max(0.0, self.left - (self.now() - began))
        self._before = {one[1:]: answer for one, answer in found.items() if answer}
        answers = [(one[0], found.get(one)) for one in served]
        return (
            {name: answer for name, answer in answers if isinstance(answer, tuple)},
            {name: answer for name, answer in answers if answer and isinstance(answer, str)},
            tuple(name for name, answer in answers if answer is None),
        )

    def _ask(self, name: str, path: str, served: SocketIdentity, *, end: float) -> tuple[str, str] | str | None:
        """Return the type and the name, why there is no answer, "" if the socket went, None if time was short."""
        before = self._before.get((path, served))
        longest = min(self.answer, _AGAIN) if isinstance(before, str) else self.answer
        seconds = min(longest, end - self.now())
        if seconds <= 0:
            return before
        try:
            return in_time(lambda: _who(name, path, seconds), seconds + NOTICED)
        except TimeoutError:
            late = f"no answer within {seconds:g} s"
        except _NoAnswerError as error:
            if socket_identity(path) != served:
                return ""
            if not error.is_late:
                return str(error)
            late = str(error)
        if isinstance(before, str):
            return before
        return late if seconds == self.answer else None


def _who(name: str, path: str, timeout: float) -> tuple[str, str]:
    with _channel(path) as channel:
        if not name.startswith("plugins_registry/"):
            _unary(channel, rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), timeout)
            return rpc.DEVICE_PLUGIN_TYPE, ""
        data = _unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), timeout)
    info = _parsed(pluginregistration.PluginInfo.FromString, data)
    return foreign_text(info.type, _MAX_NAME), foreign_text(info.name, _MAX_NAME)


def _ask_in_time(name: str, path: str, is_watched: bool, *, timeout: float) -> PluginSeen | None:  # noqa: FBT001 - of a tuple
    longest = _CALLS * timeout + NOTICED
    try:
        return in_time(lambda: _ask(name, path, is_watched=is_watched, timeout=timeout), longest)
    except TimeoutError:
        return PluginSeen(name, problem=f"no answer within {longest:g} s", seconds=longest)


def _ask(name: str, path: str, *, is_watched: bool, timeout: float) -> PluginSeen | None:
    began = time.monotonic()
    listed, served, resource = path, socket_identity(path), ""
    if served is None:
        return None
    try:
        if is_watched:
            found = _info(path, timeout)
            if found is None:
                return None
            path, resource = found
        options, data = _options_and_list(path, timeout)
        devices = _parsed(read_devices, data)
    except _NoAnswerError as error:
        if socket_identity(listed) != served:
            return None
        return PluginSeen(name, resource, problem=str(error), seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    return PluginSeen(name, resource, to_options(options), devices, len(data), seconds)


@frozen
class _NoAnswerError(Exception):
    """A plugin has not answered as it should; the cause says what it did."""

    cause: str
    is_late: bool = False

    def __str__(self) -> str:
        return self.cause


def _channel(path: str) -> grpc.Channel:
    try:
        if socket_identity(path) is None:
            raise _NoAnswerError("there is no socket")
        if not is_served(path):
            raise _NoAnswerError(NOBODY_LISTENS)
    except OSError as error:
        raise _NoAnswerError(error.strerror or str(error)) from error
    return grpc.insecure_channel(target(path), options=channel_options(MAX_LIST_BYTES))


def _info(path: str, timeout: float) -> tuple[str, str] | None:
    """Return path and resource of a device plugin that the plugin watcher finds. Another kind of plugin gives None."""
    with _channel(path) as channel:
        data = _unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), timeout)
    info = _parsed(pluginregistration.PluginInfo.FromString, data)
    if info.type != rpc.DEVICE_PLUGIN_TYPE:
        return None
    return info.endpoint or path, foreign_text(info.name, _MAX_NAME)


def _options_and_list(path: str, timeout: float) -> tuple[deviceplugin.DevicePluginOptions, bytes]:
    with _channel(path) as channel:
        data = _unary(channel, rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), timeout)
        options = _parsed(deviceplugin.DevicePluginOptions.FromString, data)
        method = rpc.LIST_AND_WATCH
        stream: Callable[..., Any] = channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString
        )
        call = stream(deviceplugin.Empty(), timeout=timeout)
        try:
            first: bytes = next(call)
        except StopIteration:
            raise _NoAnswerError(f"{method.name} ended without a list") from None
        except grpc.RpcError as error:
            raise _NoAnswerError(_sentence(method.name, error, timeout)) from error
        finally:
            call.cancel()
    return options, first


def _unary(
    channel: grpc.Channel, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request, timeout: float
) -> bytes:
    call: Callable[..., bytes] = channel.unary_unary(method.path, request_serializer=method.request.SerializeToString)
    try:
        return call(request, timeout=timeout, wait_for_ready=True)
    except grpc.RpcError as error:
        is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        raise _NoAnswerError(_sentence(method.name, error, timeout), is_late) from error


def _parsed(read: Callable[[bytes], rpc.Parsed], data: bytes) -> rpc.Parsed:
    try:
        return read(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise _NoAnswerError("its answer cannot be read") from error


def _sentence(method: str, error: grpc.RpcError, timeout: float) -> str:
    """Return why a call failed, in words that are the same each time."""
    code: grpc.StatusCode = error.code()
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer to {method} within {timeout:g} s"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"it does not serve {method}"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return f"its answer to {method} has more than {MAX_LIST_BYTES:,} bytes"
        case _:
            return f"{method} failed with {code.name}"
