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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spiritlevel.core.results import plain
from spiritlevel.study.database import Database
from spiritlevel.study.table import StudyTable
from spiritlevel.study.units import Column, Done, Outcome

__all__ = ["ColumnState", "Store"]


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


class Store(Database):
    """The file of a study.

    Args:
        path: of the file; ``":memory:"`` for none.
        write: make it where it is missing, and let this process write.
    """

    _versions: int | None = None

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
