"""The contract of `CheckpointStore`.

Law: `load` returns the complete blob that was saved last, or raises an error.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from devicecore.domain.errors import StoreError
from devicecore.ports.store import CheckpointStore
from devicecore.testing.contracts.expect import Suite, expect, expect_error

MakeStore = Callable[[], CheckpointStore]
"""Creates a store in which nothing has been saved yet."""

CHECKPOINT_STORE: Suite[MakeStore] = Suite()
"""The checks for every store."""


@CHECKPOINT_STORE.check
def loads_none_before_anything_was_saved(make: MakeStore) -> None:
    """`load` returns None if nothing was saved."""
    expect("load before any save", make().load(), None)


@CHECKPOINT_STORE.check
def loads_the_blob_that_was_saved_last(make: MakeStore) -> None:
    """`load` returns the blob that was saved last, on every call."""
    store = make()
    for blob in (b"first", b"second", b"second", b"third"):
        store.save(blob)
        for _ in range(2):
            expect(f"load after save({blob!r})", store.load(), blob)


@CHECKPOINT_STORE.check
def keeps_any_bytes_as_they_are(make: MakeStore) -> None:
    """The store neither encodes nor verifies: it returns empty, binary and large blobs byte for byte."""
    store = make()
    for blob in (b"", b"\x00\xff\r\n\x1a", bytes(range(256)) * 4096, "ä".encode("latin-1")):
        store.save(blob)
        actual = store.load()
        if actual != blob:
            message = f"load: expected the saved {_short(blob)}, got {_short(actual)}"
            raise AssertionError(message)


@CHECKPOINT_STORE.check
def replaces_the_whole_blob(make: MakeStore) -> None:
    """A shorter blob replaces a longer one completely."""
    store = make()
    store.save(b"a long blob" * 100)
    store.save(b"short")
    expect("load after a shorter blob was saved", store.load(), b"short")


@CHECKPOINT_STORE.check
def loads_none_once_the_blob_was_set_aside(make: MakeStore) -> None:
    """After `set_aside`, `load` returns None."""
    store = make()
    store.save(b"unusable")
    store.set_aside()
    expect("load after set_aside", store.load(), None)


@CHECKPOINT_STORE.check
def tells_where_each_blob_was_set_aside(make: MakeStore) -> None:
    """`set_aside` returns the place where the blob is kept, and every blob gets a different place."""
    store = make()
    places: list[str | None] = []
    for blob in (b"one", b"one", b"two"):
        store.save(blob)
        places.append(store.set_aside())
    if None in places or "" in places or len(set(places)) != len(places):
        message = f"set_aside of three blobs: expected the names of three places, got {places!r}"
        raise AssertionError(message)


@CHECKPOINT_STORE.check
def sets_nothing_aside_where_there_is_nothing(make: MakeStore) -> None:
    """`set_aside` returns None if there is no blob."""
    store = make()
    expect("set_aside before any save", store.set_aside(), None)
    store.save(b"unusable")
    store.set_aside()
    expect("set_aside a second time", store.set_aside(), None)


@CHECKPOINT_STORE.check
def saves_again_after_setting_aside(make: MakeStore) -> None:
    """After `set_aside`, the next blob can be saved and loaded."""
    store = make()
    store.save(b"unusable")
    store.set_aside()
    store.save(b"usable")
    expect("load after set_aside and save", store.load(), b"usable")


def _short(blob: bytes | None) -> str:
    return "None" if blob is None else f"{len(blob)} bytes that start with {blob[:20]!r}"


class StorePlace(Protocol):
    """The place outside the process where a store keeps its blob."""

    def open(self) -> CheckpointStore:
        """Return a store for this location, as a different process would open it."""

    def kept(self, where: str) -> bytes:
        """Return the blob at a place that `set_aside` has returned."""

    def unreadable(self) -> CheckpointStore:
        """Return a store for a different location, where a blob exists but cannot be read."""

    def unwritable(self, blob: bytes) -> CheckpointStore:
        """Return a store for a different location, where `blob` can be neither replaced nor moved."""


MakePlace = Callable[[], StorePlace]
"""Creates a place where nothing was saved yet."""

DURABLE_CHECKPOINT_STORE: Suite[MakePlace] = Suite()
"""Additional checks for stores that keep their blob outside the process."""


@DURABLE_CHECKPOINT_STORE.check
def keeps_the_blob_across_restarts(make: MakePlace) -> None:
    """After `save` has returned, the next process loads the blob."""
    place = make()
    for blob in (b"first", b"second"):
        place.open().save(blob)
        expect(f"load by the next process after save({blob!r})", place.open().load(), blob)


@DURABLE_CHECKPOINT_STORE.check
def keeps_the_blob_it_sets_aside(make: MakePlace) -> None:
    """`set_aside` keeps every blob completely."""
    place = make()
    blobs = (b"one", b"\x00two", b"one")
    store = place.open()
    where = []
    for blob in blobs:
        store.save(blob)
        where.append(store.set_aside())
    expect("the blobs that were set aside", tuple(place.kept(str(path)) for path in where), blobs)
    expect("load by the next process after set_aside", place.open().load(), None)


@DURABLE_CHECKPOINT_STORE.check
def has_the_old_or_the_new_blob_at_any_moment(make: MakePlace) -> None:
    """A reader during a save sees the old blob or the new one, so one of these two exists after a crash."""
    place = make()
    blobs = (b"a" * 70_000, b"b" * 200_000)
    writer = place.open()
    writer.save(blobs[0])
    failed: list[Exception] = []

    def write() -> None:
        try:
            for turn in range(30):
                writer.save(blobs[turn % 2])
        except Exception as error:  # noqa: BLE001 - it is raised below, in the calling thread
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    seen: set[str] = set()
    while thread.is_alive():
        actual = place.open().load()
        if actual not in blobs:
            seen.add(_short(actual))
        thread.join(0.001)  # a save may wait for the disk for seconds, during which endless reading would use up a CPU
    if failed:
        raise failed[0]
    expect("what a reader saw during a save, other than the old and the new blob", seen, set())


@DURABLE_CHECKPOINT_STORE.check
def says_so_when_the_blob_cannot_be_read(make: MakePlace) -> None:
    """If a blob exists and cannot be read, `load` raises `StoreError` instead of returning None."""
    expect_error("load of an unreadable blob", StoreError, make().unreadable().load)


@DURABLE_CHECKPOINT_STORE.check
def keeps_the_old_blob_when_it_cannot_save(make: MakePlace) -> None:
    """If `save` raises `StoreError`, the old blob is still there and complete."""
    store = make().unwritable(b"old")
    expect_error("save where nothing can be written", StoreError, lambda: store.save(b"the new one"))
    expect("load after a save that failed", store.load(), b"old")


@DURABLE_CHECKPOINT_STORE.check
def keeps_the_blob_when_it_cannot_set_it_aside(make: MakePlace) -> None:
    """If `set_aside` raises `StoreError`, the blob is still there."""
    store = make().unwritable(b"old")
    expect_error("set_aside where nothing can be moved", StoreError, store.set_aside)
    expect("load after a set_aside that failed", store.load(), b"old")
