"""What survives a restart: what each manifest said last, which pods ran, and in which boot of the machine.

Law: nothing that happens to the file keeps anybody from starting. At worst nothing is known of what was before.

There is no container runtime behind this, so what a kubelet would ask one after a restart is kept here. In the same
boot, the containers of pods that were given their devices count as running (a kubelet restart); in another one, none do
(a reboot; kubelet.md 4.5). The file is replaced by renaming and not synced to the disk: after a power failure another
boot has begun, and which pods ran in the last one is void.
"""

import json
import logging
import threading
from collections.abc import Set as AbstractSet
from pathlib import Path

from devicecore.domain.model import PodUid

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class StateFile:
    """What the file said when this was made, as `files` and `ran`; and the way to change it, for any thread."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._lock = threading.Lock()
        self._written: dict[str, object] = {}
        self._problem = ""
        self.files: dict[str, str] = {}
        self._running: set[PodUid] = set()
        try:
            before = json.loads(path.read_bytes())
            files = {str(name): str(text) for name, text in before["files"].items()}
            running = {PodUid(str(uid)) for uid in before["running"]}
            self.files, self._running = files, running if before["boot"] == boot else set()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("nothing is known of pods that ran before: %s cannot be read: %s", path, error)
        self.ran = frozenset(self._running)

    def mark_running(self, pod: PodUid) -> None:
        """Remember that a pod runs."""
        with self._lock:
            self._running.add(pod)
            self._write()

    def keep(self, files: dict[str, str], pods: AbstractSet[PodUid]) -> None:
        """Remember these texts, and of the pods that run only these."""
        with self._lock:
            self.files = files
            self._running &= pods
            self._write()

    def _write(self) -> None:
        wanted: dict[str, object] = {"boot": self._boot, "files": self.files, "running": sorted(self._running)}
        if wanted == self._written:
            return
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            new.write_text(json.dumps(wanted, indent=1) + "\n")
            new.replace(self._path)
        except OSError as error:
            if str(error) != self._problem:  # once a second is too often
                _log.error("cannot note which pods run: %s", error)
            self._problem = str(error)
        else:
            self._written, self._problem = wanted, ""


def this_boot() -> str:
    """Which boot of this machine it is, if the kernel says so."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # a machine that does not say is never rebooted
