"""Registration: what the driver says about itself, and whether a kubelet finds it again after restarts.

Law: a "must" check here fails only for something that prevents, or could prevent, a kubelet from calling the driver.
"""

import math
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.watcher import GET_INFO_TIMEOUT
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import counted
from devicecore.system.sockets import MAX_SOCKET_PATH
from devicecore.wire import pluginregistration
from devicecore_tools.conformance.connection import CallFailedError, SocketConnection
from devicecore_tools.conformance.dra.checks.events import KILL, KUBELET_RESTART, TERM
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.kubelet import DriverInstance, identity_of, no_sockets_in
from devicecore_tools.conformance.dra.steps import Parts, across, at_start, at_the_end, check
from devicecore_tools.conformance.model import (
    Abort,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    needed,
    require,
    reworded,
    skip_if,
    some,
)

MUST, SHOULD = Severity.MUST, Severity.SHOULD

MAX_NAME = 63
"""The maximum length of a driver's name (ResourceSlice, spec.driver)."""

_REPEATS, _AT_ONCE = 50, 8


def answered(instance: DriverInstance) -> pluginregistration.PluginInfo:
    """Return the answer to GetInfo. Raises Skip if there was no answer."""
    if instance.info is None:
        raise Skip(f"GetInfo was not answered: {instance.problem}")
    return instance.info


def is_valid_name(name: str) -> bool:
    """Return whether this is a valid driver name."""
    return is_dns_subdomain(name.lower(), MAX_NAME)


# --- at the first start -----------------------------------------------------------------------------------------------


@at_start(
    MUST,
    expected=(
        "below the registry directory, a unix socket whose name does not start with a dot and on which a process "
        "listens"
    ),
    clause="The kubelet watches the directory plugins_registry for unix sockets. (kubelet, pluginwatcher README)",
    found=("kubernetes-sigs/dranet#19",),
)
def makes_a_registration_socket(driver: DriverUnderTest) -> str:
    """The driver is started, and must create its registration socket."""
    first = driver.registration.wait_for_first()
    if first is None:
        seconds = counted(max(1, math.ceil(time.monotonic() - driver.process.started_at)), "second")
        registry = driver.environment.registry
        others, exits = no_sockets_in(registry), driver.process.exits_since(0)
        parts = [f"there was no socket in {registry} within {seconds}", *filter(None, [others]), *exits[-1:]]
        if not others and not exits:
            parts.append(
                "is the driver configured to use that directory, with {registry} or --registry-dir? "
                "If the program is a device plugin, run: devicecore conformance plugin"
            )
        raise Abort("; ".join(parts))
    if first.stage == "dial":
        raise Abort(first.problem)
    after = first.found_at - driver.process.started_at  # negative if the driver exited and was restarted
    return f"{first.path} appeared" + (f" after {after:.1f} seconds" if after >= 0 else " before the driver exited")


@at_start(
    MUST,
    expected=f"an answer within {GET_INFO_TIMEOUT:g} second",
    clause="GetInfo is the RPC invoked by the kubelet to get the plugin's info. (pluginregistration, api.proto) A "
    "kubelet waits one second for the answer.",
)
def answers_get_info(driver: DriverUnderTest) -> str:
    """GetInfo is called as soon as the socket exists."""
    first = driver.registration.first
    require(first.info is not None, first.problem or "there was no answer yet", late=first.is_late or not first.problem)
    return f"the driver answered after {first.info_seconds:.2f} seconds"


@at_start(
    MUST,
    expected=f"the type {calls.PLUGIN_TYPE}",
    clause="PluginInfo.type: Type of the Plugin. CSIPlugin, DevicePlugin or DRAPlugin. (pluginregistration, api.proto)",
)
def says_that_it_is_a_dra_plugin(driver: DriverUnderTest) -> str:
    """The type in the answer to GetInfo is read."""
    kind = answered(driver.registration.first).type
    require(kind == calls.PLUGIN_TYPE, f"the type is {kind!r}")
    return f"the type is {kind}"


@at_start(
    MUST,
    expected=f"a DNS subdomain of at most {MAX_NAME} characters",
    clause="spec.driver: Must be a DNS subdomain and should end with a DNS domain owned by the vendor of the driver. "
    "It should use only lower case characters. (ResourceSlice, API reference)",
)
def has_a_valid_name(driver: DriverUnderTest) -> str:
    """The name in the answer to GetInfo is read."""
    name = answered(driver.registration.first).name
    require(is_valid_name(name), f"the name is {name!r}, which has {counted(len(name), 'character')}")
    return f"the name is {name}"


