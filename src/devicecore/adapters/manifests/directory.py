"""A directory of manifests, and what becomes of them while people edit it.

Law: the pods are those in force in the files that are there. As long as the directory cannot be read, nothing changes.

Every file counts but those that editors hide (`.x`) and back up (`x~`, `#x#`).
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from attrs import frozen

from devicecore.adapters.manifests.file import NOTHING, File, Seen, accept
from devicecore.adapters.manifests.state import StateFile, this_boot
from devicecore.adapters.manifests.values import ManifestError
from devicecore.domain.errors import DirectoryError
from devicecore.domain.model import ContainerKey, Pod, PodUid
from devicecore.ports.pods import PodSource


@frozen
class Changes:
    """What became of the manifests since the last look.

    `removed` are to be released before `added` are admitted: a pod that changed and kept its UID is in both. `problems`
    are those that were not there the last time, `mended` the files that had one.
    """

    added: tuple[Pod, ...] = ()
    removed: tuple[Pod, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    mended: tuple[str, ...] = ()


class ManifestPods(PodSource):
    """A `PodSource` that is a directory of manifests. Whoever owns it calls `poll`, say once a second.

    Args:
        directory: where the manifests are.
        state: the file for what is to survive a restart.
        boot_id: which boot of the machine this is; by default the kernel is asked.

    Raises:
        DirectoryError: `directory` is none.
    """

    def __init__(
        self, directory: str | os.PathLike[str], state: str | os.PathLike[str], *, boot_id: str | None = None
    ) -> None:
        self._directory = Path(directory)
        if not self._directory.is_dir():
            cause = "it is not a directory" if self._directory.exists() else "there is no such directory"
            raise DirectoryError(str(directory), cause)
        self._state = StateFile(Path(state), this_boot() if boot_id is None else boot_id)
        self._files = {name: File.restored(name, text) for name, text in self._state.files.items()}
        self._trouble: ManifestError | None = None  # with the directory as a whole
        self._known: tuple[Pod, ...] = ()
        self._read = self._ready = False

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods as of the last `poll`, by file and in the order in which it has them."""
        return self._known

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """What is wrong now, by file."""
        of_files = (self._files[name].problem for name in sorted(self._files))
        return tuple(problem for problem in (self._trouble, *of_files) if problem)

    def active_pods(self) -> tuple[PodUid, ...]:
        """The UIDs of the pods."""
        return tuple(pod.uid for pod in self._known)

    def sources_ready(self) -> bool:
        """Whether all manifests were read once and the pods in them have had their turn."""
        return self._ready

    def running_containers(self) -> tuple[ContainerKey, ...]:
        """The containers of pods that ran when this was made; init containers that end are taken to have ended."""
        return tuple(
            pod.key(container)
            for file in self._files.values()
            for pod in file.in_force.pods
            if pod.uid in self._state.ran
            for container in pod.in_start_order
            if not pod.is_reusable(container)
        )

    def mark_running(self, pod: PodUid) -> None:
        """Note that a pod's containers run, for the next start. Any thread may."""
        self._state.mark_running(pod)

    def mark_ready(self) -> None:
        """Say that the pods of the first complete `poll` have had their turn: a kubelet's sources are ready then.

        From now on, a pod that is not here is gone.
        """
        self._ready = self._read

    def poll(self) -> Changes:
        """Look at the directory: at files that are new, changed or gone."""
        problems = self.problems
        self._look()
        pods = tuple(chain.from_iterable(self._files[name].in_force.pods for name in sorted(self._files)))
        before, self._known = self._known, pods
        now = self.problems
        wrong = {problem.file for problem in now}
        changes = Changes(
            added=_without(pods, before),
            removed=_without(before, pods),
            problems=tuple(problem for problem in now if not any(problem is known for known in problems)),
            mended=tuple(problem.file for problem in problems if problem.file not in wrong),
        )
        if self._read:
            texts = {name: file.in_force.text for name, file in self._files.items() if file.in_force is not NOTHING}
            self._state.keep(texts, {pod.uid for pod in pods})
        return changes

    def _look(self) -> None:
        try:
            found = dict(_manifests_in(self._directory))
        except OSError as error:
            if self._trouble is None:
                self._trouble = ManifestError(str(self._directory), None, "", error.strerror or str(error))
            return
        self._trouble = None
        self._read = True
        self._files = {name: self._files.get(name, File(name)) for name in found}
        for name, seen in found.items():
            self._files[name].look(self._directory / name, seen)
        accept(self._files.values())


def _without(pods: Iterable[Pod], others: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods that are not among others; of these no two have the same UID."""
    known = {pod.uid: pod for pod in others}
    return tuple(pod for pod in pods if known.get(pod.uid) != pod)


def _manifests_in(directory: Path) -> Iterator[tuple[str, Seen]]:
    """The names that count, sorted, and what lies there."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.name.endswith(("~", "#")):
            continue
        with suppress(OSError):  # it has just gone, or is a link to nowhere
            found = path.stat()  # follows links: mounted config maps are made of them
            if stat.S_ISREG(found.st_mode):
                yield path.name, (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
