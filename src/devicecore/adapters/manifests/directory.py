"""A directory of manifests that may be edited at any time.

Laws: `pods` contains exactly the pods in the files' contents that are in force. A file that exists but cannot be read
keeps its pods. If the directory cannot be read, nothing changes. Every file counts except hidden files (`.x`) and the
backups of editors (`x~`, `#x#`).
"""

import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.adapters.manifests.file import NOTHING, File, Stamp, accept
from devicecore.adapters.manifests.pods import ManifestError, pod_objects
from devicecore.adapters.manifests.pods_file import PodsFile, this_boot
from devicecore.domain.checks import expected
from devicecore.domain.errors import DirectoryError
from devicecore.domain.model import ContainerKey, Pod, PodUid
from devicecore.ports.pods import PodSource
from devicecore.system.arguments import checks_arguments

if TYPE_CHECKING:
    from devicecore.domain.dra.model import ClaimKey, ResourceClaim

MAX_BYTES_AT_ONCE = 128 * 1024
"""The number of bytes of manifests that one poll reads, in addition to one manifest: at most about 0.2 s of work."""

_OPENING = 64  # bytes charged for opening a file

_IS_DIRECTORY = "expected a file, got a directory"


@frozen
class Changes:
    """How the manifests have changed since the last poll.

    Attributes:
        added: pods to admit, after those in `removed` have been released. A pod that has changed but kept its UID is in
            both `added` and `removed`.
        removed: pods to release.
        problems: the new problems.
        mended: the files that had a problem and no longer have one.
        is_complete: whether all manifests have been read. If not, the next poll reads more of them.
    """

    added: tuple[Pod, ...] = ()
    removed: tuple[Pod, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    mended: tuple[str, ...] = ()
    is_complete: bool = True


class ManifestPods(PodSource):
    """A `PodSource` that reads a directory of manifests.

    The owner of this object has to call `poll` regularly, for example every second.

    Args:
        directory: the directory of the manifests.
        state: the file for what must survive a restart. The file has mode 0600, because it contains copies of the
            manifests.
        boot_id: the identity of this boot of the machine; by default the kernel's.

    Raises:
        DirectoryError: `directory` is not a directory.
    """

    @checks_arguments()
    def __init__(
        self, directory: str | os.PathLike[str], state: str | os.PathLike[str], *, boot_id: str | None = None
    ) -> None:
        self._directory = Path(directory)
        if not self._directory.is_dir():
            cause = "it is not a directory" if self._directory.exists() else "there is no such directory"
            raise DirectoryError(str(directory), cause)
        self._state = PodsFile(Path(state), this_boot() if boot_id is None else boot_id)
        self._files = {name: File.restored(name, text) for name, text in self._state.files.items()}
        self._directory_problem: ManifestError | None = None
        self._problems: tuple[ManifestError, ...] = ()
        self._pods: tuple[Pod, ...] = ()
        self._uids: frozenset[PodUid] = frozenset()
        self._last_read = ""  # the file whose turn was last; see `_choose`
        self._claims: Mapping[ClaimKey, ResourceClaim] = {}
        self._retry_accept = True
        self._is_kept = True  # whether the state file contains the manifests in force
        self._is_complete = self._was_complete = self._ready = False

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods as of the last `poll`, by file, in the order in which each file lists them."""
        return self._pods

    @property
    def claims(self) -> "Mapping[ClaimKey, ResourceClaim]":
        """The ResourceClaims as of the last `poll`. Any thread may read this.

        A claim without `status.reservedFor` is reserved for the pods that name it.
        """
        return self._claims

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """The problems as of the last `poll`, by file."""
        return self._problems

    def active_pods(self) -> frozenset[PodUid]:
        """Return the UIDs of the pods."""
        return self._uids

    def object_of(self, pod: PodUid) -> Mapping[str, object]:
        """Return a pod with all fields of its manifest, or an empty object if no manifest contains it."""
        for file in tuple(self._files.values()):
            manifest = file.in_force
            for number, one in enumerate(manifest.pods):
                if one.uid == pod:
                    found = pod_objects(manifest.text, file.name)[number]
                    return found if isinstance(found, dict) else {}
        return {}

    def sources_ready(self) -> bool:
        """Return whether all manifests have been read once and `mark_ready` has been called since."""
        return self._ready

    def running_containers(self) -> tuple[ContainerKey, ...]:
        """Return the containers of the pods that were running when this object was created.

        Init containers that run to completion count as ended.
        """
        return tuple(
            pod.key(container)
            for file in self._files.values()
            for pod in file.in_force.pods
            if pod.uid in self._state.ran
            for container in pod.in_start_order
            if not pod.is_reusable(container)
        )

    def mark_running(self, pod: PodUid) -> None:
        """Remember for the next start that a pod's containers are running. Any thread may call this.

        Raises TypeError if `pod` is not a string but, for example, a Pod.
        """
        if not isinstance(pod, str):
            raise TypeError(expected("ManifestPods.mark_running", "the UID of a pod, such as pod.uid", pod))
        self._state.mark_running(pod)

    def mark_ready(self) -> None:
        """Record that the pods of the first complete `poll` were admitted or refused.

        From now on, a missing pod counts as gone.
        """
        self._ready = self._was_complete

    def poll(self) -> Changes:
        """Scan the directory, and read new and changed files: at most 128 KiB, plus one file."""
        changed = self._look()
        self._is_kept &= not changed
        if self._is_complete and not self._is_kept:  # once, not after each part: the state file contains all manifests
            self._keep()
        if not changed:
            return Changes(is_complete=self._is_complete)
        before = self._pods
        self._take_in_force()
        problems = self._problems
        of_files = (file.problem for file in self._files.values())
        self._problems = tuple(problem for problem in (self._directory_problem, *of_files) if problem)
        known, wrong = set(map(id, problems)), {problem.file for problem in self._problems}
        return Changes(
            added=_without(self._pods, before),
            removed=_without(before, self._pods),
            problems=tuple(problem for problem in self._problems if id(problem) not in known),
            mended=tuple(problem.file for problem in problems if problem.file not in wrong),
            is_complete=self._is_complete,
        )

    def _keep(self) -> None:
        texts = {name: file.in_force.text for name, file in self._files.items() if file.in_force is not NOTHING}
        self._state.keep(texts, {pod.uid for file in self._files.values() for pod in file.in_force.pods})
        self._is_kept = True

    def _take_in_force(self) -> None:
        manifests = [file.in_force for file in self._files.values()]
        pods = tuple(chain.from_iterable(manifest.pods for manifest in manifests))
        if pods != self._pods:
            self._pods = pods
            self._uids = frozenset(pod.uid for pod in pods)  # computed once, because every admission needs them
        claims = [claim for manifest in manifests for claim in manifest.claims]
        if claims:
            from devicecore.adapters.manifests.claims import claims_in_force  # noqa: PLC0415  # only claims load it

            self._claims = claims_in_force(claims, self._pods)
        else:
            self._claims = {}

    def _look(self) -> bool:
        """Return whether anything may have changed."""
        try:
            entries = _entries(self._directory)
        except OSError as error:
            is_new = self._directory_problem is None
            if is_new:
                self._directory_problem = ManifestError(str(self._directory), None, "", error.strerror or str(error))
            return is_new
        changed = self._directory_problem is not None or not self._was_complete
        self._directory_problem = None
        found = {name: stamp for name, entry in entries if (stamp := _look_at(entry)) is not None}
        for name in [name for name, stamp in found.items() if stamp is _IS_DIRECTORY and name not in self._files]:
            del found[name]
        names = sorted(found)
        if list(self._files) != names:
            self._files = {name: self._files.get(name) or File(name) for name in names}
            changed = True
        changed |= self._read({name: found[name] for name in names})
        self._was_complete |= self._is_complete
        if changed or self._retry_accept:
            self._retry_accept = accept(self._files.values())
            changed = True
        return changed

    def _read(self, found: dict[str, Stamp | str]) -> bool:
        """Read the selected files that have changed or may have changed. Return whether anything may have changed."""
        changed = False
        new: dict[str, Stamp] = {}
        uncertain: dict[str, Stamp] = {}
        for name, stamp in found.items():
            file = self._files[name]
            if isinstance(stamp, str):
                changed |= file.cannot_be_read(stamp)
            elif file.is_new(stamp):
                new[name] = stamp
            elif file.is_uncertain():
                uncertain[name] = stamp
        read = self._choose(new, uncertain)
        for name, stamp in read.items():
            changed |= self._files[name].read(self._directory / name, stamp)
        self._is_complete = all(name in read for name in new)
        return changed

    def _choose(self, new: dict[str, Stamp], uncertain: dict[str, Stamp]) -> dict[str, Stamp]:
        """Return the files to read now: the smallest ones, so that they need not wait, and one of the others.

        The other files take turns.
        """
        stamps = new | uncertain
        chosen: dict[str, Stamp] = {}
        size = 0
        for name in (*sorted(new, key=lambda name: stamps[name][1]), *uncertain):
            size += _OPENING + stamps[name][1]
            if size > MAX_BYTES_AT_ONCE:
                break
            chosen[name] = stamps[name]
        left = sorted(stamps.keys() - chosen.keys())
        if left:
            self._last_read = name = left[bisect_right(left, self._last_read) % len(left)]
            chosen[name] = stamps[name]
        return chosen


def _without(pods: Iterable[Pod], others: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods that are not among `others`, or that differ from the pod with the same UID in `others`."""
    known = {pod.uid: pod for pod in others}
    return tuple(pod for pod in pods if known.get(pod.uid) != pod)


def _entries(directory: Path) -> list[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as entries:
        return [
            (entry.name, entry)
            for entry in entries
            if not entry.name.startswith(".") and not entry.name.endswith(("~", "#"))
        ]


def _look_at(entry: os.DirEntry[str]) -> Stamp | str | None:
    """Return the stamp of a file, following links, or why the file cannot be read. If the file is gone, return None."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return "it is a link to a file that does not exist" if entry.is_symlink() else None
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISDIR(found.st_mode):
        return _IS_DIRECTORY
    if not stat.S_ISREG(found.st_mode):
        return "expected a file, got a pipe, a socket or a device"
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