@at_start(
    SHOULD,
    expected="no upper case characters",
    clause="spec.driver: It should use only lower case characters. (ResourceSlice, API reference)",
)
def has_a_name_in_lower_case(driver: DriverUnderTest) -> str:
    """The name in the answer to GetInfo is read."""
    name = answered(driver.registration.first).name
    require(name == name.lower(), f"the name is {name!r}")
    return f"the name is {name}"


@at_start(
    MUST,
    expected=f"nothing, or the absolute path of a unix socket, of at most {MAX_SOCKET_PATH} bytes",
    clause="PluginInfo.endpoint: Optional endpoint location. If found set by Kubelet component, Kubelet component will "
    "use this endpoint for specific requests. (pluginregistration, api.proto)",
)
def has_a_usable_endpoint(driver: DriverUnderTest) -> str:
    """The endpoint in the answer to GetInfo is read, and must be a socket."""
    endpoint = answered(driver.registration.first).endpoint
    if not endpoint:
        return "the service is on the registration socket"
    require(endpoint.startswith("/"), f"the endpoint {endpoint!r} is not an absolute path")
    length = len(os.fsencode(endpoint))
    require(length <= MAX_SOCKET_PATH, f"the endpoint {endpoint} is {counted(length, 'byte')} long")
    found = driver.process.wait(lambda: identity_of(endpoint), 5.0)
    require(found, f"there is no unix socket at {endpoint}", late=True)
    return f"the endpoint is {endpoint}"


@at_start(
    MUST,
    expected="v1.DRAPlugin or v1beta1.DRAPlugin, in exactly this spelling",
    clause="Kubelets since 1.34 look for the gRPC service names `v1.DRAPlugin` and `v1beta1.DRAPlugin` in "
    "supported_versions, and refuse a driver that announces none of them. (kubelet, DRA manager, "
    "validateSupportedServices)",
    found=("pydra, which announced v1beta1", "older drivers, which announced 1.0.0"),
)
def announces_known_versions(driver: DriverUnderTest) -> str:
    """The supported versions in the answer to GetInfo are read."""
    versions = list(answered(driver.registration.first).supported_versions)
    shown = some([repr(version) for version in versions]) or "none"
    require(set(versions) & set(calls.PREPARE_METHODS), f"the supported versions are: {shown}")
    return f"the supported versions are: {', '.join(versions)}"


@at_start(
    SHOULD,
    expected="v1.DRAPlugin, if present, comes before v1beta1.DRAPlugin",
    clause="A kubelet uses the first service in the list that it knows, not the newest. (kubelet, DRA manager)",
)
def announces_v1_first(driver: DriverUnderTest) -> str:
    """The order of the supported versions is read."""
    known = [one for one in answered(driver.registration.first).supported_versions if one in calls.PREPARE_METHODS]
    does_not_apply_if(len(set(known)) < 2, "the driver announces only one of these versions")
    require(known[0] == "v1.DRAPlugin", f"the order is {', '.join(known)}, so a kubelet uses {known[0]}")
    return f"the order is {', '.join(known)}"


@at_start(
    MUST,
    expected="success",
    clause="NotifyRegistrationStatus: once the plugin is registered, the kubelet sends the status. "
    "(pluginregistration, api.proto) Kubelets since 1.36 deregister a driver that does not accept the status.",
)
def accepts_its_registration(driver: DriverUnderTest) -> str:
    """NotifyRegistrationStatus is called to report that the driver is registered."""
    first = driver.registration.first
    seconds = counted(round(time.monotonic() - driver.process.started_at), "second")
    has_ended = first.registered_at or first.problem
    require(has_ended, f"the registration was not finished {seconds} after the start", late=True)
    skip_if(first.stage in {"info", "type", "versions"}, f"a kubelet does not get this far: {first.problem}")
    require(first.stage != "notify", first.problem, late=first.is_late)
    return "the driver accepted the status"


@at_start(
    MUST,
    expected="success with an empty answer, from both methods",
    clause="PluginInfo.supported_versions: Plugin service API versions the plugin supports. (pluginregistration, "
    "api.proto)",
    found=("drivers whose gRPC service is named v1.DRAPlugin instead of k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",),
)
def serves_what_it_announces(driver: DriverUnderTest) -> str:
    """Both methods of each announced service are called without a claim."""
    instance = driver.registration.instance
    instance.is_unreachable = False  # forget what a skipped check has found, so that the call below gets its full time
    if problem := driver.registration.unreachable_because(instance):
        if identity_of(instance.endpoint) is None:
            raise Skip(problem)  # the endpoint check reports this
        raise Failure(problem)
    services = [one for one in answered(instance).supported_versions if one in calls.PREPARE_METHODS]
    for service in services:
        for call in (instance.prepare, instance.unprepare):
            try:
                answer = call((), 10.0, service)
            except CallFailedError as error:
                if error.code != "UNIMPLEMENTED":
                    raise
                path = calls.PREPARE_METHODS[service].path
                message = f"{service} is announced, but {path.rpartition('/')[0][1:]} is not served: {error}"
                raise Failure(message) from None
            require(not answer, f"the answer to a call without claims has the keys {some(list(answer))}")
    return f"the driver serves {', '.join(services)}"


