"""The SQLite file under a store: opened, checked, written whole or not at all, its errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from spiritlevel.errors import StoreError

__all__ = ["Database"]

_MARK = 0x53504C56  # "SPLV", SQLite's application_id: says that a file is one of ours
_VERSION = 1
_WAIT = 60.0  # seconds to wait for another writer before giving up
_SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
CREATE TABLE checkpoints (
    name TEXT PRIMARY KEY,
    position INTEGER,              -- in the table; NULL where it does not belong to the zoo any more
    hyperparameters TEXT NOT NULL,
    stamp TEXT NOT NULL DEFAULT '', -- sizes and times of its files when they were last read
    digest TEXT NOT NULL DEFAULT '' -- hash of their content then
) WITHOUT ROWID;
CREATE TABLE columns (
    name TEXT PRIMARY KEY, position INTEGER NOT NULL, settings_hash TEXT NOT NULL, settings TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE results (
    checkpoint TEXT NOT NULL,
    settings_hash TEXT NOT NULL,
    digest TEXT NOT NULL,
    value REAL,                    -- NULL where the unit failed
    per_batch TEXT NOT NULL,       -- JSON
    standard_error REAL,
    status TEXT NOT NULL,
    residual REAL,
    evaluations INTEGER,
    seconds REAL NOT NULL,
    versions INTEGER REFERENCES versions(id),
    error TEXT,                    -- NULL where there is none
    stats TEXT NOT NULL,           -- JSON
    PRIMARY KEY (checkpoint, settings_hash)
) WITHOUT ROWID;
CREATE TABLE radii (settings_hash TEXT PRIMARY KEY, details TEXT NOT NULL) WITHOUT ROWID;
"""


class Database:
    """A connection to the file of a study.

    Args:
        path: of the file; ``":memory:"`` for none.
        write: make it where it is missing, and let this process write.
    """

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        self.path = Path(path)
        if not write and not self.path.is_file():
            raise StoreError(f"expected the store of a study, got nothing at {path}: `spiritlevel study run` makes one")
        with self._explained("opened"):
            self._db = self._connect(write)
            try:
                self._check(write)
                if write:  # not before it is known to be ours
                    self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.execute("PRAGMA synchronous = NORMAL")  # safe from kills; a power cut may cost rows
            except BaseException:
                self._db.close()
                raise

    def _connect(self, write: bool) -> sqlite3.Connection:
        if str(self.path) == ":memory:":
            return sqlite3.connect(":memory:", isolation_level=None)
        if write:
            return sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)
        address = f"file:{quote(str(self.path.absolute()))}?mode="
        # Not mode=ro: the last to close then leaves the write-ahead log and its index lying beside the store.
        db = sqlite3.connect(address + "rw", uri=True, timeout=_WAIT, isolation_level=None)
        try:
            db.execute("PRAGMA query_only = 1")
            db.execute("SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError:
            # In a folder that cannot be written SQLite cannot make the file that readers share. Nobody writes there.
            db.close()
            wal = self.path.with_name(self.path.name + "-wal")
            if wal.exists() and wal.stat().st_size:
                raise
            db = sqlite3.connect(address + "ro&immutable=1", uri=True, isolation_level=None)
        return db

    def _check(self, write: bool) -> None:
        """Make the tables in an empty file; refuse a file that is something else."""
        with self._transaction("IMMEDIATE" if write else "DEFERRED"):
            mark = self._db.execute("PRAGMA application_id").fetchone()[0]
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if empty and write:
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_MARK}")
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
                mark, version = _MARK, _VERSION
        if empty and not write:
            raise StoreError(
                f"expected the store of a study, but {self.path} is empty: `spiritlevel study run` fills it"
            )
        if mark != _MARK:
            raise StoreError(f"expected the store of a study, but {self.path} is another SQLite file: name another")
        if version != _VERSION:
            raise StoreError(
                f"expected a store of format {_VERSION}, but {self.path} has format {version}: read it with the "
                "version of spiritlevel that wrote it, and export it"
            )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """SQLite's errors in our words."""
        try:
            yield
        except sqlite3.Error as error:
            advice = {
                "full": "make room on the disk; what was stored is safe, and the same command goes on from there",
                "readonly": "the file or its folder cannot be written here; copy it, or name another",
                "unable to open": "is its folder there, and may you write in it?",
                "not a database": "this is no SQLite file; name another",
                "malformed": "the file is damaged; `sqlite3 FILE .recover` may save rows",
                "locked": "another process is writing for too long; wait for it",
            }
            found = next((a for key, a in advice.items() if key in str(error)), "nothing was changed")
            raise StoreError(f"expected the store {self.path} to be {what}, but {error}: {found}") from error

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All of it or nothing; what is read in it is one state of the file."""
        self._db.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Put everything into the one file and let go of it."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._db.execute(query, values).fetchall()
