"""A study of a thousand checkpoints: what grows with it, and how."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
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
    cpu = [time.process_time()]

    def note(pace: Pace) -> None:
        if pace.done * COUNT >= pace.total * len(cpu):  # a checkpoint more
            cpu.append(time.process_time())
        if pace.done * PARTS >= pace.total * (len(memory) + 1):
            gc.collect()
            memory.append(process.memory_info().rss)

    table = run_study(config, on_done=note)
    assert len(table) == COUNT
    assert table.failures == ()
    each = np.diff(cpu)
    part = COUNT // PARTS
    early, late = (float(np.quantile(x, 0.1)) for x in (each[part : 3 * part], each[-2 * part :]))  # of a calm moment
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
            f" [memory {max(memory) / memory[0] - 1:+.1%} from {memory[0] / 2**20:.0f} MiB; a checkpoint costs "
            f"{early * 1e3:.0f} ms early, {late * 1e3:.0f} ms late, {np.mean(each) * 1e3:.0f} ms on average; table in "
            f"{for_table * 1e3:.0f} ms, progress in {for_progress * 1e3:.0f} ms; store {size / 2**20:.1f} MiB]",
            end="",
        )
    assert max(memory) <= 1.1 * memory[0]
    assert late <= 1.1 * early
    assert for_table < 1.0
    assert for_progress < 0.5
