"""CDI checks: what a container runtime finds for the devices in the driver's answers.

Law: a driver may respond without CDI devices, write its files to any directory that runtimes read, and keep files that
do not depend on claims.
"""

import json
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from posixpath import normpath
from typing import Any

from attrs import define, field, frozen

from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.text import counted
from devicecore.system.cdi import (
    CDI_DIRECTORIES,
    MAX_BYTES,
    Edits,
    UnresolvableError,
    cdi_files,
    problem_of,
    read_spec,
    resolve,
)
from devicecore.system.files import read_file
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.calls import devices_in
from devicecore_tools.conformance.dra.checks.directory_watch import written_in
from devicecore_tools.conformance.dra.checks.events import KILL, KUBELET_RESTART
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Parts, across, check
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    needed,
    require,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.testing.api_server import Json
from devicecore_tools.testing.dra_pools import SliceDevice

MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO

ANSWER = "Device.cdi_device_ids: The CDI device ID(s) that the container runtime has to set up. (dra, api.proto)"
RUNTIME = "A container runtime refuses a container with a CDI device that it cannot resolve."
_STANDARD = tuple(map(Path, CDI_DIRECTORIES))
_OTHERS = "conformance.example.org-others.json"
_OF_TWO = {"a claim for two devices": (2,), "a claim with two requests": (1, 1)}
"""Forms of claims, and how many devices each request asks for."""
_OTHER_CLAIMS = 12  # if the driver lost the claim that was kept beside other checks
_SPARE = 5  # devices: enough for other checks if one is in use
_NAMED = 8  # devices whose edits are searched for names
_SHORTEST = 4  # minimum length of a name that is searched for; it must also contain a digit


@frozen
class Prepared:
    """A prepared claim, with the requests and CDI names of each device in the answer."""

    claim: Claim
    devices: tuple[tuple[frozenset[str], frozenset[str]], ...]

    @property
    def names(self) -> frozenset[str]:
        """All CDI names in the answer."""
        return frozenset(name for _, names in self.devices for name in names)

    def names_of(self, request: str) -> frozenset[str]:
        """Return the CDI names that a kubelet finds for a request, including those of devices that name no request."""
        found = (names for requests, names in self.devices if not requests or request in requests)
        return frozenset().union(*found)


def prepare(
    driver: DriverUnderTest, *, devices: Sequence[SliceDevice] | None = None, spec: Json | None = None
) -> Prepared:
    """Create a claim with these arguments of `Claims.new`, and prepare it.

    Raises Skip if the driver did not prepare the claim (other checks report that) or if its response contains no CDI
    names.
    """
    claim = driver.claims.new(devices=devices, spec=spec)
    with needed("a prepared claim"):
        answered = driver.calls.prepared(claim)
    prepared = _prepared(claim, answered)
    does_not_apply_if(not prepared.names, "the driver returns no CDI devices")
    return prepared


def _prepared(claim: Claim, devices: Iterable[Any]) -> Prepared:
    rows = tuple((frozenset(device.request_names), frozenset(device.cdi_device_ids)) for device in devices)
    return Prepared(claim, rows)


def edits(driver: DriverUnderTest, names: Iterable[str]) -> frozenset[str]:
    """Return all edits that these CDI devices make to a container.

    Raises Skip if a runtime could not resolve the devices; other checks report that.
    """
    with skipping(UnresolvableError):
        return edits_of_names(driver, names)


def require_edits(driver: DriverUnderTest, names: Iterable[str], context: str) -> frozenset[str]:
    """Return all edits that these CDI devices make to a container.

    Raises Failure, prefixed with `context`, if a runtime could not resolve the devices. Raises Skip if the devices may
    be in a file that the runtime ignores, because another check reports that.
    """
    try:
        return edits_of_names(driver, names)
    except UnresolvableError as error:
        skip_if(error.invalid, str(error))
        raise Failure(f"{context}{error}") from None


def edits_of_names(driver: DriverUnderTest, names: Iterable[str]) -> frozenset[str]:
    """Return the edits, and the files in the run's directories that containers mount or run but that are missing.

    Raises UnresolvableError if a runtime could not resolve the devices.
    """
    resolved = [resolve(name, directories(driver)) for name in names]
    missing = [path for path in _own_paths(driver, resolved) if not Path(path).exists()]
    return frozenset(f"the missing {path}" for path in missing).union(*(one.parts for one in resolved))


def directories(driver: DriverUnderTest) -> tuple[Path, ...]:
    """Return the directories that runtimes read, lowest priority first.

    The driver may use the run's directory or a fixed one.
    """
    return *_STANDARD, driver.environment.cdi


def own_files(driver: DriverUnderTest) -> list[Path]:
    """Return the driver's CDI files."""
    others = driver.environment.others_cdi
    return [path for path in cdi_files(driver.environment.cdi) if path.name not in others]


def require_own_files(driver: DriverUnderTest) -> list[Path]:
    """Return the driver's CDI files.

    Raises DoesNotApply if the driver has no file in the environment's CDI directory.
    """
    files = own_files(driver)
    does_not_apply_if(not files, f"the driver has no file in {driver.environment.cdi}")
    return files


def require_undone(driver: DriverUnderTest, cdi: Iterable[str]) -> None:
    """Check that none of a claim's CDI devices remain, unless the driver never removes them."""
    left = sorted(set(cdi) & driver.environment.cdi_names())
    require(not left or not driver.calls.removes_cdi_devices, f"the CDI device {some(left)} still exists")


def require_nothing_left(driver: DriverUnderTest, claims: Iterable[Claim], names: Iterable[str]) -> None:
    """Check that no CDI device for these claims remains, and no CDI file with one of their UIDs.

    If the driver never removes the CDI devices of claims, another check reports that.
    """
    require_undone(driver, names)
    uids = [claim.uid for claim in claims]
    left = [
        path.name
        for path, data in driver.environment.cdi_files().items()
        if any(uid in path.name or uid.encode() in data for uid in uids)
    ]
    require(not left or not driver.calls.removes_cdi_devices, f"the file {some(left)} still exists")


