"""Every checkpoint store meets the contract, FileStore agrees with MemoryStore, and broken stores are caught."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.prometheus import PrometheusMetrics
from devicecore.domain.errors import StoreError
from devicecore.ports.store import CheckpointStore
from devicecore.testing.contracts import CHECKPOINT_STORE, DURABLE_CHECKPOINT_STORE, MakePlace, MakeStore, StorePlace
from devicecore.testing.contracts import store as contract

Directories = Callable[[], Path]


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Return a function that creates an empty directory on each call."""

    def make() -> Path:
        return Path(tempfile.mkdtemp(dir=tmp_path))

    return make


class FilePlace:
    """A directory with a checkpoint file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> CheckpointStore:
        return FileStore.in_directory(self._directory)

    def kept(self, where: str) -> bytes:
        return Path(where).read_bytes()

    def unreadable(self) -> CheckpointStore:
        """Return a store with a directory in place of the file: not even root can read a directory as a file."""
        path = self._directory / "unreadable"
        path.mkdir()
        return FileStore(path)

    def unwritable(self, blob: bytes) -> CheckpointStore:
        """Return a store whose file's name is so long that not even root can create a temporary file next to it."""
        path = self._directory / ("x" * 250)
        path.write_bytes(blob)
        return FileStore(path)


@pytest.mark.parametrize("check", CHECKPOINT_STORE)
def test_a_measured_store_keeps_the_contract(check: Callable[[MakeStore], None]) -> None:
    check(lambda: PrometheusMetrics().measured(MemoryStore(), "file"))


@pytest.mark.parametrize("check", CHECKPOINT_STORE)
def test_a_store_in_memory_keeps_the_contract(check: Callable[[MakeStore], None]) -> None:
    """MemoryStore meets every sentence of the port."""
    check(MemoryStore)


@pytest.mark.parametrize("check", CHECKPOINT_STORE)
def test_a_file_keeps_the_contract(check: Callable[[MakeStore], None], directories: Directories) -> None:
    """FileStore meets every sentence of the port."""
    check(lambda: FileStore.in_directory(directories()))


@pytest.mark.parametrize("check", DURABLE_CHECKPOINT_STORE)
def test_a_file_is_durable(check: Callable[[MakePlace], None], directories: Directories) -> None:
    """FileStore meets the rules about crashes, restarts and failing disks."""
    check(lambda: FilePlace(directories()))


# --- memory and file in lockstep -------------------------------------------------------------------------------------


