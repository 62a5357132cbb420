"""What survives a restart: the text of each manifest, the pods that were running, and the boot of the machine.

Law: A file that is broken or unreadable never prevents the start. In that case, nothing is known about earlier pods.

With manifests, there is no container runtime. This file answers the questions that a kubelet asks its container runtime
after a restart. Within one boot, as after a kubelet restart, the containers of pods that got their devices count as
running. After a reboot, no container runs (kubelet.md 4.5). The file is replaced without waiting for the disk, because
a power failure leads to a reboot, after which no pod runs.

The first line is a JSON object with `boot`, `files` and `running`. Each further line is the UID of one more running pod
as JSON: admitting 10,000 pods must not write all manifests 10,000 times.
"""

import json
import logging
import os
import stat
import threading
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from devicecore.domain.json_size import MAX_BYTES, OBJECTS, size_problem
from devicecore.domain.model import PodUid
from devicecore.domain.text import foreign_text
from devicecore.system.files import DurableFile, with_open

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MODE = 0o600  # the file contains copies of manifests, which may contain secrets

_log = logging.getLogger(__name__)


class PodsFile:
    """The file that survives a restart. Thread-safe.

    `files` contains the manifests, and `ran` the pods that were running when this object was created.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._file = DurableFile(path, _MODE, max_bytes=MAX_BYTES)
        self._boot = boot
        self._lock = threading.Lock()  # held while the file is written
        self._is_written = False
        self._problem = ""
        self.files: dict[str, str] = {}
        self._running: set[PodUid] = set()
        try:
            self._read()
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            reason = foreign_text(text or type(error).__name__)
            _log.warning("%s cannot be read, so no earlier pod is known: %s", path, reason)
        self.ran: frozenset[PodUid] = frozenset(self._running)

    def mark_running(self, pod: PodUid) -> None:
        """Remember that a pod is running."""
        with self._lock:
            if pod in self._running:
                return
            self._running.add(pod)
            if not self._is_written or not self._append(pod):
                self._write()

    def keep(self, files: dict[str, str], pods: AbstractSet[PodUid]) -> None:
        """Keep these manifests, and forget which pods are running except for those in `pods`."""
        with self._lock:
            if self._is_written and files == self.files and self._running <= pods:
                return
            self.files = files
            self._running &= pods
            self._write()

    def _read(self) -> None:
        blob = self._file.read()
        if blob is not None:
            self.files, self._running = state_in(blob, self._boot)

    def _write(self) -> None:
        content = {"boot": self._boot, "files": self.files, "running": sorted(self._running)}
        try:
            self._file.replace(json.dumps(content).encode() + b"\n")
        except OSError as error:
            self._is_written = False
            self._say(error)
        else:
            self._is_written, self._problem = True, ""

    def _append(self, pod: PodUid) -> bool:
        """Append a line for a pod. Return whether the whole line was written."""
        line = json.dumps(pod).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

        def write(descriptor: int) -> bool:
            return stat.S_ISREG(os.fstat(descriptor).st_mode) and os.write(descriptor, line) == len(line)

        try:
            return with_open(self._path, flags, write)
        except OSError:  # the file is gone or the disk is full: write the whole file again
            return False

    def _say(self, error: OSError) -> None:
        if str(error) != self._problem:  # a problem that persists would be logged every second
            _log.error("cannot record the running pods in %s: %s", self._path, error.strerror or error)
        self._problem = str(error)


def state_in(blob: bytes, boot: str) -> tuple[dict[str, str], set[PodUid]]:
    """Return the manifests in the content of a pods file, by name, and the pods that were running in this boot.

    Raises ValueError, TypeError, AttributeError or RecursionError if `blob` is not such content.
    """
    if problem := size_problem(blob, OBJECTS):
        raise ValueError(problem)
    text = blob.decode()
    before, end = json.JSONDecoder().raw_decode(text)
    if not isinstance(before, dict) or not {"boot", "files", "running"} <= before.keys():
        problem = "expected an object with boot, files and running"
        raise ValueError(problem)
    files = {str(name): str(manifest) for name, manifest in before["files"].items()}
    running = {PodUid(str(uid)) for uid in before["running"]}
    for line in text[end:].splitlines():
        with suppress(ValueError):  # the process may have ended in the middle of a line
            running.add(PodUid(str(json.loads(line))))
    return files, running if before["boot"] == boot else set()


def this_boot() -> str:
    """Return the id of this boot of the machine, empty if the kernel does not provide it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # a machine without a boot id counts as never rebooted