# --- without restarts -------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="the same answer each time",
    clause="A kubelet calls GetInfo again whenever a registration has failed. (kubelet, plugin manager)",
)
def answers_get_info_again(driver: DriverUnderTest) -> str:
    """GetInfo is called fifty times, eight calls at once."""
    instance = driver.registration.instance
    expected = answered(instance)

    def ask(_: int) -> pluginregistration.PluginInfo:
        return instance.get_info()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        different = [one for one in pool.map(ask, range(_REPEATS)) if one != expected]
    require(not different, f"{len(different)} of {_REPEATS} answers differ from the first")
    return f"{_REPEATS} answers are the same"


@check(
    MUST,
    expected="the driver can be registered and called afterwards; it may exit and be restarted",
    clause="A kubelet retries the registration of a refused plugin after a growing pause. (kubelet, plugin manager)",
    found=("kubernetes-sigs/dra-driver-cpu#291",),
)
def survives_a_refused_registration(driver: DriverUnderTest) -> str:
    """NotifyRegistrationStatus reports an error, GetInfo is called, and NotifyRegistrationStatus reports success."""
    driver.calls.require_answering()
    exits = len(driver.process.exits)
    with suppress(CallFailedError):  # a kubelet ignores this error
        driver.registration.instance.notify("the conformance checks refuse this registration once")
    driver.process.wait(lambda: len(driver.process.exits) > exits, 1.0)
    instance = driver.registration.instance
    with in_context("after the refusal"):
        instance.get_info()
        instance.notify()
        instance.prepare((), 10.0)
    return (
        "the driver exited, and was usable after its restart"
        if len(driver.process.exits) > exits
        else "the driver kept running"
    )


@check(
    SHOULD,
    expected="other users cannot write to the sockets",
    clause="The sockets have no authentication: only file and directory modes protect the driver.",
)
def protects_its_sockets(driver: DriverUnderTest) -> str:
    """The modes of both sockets are read."""
    instance = driver.registration.reachable
    paths = list(dict.fromkeys([instance.path, instance.endpoint]))
    modes = {path: Path(path).stat().st_mode for path in paths}
    open_ = [f"{path} ({stat.filemode(mode)})" for path, mode in modes.items() if mode & stat.S_IWOTH]
    require(not open_, f"other users may write to {some(open_)}")
    return "other users cannot write to either socket"


@check(
    SHOULD,
    expected="an answer in each case",
    clause="gRPC clients send different `:authority` headers over unix sockets; a kubelet sends `localhost`.",
)
def serves_any_authority(driver: DriverUnderTest) -> str:
    """The service is called with different `:authority` headers."""
    instance = driver.registration.reachable
    method = calls.PREPARE_METHODS[instance.service]
    with needed("a service that answers"):
        instance.prepare((), 10.0)
    for authority in ("conformance.example", "dra.sock"):
        connection = SocketConnection(instance.endpoint, authority)
        with in_context(f"with the authority {authority}"), closing(connection):
            connection.call(method, method.request(), 10.0)
    return "the driver answers calls with each of these headers"


# --- across restarts --------------------------------------------------------------------------------------------------


@across(
    KILL,
    MUST,
    expected=(
        "the driver replaces the sockets that its previous process left, and registers again in time under the same "
        "name"
    ),
    clause=(
        "A killed process leaves its socket files behind, and the kubelet cannot distinguish them from live sockets. A "
        "plugin removes its old sockets before it listens. (kubelet, pluginwatcher README)"
    ),
    found=("kubernetes/kubernetes#128696", "kubernetes/kubernetes#132660", "kubernetes-sigs/dranet#19"),
)
def replaces_stale_sockets(driver: DriverUnderTest) -> Parts:
    """The driver is killed, so that its sockets stay, and restarted."""
    before = answered(driver.registration.instance)
    yield
    back = driver.registration.returns["killed"]
    require(not back.problem, back.problem, late=not back.exits)
    after = answered(driver.registration.instance)
    require(
        after.name == before.name,
        f"the driver is now registered as {after.name!r}, but was registered as {before.name!r}",
    )
    return f"the driver was registered again after {back.seconds:.1f} seconds"


