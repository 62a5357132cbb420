"""A checkpoint store in SQLite, tested with the contract of its port. docs/write-an-adapter.md explains it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from devicecore import StoreError
from devicecore.testing.contracts import CHECKPOINT_STORE


class SqliteStore:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def load(self) -> bytes | None:
        with self._database("read") as database:
            row = database.execute("SELECT blob FROM checkpoint WHERE kept = 0").fetchone()
            return None if row is None else row[0]

    def save(self, blob: bytes) -> None:
        with self._database("write") as database:
            database.execute("DELETE FROM checkpoint WHERE kept = 0")
            database.execute("INSERT INTO checkpoint (kept, blob) VALUES (0, ?)", (blob,))

    def set_aside(self) -> str | None:
        with self._database("set aside") as database:
            found = database.execute("SELECT rowid FROM checkpoint WHERE kept = 0").fetchone()
            database.execute("UPDATE checkpoint SET kept = rowid WHERE kept = 0")
            return None if found is None else f"{self.path}, row {found[0]}"

    @contextmanager
    def _database(self, action: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path)) as database, database:  # the inner one commits or rolls back
                database.execute("PRAGMA synchronous = FULL")
                database.execute("CREATE TABLE IF NOT EXISTS checkpoint (kept INTEGER, blob BLOB)")
                yield database
        except sqlite3.Error as error:
            raise StoreError(self.path, action, str(error)) from error


@pytest.mark.parametrize("check", CHECKPOINT_STORE)
def test_the_store_keeps_the_contract(check: Callable[..., None], tmp_path: Path) -> None:
    """Each check tests one sentence of the port, and needs a function that makes a new, empty store."""
    numbers = count()
    check(lambda: SqliteStore(tmp_path / f"{next(numbers)}.db"))
