"""Asks plugins for their identity, their options, and one list. Nothing is allocated.

Laws: a query makes at most three calls to a plugin: GetInfo (only in the plugin watcher's directory), its options, and
one list. The result is a `PluginSeen` whatever the plugin answers, even if it does not answer. A plugin whose socket
disappeared or was replaced in the meantime is left out, because a kubelet deletes the sockets when it starts, and
plugins then create new ones.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import grpc
from attrs import define, evolve, field, frozen
from google.protobuf.message import DecodeError

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra.calls import PLUGIN_TYPE
from devicecore.domain.device_list import DeviceList
from devicecore.domain.dra.drivers import SERVICES
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED, in_time
from devicecore.system.grpc_settings import channel_options, target
from devicecore.system.list_check import MAX_DEVICES
from devicecore.system.sockets import SocketIdentity, is_served, socket_identity
from devicecore.wire import deviceplugin, pluginregistration
from devicecore.wire.conversion import to_options
from devicecore.wire.device_lists import count_devices, read_devices
from devicecore_tools.doctor.look.names import names
from devicecore_tools.doctor.look.values import (
    LIST_HAS,
    NOBODY_LISTENS,
    PLUGINS_PREFIX,
    REGISTRY_PREFIX,
    PluginSeen,
    Reading,
)

MAX_PLUGINS = 256
"""The maximum number of plugins that are queried."""

MAX_LIST_BYTES = 16 * 1024 * 1024
"""The size limit of a list, in bytes. Four times the kubelet's limit, to learn the size of an oversized list."""

_COUNTED_BYTES = MAX_LIST_BYTES // 4  # up to a kubelet's limit, all devices in a list are counted
_AT_ONCE = 64
_AGAIN = 1.0  # seconds for a plugin that was silent before, and for every plugin once the total time is used up
_CALLS = 3  # GetInfo, the options and a list
_MAX_NAME = 320

Answer = TypeVar("Answer")

Allowed = Callable[[], float]
"""Returns how many seconds the next call may take."""


def read_plugins(
    directory: str,
    sockets: Iterable[str],
    registry: str,
    registry_sockets: Iterable[str],
    listeners: "Listeners[PluginSeen | None] | None" = None,
) -> Reading[tuple[PluginSeen, ...]]:
    """Query the plugins at `sockets` in `directory`, and the device plugins at `registry_sockets` in `registry`.

    Plugins of other types are left out. `listeners` is shared by several looks, or None if this is the only look.
    """
    paths = {f"{PLUGINS_PREFIX}{name}": str(Path(directory) / name) for name in sockets}
    paths |= {f"{REGISTRY_PREFIX}{name}": str(Path(registry) / name) for name in registry_sockets}
    answered, silent, unasked = (listeners or Listeners(10.0, 10.0 + NOTICED, lists_of)).ask(paths)
    found = {name: PluginSeen(_relative(name), problem=problem) for name, problem in silent.items()}
    for name, seen in answered.items():
        if seen is not None:
            found[name] = evolve(seen, socket=_relative(name))
    notes = (unknown(map(_relative, unasked)),) if unasked else ()
    return Reading.of(directory, tuple(found[name] for name in paths if name in found), notes)


def _relative(name: str) -> str:
    return name.partition("/")[2]


def unknown(sockets: Iterable[str]) -> str:
    """Return the note about sockets whose processes were not queried, or had too little time to answer."""
    return (
        f"it is unknown which process listens at {names([*sockets])}: it was not queried, or was given less time than"
        " others"
    )


