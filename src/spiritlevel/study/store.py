"""The results of a study in one SQLite file: one row for each unit, written whole or not at all.

The file is in WAL mode, so others read while a study writes, and a process that is killed leaves what it had committed.
A row belongs to a checkpoint and to a settings hash; which of them make the table now stands beside them, so that
changed settings add rows and lose none, and the table needs neither torch nor a model.

>>> store = Store(":memory:", write=True)
>>> store.plan([("a", {"lr": 0.1})], [Column("gen.train_loss", {"what": "loss"})])
>>> store.write(Done("a", "", {Column("gen.train_loss", {"what": "loss"}).key: Outcome(0.5)}))
>>> store.table().columns()
{'checkpoint': ['a'], 'hp.lr': [0.1], 'gen.train_loss': [0.5]}
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from spiritlevel.core.results import plain
from spiritlevel.errors import StoreError
from spiritlevel.study.table import StudyTable
from spiritlevel.study.units import Column, Done, Outcome

__all__ = ["ColumnState", "Store"]

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


@dataclass(frozen=True)
class ColumnState:
    """How far one column of the table is.

    Attributes:
        name: of the column.
        done: units with a number.
        failed: units with an error.
        pending: units without a row.
        seconds: spent on those done and failed.
    """

    name: str
    done: int
    failed: int
    pending: int
    seconds: float


class Store:
    """The file of a study.

    Args:
        path: of the file; ``":memory:"`` for none.
        write: make it where it is missing, and let this process write.
    """

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        self.path = Path(path)
        self._versions: int | None = None
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

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- write

    def plan(self, checkpoints: Sequence[tuple[str, Mapping[str, Any]]], columns: Sequence[Column]) -> None:
        """Say what makes the table from now on: checkpoints with hyperparameters, and columns. No row is lost."""
        with self._explained("written"), self._transaction():
            self._db.execute("UPDATE checkpoints SET position = NULL")
            self._db.executemany(
                "INSERT INTO checkpoints (name, position, hyperparameters) VALUES (?, ?, ?) ON CONFLICT (name) DO "
                "UPDATE SET position = excluded.position, hyperparameters = excluded.hyperparameters",
                [(n, i, json.dumps(plain(hp))) for i, (n, hp) in enumerate(checkpoints)],
            )
            self._db.execute("DELETE FROM columns")
            self._db.executemany(
                "INSERT INTO columns VALUES (?, ?, ?, ?)",
                [(c.name, i, c.key, json.dumps(plain(c.settings))) for i, c in enumerate(columns)],
            )

    def write(self, done: Done, stamp: str = "") -> None:
        """The rows of units that ended together, in one transaction."""
        rows = [
            (
                done.checkpoint, key, done.digest, o.value, json.dumps(list(o.per_batch)), o.standard_error, o.status,
                o.residual, o.evaluations, o.seconds, self._versions, o.error, json.dumps(plain(o.stats)),
            )
            for key, o in done.outcomes.items()
        ]  # fmt: skip
        with self._explained("written"), self._transaction():
            self._db.executemany(f"INSERT OR REPLACE INTO results VALUES ({', '.join('?' * 13)})", rows)
            self._db.execute(
                "UPDATE checkpoints SET stamp = ?, digest = ? WHERE name = ?", (stamp, done.digest, done.checkpoint)
            )

    def put(self, table: StudyTable) -> None:
        """Another study's table, whole: the store then gives it back as it was."""
        columns = [n for n in table.columns() if n.startswith(("complexity.", "gen."))]
        made = {n: Column(n, {"what": "imported", "name": n}) for n in columns}
        self.plan([(n, {h: v[i] for h, v in table.hp.items()}) for i, n in enumerate(table.names)], [*made.values()])
        errors = {(name, short): message for name, short, message in table.failures}
        for i, name in enumerate(table.names):
            outcomes = {}
            for column in columns:
                kind, _, short = column.partition(".")
                value, batches = float(getattr(table, kind)[short][i]), table.per_batch.get(short, ())
                error = errors.get((name, short))
                if math.isfinite(value) or error is not None:
                    outcomes[made[column].key] = Outcome(
                        value if math.isfinite(value) else None,
                        tuple(batches[i]) if batches and kind == "complexity" else (),
                        status="imported",
                        error=error,
                    )
            self.write(Done(name, "", outcomes))
        for key, fact in {**table.facts, "sizes": dict(table.sizes)}.items():
            self.set_fact(key, fact)

    def restamp(self, name: str, stamp: str) -> None:
        """The checkpoint's files were touched, their content is the same."""
        with self._explained("written"), self._transaction():
            self._db.execute("UPDATE checkpoints SET stamp = ? WHERE name = ?", (stamp, name))

    def use_versions(self, versions: Mapping[str, str]) -> None:
        """Rows written from now on were made with these versions."""
        text = json.dumps(versions, sort_keys=True)
        with self._explained("written"), self._transaction():
            self._db.execute("INSERT OR IGNORE INTO versions (value) VALUES (?)", (text,))
        self._versions = self._rows("SELECT id FROM versions WHERE value = ?", text)[0][0]

    def set_fact(self, key: str, value: Any) -> None:
        """A fact about the whole study, as plain data."""
        with self._explained("written"), self._transaction():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, json.dumps(plain(value))))

    def set_radius(self, key: str, details: Mapping[str, Any]) -> None:
        """A radius chosen by rule, for good."""
        with self._explained("written"), self._transaction():
            self._db.execute("INSERT OR IGNORE INTO radii VALUES (?, ?)", (key, json.dumps(plain(details))))

    # -------------------------------------------------------------------------------------------------------- read

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._db.execute(query, values).fetchall()

    def facts(self) -> dict[str, Any]:
        """Facts about the whole study; those that start with ``_`` are not the table's."""
        return {k: json.loads(v) for k, v in self._rows("SELECT key, value FROM facts ORDER BY key")}

    def radius(self, key: str) -> dict[str, Any] | None:
        """The radius chosen by a rule, where it has been, and how."""
        rows = self._rows("SELECT details FROM radii WHERE settings_hash = ?", key)
        return dict(json.loads(rows[0][0])) if rows else None

    def states(self) -> dict[str, tuple[str, str]]:
        """Stamp and digest of each checkpoint when it was last measured."""
        return {n: (s, d) for n, s, d in self._rows("SELECT name, stamp, digest FROM checkpoints")}

    def finished(self, *, failures: bool = True) -> dict[str, dict[str, str]]:
        """For each checkpoint the settings hashes that have a row, with the digest they were made for."""
        found: dict[str, dict[str, str]] = {}
        query = "SELECT checkpoint, settings_hash, digest FROM results" + ("" if failures else " WHERE error IS NULL")
        for checkpoint, key, digest in self._rows(query):
            found.setdefault(checkpoint, {})[key] = digest
        return found

    def outcomes(self, checkpoint: str) -> dict[str, Outcome]:
        """Everything known of one checkpoint, by column of the table."""
        rows = self._rows(
            "SELECT c.name, value, per_batch, standard_error, status, residual, evaluations, seconds, error, stats "
            "FROM columns c JOIN results r USING (settings_hash) WHERE checkpoint = ? ORDER BY position",
            checkpoint,
        )
        names = ("standard_error", "status", "residual", "evaluations", "seconds", "error")
        return {
            n: Outcome(v, tuple(json.loads(b)), **dict(zip(names, rest, strict=True)), stats=json.loads(s))
            for n, v, b, *rest, s in rows
        }

    def progress(self) -> list[ColumnState]:
        """How far each column is."""
        (total,) = self._rows("SELECT count(*) FROM checkpoints WHERE position IS NOT NULL")[0]
        rows = self._rows(
            "SELECT c.name, count(k.name), count(CASE WHEN k.name IS NOT NULL THEN r.error END), "
            "sum(CASE WHEN k.name IS NOT NULL THEN r.seconds ELSE 0 END) FROM columns c "
            "LEFT JOIN results r USING (settings_hash) "
            "LEFT JOIN checkpoints k ON k.name = r.checkpoint AND k.position IS NOT NULL AND k.digest = r.digest "
            "GROUP BY c.name ORDER BY c.position"
        )
        return [ColumnState(n, there - bad, bad, total - there, seconds or 0.0) for n, there, bad, seconds in rows]

    def table(self) -> StudyTable:
        """The study as it stands: a row for each checkpoint, NaN for what is missing or failed."""
        with self._explained("read"), self._transaction("DEFERRED"):
            return self._table()

    def _table(self) -> StudyTable:
        facts = self._facts_of_table()
        zoo = self._rows("SELECT name, hyperparameters FROM checkpoints WHERE position IS NOT NULL ORDER BY position")
        columns = self._rows("SELECT name, settings_hash FROM columns ORDER BY name LIKE 'gen.%', position")
        rows = self._rows(
            "SELECT r.checkpoint, r.settings_hash, r.value, r.per_batch, r.error, r.stats FROM results r "
            "JOIN checkpoints k ON k.name = r.checkpoint AND k.digest = r.digest WHERE k.position IS NOT NULL"
        )
        found = {(name, key): rest for name, key, *rest in rows}
        names = [n for n, _ in zoo]
        hp = [json.loads(text) for _, text in zoo]
        kinds: dict[str, dict[str, Any]] = {"complexity": {}, "gen": {}}
        per_batch: dict[str, tuple[tuple[float, ...], ...]] = {}
        sizes: dict[str, int] = facts.pop("sizes", {})
        for column, key in columns:
            kind, _, short = column.partition(".")
            cells = [found.get((n, key), (None, "[]", None, "{}")) for n in names]
            kinds[kind][short] = np.array([math.nan if c[0] is None else c[0] for c in cells], dtype=np.float64)
            if kind == "complexity":
                per_batch[short] = tuple(tuple(json.loads(c[1])) for c in cells)
            elif short.endswith("_loss"):
                sizes |= {short.removesuffix("_loss"): n for c in cells if (n := json.loads(c[3]).get("examples"))}
        return StudyTable(
            tuple(names),
            hp={n: tuple(row.get(n) for row in hp) for n in dict.fromkeys(k for row in hp for k in row)},
            **kinds,
            sizes=sizes,
            per_batch={n: v for n, v in per_batch.items() if any(v)},
            failures=tuple(
                (n, column.partition(".")[2], found[n, key][2])
                for n in names
                for column, key in columns
                if (n, key) in found and found[n, key][2] is not None
            ),
            facts=facts,
        )

    def _facts_of_table(self) -> dict[str, Any]:
        versions = self._rows(
            "SELECT value FROM versions WHERE id IN (SELECT DISTINCT versions FROM results) ORDER BY value"
        )
        facts = {k: v for k, v in self.facts().items() if not k.startswith("_")}
        facts |= {"versions": [json.loads(v) for (v,) in versions]} if versions else {}
        return dict(sorted(facts.items()))
