"""Files on a real disk, when writing fails or the process is killed."""

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore, JsonFileSink
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError, StoreError
from devicecore.domain.model import resource_name

GPU, FPGA, NIC = (resource_name(f"acme.io/{name}") for name in ("gpu", "fpga", "nic"))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def store(directory: Path) -> FileStore:
    return FileStore.in_directory(directory)


class TestFileStore:
    def test_setting_aside_keeps_a_file_under_the_time_it_was_written(self, store: FileStore, directory: Path) -> None:
        aside = [f"{CHECKPOINT_NAME}.corrupt-20090213T233130Z{suffix}" for suffix in ("", ".2", ".3")]
        for name in aside:
            store.save(name.encode())
            os.utime(store.path, (0, 1234567890.25))
            assert store.set_aside() == str(directory / name)
            assert store.load() is None
        assert names(directory) == set(aside)
        assert all((directory / name).read_bytes() == name.encode() for name in aside)

    @pytest.mark.parametrize("written", [2.0**40, -(2.0**40), 2.0**61])
    def test_a_file_of_a_year_that_no_date_has_is_set_aside_all_the_same(
        self, store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch, written: float
    ) -> None:
        store.save(b"x")
        found = os.stat_result((*store.path.lstat()[:8], written, 0))
        monkeypatch.setattr(Path, "lstat", lambda _: found)  # few file systems can store such times
        aside = store.set_aside()
        monkeypatch.undo()
        assert aside == f"{store.path}.corrupt-{written:.0f}"
        assert names(directory) == {Path(aside).name}

    def test_a_file_that_cannot_be_set_aside_durably_stays_where_it_is(
        self, store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.path.write_bytes(b"corrupt")
        fails_the_nth_time(monkeypatch, "fsync", 1)
        with pytest.raises(StoreError, match="Input/output error"):
            store.set_aside()
        assert names(directory) == {CHECKPOINT_NAME}
        assert store.load() == b"corrupt"  # if the file were gone, the next start would not report the damage

    @pytest.mark.parametrize("after", ["set aside", "not read"])
    def test_a_store_refuses_to_overwrite_another_programs_file_after_other_calls(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        store.save(b"first")
        if after == "set aside":
            store.set_aside()
        else:
            fails_the_nth_time(monkeypatch, "open", 1)
            with pytest.raises(StoreError, match="Input/output error"):
                store.load()
        store.path.write_bytes(b"someone else's")
        with pytest.raises(StoreError, match="another process has written it since"):
            store.save(b"second")
        assert store.load() == b"someone else's"

    def test_a_store_refuses_to_overwrite_what_another_store_wrote(self, store: FileStore, directory: Path) -> None:
        second = FileStore.in_directory(directory)
        assert store.load() is second.load() is None
        store.save(b"first")
        with pytest.raises(StoreError, match="another process has written it since"):
            second.save(b"second")
        assert store.load() == second.load() == b"first"
        second.save(b"second")  # the second store has read the data of the first
        with pytest.raises(StoreError, match="only one manager at a time"):
            store.save(b"third")
        assert second.load() == b"second"

    def test_a_file_that_was_only_touched_copied_or_deleted_is_still_ours(self, store: FileStore) -> None:
        store.save(b"one")
        os.utime(store.path, (0, 1234567890.25))
        store.save(b"two")
        copy = store.path.with_name("copy")
        copy.write_bytes(b"two")
        copy.rename(store.path)
        store.save(b"three")
        store.path.unlink()
        store.save(b"four")
        assert store.load() == b"four"

    def test_the_files_that_a_crash_has_left_are_deleted_and_no_others(self, directory: Path) -> None:
        ours = {f".{CHECKPOINT_NAME}.123-4.new", f".{CHECKPOINT_NAME}.5-6.new"}
        foreign = {f".{CHECKPOINT_NAME}.swp", f"{CHECKPOINT_NAME}.corrupt-1", f".other.{CHECKPOINT_NAME}.123-4.new"}
        for name in ours | foreign:
            (directory / name).touch()
        FileStore.in_directory(directory).save(b"blob")
        assert names(directory) == foreign | {CHECKPOINT_NAME}

    def test_an_error_has_the_systems_own_words(self, store: FileStore, directory: Path) -> None:
        store.path.mkdir()
        with pytest.raises(StoreError) as failed:
            store.load()
        assert failed.value.args == (CHECKPOINT_NAME, "read", f"{store.path}: Is a directory")
        with pytest.raises(StoreError) as failed:
            store.save(b"blob")
        assert failed.value.args == (CHECKPOINT_NAME, "write", f"{store.path}: Is a directory")
        with pytest.raises(StoreError, match=r"use FileStore\.in_directory"):
            store.set_aside()
        assert store.path.is_dir()  # the directory stays where it is, no matter who owns it
        missing = FileStore(directory / "missing" / "file")
        with pytest.warns(RuntimeWarning, match=f"there is no directory {missing.path.parent}, so file cannot be writ"):
            assert missing.load() is None
        with pytest.raises(StoreError) as failed:
            missing.save(b"blob")
        assert failed.value.args == ("file", "write", f"{missing.path}: No such file or directory")
        (directory / "plain").touch()
        with pytest.raises(StoreError) as failed:
            FileStore(directory / "plain" / "file").set_aside()
        assert failed.value.action == "set aside"
        assert names(directory) == {CHECKPOINT_NAME, "plain"}

    def test_a_pipe_or_a_device_is_refused_without_waiting(self, directory: Path) -> None:
        os.mkfifo(directory / "pipe")
        for path in ("/dev/zero", directory / "pipe"):
            with pytest.raises(StoreError, match=f"{path}: it is a pipe, a socket or a device"):
                FileStore(path).load()

    def test_a_link_is_not_followed_and_its_target_is_not_written(self, store: FileStore, directory: Path) -> None:
        (directory / "foreign").write_bytes(b"theirs")
        store.path.symlink_to("foreign")
        with pytest.raises(StoreError, match="it is a symbolic link"):
            store.load()
        with pytest.raises(StoreError, match="it is a symbolic link"):
            store.save(b"ours")
        assert (directory / "foreign").read_bytes() == b"theirs"

    def test_a_checkpoint_that_is_too_long_is_refused_and_the_old_one_stays(self, directory: Path) -> None:
        store = FileStore(directory / "file", max_bytes=5)
        store.save(b"12345")
        with pytest.raises(StoreError, match="the checkpoint is 6 bytes long, expected at most 5"):
            store.save(b"123456")
        assert store.load() == b"12345"

    @pytest.mark.parametrize("failing", [1, 2], ids=["the file", "the directory"])
    @pytest.mark.parametrize("old", [b"old", None])
    def test_a_write_that_cannot_be_made_durable_was_not_saved(
        self, store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch, failing: int, old: bytes | None
    ) -> None:
        if old is not None:
            store.save(old)
        fails_the_nth_time(monkeypatch, "fsync", failing)
        with pytest.raises(StoreError, match="Input/output error"):
            store.save(b"new")
        assert store.load() == old
        assert names(directory) <= {CHECKPOINT_NAME}
        store.save(b"newer")
        assert store.load() == b"newer"

    def test_concurrent_saves_never_mix(self, directory: Path) -> None:
        blobs = {bytes([number]) * 100_000 for number in range(8)}
        stores = [FileStore.in_directory(directory) for _ in blobs]
        for each in stores:
            each.save(b"")  # only the first save checks for leftovers

        def save(store: FileStore, blob: bytes) -> None:
            for _ in range(5):
                store.load()
                with suppress(StoreError):  # another store has saved first
                    store.save(blob)

        with ThreadPoolExecutor(8) as writers:
            list(writers.map(save, stores, blobs))
        assert stores[0].load() in blobs
        assert names(directory) == {CHECKPOINT_NAME}


class TestJsonFileSink:
    def test_a_status_is_merged_into_a_file_of_other_programs(self, directory: Path) -> None:
        path = directory / "node.json"
        sink = JsonFileSink(path)
        sink.publish(NodeStatus({GPU: 4, FPGA: 1}, {GPU: 3, FPGA: 0}))
        node = json.loads(path.read_text())
        assert node == {"capacity": {GPU: 4, FPGA: 1}, "allocatable": {GPU: 3, FPGA: 0}}
        node["capacity"]["cpu"] = "8"
        node["conditions"] = ["Ready"]
        path.write_text(json.dumps(node))
        sink.publish(NodeStatus({NIC: 2}, {NIC: 2}, (GPU,)))
        assert json.loads(path.read_text()) == {
            "capacity": {GPU: 0, FPGA: 1, NIC: 2, "cpu": "8"},
            "allocatable": {GPU: 0, FPGA: 0, NIC: 2},
            "conditions": ["Ready"],
        }
        assert names(directory) == {"node.json"}

    @pytest.mark.parametrize(
        "text", ["[]", "{", '{"capacity": 3}', '{"capacity": []}', "\xff", '{"allocatable": null}', "[" * 100_000]
    )
    def test_a_file_that_is_something_else_is_left_alone(self, directory: Path, text: str) -> None:
        path = directory / "node.json"
        path.write_text(text, encoding="latin-1")
        with pytest.raises(SinkError) as refused:
            JsonFileSink(path).publish(NodeStatus({GPU: 1}))
        assert refused.value.sink == str(path)
        assert refused.value.cause.endswith("correct or delete the file")
        assert "object has no" not in refused.value.cause  # part of a message from Python
        assert path.read_text(encoding="latin-1") == text

    def test_a_file_that_cannot_be_written_is_named(self, directory: Path) -> None:
        sink = JsonFileSink(directory / "missing" / "node.json")
        with pytest.warns(RuntimeWarning, match="no directory"), pytest.raises(SinkError) as refused:
            sink.publish(NodeStatus())
        assert refused.value.args == (str(directory / "missing" / "node.json"), "No such file or directory")


def fails_the_nth_time(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Make the `number`-th call to a function in `os` fail, because a healthy disk does not fail on request."""
    real: Callable[..., object] = getattr(os, name)
    calls = 0

    def call(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)