@contextmanager
def read_only(driver: DriverUnderTest, directory: Path) -> Iterator[None]:
    """In this block, let the driver add and remove no files below a directory.

    Raises DoesNotApply if this user may not set that up on this file system.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(driver.environment.read_only(directory))
        except OSError as error:
            raise DoesNotApply(f"the directory cannot be made read-only: {error}") from None
        yield


def unprepare(driver: DriverUnderTest, prepared: Prepared) -> None:
    """Unprepare a claim and delete it.

    Raises Skip if the driver did not unprepare the claim; other checks report that.
    """
    with skipping(Failure):
        driver.calls.unprepared(prepared.claim)
    driver.claims.forget(prepared.claim)


# --- one claim --------------------------------------------------------------------------------------------------------


@define
class SeenForms:
    """What the checks found in several forms of claims. Each form was prepared once for all of these checks.

    Attributes:
        numbers: how many items each check examined, by check name.
        problems: what was wrong, by check name.
    """

    numbers: Counter[str] = field(factory=Counter)
    problems: dict[str, Failure | Skip] = field(factory=dict)

    def number(self, name: str, nothing: str) -> int:
        """Return how many items a check examined.

        Raises the problem that the check found, or DoesNotApply with `nothing` if the number is 0.
        """
        if problem := self.problems.get(name):
            raise problem
        does_not_apply_if(not self.numbers[name], nothing)
        return self.numbers[name]


def seen_forms(driver: DriverUnderTest) -> SeenForms:
    """Prepare claims of several forms and examine them for all checks in `_OF_FORMS`.

    Further calls return the same result. Raises Skip if the first form was not prepared.
    """
    if driver.seen.forms is None:
        found = SeenForms()
        written: Collection[str] = ()
        with ExitStack() as stack:
            try:
                written = stack.enter_context(written_in(driver.environment.cdi))
            except OSError as error:  # another user of this machine may have used up the inotify watches
                found.problems["written"] = Skip(str(error))
            for what, prepared in several_forms(driver):
                for name, look in _OF_FORMS.items():
                    try:
                        found.numbers[name] += look(driver, what, prepared)
                    except (Failure, Skip) as problem:
                        found.problems.setdefault(name, problem)
        specs = (name for name in written if name.endswith((".json", ".yaml")))
        own = sorted(name for name in specs if not _is_of_the_helper(driver, name))
        if own:
            found.problems["written"] = Failure(
                f"the content of {some(own)} was written after the file had got its final name"
            )
        driver.seen.forms = found
    return driver.seen.forms  # type: ignore[no-any-return]  # the observations know no checks


def several_forms(driver: DriverUnderTest) -> Iterator[tuple[str, list[Prepared]]]:
    """Prepare claims of the forms that pods use. Yield each form and its claims while they are prepared.

    Raises Skip if the first form was not prepared. Forms that could not be prepared are left out, because other checks
    report them.
    """
    yield "a claim", [prepare(driver)]
    driver.calls.clean_up()
    if len(driver.claims.allocatable) < 2:
        return
    for what, counts in _OF_TWO.items():
        with suppress(Skip):
            one = prepare(driver, spec=driver.claims.request(*counts))
            yield what, [one]
        driver.calls.clean_up()
    claims = [driver.claims.new(1), driver.claims.new(1)]
    with suppress(Failure, Skip):
        yield "two claims of one pod", _prepare_together(driver, claims)
    driver.calls.clean_up()


def _prepare_together(driver: DriverUnderTest, claims: Sequence[Claim]) -> list[Prepared]:
    """Prepare all claims in one request. Raises Failure if the driver did not prepare every claim."""
    answer = driver.calls.prepare(*claims)
    return [_prepared(claim, devices_in(answer, claim)) for claim in claims]


def _names_of(prepared: Iterable[Prepared]) -> list[str]:
    return sorted({name for one in prepared for name in one.names})


@check(
    MUST,
    expected="vendor/class=device, where each part begins and ends with a letter or a digit",
    clause=f"{ANSWER} A runtime parses the ids as fully qualified names. (CDI specification)",
    found=("fluxbind, whose names contained a comma",),
)
def answers_valid_cdi_names(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and the CDI names in the answers are read."""
    return f"{counted(seen_forms(driver).number('names', 'there are none'), 'name')}, all valid"


