"""A DRA driver with devices that do not exist, for tests.

Laws: preparing a claim again gives the same devices and the same file. The devices are those of the claim's allocation
and no others. A claim that is unknown is released already.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from attrs import frozen

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.errors import DraError
from devicecore.domain.dra.model import AllocatedDevice, ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.text import foreign_text
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_driver import DraDriver

CDI_DIRECTORY = "/var/run/cdi"
"""Where container runtimes look for CDI files that do not survive a reboot."""

Result = TypeVar("Result")

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@frozen
class NotPreparedError(DraError):
    """The driver cannot prepare a claim."""

    claim: str
    problem: str

    def __str__(self) -> str:
        return f"ResourceClaim {foreign_text(self.claim)}: {self.problem}"


class SimulatedDriver(DraDriver):
    """A `DraDriver` that gives containers an environment variable for each device, by CDI.

    Args:
        name: the driver's name.
        pool: the pool of its devices, usually the node's name.
        devices: the names of its devices.
        claims: where ResourceClaims are read: a request of a kubelet does not contain the allocation.
        cdi_directory: where CDI files are written. It is made if it is missing.
    """

    def __init__(
        self,
        name: str,
        pool: str,
        devices: Iterable[str],
        claims: ClaimSource,
        cdi_directory: str | os.PathLike[str] = CDI_DIRECTORY,
    ) -> None:
        self.name: DriverName = DriverName(name)
        self.pool: str = pool
        self.devices: tuple[str, ...] = tuple(devices)
        self._claims = claims
        self._directory = Path(cdi_directory)
        self._lock = threading.Lock()  # held while a file is written or deleted

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Write a CDI file for each claim, and say which devices it has."""

        def prepared(claim: ClaimRef) -> PrepareResult:
            rows = self._allocated(claim)
            self._write(claim.uid, rows)
            return PrepareResult(tuple(self._device(claim.uid, row) for row in rows))

        return {claim.uid: self._answer(claim, prepared, PrepareResult) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Delete the CDI file of each claim. A claim without one is released already."""

        def released(claim: ClaimRef) -> UnprepareResult:
            with self._lock, suppress(FileNotFoundError):
                self._file(claim.uid).unlink()
            return UnprepareResult()

        return {claim.uid: self._answer(claim, released, UnprepareResult) for claim in claims}

    def _answer(self, claim: ClaimRef, act: Callable[[ClaimRef], Result], result: Callable[..., Result]) -> Result:
        try:
            if not _UID.fullmatch(claim.uid):  # it becomes the name of a file
                raise NotPreparedError(claim.key.name, f"expected a UID, got {foreign_text(claim.uid)!r}")
            return act(claim)
        except (DraError, OSError) as error:
            return result(error=str(error))

    def _allocated(self, claim: ClaimRef) -> list[AllocatedDevice]:
        """The claim's devices of this driver, in the order of the allocation."""
        found = self._claims.get(claim.key)
        if found.uid != claim.uid:
            raise NotPreparedError(claim.key.name, f"expected UID {claim.uid}, got {foreign_text(found.uid)}")
        if found.allocation is None:
            raise NotPreparedError(claim.key.name, "not allocated")
        rows = [row for row in found.allocation if row.driver == self.name]
        for row in rows:
            if row.pool != self.pool or row.device not in self.devices:
                there = foreign_text(f"{row.pool}/{row.device}")
                raise NotPreparedError(claim.key.name, f"{self.name} has no device {there}")
        return rows

    def _device(self, uid: ClaimUid, row: AllocatedDevice) -> PreparedDevice:
        request = row.request.partition("/")[0]
        return PreparedDevice(row.pool, row.device, row.share_id, (request,), (f"{self._kind}={uid}-{row.device}",))

    @property
    def _kind(self) -> str:
        return f"{self.name}/device"

    def _file(self, uid: ClaimUid) -> Path:
        return self._directory / f"{self.name}-{uid}.json"

    def _write(self, uid: ClaimUid, rows: Sequence[AllocatedDevice]) -> None:
        """Replace the claim's file as a whole, because the runtime may read it at any time."""
        devices = [
            {"name": f"{uid}-{device}", "containerEdits": {"env": [f"{_variable(device)}={self.pool}/{device}"]}}
            for device in dict.fromkeys(row.device for row in rows)
        ]
        text = json.dumps({"cdiVersion": "0.5.0", "kind": self._kind, "devices": devices}, indent=2)
        path = self._file(uid)
        unfinished = path.with_suffix(".new")
        with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)


def _variable(device: str) -> str:
    return "SIMULATED_DEVICE_" + re.sub(r"[^A-Za-z0-9]", "_", device).upper()
