"""Tables as files: nothing lost, nothing reordered, equal bytes, and others' tables read too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.study.exchange import READERS, read_table, write_table
from spiritlevel.study.table import StudyTable

BOTH = pytest.mark.parametrize("ending", [".csv", ".parquet"])


def table() -> StudyTable:
    """Four checkpoints with everything a table can hold, hostile words among it."""
    return StudyTable(
        names=("a", 'b,"quoted"', "<script>\nalert(1)</script>", "=1+1 é 漢"),
        hp={"lr": (0.1, 1e-05, None, 0.3), "seed": (1, 2, 3, 4), "optimiser": ("sgd", "adam", "sgd", "1"),
            "augment": (True, False, True, None), "none": (None, None, None, None)},
        complexity={"geodesic@0.1": np.array([0.1 + 0.2, math.nan, 1e-300, -2.5])},
        gen={"train_loss": np.array([0.0, 1.0, 2.0, 3.0]), "test_gap": np.array([math.nan, 1 / 3, 0.5, 1.0])},
        sizes={"test": 517},
        per_batch={"geodesic@0.1": ((0.1, 1 / 3), (), (1e-300,), (-2.5, math.nan))},
        failures=(('b,"quoted"', "geodesic@0.1", "expected weights,\ngot none"),),
        facts={"radii": {"geodesic": [0.1]}, "note": "a, b\n\"c\"", "bad": math.inf},
    )  # fmt: skip


def same(a: StudyTable, b: StudyTable) -> None:
    assert a.names == b.names
    assert a.hp == b.hp
    for kind in ("complexity", "gen"):
        left, right = getattr(a, kind), getattr(b, kind)
        assert list(left) == list(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
    assert a.sizes == b.sizes
    assert a.failures == b.failures
    assert repr(a.per_batch) == repr(b.per_batch)  # NaN is not equal to itself


@BOTH
def test_a_table_comes_back_bit_for_bit(ending: str, tmp_path: Path) -> None:
    """Kills: rounded numbers, NaN as 0, unquoted newlines, a dropped kind of column."""
    there = table()
    back = read_table(write_table(there, tmp_path / f"t{ending}"))
    same(there, back)
    assert back.facts == {"radii": {"geodesic": [0.1]}, "note": 'a, b\n"c"', "bad": "inf"}


@BOTH
def test_equal_tables_give_equal_bytes(ending: str, tmp_path: Path) -> None:
    """Also a table that was read: reading and writing again changes nothing. Kills: times or hashes in the file."""
    first = write_table(table(), tmp_path / f"one{ending}").read_bytes()
    second = write_table(read_table(tmp_path / f"one{ending}"), tmp_path / f"two{ending}").read_bytes()
    assert first == second == write_table(table(), tmp_path / f"one{ending}").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"one{ending}", f"two{ending}"]  # nothing left lying about


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.just("007"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(), VALUES, st.floats()), min_size=1, max_size=5, unique_by=lambda row: row[0]))
def test_both_formats_say_the_same_of_any_table(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """Kills: types guessed differently in the two formats."""
    names, hp, numbers = zip(*rows, strict=True)
    there = StudyTable(tuple(names), {"x": hp}, {"m": np.array(numbers)}, {"gap": np.array(numbers)})
    folder = tmp_path_factory.mktemp("tables")
    by_csv, by_parquet = (read_table(write_table(there, folder / f"t{e}")) for e in (".csv", ".parquet"))
    same(by_csv, by_parquet)
    assert by_csv.names == there.names
    finite = np.where(np.isfinite(there.gen["gap"]), there.gen["gap"], np.nan)
    np.testing.assert_array_equal(by_csv.gen["gap"], finite)


def test_the_table_of_another_study_is_read(tmp_path: Path) -> None:
    """Columns of the public studies of generalisation measures, with a byte order mark and without a name column."""
    path = tmp_path / "nin.csv"
    path.write_text(
        "hp.lr,hp.dataset,complexity.path_norm,gen.gap,gen.train_acc,is.converged,seed\n"
        "0.01,cifar10,3.5,0.2,1.0,True,0\n0.001,svhn,,0.1,0.99,True,1\n\n",
        encoding="utf-8-sig",
    )
    read = read_table(path)
    assert read.names == ("0", "1")
    assert read.hp == {"lr": (0.01, 0.001), "dataset": ("cifar10", "svhn")}
    assert math.isnan(read.complexity["path_norm"][1])
    assert list(read.gen) == ["gap", "train_acc"]
    path.write_text("checkpoint;complexity.m;gen.gap\na;1;2\n")
    assert read_table(path).names == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got an empty file"),
        ("a,b\n1,2\n", r"complexity\.\* .*gen\.\*.* got a, b"),
        ("complexity.m,gen.gap\n1\n", "expected 2 cells in each row of .*, got 1 in row 1"),
        ("complexity.m,gen.gap\nx,1\n", "expected numbers in the column 'complexity.m', got 'x'"),
        ("complexity.m,complexity.m,gen.gap\n1,1,1\n", "each column once in .*, got 'complexity.m'"),
        ("checkpoint,complexity.m,gen.gap\na,1,1\na,2,2\n", r"each checkpoint once, got \['a'\]"),
        ("complexity.m,gen.gap,size.test\n1,1,5\n1,1,6\n", r"one size of the test set 'test' throughout, got \[5, 6\]"),
        ("complexity.m,gen.gap,fact.x\n1,1,{\n", "expected the table of a study in"),
        ("complexity.m,gen.gap,batches.m\n1,1,1 x\n", "expected the table of a study in .*'x'"),
        ('complexity.m,"gen.gap\n1,1\n', "expected a CSV file in UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.csv")


def test_files_that_are_not_tables_say_why(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("no")
    with pytest.raises(DataError, match="expected a parquet file"):
        read_table(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="expected a CSV file in UTF-8"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(DataError, match="got nothing at"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ArgumentError, match=r"ends in .*\.csv, .*got 't.xlsx'"):
        read_table(tmp_path / "t.xlsx")
    assert {".csv", ".parquet"} <= set(READERS)


def test_what_cannot_be_written_is_an_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a file name that ends in \.csv or \.parquet, got 't.txt'"):
        write_table(table(), tmp_path / "t.txt")
    with pytest.raises(ArgumentError, match="expected a place to write to"):
        write_table(table(), tmp_path / "missing" / "t.csv")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(ArgumentError, match="expected a place to write to"):
        write_table(table(), tmp_path / "t.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    stray = StudyTable(("a",), {}, {"m": np.ones(1)}, {"gap": np.ones(1)}, failures=(("b", "m", "no"),))
    with pytest.raises(DataError, match="failures of checkpoints in the table, got one of 'b'"):
        write_table(stray, tmp_path / "u.csv")


def test_names_no_file_can_hold_are_spelled_out(tmp_path: Path) -> None:
    """A file name that is not UTF-8, as the operating system gives it. Kills: a study lost to one odd name."""
    there = StudyTable(("bad\udcff",), {"x": ("\udcff",)}, {"m": np.ones(1)}, {"gap": np.ones(1)})
    for ending in (".csv", ".parquet"):
        assert read_table(write_table(there, tmp_path / f"t{ending}")).names == ("bad\\udcff",)