@define
class Listeners(Generic[Answer]):
    """Queries the processes on sockets, over several looks, within a total time.

    Laws:
    1. The looks together take at most the total time, plus `_AGAIN` and `NOTICED` for each look.
    2. A process that had less time to answer than others is not called silent: its answer in an earlier look counts, or
    else nothing is known about it.
    3. As long as its socket is the same file, a silent process is queried again only briefly, and after all others.

    Args:
        answer: seconds for an answer to one call.
        left: how many seconds all answers together may take from now on.
        question: the function that queries one socket, `who_listens` or `lists_of`.
        now: returns the seconds of a clock that never goes back.
    """

    answer: float
    left: float
    question: Callable[[str, str, Allowed], Answer]
    now: Callable[[], float] = time.monotonic
    _before: dict[tuple[str, SocketIdentity], "_Answered[Answer] | _Silent"] = field(factory=dict, init=False)

    def ask(self, sockets: Mapping[str, str]) -> tuple[dict[str, Answer], dict[str, str], tuple[str, ...]]:
        """Query the process on each socket.

        Args:
            sockets: paths, by the names used in the results. The prefix of a name stands for the socket's directory.

        Returns:
            The answers by name, the reasons why other processes did not answer, and the names of the sockets whose
            processes were not queried or had too little time.
        """
        began = self.now()
        served = [(name, path, identity) for name, path in sockets.items() if (identity := socket_identity(path))]
        first = sorted(served[:MAX_PLUGINS], key=lambda one: isinstance(self._before.get(one[1:]), _Silent))
        end = began + max(self.left, min(self.answer, _AGAIN))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="devicecore-doctor") as pool:
            found = dict(zip(first, pool.map(lambda one: self._ask(*one, end=end), first), strict=True))
        self.left = max(0.0, self.left - (self.now() - began))
        self._before = {one[1:]: answer for one, answer in found.items() if isinstance(answer, _Answered | _Silent)}
        answers = [(one[0], found.get(one)) for one in served]
        return (
            {name: answer.value for name, answer in answers if isinstance(answer, _Answered)},
            {name: answer.why for name, answer in answers if isinstance(answer, _Silent)},
            tuple(name for name, answer in answers if answer is None),
        )

    def _ask(
        self, name: str, path: str, served: SocketIdentity, *, end: float
    ) -> "_Answered[Answer] | _Silent | _Went | None":
        """Return the answer, the reason why there is no answer, or None if the process had too little time."""
        before = self._before.get((path, served))
        longest = min(self.answer, _AGAIN) if isinstance(before, _Silent) else self.answer
        given = [longest]

        def allowed() -> float:
            given[0] = max(0.0, min(longest, end - self.now()))
            return given[0]

        if not allowed():
            return before
        try:
            answer = in_time(
                lambda: self.question(name, path, allowed), min(_CALLS * longest, end - self.now()) + NOTICED
            )
        except TimeoutError:
            late = f"no answer within {given[0]:g} s"
        except _NoAnswerError as error:
            if socket_identity(path) != served:
                return _Went()
            if not error.is_late:
                return _Silent(str(error))
            late = str(error)
        else:
            return _Answered(answer)
        if isinstance(before, _Silent):
            return before
        return _Silent(late) if given[0] == self.answer else before


@frozen
class _Answered(Generic[Answer]):
    """A process has answered."""

    value: Answer


@frozen
class _Silent:
    """A process did not answer in time or not correctly."""

    why: str


@frozen
class _Went:
    """The socket was deleted or replaced while its process was being queried."""


@frozen
class Listener:
    """The type and the name of a plugin, and, if it is a driver, why a kubelet cannot call it."""

    kind: str
    name: str = ""
    unusable: str = ""


def who_listens(name: str, path: str, allowed: Allowed) -> Listener:
    """Ask a process for its identity, as a kubelet does.

    A plugin in the device plugin directory offers no call that returns its name, so it is asked for its options.
    """
    with _channel(path) as channel:
        if not name.startswith(REGISTRY_PREFIX):
            _unary(channel, rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), allowed())
            return Listener(rpc.DEVICE_PLUGIN_TYPE)
        data = _unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), allowed())
    info = _parsed(pluginregistration.PluginInfo.FromString, data)
    unusable = foreign_text(_why_unusable(info), _MAX_NAME) if info.type == PLUGIN_TYPE else ""
    return Listener(foreign_text(info.type, _MAX_NAME), foreign_text(info.name, _MAX_NAME), unusable)


