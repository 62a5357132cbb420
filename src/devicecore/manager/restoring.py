"""Restores the state from the checkpoint when a manager starts.

Law: a checkpoint that cannot be used is set aside, never overwritten.
"""

import logging

from attrs import evolve, field, frozen

from devicecore.domain.checkpoint import CheckpointData, ExtraFields, decode, restore
from devicecore.domain.errors import CheckpointError, DeviceCoreError, StoreError, UnreadableReceiptError
from devicecore.domain.model import Receipt
from devicecore.domain.node_state import NodeState
from devicecore.manager.plugins import Plugins
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState, drop_frames

_log = logging.getLogger(__name__)


@frozen
class Restored:
    """What a manager found in its store when it started.

    `format` is the format of the checkpoint (0, 1 or 2), or None if no usable checkpoint was found. If there was an
    unusable checkpoint, `problem` says why it was unusable, and `set_aside` says where the file is kept. `skipped`
    contains the entries with an unreadable receipt. `extra` contains unknown fields of the checkpoint, which each save
    writes back.
    """

    format: int | None = None
    allocations: int = 0
    skipped: tuple[str, ...] = ()
    problem: DeviceCoreError | None = None
    set_aside: str | None = None
    extra: ExtraFields = field(factory=ExtraFields)


def restored(run: Run, saver: SavedState[NodeState], plugins: Plugins, now: float) -> tuple[NodeState, Restored]:
    """Return the restored state, and a report on what was found. `now` is the time in monotonic seconds.

    Raises StoreError if there is an unusable checkpoint that cannot be set aside, and ManagerStoppedError after a stop.
    """
    try:
        blob = saver.load()
        decoded = None if blob is None else decode(blob)
        data = decoded.verified() if decoded else CheckpointData(None, {})
    except (StoreError, CheckpointError) as error:
        found = Restored(problem=error, set_aside=_set_aside(run, saver, error))
        _log.error("%s; it is kept as %s, and nothing is restored", error, found.set_aside)
        drop_frames(error)
        return NodeState(), found
    skipped = []
    entries = []
    for entry in data.entries or ():
        try:
            plugins.read(Receipt(entry.alloc_resp or b""))
        except UnreadableReceiptError as error:
            holder = f"{entry.resource_name} of container {entry.container_name} of pod {entry.pod_uid}"
            _log.error("%s is not restored: %s", holder, error)
            skipped.append(f"{holder}: {error}")
        else:
            entries.append(entry)
    state = restore(evolve(data, entries=tuple(entries)), now)
    format_ = decoded.format if decoded else None
    return state, Restored(format_, len(entries), tuple(skipped), extra=data.extra)


def _set_aside(run: Run, saver: SavedState[NodeState], problem: DeviceCoreError) -> str | None:
    try:
        return saver.set_aside(run)
    except StoreError as error:
        raise evolve(error, cause=f"{error.cause}. The file was unusable: {problem}") from problem
