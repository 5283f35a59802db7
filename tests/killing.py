"""Studies in forked processes that are killed: what a power button, an impatient user or a cluster does."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spiritlevel.errors import StoreError
from spiritlevel.study import Store, run_study, write_table

Before = Callable[[], None]


def forked(work: Callable[[], object]) -> int:
    """Do it in a child; its process id. The child never comes back into the tests."""
    with warnings.catch_warnings(action="ignore"):  # later Pythons warn of pytest's own threads; the child has none
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """How it ended: 0, an exit code, or minus a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(config: dict[str, Any], seconds: float) -> bool:
    """Run a study in a child and kill -9 it after so long; False where it was done before."""
    child = forked(lambda: run_study(config))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def killed_in_transaction(config: dict[str, Any], at: int, when: str) -> bool:
    """Kill -9 right before or right after the commit of the transaction with this number."""

    def work() -> None:
        seen, begin = 0, Store._transaction

        def transaction(store: Store, kind: str = "IMMEDIATE") -> Any:
            return _Deadly(begin(store, kind)) if kind == "IMMEDIATE" else begin(store, kind)

        class _Deadly:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def __enter__(self) -> None:
                self.inner.__enter__()

            def __exit__(self, *error: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == at and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                out = self.inner.__exit__(*error)
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return out

        Store._transaction = transaction  # type: ignore[method-assign]
        run_study(config)

    code = ended(forked(work))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def exported(store: Path) -> bytes:
    """The table of a store as it would be exported."""
    target = store.with_suffix(".csv")
    with Store(store) as opened:
        write_table(opened.table(), target)
    return target.read_bytes()


def rows(store: Path) -> dict[tuple[str, str], Any]:
    """Every number in a store; nothing where there is no store yet."""
    try:
        opened = Store(store)
    except StoreError as error:
        assert "is empty" in str(error) or "got nothing" in str(error)  # noqa: PT017
        return {}
    with opened:
        return {(c, k): v for c, k, v in opened._rows("SELECT checkpoint, settings_hash, value FROM results")}


def children(of: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == of:
            found.append(int(path.parent.name))
    return found


def alive(process: int) -> bool:
    """Whether a process is there and no corpse."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