@across(
    KILL,
    SHOULD,
    expected="the sockets have the same paths as before, or the old sockets are gone",
    clause=(
        "To a kubelet, a socket file that stays under the old name is a second instance of the driver, to which the "
        "kubelet keeps trying to connect. (kubelet, pluginwatcher README)"
    ),
    found=("kubernetes/kubernetes#132660",),
)
def keeps_its_socket_names(driver: DriverUnderTest) -> Parts:
    """The paths of the sockets before and after the driver was killed are compared."""
    before = driver.registration.instance
    yield
    after = driver.registration.instance
    left = sorted(path for path in {before.path, before.endpoint} - {after.path, after.endpoint} if identity_of(path))
    require(not left, f"the driver left behind {some(left)} next to {after.path}")
    return f"the registration socket is {after.path}"


@across(
    KUBELET_RESTART,
    MUST,
    expected="the driver is registered again without being restarted",
    clause="When a kubelet starts, it finds the existing sockets in plugins_registry and registers their plugins. "
    "(kubelet, pluginwatcher README)",
)
def registers_with_a_restarted_kubelet(driver: DriverUnderTest) -> Parts:
    """The kubelet is restarted, and finds the existing sockets."""
    _ = driver.registration.instance
    yield
    back = driver.registration.returns["kubelet"]
    if back.exits and not back.problem:  # perhaps a coincidence, so the kubelet restarts once more
        driver.kubelet.stop()
        back = driver.registration.after(driver.kubelet.start)
    require(not back.exits, f"the driver exited: {some(back.exits)}")
    require(not back.problem, back.problem, late=True)
    return f"the driver was registered again after {back.seconds:.1f} seconds"


@at_the_end(
    MUST,
    expected="the driver waits, and is registered when the kubelet starts",
    clause=(
        "A driver's pod and a kubelet start in no fixed order: after a reboot, or a restart of the container runtime "
        "or the kubelet, the driver may be first."
    ),
)
def waits_for_a_late_kubelet(driver: DriverUnderTest) -> str:
    """The driver is started without a kubelet. The kubelet starts two seconds after the driver's socket appears."""
    _ = driver.registration.instance
    driver.kubelet.stop()
    before = driver.kubelet.sockets().items()
    try:
        driver.process.start()
        exits = len(driver.process.exits)
        driver.process.wait(lambda: driver.kubelet.sockets().items() - before, driver.settings.returning)
        driver.process.pause(2.0)
        ended = driver.process.exits_since(exits)
    finally:
        began = time.monotonic()
        driver.kubelet.start()
    back = driver.registration.wait(began)
    require(not ended, f"the driver exited while there was no kubelet: {some(ended)}")
    require(not back.problem, back.problem, late=not back.exits)
    return f"the driver was registered {back.seconds:.1f} seconds after the kubelet started"


@across(
    TERM,
    SHOULD,
    expected="both sockets are gone after the process has exited",
    clause=(
        "Only the removal of its registration socket tells a kubelet that a plugin has exited. (kubelet, "
        "pluginwatcher README)"
    ),
    found=("kubernetes/kubernetes#128696",),
)
def removes_its_sockets(driver: DriverUnderTest) -> Parts:
    """The driver is stopped with SIGTERM, and its sockets must be gone."""
    _ = driver.registration.instance
    yield
    after = driver.seen.ending
    skip_if(after.status is None, "the driver did not exit")
    require(not after.left, f"the driver left behind {some(after.left)}")
    return "both sockets are gone"


@at_the_end(
    MUST,
    expected="at every start, the service socket is reachable once GetInfo is answered",
    clause="A plugin must be ready to serve when it answers GetInfo, because the kubelet may call it from then on. "
    "(kubelet, pluginwatcher README)",
    found=("kubernetes/kubernetes#127457",),
)
def serves_before_it_registers(driver: DriverUnderTest) -> str:
    """At each start of the driver, the kubelet connects to the service right after the answer to GetInfo."""
    _ = driver.registration.reachable
    seen = [one for one in driver.kubelet.history if one.info is not None]
    if problems := [one.ready_problem for one in seen if one.ready_problem]:
        firm = [one for one in problems if not one.is_late]
        raise reworded(some([str(one) for one in firm or problems]), *(firm or problems))
    return f"the driver was reachable at each of {counted(len(seen), 'registration')}"
