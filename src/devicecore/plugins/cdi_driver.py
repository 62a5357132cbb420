"""The base class of DRA drivers that pass devices to containers through CDI.

Laws: a claim that is prepared again gets the same devices and the same CDI file, even after the driver was killed or
the node rebooted. An Unprepare that follows a Prepare leaves nothing behind, even if the Prepare is still running. Two
claims never hold the same device, unless they have different shares of the device or one of them has admin access. All
of this also holds when two instances of the driver use the same directories, as during a rolling update.
"""

import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import field, fields, frozen

from devicecore.domain.checks import check_adapter, expected
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult, is_cdi_name
from devicecore.domain.dra.errors import DraError
from devicecore.domain.dra.model import AllocatedDevice, ClaimRef, ClaimUid, DriverName, PreparedDevice, ResourceClaim
from devicecore.domain.errors import DeviceCoreError, LockedError, SetUpError
from devicecore.domain.text import foreign_text
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_driver import DraDriver
from devicecore.system.arguments import checks_arguments
from devicecore.system.cdi import Edits, problem_of_edits
from devicecore.system.directories import make_directories, make_directory
from devicecore.system.files import DurableFile, read_file
from devicecore.system.json_values import from_json, to_json
from devicecore.system.locks import NamedLocks

__all__ = ["AlreadyRunningError", "CdiDriver", "CdiKindError", "NotPreparedError"]

CDI_DIRECTORY = "/var/run/cdi"
"""Where container runtimes look for CDI files that do not survive a reboot."""

MAX_RECORD = 4 * 1024 * 1024
"""The maximum number of bytes in the record of a claim, which has at most 32 devices."""

_LOCK_SECONDS = 30.0  # less than the 45 s for which a kubelet waits for an answer
_EDITS: dict[str, type | tuple[type, ...]] = {
    one.name: Mapping if one.default is None else (list, tuple) for one in fields(Edits)
}
"""The fields of `containerEdits` in the CDI specification. Container runtimes refuse a file with any other field."""

_OLDEST_VERSION = (0, 5, 0)
_CHOICE = "choice of devices"  # the name of the lock that is held while a claim takes devices
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@frozen
class NotPreparedError(DraError):
    """The driver cannot prepare a claim."""

    claim: str = field(converter=foreign_text)
    problem: str
    _text = "ResourceClaim {claim}: {problem}"


@frozen
class CdiKindError(DraError, ValueError):
    """The driver's CDI names would not be accepted by any container runtime."""

    kind: str = field(converter=foreign_text)
    _text = "expected a CDI kind `vendor/class` that starts with a letter, got {kind!r}: choose `cdi_kind`"


@frozen
class AlreadyRunningError(SetUpError):
    """Another process runs the same instance of a driver."""

    driver: str
    directory: str = field(converter=foreign_text)
    _text = (
        "an instance of {driver} with this name is already running and uses {directory}: stop it, or choose a "
        "different name, such as the pod's UID"
    )


