"""A study of a thousand checkpoints: what grows with it, and how."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import psutil
import pytest

from spiritlevel.study import Store, run_study
from spiritlevel.study.pace import Pace
from zoos import settings, write_zoo

COUNT = 1000
PARTS = 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory flat within 10 %, cost linear, queries fast.

    Kills: a list of all models or outcomes, a table that is read anew for each unit, a scan for each row.
    """
    write_zoo(tmp_path, COUNT)
    config = settings(tmp_path, measures=[{"measure": "adaptive", "rho": [0.5, 1.0], "steps": 5}, "gradient-norm"])
    process = psutil.Process()
    memory: list[int] = []
    cpu: list[float] = []

    def note(pace: Pace) -> None:
        if pace.done * PARTS >= pace.total * (len(cpu) + 1):
            gc.collect()
            memory.append(process.memory_info().rss)
            cpu.append(time.process_time())

    began = time.process_time()
    table = run_study(config, on_done=note)
    assert len(table) == COUNT
    assert table.failures == ()
    shares = [b - a for a, b in zip([began, *cpu], cpu, strict=False)]
    with Store(tmp_path / "study.db") as store:
        asked = time.process_time()
        store.table()
        for_table = time.process_time() - asked
        asked = time.process_time()
        store.progress()
        for_progress = time.process_time() - asked
    size = (tmp_path / "study.db").stat().st_size
    with capsys.disabled():
        print(
            f" [memory {max(memory) / memory[0] - 1:+.1%} from {memory[0] / 2**20:.0f} MiB; cost of the last tenth "
            f"{shares[-1] / shares[1]:.2f} of the second; {sum(shares) / COUNT * 1e3:.0f} ms a checkpoint; table in "
            f"{for_table * 1e3:.0f} ms, progress in {for_progress * 1e3:.0f} ms; store {size / 2**20:.1f} MiB]",
            end="",
        )
    assert max(memory) <= 1.1 * memory[0]
    assert sum(shares[-3:]) <= 1.25 * sum(shares[1:4])
    assert for_table < 1.0
    assert for_progress < 0.5
