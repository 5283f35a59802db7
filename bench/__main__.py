"""``make bench``: every number as a ratio within one run."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import spiritlevel as sl
from bench import costs
from bench.reparam import reparam
from bench.solvers import solvers
from spiritlevel.demo import digits, train

_COSTS = {
    "steps": costs.steps,
    "memory": costs.memory,
    "setup": costs.setup,
    "certificate": costs.certificate,
    "reparam": reparam,
}


def main() -> None:
    """Run all benchmarks, print tables, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--only", choices=[*_COSTS, "solvers"], action="append")
    chosen = parser.parse_args()
    wanted = chosen.only or ["memory", "steps", "setup", "certificate", "reparam", "solvers"]
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
            results[name] = solvers(train(seed=0), batches)
        else:
            results[name] = _COSTS[name]()
            console.print(_table(name, results[name]))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {chosen.json}")


def _table(name: str, found: dict[str, Any]) -> Table:
    """Plain numbers in two columns."""
    table = Table("what", "number", title=name, title_justify="left")
    for key, value in found.items():
        if key == "all ratios":
            continue
        for inner, number in value.items() if isinstance(value, dict) else [("", value)]:
            shown = f"{number:.3f}" if isinstance(number, float) else str(number)
            table.add_row(f"{key} {inner}".strip(), shown)
    return table


if __name__ == "__main__":
    main()