@frozen
class _Record:
    """The driver's record of a claim: its devices, and its CDI file."""

    claim: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    cdi_names: tuple[str, ...]
    cdi: str

    def to_bytes(self) -> bytes:
        """Return the record as JSON, as it is written to the record's file."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def from_bytes(cls, blob: bytes, uid: ClaimUid) -> "_Record":
        """Read a record from the contents of its file.

        Raises ValueError if the bytes are not a record, or belong to a claim other than `uid`.
        """
        try:
            record = from_json(json.loads(blob), cls)
        except RecursionError as error:
            raise ValueError(str(error)) from error
        if record.claim.uid != uid:
            message = f"it belongs to claim {record.claim.uid}"
            raise ValueError(message)
        record.cdi.encode()  # raises an error for a lone surrogate, which cannot be written
        return record


class CdiDriver(DraDriver, ABC):
    """A `DraDriver` that keeps a record of each claim and writes a CDI file for it.

    Subclasses define the content of the CDI file.

    Args:
        name: the driver's name.
        claims: the source of ResourceClaims, because a kubelet's request does not contain the allocation.
        state_directory: the directory where claims are recorded. The directory must survive a reboot, and is created if
            it is missing.
        cdi_directory: the directory where CDI files are written, which is created if it is missing.
        cdi_kind: the vendor and class of the CDI names; by default `<driver>/device`.
        cdi_version: the oldest version of the CDI specification that supports everything that `edits` uses. The version
            must be at least 0.5.0, because device names start with the claim's UID, and before 0.5.0 they could not
            start with a digit.

    Raises:
        CdiKindError: no CDI name can have this kind.
        ValueError: `cdi_version` is not a version, or is too old.
    """

    @checks_arguments()
    def __init__(
        self,
        name: str,
        claims: ClaimSource,
        state_directory: str | os.PathLike[str],
        cdi_directory: str | os.PathLike[str] = CDI_DIRECTORY,
        *,
        cdi_kind: str | None = None,
        cdi_version: str = "0.5.0",
    ) -> None:
        check_adapter(f"{type(self).__name__}: claims", claims, ClaimSource)
        self.name: DriverName = DriverName(name)
        self.cdi_kind: str = cdi_kind or f"{name}/device"
        if not is_cdi_name(f"{self.cdi_kind}=x"):
            raise CdiKindError(self.cdi_kind)
        parts = cdi_version.split(".")
        if not all(map(str.isdecimal, parts)) or tuple(map(int, parts)) < _OLDEST_VERSION:
            raise ValueError(expected(f"{type(self).__name__}: cdi_version", "0.5.0 or newer", cdi_version))
        self._cdi_version = cdi_version
        self._instances: set[str] = set()
        self._claims = claims
        self._state_directory = Path(state_directory)
        self._cdi_directory = Path(cdi_directory)
        self._locks = NamedLocks(self._state_directory / "lock")

    @abstractmethod
    def edits(self, claim: ResourceClaim, device: AllocatedDevice) -> Mapping[str, object]:
        """Return what a container gets with a device: non-empty `containerEdits` of the CDI specification.

        This method is called each time the claim is prepared, before the device is taken, and must always return the
        same edits.

        Raises:
            DraError: the device cannot be prepared; the error's text is sent to the kubelet.
        """

    def set_up(self, claim: ClaimRef, devices: Sequence[AllocatedDevice]) -> None:
        """Set up the devices of a claim.

        This method is called each time the claim is prepared, even while containers run.

        Raises:
            DraError: the set-up failed; the error's text is sent to the kubelet, which tries again or unprepares the
                claim.
        """

    def release(self, claim: ClaimRef, devices: Sequence[AllocatedDevice]) -> None:
        """Undo what `set_up` did. This method may be called again for the same claim, even without devices.

        Raises:
            DraError: the devices are still in use; the error's text is sent to the kubelet, which tries again.
        """

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Record each claim's devices, write the claim's CDI file, and return the devices."""
        return {claim.uid: self._answer(claim, self._prepare, PrepareResult) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Delete the CDI file and the record of each claim. An unknown claim counts as released."""
        return {claim.uid: self._answer(claim, self._unprepare, UnprepareResult) for claim in claims}

    @checks_arguments()
    @contextmanager
    def running(self, instance: str = "") -> Iterator[None]:
        """Run as one instance of the driver until the end of the block. Serve the driver inside the block.

        On entry, missing CDI files of prepared claims are written, for example after a reboot.

        Args:
            instance: the instance's name. Two instances may run at the same time if their names differ, for example
                because each is named after its pod's UID.

        Raises:
            AlreadyRunningError: the instance is already running.
            DirectoryError: the state directory cannot be used.
            OSError: a file cannot be read or written.
            LockedError: another instance of the driver has not released its lock on a claim in time.
        """
        self._make_directories()
        with ExitStack() as stack:
            if instance in self._instances:  # the lock would wait for this thread
                raise AlreadyRunningError(self.name, str(self._state_directory))
            try:
                stack.enter_context(self._locks.held(f"instance {instance}", 0.0))
            except LockedError:
                raise AlreadyRunningError(self.name, str(self._state_directory)) from None
            self._instances.add(instance)
            stack.callback(self._instances.discard, instance)
            self._restore()
            yield

    def _restore(self) -> None:
        for uid in self._known():
            with self._locks.held(uid, _LOCK_SECONDS):
                record = self._read(uid)
                if isinstance(record, str):
                    _log.warning("%s", record)
                elif record is not None:
                    self._write_cdi(record)

    # --- one claim ----------------------------------------------------------------------------------------------------

    def _answer(self, claim: ClaimRef, act: Callable[[ClaimRef], Result], result: Callable[..., Result]) -> Result:
        try:
            if not _UID.fullmatch(claim.uid):  # the UID is used as a file name
                raise NotPreparedError(claim.key.name, f"expected a UID, got {foreign_text(claim.uid)!r}")
            self._make_directories()
            with self._locks.held(claim.uid, _LOCK_SECONDS):
                return act(claim)
        except (DeviceCoreError, OSError) as error:
            return result(error=str(error))

    def _prepare(self, claim: ClaimRef) -> PrepareResult:
        record = self._record(self._allocated(claim))
        with self._locks.held(_CHOICE, _LOCK_SECONDS):
            self._check_free(record)
            if self._read(claim.uid) != record:
                self._state_file(claim.uid).write(record.to_bytes(), None)
        self.set_up(claim, record.devices)
        self._write_cdi(record)
        _log.info("prepared ResourceClaim %s", foreign_text(str(claim.key)))
        return PrepareResult(
            tuple(
                PreparedDevice(row.pool, row.device, row.share_id, (row.request.partition("/")[0],), (name,))
                for row, name in zip(record.devices, record.cdi_names, strict=True)
            )
        )

    def _unprepare(self, claim: ClaimRef) -> UnprepareResult:
        record = self._read(claim.uid)
        self._cdi_file(claim.uid).delete()
        self.release(claim, record.devices if isinstance(record, _Record) else ())
        self._state_file(claim.uid).delete()
        _log.info("released ResourceClaim %s", foreign_text(str(claim.key)))
        return UnprepareResult()

    def _allocated(self, claim: ClaimRef) -> ResourceClaim:
        found = self._claims.get(claim.key)
        if found.uid != claim.uid:
            raise NotPreparedError(claim.key.name, f"expected UID {claim.uid}, got {foreign_text(found.uid)}")
        if found.allocation is None:
            raise NotPreparedError(claim.key.name, "not allocated")
        return found

    def _record(self, claim: ResourceClaim) -> _Record:
        rows = tuple(row for row in claim.allocation or () if row.driver == self.name)
        devices: dict[str, Mapping[str, object]] = {}
        for row in rows:
            name = f"{claim.uid}-{row.device}" + (f":{row.share_id}" if row.share_id else "")
            name = f"{name}:{len(devices)}" if name in devices else name  # two requests may get the same device
            edits = self.edits(claim, row)
            if problem := _edits_problem(edits):
                raise NotPreparedError(claim.key.name, f"{type(self).__name__}.edits: {problem}")
            devices[name] = edits
        listed = [{"name": name, "containerEdits": given} for name, given in devices.items()]
        document = {"cdiVersion": self._cdi_version, "kind": self.cdi_kind, "devices": listed}
        names = tuple(f"{self.cdi_kind}={name}" for name in devices)
        return _Record(claim.ref, rows, names, json.dumps(document, indent=2) if rows else "")

    def _check_free(self, record: _Record) -> None:
        """Refuse devices that another claim holds, because schedulers make mistakes, and files get lost."""
        for uid in self._known():
            if uid == record.claim.uid:
                continue
            other = self._read(uid)
            if isinstance(other, str):
                raise NotPreparedError(record.claim.key.name, other)
            for row in record.devices:
                if other is not None and any(_excludes(row, held) for held in other.devices):
                    problem = f"device {row.pool}/{row.device} is prepared for ResourceClaim {other.claim.key} ({uid})"
                    raise NotPreparedError(record.claim.key.name, foreign_text(problem))

    # --- files --------------------------------------------------------------------------------------------------------

    def _make_directories(self) -> None:
        make_directories(self._state_directory)
        make_directory(self._state_directory)
        make_directories(self._cdi_directory, 0o755)

    def _state_file(self, uid: ClaimUid) -> DurableFile:
        return DurableFile(self._state_directory / f"{uid}.json", 0o600, max_bytes=MAX_RECORD)

    def _cdi_file(self, uid: ClaimUid) -> DurableFile:
        vendor = self.cdi_kind.replace("/", "-")
        return DurableFile(self._cdi_directory / f"{vendor}-{uid}.json", 0o644, max_bytes=MAX_RECORD)

    def _known(self) -> Iterator[ClaimUid]:
        """Yield the UIDs of the recorded claims."""
        for path in sorted(self._state_directory.glob("*.json")):
            if _UID.fullmatch(path.stem):
                yield ClaimUid(path.stem)

    def _read(self, uid: ClaimUid) -> _Record | str | None:
        """Return the record of a claim, None if there is none, or a sentence that says why it cannot be read."""
        path = self._state_directory / f"{uid}.json"
        try:
            return _Record.from_bytes(read_file(path, MAX_RECORD), uid)
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            cause = foreign_text(str(getattr(error, "strerror", None) or error))
            return (
                f"{path} cannot be read ({cause}), so the devices of claim {uid} are not known: unprepare that claim, "
                "or delete the file if no container uses the claim"
            )

    def _write_cdi(self, record: _Record) -> None:
        """Write the CDI file of a claim if its content has changed.

        A container runtime may read the file at any time.
        """
        file = self._cdi_file(record.claim.uid)
        if not record.cdi:
            file.delete()
            return
        try:
            is_written = file.read() == record.cdi.encode()
        except OSError:  # a link, a pipe or a long file is replaced; if that is impossible, `replace` raises an error
            is_written = False
        if not is_written:
            file.replace(record.cdi.encode())


def _edits_problem(edits: object) -> str:
    """Return why no container runtime would accept a CDI file with these edits, or an empty string."""
    what = "containerEdits"
    if not isinstance(edits, Mapping):
        return expected(what, "a mapping, such as a dict", edits)
    if not edits:
        return f"{what}: expected at least one of {', '.join(_EDITS)}, got none"
    for name, value in edits.items():
        if name not in _EDITS:
            return expected(what, " or ".join(_EDITS), name)
        kind = _EDITS[name]
        if not isinstance(value, kind):
            return expected(f"{what}.{name}", "a mapping" if kind is Mapping else "a list", value)
    try:
        json.dumps(edits)
    except (TypeError, ValueError) as error:
        return f"{what}: expected values that JSON can represent: {error}"
    problem = problem_of_edits(edits)
    return foreign_text(f"{what}: {problem}") if problem else ""


def _excludes(wanted: AllocatedDevice, held: AllocatedDevice) -> bool:
    """Return whether these two devices cannot be held by different claims at the same time."""
    if (wanted.pool, wanted.device) != (held.pool, held.device) or wanted.admin_access or held.admin_access:
        return False
    return not (wanted.share_id and held.share_id) or wanted.share_id == held.share_id
