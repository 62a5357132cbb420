"""The contract of `CheckpointStore`.

Law: whatever happens, the blob that was saved last is there, whole, or its store says that it is not.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from devicecore.domain.errors import StoreError
from devicecore.ports.store import CheckpointStore
from devicecore.testing.contracts.expecting import a_check, expect, expect_error

MakeStore = Callable[[], CheckpointStore]
"""Makes a store in which nothing was ever saved."""


@a_check
def loads_none_before_anything_was_saved(make: MakeStore) -> None:
    """`load` gives None if nothing was ever saved."""
    expect("load before any save", make().load(), None)


@a_check
def loads_the_blob_that_was_saved_last(make: MakeStore) -> None:
    """`load` gives the blob that was saved last, as often as it is asked."""
    store = make()
    for blob in (b"first", b"second", b"second", b"third"):
        store.save(blob)
        for _ in range(2):
            expect(f"load after save({blob!r})", store.load(), blob)


@a_check
def keeps_any_bytes_as_they_are(make: MakeStore) -> None:
    """The store neither encodes nor verifies: empty, binary and large blobs come back byte for byte."""
    store = make()
    for blob in (b"", b"\x00\xff\r\n\x1a", bytes(range(256)) * 4096, "ä".encode("latin-1")):
        store.save(blob)
        came = store.load()
        if came != blob:
            message = f"{_short(blob)} was saved, and {_short(came)} came back"
            raise AssertionError(message)


@a_check
def replaces_the_whole_blob(make: MakeStore) -> None:
    """Nothing of a longer blob is left behind a shorter one."""
    store = make()
    store.save(b"a long blob" * 100)
    store.save(b"short")
    expect("load after a shorter blob was saved", store.load(), b"short")


@a_check
def loads_none_once_the_blob_was_set_aside(make: MakeStore) -> None:
    """After `set_aside`, `load` gives None."""
    store = make()
    store.save(b"unusable")
    store.set_aside()
    expect("load after set_aside", store.load(), None)


@a_check
def tells_where_each_blob_was_set_aside(make: MakeStore) -> None:
    """`set_aside` tells where the blob went, and no second blob goes to the same place."""
    store = make()
    places: list[str | None] = []
    for blob in (b"one", b"one", b"two"):
        store.save(blob)
        places.append(store.set_aside())
    if None in places or "" in places or len(set(places)) != len(places):
        message = f"three blobs were set aside: expected the names of three places, and {places!r} came"
        raise AssertionError(message)


@a_check
def sets_nothing_aside_where_there_is_nothing(make: MakeStore) -> None:
    """`set_aside` gives None if there was no blob: never one, or none any more."""
    store = make()
    expect("set_aside before any save", store.set_aside(), None)
    store.save(b"unusable")
    store.set_aside()
    expect("set_aside a second time", store.set_aside(), None)


@a_check
def saves_again_after_setting_aside(make: MakeStore) -> None:
    """What was set aside is out of the way."""
    store = make()
    store.save(b"unusable")
    store.set_aside()
    store.save(b"usable")
    expect("load after set_aside and save", store.load(), b"usable")


def _short(blob: bytes | None) -> str:
    return "None" if blob is None else f"{len(blob)} bytes that begin with {blob[:20]!r}"


CHECKPOINT_STORE: tuple[Callable[[MakeStore], None], ...] = (
    loads_none_before_anything_was_saved,
    loads_the_blob_that_was_saved_last,
    keeps_any_bytes_as_they_are,
    replaces_the_whole_blob,
    loads_none_once_the_blob_was_set_aside,
    tells_where_each_blob_was_set_aside,
    sets_nothing_aside_where_there_is_nothing,
    saves_again_after_setting_aside,
)
"""For every store."""


class StorePlace(Protocol):
    """Where a store keeps its blob, outside of the process: a harness."""

    def open(self) -> CheckpointStore:
        """A store of this place, as another process would open it."""

    def kept(self, where: str) -> bytes:
        """The blob that `set_aside` said it had put there."""

    def unreadable(self) -> CheckpointStore:
        """A store of another place, where there is something that cannot be read."""

    def unwritable(self, blob: bytes) -> CheckpointStore:
        """A store of another place, where `blob` is, and can be neither replaced nor moved."""


MakePlace = Callable[[], StorePlace]
"""Makes a place where nothing was ever saved."""


@a_check
def keeps_the_blob_across_restarts(make: MakePlace) -> None:
    """Once `save` has returned, whoever comes next finds the blob."""
    place = make()
    for blob in (b"first", b"second"):
        place.open().save(blob)
        expect(f"load by the next process after save({blob!r})", place.open().load(), blob)


@a_check
def keeps_the_blob_it_sets_aside(make: MakePlace) -> None:
    """`set_aside` keeps the blob, whole, and each one that comes after it as well."""
    place = make()
    blobs = (b"one", b"\x00two", b"one")
    store = place.open()
    where = []
    for blob in blobs:
        store.save(blob)
        where.append(store.set_aside())
    expect("the blobs that were set aside", tuple(place.kept(str(path)) for path in where), blobs)
    expect("load by the next process after set_aside", place.open().load(), None)


@a_check
def has_the_old_or_the_new_blob_at_any_moment(make: MakePlace) -> None:
    """After a crash there is the old blob or the new one: nobody who looks while it saves sees anything else."""
    place = make()
    blobs = (b"a" * 70_000, b"b" * 200_000)
    writer = place.open()
    writer.save(blobs[0])
    failed: list[Exception] = []

    def write() -> None:
        try:
            for turn in range(30):
                writer.save(blobs[turn % 2])
        except Exception as error:  # noqa: BLE001 - it is raised below, where it is seen
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    seen: set[str] = set()
    while thread.is_alive():
        came = place.open().load()
        if came not in blobs:
            seen.add(_short(came))
    thread.join()
    if failed:
        raise failed[0]
    expect("what was seen while it saved, beside the old and the new blob", seen, set())


@a_check
def says_so_when_the_blob_cannot_be_read(make: MakePlace) -> None:
    """`load` raises `StoreError` if there is something and it cannot be read; None would be a lie."""
    expect_error("load of what cannot be read", StoreError, make().unreadable().load)


@a_check
def keeps_the_old_blob_when_it_cannot_save(make: MakePlace) -> None:
    """When `save` raises `StoreError`, the old blob is still there, whole."""
    store = make().unwritable(b"old")
    expect_error("save where nothing can be written", StoreError, lambda: store.save(b"the new one"))
    expect("load after a save that failed", store.load(), b"old")


@a_check
def keeps_the_blob_when_it_cannot_set_it_aside(make: MakePlace) -> None:
    """When `set_aside` raises `StoreError`, the blob is still there."""
    store = make().unwritable(b"old")
    expect_error("set_aside where nothing can be moved", StoreError, store.set_aside)
    expect("load after a set_aside that failed", store.load(), b"old")


DURABLE_CHECKPOINT_STORE: tuple[Callable[[MakePlace], None], ...] = (
    keeps_the_blob_across_restarts,
    keeps_the_blob_it_sets_aside,
    has_the_old_or_the_new_blob_at_any_moment,
    says_so_when_the_blob_cannot_be_read,
    keeps_the_old_blob_when_it_cannot_save,
    keeps_the_blob_when_it_cannot_set_it_aside,
)
"""Besides, for stores that keep their blob outside of the process."""