def _valid_names(_: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    names = _names_of(prepared)
    wrong = [repr(name) for name in names if not is_cdi_name(name)]
    require(not wrong, f"the answer for {what} contains {some(wrong)}")
    return len(names)


@check(
    MUST,
    expected="each name belongs to a device in exactly one valid CDI file",
    clause=f"{ANSWER} {RUNTIME}",
    found=("kubernetes-sigs/dra-driver-nvidia-gpu#736", "k8snetworkplumbingwg/sriov-network-device-plugin#731"),
)
def answers_resolvable_cdi_names(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and the CDI names in the answers are resolved."""
    return f"{counted(seen_forms(driver).number('resolved', 'there are no names'), 'name')} can be resolved"


def _resolvable_names(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    names = _names_of(prepared)
    try:
        require_edits(driver, filter(is_cdi_name, names), f"for {what}, ")  # another check reports other names
    except Failure as failure:
        hint = (
            ""
            if own_files(driver)
            else ("; is the driver configured to write CDI files there, with {cdi} or CDI_ROOT?")
        )
        raise Failure(f"{failure}{hint}") from None
    return len(names)


@check(
    MUST,
    expected="valid files, each with a version of the specification that has every feature used in the file",
    clause="A runtime ignores an invalid file as a whole, so none of its devices can be resolved. (CDI "
    "library in Go, pkg/cdi)",
    found=("kubernetes-sigs/dra-driver-nvidia-gpu#736", "kubernetes/kubernetes#138136"),
)
def writes_valid_cdi_files(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and each CDI file of the driver is checked against the specification."""
    seen = seen_forms(driver)
    if problem := seen.problems.get("files"):
        raise problem
    prepare(driver)
    files = require_own_files(driver)
    valid_files(driver, "several claims")
    return f"{counted(len(files), 'file')}: {some([path.name for path in files])}"


def valid_files(driver: DriverUnderTest, what: str, _: Sequence[Prepared] = ()) -> int:
    """Check that a runtime ignores none of the driver's files."""
    for path in own_files(driver):
        try:
            problem = problem_of(path)
        except FileNotFoundError:  # removed in the meantime
            continue
        except OSError as error:  # such as a pipe, on which a runtime would block
            problem = error.strerror or str(error)
        whose = "Kubernetes' metadata helper has written " if _is_of_the_helper(driver, path.name) else ""
        require(not problem, f"for {what}, {whose}{path.name}: {problem}")
    return 1


def _is_of_the_helper(driver: DriverUnderTest, name: str) -> bool:
    """Return whether Kubernetes' metadata helper, which writes in place, has written this file."""
    return name.startswith((f"{driver.registration.name}_metadata_", f"{driver.registration.name}-metadata-"))


@check(
    MUST,
    expected="one value for each variable, and one source for each path",
    clause=(
        f"{ANSWER} A runtime applies one device's edits after the other's. If a variable has two values, or a path two "
        "sources, the container gets the last one, and therefore only one of two devices. (CDI library in Go)"
    ),
)
def gives_each_variable_and_path_once(driver: DriverUnderTest) -> str:
    """Claims for two devices and with two requests, and two claims together, are prepared; their edits are merged."""
    driver.claims.require_two()
    number = seen_forms(driver).number("targets", "the CDI devices set no variables and no paths")
    return f"{counted(number, 'edit')}, each for a different variable or path"


def _own_targets(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    targets: dict[str, set[str]] = {}
    for name in _names_of(prepared):
        with skipping(UnresolvableError):
            for target, source in _targets(resolve(name, directories(driver))):
                targets.setdefault(target, set()).add(source)
    twice = [f"{target} is {' and '.join(sorted(one))}" for target, one in sorted(targets.items()) if len(one) > 1]
    require(not twice, f"for {what}, {some(twice)}")
    return len(targets)


@check(
    MUST,
    expected="every file that a container mounts from the driver's directories exists, and so does every hook there",
    clause=f"{RUNTIME} The same applies if the source of a mount or a hook does not exist. (CDI specification; "
    "KEP-5304: metadata of devices is in files that containers mount)",
)
def mounts_what_it_has_made(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared. What their CDI devices use in the run's directories must exist."""
    nothing = "the CDI devices mount nothing from the driver's directories"
    return counted(seen_forms(driver).number("mounts", nothing), "mount")


def _existing_mounts(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    number = 0
    for name in _names_of(prepared):
        own = own_paths(driver, [name])
        missing = [path for path in own if not Path(path).exists()]
        require(not missing, f"for {what}, {name} uses {some(missing)}, which does not exist")
        number += len(own)
    return number


def own_paths(driver: DriverUnderTest, names: Iterable[str]) -> list[str]:
    """Return what containers with these CDI devices mount from the run's directories, and the hooks there.

    Raises Skip if a name cannot be resolved, because other checks report that.
    """
    with skipping(UnresolvableError):
        return _own_paths(driver, [resolve(name, directories(driver)) for name in names])


def _own_paths(driver: DriverUnderTest, resolved: Iterable[Edits]) -> list[str]:
    found = [path for one in resolved for path in (*(m.hostPath for m in one.mounts), *(h.path for h in one.hooks))]
    return [path for path in found if driver.environment.contains(path)]


@check(
    MUST,
    expected="absolute paths for hooks, and absolute container paths for mounts and device nodes; no directory is "
    "mounted at /dev, except the host's /dev",
    clause=f"{RUNTIME} The same applies if such a path is not absolute. If a mount replaces the container's /dev, a "
    "runtime creates no device nodes there. (OCI runtime specification, hooks and mounts; runc, needsSetupDev)",
)
def names_absolute_paths_in_cdi_files(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and the paths in their CDI devices are read."""
    return counted(seen_forms(driver).number("paths", "the CDI devices name no paths"), "path")


def _absolute_paths(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    number = 0
    for name in _names_of(prepared):
        with skipping(UnresolvableError):
            wanted = resolve(name, directories(driver))
        paths = [hook.path for hook in wanted.hooks] + [node.path for node in wanted.deviceNodes]
        paths += [mount.containerPath for mount in wanted.mounts]
        relative = [path for path in paths if not path.startswith("/")]
        require(not relative, f"for {what}, {name} contains {some(relative)}, which is not absolute")
        over = [
            f"{mount.hostPath} at {mount.containerPath}"
            for mount in wanted.mounts
            if normpath(mount.containerPath) in {"/", "/dev"} and normpath(mount.hostPath) != "/dev"
        ]
        require(not over, f"for {what}, {name} mounts {some(over)}")
        number += len(paths)
    return number


@check(
    MUST,
    expected="the devices of each request, and no attribute value that belongs to another device in the claim",
    clause=(
        "Device metadata is in files that containers mount: the devices of each request with pool, name and "
        "attributes. (KEP-5304) An application that finds its devices through wrong metadata opens the wrong ones."
    ),
)
def describes_its_devices_in_metadata(driver: DriverUnderTest) -> str:
    """Claims for two devices and with two requests are prepared, and mounted metadata is compared with the slices."""
    driver.claims.require_two()
    nothing = "the CDI devices mount no device metadata"
    return f"{counted(seen_forms(driver).number('metadata', nothing), 'device')} described"


def _right_metadata(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    if what not in _OF_TWO:  # the requests in the user's claim may have any names
        return 0
    number = 0
    for one in prepared:
        devices = one.claim.devices
        for request, rows in _described(driver, one).items():
            mine = devices if _OF_TWO[what] == (2,) else [of for i, of in enumerate(devices) if request == f"r{i}"]
            wrong = {of.key for of in mine} ^ {key for key, _ in rows}
            text = f"for {what}, the metadata and the allocation of {request} differ"
            require(not wrong, f"{text}: {some(['/'.join(key) for key in sorted(wrong)])}")
            mixed = [text for key, row in rows for text in _of_another(driver, key, row, devices)]
            require(not mixed, f"for {what}, in {request}, {some(mixed)}")
            number += len(rows)
    return number


@check(
    SHOULD,
    core=True,
    expected="the option ro for each mount of device metadata",
    clause="A driver mounts metadata read-only, because a container that could write it would change what the claim's "
    "other containers read. (KEP-5304)",
)
def mounts_metadata_read_only(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and the mounts of device metadata in their CDI devices are read."""
    nothing = "the CDI devices mount no device metadata"
    return f"{counted(seen_forms(driver).number('options', nothing), 'mount')}, all read-only"


def _read_only_metadata(driver: DriverUnderTest, what: str, prepared: Sequence[Prepared]) -> int:
    number = 0
    for name in _names_of(prepared):
        with skipping(UnresolvableError):
            mounts = resolve(name, directories(driver)).mounts
        for mount in mounts:
            if driver.environment.contains(mount.hostPath) and _is_metadata(mount.hostPath):
                number += 1
                require("ro" in mount.options, f"for {what}, {name} mounts {mount.containerPath} without the option ro")
    return number


def _is_metadata(path: str) -> bool:
    with suppress(OSError):
        return path.endswith(".json") and b'"DeviceMetadata"' in read_file(Path(path), MAX_BYTES)
    return False


def _described(driver: DriverUnderTest, prepared: Prepared) -> dict[str, list[tuple[tuple[str, str], Json]]]:
    """Return the content of a claim's mounted metadata: for each request, the keys and attributes of its devices."""
    found: dict[str, list[tuple[tuple[str, str], Json]]] = {}
    paths: set[str] = set()
    for name in prepared.names:
        with skipping(UnresolvableError):
            paths |= {mount.hostPath for mount in resolve(name, directories(driver)).mounts}
    for path in sorted(path for path in paths if path.endswith(".json") and driver.environment.contains(path)):
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # an unrelated JSON file
            text, start = read_file(path, MAX_BYTES).decode(), 0
            found_here = {}
            while text[start:].strip():  # one document for each served version, with the same content
                document, start = json.JSONDecoder().raw_decode(text, start + _blanks(text[start:]))
                if document["kind"] == "DeviceMetadata":
                    for request in document.get("requests") or ():
                        found_here[str(request["name"]).partition("/")[0]] = [
                            ((str(one["pool"]), str(one["name"])), dict(one.get("attributes") or {}))
                            for one in request.get("devices") or ()
                            if one["driver"] == driver.registration.name
                        ]
            found |= found_here
    return found


def _blanks(text: str) -> int:
    """Return how many whitespace characters precede the next document."""
    return len(text) - len(text.lstrip())


def _of_another(
    driver: DriverUnderTest, key: tuple[str, str], row: Json, devices: Sequence[SliceDevice]
) -> Iterator[str]:
    """Yield a sentence for each attribute whose value in a device's metadata is that of another device."""
    published = {
        one.key: {
            name.removeprefix(f"{driver.registration.name}/"): value
            for name, value in (one.body.get("attributes") or {}).items()
        }
        for one in devices
    }
    for name, value in row.items():
        bare = name.removeprefix(f"{driver.registration.name}/")
        owners = ["/".join(other) for other, of in published.items() if of.get(bare) == value]
        if owners and bare in published[key] and published[key][bare] != value:
            yield f"{'/'.join(key)} has the {bare} of {some(owners)}"


def _targets(edits: Edits) -> Iterator[tuple[str, str]]:
    """Yield the variables, paths and interfaces that the edits set in a container, each with its value."""
    for text in edits.env:
        name, _, value = text.partition("=")
        yield f"the variable {name}", value
    yield from ((f"the path {node.path}", node.hostPath or node.path) for node in edits.deviceNodes)
    yield from ((f"the path {mount.containerPath}", mount.hostPath) for mount in edits.mounts)
    yield from ((f"the interface {one.name}", one.hostInterfaceName) for one in edits.netDevices)


@check(
    SHOULD,
    core=True,
    expected="each file gets its final name only once it is complete, for example by a rename",
    clause=(
        "A runtime watches the directory and reads a file as soon as it appears. The CDI library writes files this "
        "way. (CDI library in Go, pkg/cdi)"
    ),
)
def writes_cdi_files_in_one_step(driver: DriverUnderTest) -> str:
    """Claims are prepared, while inotify reports writes to files whose names end in .json or .yaml."""
    seen = seen_forms(driver)
    if problem := seen.problems.get("written"):
        raise problem
    return "no file was written in place while claims of several forms were being prepared"


@check(
    SHOULD,
    core=True,
    expected="other users cannot write to the driver's CDI files",
    clause="A runtime runs the hooks in these files as root.",
)
def protects_its_cdi_files(driver: DriverUnderTest) -> str:
    """Claims of several forms are prepared, and the modes of the driver's CDI files are read."""
    return f"{counted(seen_forms(driver).number('modes', 'there are none'), 'file')}, protected from other users"


def _protected_files(driver: DriverUnderTest, what: str, _: Sequence[Prepared]) -> int:
    files, wrong = require_own_files(driver), []
    for path in files:
        with suppress(OSError):  # removed in the meantime, or a link to itself
            mode = path.stat().st_mode & 0o777
            wrong += [f"{path.name} (mode {mode:04o})"] if mode & stat.S_IWOTH else []
    require(not wrong, f"for {what}, other users can write to {some(wrong)}")
    return len(files)


_OF_FORMS: Mapping[str, Callable[[DriverUnderTest, str, Sequence[Prepared]], int]] = {
    "names": _valid_names,
    "resolved": _resolvable_names,
    "files": valid_files,
    "targets": _own_targets,
    "mounts": _existing_mounts,
    "paths": _absolute_paths,
    "metadata": _right_metadata,
    "options": _read_only_metadata,
    "modes": _protected_files,
}
"""What is examined while each form of claim is prepared."""


@check(
    INFO,
    expected="every host path of a device node, mount or hook exists",
    clause=f"{RUNTIME} The same applies if a path does not exist. A driver with simulated devices fails this check.",
    found=("kubernetes-sigs/dra-driver-nvidia-gpu#736",),
)
def names_existing_paths_in_cdi_files(driver: DriverUnderTest) -> str:
    """A claim is prepared, and the paths in its CDI devices must exist on this machine."""
    found = prepare(driver)
    paths: set[str] = set()
    for name in found.names:
        with skipping(UnresolvableError):
            wanted = resolve(name, directories(driver))
        paths |= {node.hostPath or node.path for node in wanted.deviceNodes}
        paths |= {mount.hostPath for mount in wanted.mounts} | {hook.path for hook in wanted.hooks}
    missing = [path for path in sorted(paths) if not Path(path).exists()]
    require(not missing, f"some paths do not exist: {some(missing)}")
    return f"{counted(len(paths), 'path')} exist" if paths else "the files name no paths"


@check(
    MUST,
    expected=(
        "no CDI file contains the claim's UID, any remaining CDI devices are reused by later claims, and the claim's "
        "files that containers mount, such as device metadata, are gone"
    ),
    clause="NodeUnprepareResources undoes what NodePrepareResources did. (dra, api.proto; kubeletplugin, device "
    "metadata, KEP-5304) A CDI file that remains can be used by another container.",
    found=("kubernetes-sigs/dra-driver-nvidia-gpu#840",),
)
def removes_cdi_devices(driver: DriverUnderTest) -> str:
    """Two claims for one device are prepared and unprepared in turn, and the CDI files are compared."""
    first = prepare(driver)
    mounted, files = _mounted_files(driver, first), own_files(driver)
    unprepare(driver, first)
    before, names = own_files(driver), _names(driver)
    kept = [path.name for path in mounted if path.exists()]
    require(not kept, f"a file that the claim's containers mounted still exists: {some(kept)}")
    does_not_apply_if(not files, f"the driver has no file in {driver.environment.cdi}")
    left = [path.name for path in before if _has_text(driver, path, first.claim.uid)]
    require(not left, f"the claim's UID is still in {some(left)}")
    known = [name for name in sorted(first.names) if first.claim.uid in name and _is_known(driver, name)]
    require(not known, f"{some(known)} can still be resolved")
    second = prepare(driver, devices=first.claim.devices)
    unprepare(driver, second)
    added = [path.name for path in own_files(driver) if path not in before]
    require(not added, f"each claim leaves another file behind, such as {some(added)}")
    more = _names(driver) - names
    require(not more or not before, f"each claim leaves more devices behind, such as {some(sorted(more))}")
    return (
        f"{counted(len(before), 'file')} of the driver's remained, without the claim's UID"
        if before
        else "no file remained"
    )


def _mounted_files(driver: DriverUnderTest, prepared: Prepared) -> list[Path]:
    """Return the paths that a claim's containers mount from the plugins directory, if they contain its name or UID."""
    found: list[Path] = []
    for name in prepared.names:
        with suppress(UnresolvableError):  # reported by another check
            found += [Path(mount.hostPath) for mount in resolve(name, directories(driver)).mounts]
    own = [path for path in found if prepared.claim.uid in str(path) or prepared.claim.name in str(path)]
    return [path for path in own if path.is_relative_to(driver.environment.plugins)]


def _is_known(driver: DriverUnderTest, name: str) -> bool:
    with suppress(UnresolvableError):
        resolve(name, directories(driver))
        return True
    return False


def _has_text(driver: DriverUnderTest, path: Path, text: str) -> bool:
    """Return whether a string is in the name or content of a CDI file, or in the names of its devices."""
    content = driver.environment.cdi_files().get(path, b"")
    return text in path.name or text.encode() in content or any(text in name for name in _names_in(path))


def _names(driver: DriverUnderTest) -> set[str]:
    return {name for path in own_files(driver) for name in _names_in(path)}


def _names_in(path: Path) -> tuple[str, ...]:
    try:
        return read_spec(path).names
    except (ValueError, OSError):
        return ()


# --- several claims ---------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="the claim's CDI devices still exist, with the same content",
    clause="A container that uses the claim may be created at any time, and must not get the other claim's devices.",
    found=("k8snetworkplumbingwg/sriov-network-device-plugin#731",),
)
def keeps_the_cdi_devices_of_other_claims(driver: DriverUnderTest) -> str:
    """A claim's CDI devices are compared while other claims are prepared, refused and unprepared."""
    is_repeated = driver.calls.repeats
    first = prepare(driver)
    before = edits(driver, first.names)
    second = prepare(driver)
    _require_kept(driver, first.names, before, "another claim was prepared")
    unprepare(driver, second)
    _require_kept(driver, first.names, before, "another claim was unprepared")
    deleted = driver.claims.new(1)
    driver.claims.delete_object(deleted)
    refused = [(deleted, "that was deleted")]
    with suppress(DoesNotApply):  # the checks' claims request capacity that only a known device has
        unknown = driver.claims.on(driver.claims.missing_device(first.claim.devices[0].pool))
        refused.append((unknown, "for an unknown device"))
    for bad, what in refused:
        with suppress(CallFailedError):  # another check tests this failure
            driver.calls.prepare(bad)
        _require_kept(driver, first.names, before, f"a claim {what} was sent")
        answer: Mapping[str, Any] = {}
        with suppress(CallFailedError):
            answer = driver.calls.prepare(first.claim, bad) if is_repeated else {}
        if first.claim.uid in answer and not answer[first.claim.uid].error:
            _require_kept(driver, first.names, before, f"the claim was sent again with one {what}")
    return f"{some(sorted(first.names))} did not change"


@check(
    MUST,
    expected="the CDI devices of the other claim still exist, with the same content",
    clause="A kubelet may prepare claims in one call and unprepare them one by one, if pods share one of them. "
    "(kubelet, DRA manager)",
)
def keeps_the_cdi_devices_of_claims_of_one_call(driver: DriverUnderTest) -> str:
    """Two claims are prepared in one call, and one of them is unprepared. This is done twice, once for each claim."""
    driver.claims.require_two()
    for place in (0, 1):
        claims = [driver.claims.new(1), driver.claims.new(1)]
        with needed("two prepared claims"):
            both = _prepare_together(driver, claims)
        names = both[1 - place].names - both[place].names  # another check reports shared devices
        does_not_apply_if(not names, "the driver does not return CDI devices for each claim")
        kept = edits(driver, names)
        unprepare(driver, both[place])
        _require_kept(driver, names, kept, "the other claim was unprepared")
        driver.calls.clean_up()
    return "the other claim's CDI devices did not change"


def _require_kept(driver: DriverUnderTest, names: Iterable[str], before: frozenset[str], event: str) -> None:
    """Check that a claim's CDI names still have the same edits as before an event."""
    changed = sorted(require_edits(driver, names, f"after {event}: ") ^ before)
    require(not changed, f"after {event}, the edits for these CDI devices have changed: {some(changed)}")


@check(
    SHOULD,
    expected="different names, or the same names with the same content",
    clause="A runtime may still have a name's previous content in its cache.",
)
def gives_new_claims_new_cdi_devices(driver: DriverUnderTest) -> str:
    """Two claims for one device are prepared, one after the other, and their CDI names are compared."""
    first = prepare(driver)
    before = {name: edits(driver, [name]) for name in first.names}
    unprepare(driver, first)
    second = prepare(driver, devices=first.claim.devices)
    again = sorted(first.names & second.names)
    changed = [name for name in again if edits(driver, [name]) != before[name]]
    require(not changed, f"the driver uses {some(changed)} again with different content")
    return f"the driver uses {some(again)} again with the same content" if again else "the names are new"


@check(
    MUST,
    expected="each request's names have the edits for its own device, not those for the other device",
    clause="Device.request_names: The requests in the claim that this device is associated with. (dra, api.proto) A "
    "container may use one request of a claim, and then gets only the CDI devices of that request.",
)
def separates_cdi_devices_by_request(driver: DriverUnderTest) -> str:
    """A claim with two requests is prepared; each request's edits are compared with those of a claim for one device."""
    both = prepare(driver, spec=driver.claims.request(1, 1))
    named = {requests for requests, _ in both.devices}
    are_named = named == {frozenset({"r0"}), frozenset({"r1"})}
    # Devices without request names are for every request, so each container gets all of them.
    are_for_all = not any(named) and len({names for _, names in both.devices}) > 1
    does_not_apply_if(not (are_named or are_for_all), "the answer does not contain a device for each request")
    together = [neutral(edits(driver, both.names_of(request)), both.claim) for request in ("r0", "r1")]
    unprepare(driver, both)
    alone = [edits_of(driver, device) for device in both.claim.devices]
    does_not_apply_if(alone[0] == alone[1], "the edits for two devices are the same")
    require_separate(together, alone, "request")
    return "each request has the edits for its own device"


@check(
    MUST,
    expected="the parameters change the edits of the requests that they are for, and of no others",
    clause="config.requests: Requests lists the names of requests where the configuration applies. If empty, it "
    "applies to all requests. If just the main request is given, the configuration applies to all subrequests. "
    "status.allocation.devices.config: a combination of all the claim and class configuration parameters. "
    "(ResourceClaim, API reference)",
)
def applies_parameters_to_the_requests_they_name(driver: DriverUnderTest) -> str:
    """If the user's claim has parameters, claims with parameters for all, one or none of the requests are prepared."""
    config = _parameters(driver)
    driver.claims.require_two()
    _applies_to_one_of_two(driver, driver.claims.request(1, 1), config)
    _applies_to_subrequests(driver, config)
    return "the parameters are applied to the requests they name"


@check(
    SHOULD,
    core=True,
    expected="edits that are not those for the parameters of the DeviceClass alone",
    clause="Configs coming directly from the resource claim take precedence over configs coming from the device class. "
    "(kubernetes-sigs/dra-example-driver, GetOpaqueDeviceConfigs)",
)
def prefers_the_parameters_of_a_claim(driver: DriverUnderTest) -> str:
    """If the user's claim and its DeviceClass have parameters, claims with either or both sets are prepared."""
    own, spec = _parameters(driver), driver.claims.request(1)
    allocation = driver.claims.allocation_of(driver.claims.free_device())
    of_the_class = _for_driver(driver, driver.claims.class_of(driver.claims.device_class)["spec"])
    inherited = [{"source": "FromClass", "opaque": one["opaque"]} for one in of_the_class]
    does_not_apply_if(not inherited, "the DeviceClass has no parameters for the driver (--claims)")
    of_class, of_claim, of_both = (
        _configured_edits(driver, spec, allocation, config)["r0"] for config in (inherited, own, [*inherited, *own])
    )
    does_not_apply_if(of_class == of_claim, "the claim's parameters and the DeviceClass's have the same effect")
    require(of_both != of_class, "the claim got the edits for the parameters of the DeviceClass")
    return "the parameters of the claim were applied"


def _parameters(driver: DriverUnderTest) -> list[Json]:
    """Return the configuration of the user's claim for the driver. Raises DoesNotApply if there is none."""
    found = _for_driver(driver, driver.claims.request(1)["devices"])
    does_not_apply_if(not found, "the user's claim has no parameters for the driver (--claims)")
    return found


def _for_driver(driver: DriverUnderTest, configured: Json) -> list[Json]:
    """Return the entries of `config` that are parameters for the driver."""
    entries = configured.get("config") or ()
    return [one for one in entries if (one.get("opaque") or {}).get("driver") == driver.registration.name]


def _applies_to_one_of_two(driver: DriverUnderTest, spec: Json, config: Sequence[Json]) -> None:
    devices = driver.claims.free_devices[:2]
    allocation = driver.claims.allocation_of(*devices)
    without, everywhere, first = (
        _configured_edits(driver, spec, allocation, entries)
        for entries in ([], config, [{**one, "requests": ["r0"]} for one in config])
    )
    does_not_apply_if(
        any(without[one] == everywhere[one] for one in ("r0", "r1")), "the parameters do not change the CDI devices"
    )
    require(first["r0"] != without["r0"], "parameters for the first of two requests were not applied to that request")
    require(first["r1"] != everywhere["r1"], "parameters for the first of two requests were applied to the second one")


def _applies_to_subrequests(driver: DriverUnderTest, config: Sequence[Json]) -> None:
    alternative = {"name": "first", "deviceClassName": driver.claims.device_class, "count": 1}
    spec: Json = {"devices": {"requests": [{"name": "r0", "firstAvailable": [alternative]}]}}
    allocation = driver.claims.allocation_of(driver.claims.free_device())
    allocation["devices"]["results"][0]["request"] = "r0/first"
    without, everywhere = (_configured_edits(driver, spec, allocation, entries)["r0"] for entries in ([], config))
    scopes: dict[str, Json] = {
        "the DeviceClass": {"source": "FromClass"},
        "a request with alternatives": {"requests": ["r0"]},
        "the alternative that was allocated": {"requests": ["r0/first"]},
    }
    for what, fields in scopes.items():
        found = _configured_edits(driver, spec, allocation, [{**one, **fields} for one in config])["r0"]
        require(without == everywhere or found != without, f"parameters for {what} were not applied")


def _configured_edits(
    driver: DriverUnderTest, spec: Json, allocation: Json, config: Sequence[Json]
) -> dict[str, frozenset[str]]:
    """Prepare and unprepare a claim with these parameters. Return the edits for each request."""
    own = [{key: value for key, value in one.items() if key != "source"} for one in config if "source" not in one]
    entries = [{"source": "FromClaim", **one} for one in config]
    claim = driver.claims.create(
        {"devices": {**spec["devices"], "config": own}},
        {**allocation, "devices": {**allocation["devices"], "config": entries}},
    )
    with needed("a prepared claim"):
        prepared = _prepared(claim, driver.calls.prepared(claim))
    does_not_apply_if(not prepared.names, "the driver returns no CDI devices")
    names = [request["name"] for request in spec["devices"]["requests"]]
    found = {name: neutral(edits(driver, prepared.names_of(name)), claim) for name in names}
    unprepare(driver, prepared)
    return found


@check(
    MUST,
    expected="each claim's names have the edits for its own device, not those for the other device",
    clause=(
        f"{ANSWER} A container may use only one of its pod's claims, and then gets only the CDI devices of that claim."
    ),
)
def separates_cdi_devices_by_claim(driver: DriverUnderTest) -> str:
    """Two claims are prepared with one request; their edits are compared with those of separately prepared claims."""
    driver.claims.require_two()
    claims = [driver.claims.new(1), driver.claims.new(1)]
    with needed("two prepared claims"):
        both = _prepare_together(driver, claims)
    does_not_apply_if(not all(one.names for one in both), "the driver returns no CDI devices")
    together = [neutral(edits(driver, one.names), one.claim) for one in both]
    for one in both:
        unprepare(driver, one)
    alone = [edits_of(driver, claim.devices[0]) for claim in claims]
    does_not_apply_if(alone[0] == alone[1], "the edits for two devices are the same")
    require_separate(together, alone, "claim")
    return "each claim has the edits for its own device"


@check(
    MUST,
    expected="an error, and success once the driver can write again",
    clause="A container whose CDI device does not exist cannot start. A kubelet repeats a call that failed, but not "
    "one that succeeded. (kubelet, DRA manager)",
)
def reports_that_it_cannot_write(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare a claim while a file replaces the CDI directory, and again afterwards."""
    does_not_apply_if(not driver.environment.owns_cdi, "--cdi-dir names a directory that is not the run's own")
    before = prepare(driver)
    edits(driver, before.names)
    unprepare(driver, before)
    claim = driver.claims.new(devices=before.claim.devices)  # the same device, because another may have no edits
    answered: tuple[Any, ...] | None = None
    with driver.environment.without_cdi(), suppress(Failure):
        answered = driver.calls.prepared(claim)
    if answered is not None:
        names = _prepared(claim, answered).names
        require(names, "the driver's answer reports no error, but contains no CDI device")
        require_edits(driver, names, "the driver's answer reports no error, but ")
        return "the CDI devices in the driver's answer do not need the directory"
    with in_context("once the directory was back"):
        names = _prepared(claim, driver.calls.prepared(claim)).names
        require(names, "the answer contains no CDI device")
        require_edits(driver, names, "")
    return "the driver refused the claim, and prepared it later"


@check(
    MUST,
    expected="more than the edits for one of the devices",
    clause=f"{ANSWER} A container that uses the claim needs both devices.",
)
def makes_cdi_devices_for_each_device(driver: DriverUnderTest) -> str:
    """A claim for two devices is prepared, and its edits are compared with those of claims for single devices."""
    driver.claims.require_two()
    both = prepare(driver, spec=driver.claims.request(2))
    together = neutral(edits(driver, both.names), both.claim)
    unprepare(driver, both)
    alone = [edits_of(driver, device) for device in both.claim.devices]
    does_not_apply_if(alone[0] == alone[1], "the edits for two devices are the same")
    for device, one in zip(both.claim.devices, alone, strict=True):
        require(together != one, f"a claim for two devices has only the edits for {device}: {some(sorted(together))}")
    return "a claim for two devices has the edits for both"


@check(
    MUST,
    expected="edits that name the allocated device, if edits contain published names at all",
    clause=f"{ANSWER} A container must get the device that is allocated to its claim. (ResourceClaim, API reference, "
    "status.allocation)",
)
def makes_cdi_devices_of_the_allocated_device(driver: DriverUnderTest) -> str:
    """Up to eight devices are prepared separately, and their edits are searched for names and unique attributes."""
    devices = driver.claims.allocatable
    does_not_apply_if(len(devices) < 2, "the check needs two devices")
    found: dict[tuple[str, str], frozenset[str]] = {}
    until = time.monotonic() + driver.settings.budget / 20
    for device in devices[:_NAMED]:
        if len(found) < 2 or time.monotonic() < until:
            found[device.key] = edits_of(driver, device)
    are_same = len(set(found.values())) == 1
    number = 0
    for kind, owners in _identities(devices).items():
        named = {
            device: {owner for word, owner in owners.items() if any(_has_word(part, word) for part in parts)}
            for device, parts in found.items()
            if device in owners.values()
        }
        only = {device: next(iter(others)) for device, others in named.items() if len(others) == 1}
        if len(set(only.values())) < 2 and not are_same:  # the name is a word that happens to occur in all edits
            continue
        number += len(only)
        wrong = [
            f"those for {'/'.join(device)} contain the {kind} of {'/'.join(other)}"
            for device, other in only.items()
            if device != other
        ]
        require(not wrong, f"among the edits for single devices, {some(wrong)}")
    does_not_apply_if(not number, "the edits contain no names or unique attributes of devices")
    return f"{counted(number, 'name')} in edits, each for the right device"


def _identities(devices: Sequence[SliceDevice]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the strings that distinguish the devices, each with its kind and its device's key."""
    kinds: dict[str, list[tuple[str, tuple[str, str]]]] = {
        "name": [(_word(device.name), device.key) for device in devices]
    }
    for device in devices:
        for name, value in (device.body.get("attributes") or {}).items():
            kinds.setdefault(name.rpartition("/")[2], []).append((_word(str(value.get("string", ""))), device.key))
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for kind, pairs in kinds.items():
        numbers = Counter(word for word, _ in dict.fromkeys(pairs))
        found[kind] = {
            word: key
            for word, key in pairs
            if numbers[word] == 1 and len(word) >= _SHORTEST and any(map(str.isdigit, word))
        }
    return found


def _word(text: str) -> str:
    """Return a string in lower case, with hyphens in place of other characters, so that spellings can be compared."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def _has_word(text: str, word: str) -> bool:
    return f"-{word}-" in f"-{_word(text)}-"


@check(
    INFO,
    expected="different edits for each device that can belong to only one claim",
    clause=(
        f"{ANSWER} Without a difference, all containers get the same device, unless the container runtime or the "
        "network distinguishes them."
    ),
)
def gives_each_device_its_own_edits(driver: DriverUnderTest) -> str:
    """Two devices are prepared separately, and their edits are compared."""
    single = [one for one in driver.claims.allocatable if not one.is_shared][:2]
    does_not_apply_if(len(single) < 2, "the check needs two devices that belong to only one claim each")
    first, second = (edits_of(driver, device) for device in single)
    require(first != second, f"{single[0]} and {single[1]} have the same edits: {some(sorted(first))}")
    return "the edits for two devices differ"


def edits_of(driver: DriverUnderTest, device: SliceDevice) -> frozenset[str]:
    """Prepare and unprepare a claim for one device, and return its edits.

    The result is kept until the driver's process is restarted.
    """
    process = driver.process.running
    key = (0 if process is None else process.pid, *device.key)
    if key not in driver.seen.edits:
        single = prepare(driver, devices=[device])
        driver.seen.edits[key] = neutral(edits(driver, single.names), single.claim)
        unprepare(driver, single)
    return driver.seen.edits[key]


def require_separate(together: Sequence[frozenset[str]], alone: Sequence[frozenset[str]], what: str) -> None:
    """Check that when two devices are prepared together, the edits of neither contain what belongs only to the other.

    The edits in `alone` must differ.
    """
    require(together[0] != together[1], f"each {what} has the same edits: {some(sorted(together[0]))}")
    for own, other in ((0, 1), (1, 0)):
        foreign = sorted(together[own] & (alone[other] - alone[own]))
        require(
            not foreign,
            f"the {('first', 'second')[own]} {what} contains the edits of the other's device: {some(foreign)}",
        )


def neutral(parts: frozenset[str], claim: Claim) -> frozenset[str]:
    """Return the edits with the claim's UID and name replaced, so that edits for different claims can be compared."""
    return frozenset(part.replace(claim.uid, "UID").replace(claim.name, "NAME") for part in parts)


@across(
    KUBELET_RESTART,
    MUST,
    expected="the same edits to a container as at first, and no CDI device once the claim is unprepared",
    clause="A container may be restarted at any time, and its runtime then resolves the CDI devices again, however "
    "many claims have come and gone since. (kubelet, DRA manager; CDI specification)",
)
def keeps_a_claim_beside_many_others(driver: DriverUnderTest) -> Parts:
    """If there are five devices, a claim stays prepared while other checks prepare claims, and is then unprepared."""
    does_not_apply_if(len(driver.claims.allocatable) < _SPARE, f"the check needs {_SPARE} devices")
    driver.calls.require_preparing()
    standing, began = driver.environment.cdi_names(), time.monotonic()
    prepared = prepare(driver)
    keys = {device.key for device in prepared.claim.devices}
    before = edits(driver, prepared.names)
    driver.claims.reserved |= keys
    try:
        yield
    finally:
        driver.claims.reserved -= keys
    if not prepared.claim.is_prepared:  # the driver was given fresh directories
        standing, began = driver.environment.cdi_names(), time.monotonic()
        prepared = prepare(driver)
        before = edits(driver, prepared.names)
        for _ in range(_OTHER_CLAIMS):
            unprepare(driver, prepare(driver))
    seconds = time.monotonic() - began
    with in_context(f"after {seconds:.0f} seconds"):
        after = require_edits(driver, prepared.names, "")
        require(after == before, f"the edits differ in {some(sorted(after ^ before))}")
        driver.calls.unprepared(prepared.claim)
        require_undone(driver, prepared.names - standing)
    return f"the claim was unchanged after {seconds:.0f} seconds"


@across(
    KILL,
    MUST,
    expected="another vendor's CDI file is unchanged",
    clause="The directory belongs to all drivers on a node.",
)
def leaves_cdi_files_of_others_alone(driver: DriverUnderTest) -> Parts:
    """Another vendor's CDI file is put next to the driver's. The driver is restarted and prepares a claim."""
    text = '{"cdiVersion": "0.3.0", "kind": "conformance.example.org/other", "devices": [{"name": "x", '
    text += '"containerEdits": {"env": ["X=1"]}}]}\n'
    path = driver.environment.plant_cdi(_OTHERS, text)
    try:
        yield
        _ = driver.registration.instance
        with suppress(Skip):  # the restart alone is enough
            unprepare(driver, prepare(driver))
        require(path.exists(), f"{path.name} was removed")
        now = driver.environment.cdi_files().get(path)
        require(now == text.encode(), f"the content of {path.name} has changed")
    finally:
        path.unlink(missing_ok=True)
    return "the file is unchanged"