def _why_unusable(info: pluginregistration.PluginInfo) -> str:
    """Return why a kubelet cannot call a driver that has answered, or an empty string if no reason is known."""
    if not {*info.supported_versions} & {*SERVICES}:
        return f"it offers {names([*info.supported_versions]) or 'no service'}, but a kubelet calls {names(SERVICES)}"
    service = info.endpoint
    if not service or not Path(service).parent.is_dir():
        # the path may name the registration socket itself, or a socket that only the driver and the kubelet can see
        return ""
    try:
        return "" if socket_identity(service) and is_served(service) else f"no process listens at its socket {service}"
    except OSError:
        return ""


def lists_of(name: str, path: str, allowed: Allowed) -> PluginSeen | None:
    """Ask a plugin for its options and its list. Return None for a different kind of plugin."""
    began, resource = time.monotonic(), ""
    if name.startswith(REGISTRY_PREFIX):
        found = _info(path, allowed)
        if found is None:
            return None
        path, resource = found
    options, data = _options_and_list(path, allowed)
    with _reading:  # read one list at a time, because reading takes about twenty times the list's size in memory
        devices = _parsed(_devices_in, data)
    return PluginSeen(name, resource, to_options(options), devices, len(data), time.monotonic() - began)


_reading = Lock()


def _devices_in(data: bytes) -> DeviceList:
    """Read a list. Raises _NoAnswerError if the list has too many devices, which are counted before they are parsed."""
    if len(data) > 2 * MAX_DEVICES:
        # No kubelet accepts a longer list, and counting the millions of devices in it takes seconds.
        most = sys.maxsize if len(data) <= _COUNTED_BYTES else MAX_DEVICES + 1
        if (count := count_devices(data, most)) > MAX_DEVICES:
            number = f"{count:,}" if count < most else f"more than {MAX_DEVICES:,}"
            raise _NoAnswerError(f"{LIST_HAS} {number} devices, expected at most {MAX_DEVICES:,}")
    return read_devices(data)


@frozen
class _NoAnswerError(Exception):
    """A plugin did not answer in time or not correctly. `__cause__` gives the details."""

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


def _info(path: str, allowed: Allowed) -> tuple[str, str] | None:
    """Return the path and resource of a device plugin in the plugin watcher's directory, or None for other plugins."""
    with _channel(path) as channel:
        data = _unary(channel, rpc.GET_INFO, pluginregistration.InfoRequest(), allowed())
    info = _parsed(pluginregistration.PluginInfo.FromString, data)
    if info.type != rpc.DEVICE_PLUGIN_TYPE:
        return None
    return info.endpoint or path, foreign_text(info.name, _MAX_NAME)


def _options_and_list(path: str, allowed: Allowed) -> tuple[deviceplugin.DevicePluginOptions, bytes]:
    with _channel(path) as channel:
        data = _unary(channel, rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), allowed())
        options = _parsed(deviceplugin.DevicePluginOptions.FromString, data)
        method = rpc.LIST_AND_WATCH
        stream: Callable[..., Any] = channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString
        )
        timeout = allowed()
        call = stream(deviceplugin.Empty(), timeout=timeout)
        try:
            first: bytes = next(call)
        except StopIteration:
            raise _NoAnswerError(f"{method.name} ended without a list") from None
        except grpc.RpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise _NoAnswerError(_sentence(method.name, error, timeout), is_late) from error
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
    """Return why a call failed, in words that are the same every time."""
    code: grpc.StatusCode = error.code()
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer to {method} within {timeout:g} s"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"it does not serve {method}"
        case grpc.StatusCode.RESOURCE_EXHAUSTED if method == rpc.LIST_AND_WATCH.name:
            return f"{LIST_HAS} more than {MAX_LIST_BYTES:,} bytes"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return f"its answer to {method} is larger than {MAX_LIST_BYTES:,} bytes"
        case _:
            return f"{method} failed with {code.name}"