class StoresAgree(RuleBasedStateMachine):
    """A MemoryStore and a FileStore give the same answers in every sequence of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="dc"))
        self.memory = MemoryStore()

    @initialize()
    def open(self) -> None:
        self.file = FileStore.in_directory(self.directory)

    @rule(blob=st.binary(max_size=100) | st.integers(0, 3).map(lambda size: b"x" * (size * 50_000)))
    def save(self, blob: bytes) -> None:
        """Both stores save the blob."""
        self.memory.save(blob)
        self.file.save(blob)

    @rule()
    def set_aside(self) -> None:
        """Either both stores have something to set aside, or neither has."""
        places = self.memory.set_aside(), self.file.set_aside()
        assert (places[0] is None) == (places[1] is None)
        if places[1] is not None:
            assert Path(places[1]).read_bytes() == self.memory.aside[-1]

    @rule()
    def restart(self) -> None:
        """A new FileStore finds the same content, just as a MemoryStore keeps its content."""
        self.open()

    @invariant()
    def they_load_the_same(self) -> None:
        """Both stores load the same blob at any time."""
        assert self.memory.load() == self.file.load()

    def teardown(self) -> None:
        kept = sorted(path.read_bytes() for path in self.directory.glob("*.corrupt-*"))
        shutil.rmtree(self.directory)
        assert kept == sorted(self.memory.aside)


TestStoresAgree = StoresAgree.TestCase
TestStoresAgree.settings = settings(max_examples=25, stateful_step_count=15)


# --- the contract can fail -------------------------------------------------------------------------------------------


class LoadsEmptyBytes(MemoryStore):
    def load(self) -> bytes | None:
        return self.blob or b""


class ForgetsWhatItLoaded(MemoryStore):
    def load(self) -> bytes | None:
        blob, self.blob = self.blob, None
        return blob


class SavesText(MemoryStore):
    def save(self, blob: bytes) -> None:
        self.blob = blob.decode(errors="replace").encode()


class WritesOverTheOld(MemoryStore):
    def save(self, blob: bytes) -> None:
        self.blob = blob + (self.blob or b"")[len(blob) :]


class CopiesAside(MemoryStore):
    def set_aside(self) -> str | None:
        return None if self.blob is None else "a copy"


class HasOnePlaceAside(MemoryStore):
    def set_aside(self) -> str | None:
        return super().set_aside() and "aside"


class SetsNothingAside(MemoryStore):
    def set_aside(self) -> str | None:
        return super().set_aside() or "nowhere"


@define
class StaysEmpty(MemoryStore):
    closed: bool = False

    def set_aside(self) -> str | None:
        self.closed = True
        return super().set_aside()

    def save(self, blob: bytes) -> None:
        self.blob = None if self.closed else blob


BROKEN_STORES: dict[Callable[[MakeStore], None], MakeStore] = {
    contract.loads_none_before_anything_was_saved: LoadsEmptyBytes,
    contract.loads_the_blob_that_was_saved_last: ForgetsWhatItLoaded,
    contract.keeps_any_bytes_as_they_are: SavesText,
    contract.replaces_the_whole_blob: WritesOverTheOld,
    contract.loads_none_once_the_blob_was_set_aside: CopiesAside,
    contract.tells_where_each_blob_was_set_aside: HasOnePlaceAside,
    contract.sets_nothing_aside_where_there_is_nothing: SetsNothingAside,
    contract.saves_again_after_setting_aside: StaysEmpty,
}


@pytest.mark.parametrize("check", CHECKPOINT_STORE)
def test_each_check_catches_a_store_that_breaks_its_sentence(check: Callable[[MakeStore], None]) -> None:
    """A check that never fails tests nothing."""
    with pytest.raises(AssertionError):
        check(BROKEN_STORES[check])


class BrokenStore(FileStore):
    """Saves without any of FileStore's precautions."""

    def save(self, blob: bytes) -> None:
        try:
            with self.path.open("wb") as file:
                for start in range(0, len(blob), 1000):
                    file.write(blob[start : start + 1000])
                    file.flush()
        except OSError as error:
            raise StoreError(self.path.name, "write", str(error)) from error

    def load(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def set_aside(self) -> str | None:
        self.path.unlink()
        return str(self.path.with_name("aside"))


class LosesWhatItCannotKeep(BrokenStore):
    """Reports a failure after destroying the old content."""

    def save(self, blob: bytes) -> None:
        self.path.write_bytes(blob[:3])
        raise StoreError(self.path.name, "write", "the disk is full")

    def set_aside(self) -> str | None:
        self.path.unlink()
        raise StoreError(self.path.name, "set aside", "the disk is full")


class BrokenPlace(FilePlace):
    """A place with broken stores."""

    def open(self) -> CheckpointStore:
        return BrokenStore(self._directory / "checkpoint")

    def kept(self, where: str) -> bytes:
        return Path(where).read_bytes() if Path(where).exists() else b""

    def unreadable(self) -> CheckpointStore:
        return BrokenStore(self._directory)

    def unwritable(self, blob: bytes) -> CheckpointStore:
        path = self._directory / "unwritable"
        path.write_bytes(blob)
        return LosesWhatItCannotKeep(path)


class ForgetfulPlace(BrokenPlace):
    """A place where each store that is opened is new and empty."""

    def open(self) -> CheckpointStore:
        return MemoryStore()


BROKEN_PLACES: dict[Callable[[MakePlace], None], Callable[[Path], StorePlace]] = {
    contract.keeps_the_blob_across_restarts: ForgetfulPlace,
    contract.keeps_the_blob_it_sets_aside: BrokenPlace,
    contract.has_the_old_or_the_new_blob_at_any_moment: BrokenPlace,
    contract.says_so_when_the_blob_cannot_be_read: BrokenPlace,
    contract.keeps_the_old_blob_when_it_cannot_save: BrokenPlace,
    contract.keeps_the_blob_when_it_cannot_set_it_aside: BrokenPlace,
}


@pytest.mark.parametrize("check", DURABLE_CHECKPOINT_STORE)
def test_each_check_catches_a_place_that_breaks_it(
    check: Callable[[MakePlace], None], directories: Directories
) -> None:
    """A check that never fails tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: BROKEN_PLACES[check](directories()))
