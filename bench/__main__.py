"""``make bench``: every number as a ratio within one run."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import spiritlevel as sl
from bench import costs
from bench.curvature import curvature
from bench.ensemble import ensemble
from bench.monitor import monitor, readings
from bench.optim import optim
from bench.reparam import reparam
from bench.scale import scale
from bench.solvers import QUOTIENT_RADII, solvers
from spiritlevel.demo import digits, train

_COSTS = {
    "steps": costs.steps,
    "memory": costs.memory,
    "setup": costs.setup,
    "certificate": costs.certificate,
    "curvature": curvature,
    "ensemble": ensemble,
    "monitor": monitor,
    "monitor readings": readings,
    "optim": optim,
    "reparam": reparam,
    "scale": scale,
}


def main() -> None:
    """Run all benchmarks, print tables, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results here; those of other benchmarks stay")
    parser.add_argument("--only", choices=[*_COSTS, "solvers"], action="append")
    chosen = parser.parse_args()
    wanted = chosen.only or [*_COSTS, "solvers"]
    torch.set_num_threads(1)
    console = Console()
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "version": sl.__version__,
    }
    for name in wanted:
        console.print(f"[bold]{name}[/bold] ...")
        if name == "solvers":
            images, labels = digits()[0]
            batches = [(images[i : i + 128], labels[i : i + 128]) for i in range(0, 768, 128)]
            models = [train(seed=0), train(seed=1)]
            quotient = solvers(models[:1], batches, sl.Quotient(), QUOTIENT_RADII)
            results[name] = {**solvers(models, batches), "quotient": quotient}
        else:
            results[name] = _COSTS[name]()
            console.print(_table(name, results[name]))
    if chosen.json:
        before = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.is_file() else {}
        chosen.json.write_text(json.dumps(before | results, indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {chosen.json}")


def _table(name: str, found: dict[str, Any]) -> Table:
    """Plain numbers in two columns."""
    table = Table("what", "number", title=name, title_justify="left")
    for key, number in _rows(found):
        table.add_row(key, f"{number:.3g}" if isinstance(number, float) else str(number))
    return table


def _rows(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers with the path that leads to them."""
    for key, value in found.items():
        path = f"{above} {key}".strip()
        if isinstance(value, dict):
            yield from _rows(value, path)
        elif key != "all ratios" and "all ratios" not in above:
            yield path, value


if __name__ == "__main__":
    main()
