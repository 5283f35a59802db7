"""How many bytes each measure needs for each parameter, beyond the model itself."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

import spiritlevel as sl
from bench.costs import peak

MEASURES: dict[str, Callable[[sl.Problem], Any]] = {
    "worst_case, Elementwise (adaptive)": lambda p: sl.adaptive_sharpness(p, 0.5, solver=_solver()),
    "worst_case, Quotient (geodesic)": lambda p: sl.geodesic_sharpness(p, 0.1, solver=_solver()),
    "worst_case, Elementwise, AutoPGD": lambda p: sl.adaptive_sharpness(p, 0.5, solver=sl.solvers.AutoPGD(steps=4)),
    "average_case, Elementwise": lambda p: sl.average_case(p, sl.Elementwise(), 0.02, samples=2),
    "average_case, Quotient": lambda p: sl.average_case(p, sl.Quotient(), 0.02, samples=2),
    "gradient_norm, Elementwise": lambda p: sl.gradient_norm(p, sl.Elementwise()),
    "gradient_norm, Quotient": lambda p: sl.gradient_norm(p, sl.Quotient()),
    "hessian_trace, Elementwise": lambda p: sl.hessian_trace(p, sl.Elementwise(), samples=2, tolerance=0),
    "hessian_trace, Quotient": lambda p: sl.hessian_trace(p, sl.Quotient(), samples=2, tolerance=0),
    "hessian_trace, Elementwise, engine forward": lambda p: sl.hessian_trace(
        p, sl.Elementwise(), samples=2, tolerance=0, engine="forward"
    ),
    "hessian_eigenvalues, Elementwise, 6 products": lambda p: sl.hessian_eigenvalues(
        p, sl.Elementwise(), products=6, tolerance=0
    ),
    "hessian_density, Elementwise, 6 steps": lambda p: sl.hessian_density(p, sl.Elementwise(), steps=6),
}


def _solver() -> sl.solvers.SphereAscent:
    return sl.solvers.SphereAscent(steps=4, tolerance=0.0)


def bert(hidden: int, layers: int, words: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A BERT for classification with random weights; hidden 1024, 24 layers and 30522 words are BERT-large."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        num_labels=2,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return transformers.BertForSequenceClassification(config).eval()
    finally:
        torch.set_default_dtype(before)


def batch(words: int, size: int = 2, length: int = 8) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(words, (size, length), generator=g)
    return {"input_ids": ids, "labels": torch.randint(2, (size,), generator=g)}


def table(hidden: int = 256, layers: int = 6, words: int = 4000) -> dict[str, Any]:
    """Most bytes of tensors alive at once beyond the model, for each parameter."""
    found: dict[str, Any] = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model, one = bert(hidden, layers, words, dtype), batch(words)
        count = sum(p.numel() for p in model.parameters())
        alone = peak(lambda: model(**one).loss.backward())  # noqa: B023
        model.zero_grad(set_to_none=True)
        rows = {"plain forward-backward": alone / count}
        for measure, run in MEASURES.items():
            problem = sl.Problem(model, [one])
            problem.self_checked = 0.0  # a check on one example, before any of the rest is there
            rows[measure] = peak(lambda: run(problem)) / count  # noqa: B023
            print(f"{name}, {measure}: {rows[measure]:.1f}", file=sys.stderr, flush=True)
        found[name] = {"parameters": count, "bytes per parameter beyond the model": rows}
    return found


def large(measure: str, dtype: str, hidden: int = 1024, layers: int = 24, words: int = 30522) -> dict[str, Any]:
    """One measure of a model of BERT-large's size: resident memory of the whole process at its highest."""
    model, one = bert(hidden, layers, words, getattr(torch, dtype)), batch(words, 1, 8)
    count, before = sum(p.numel() for p in model.parameters()), _highest()
    problem, began = sl.Problem(model, [one], micro_batch=1), time.process_time()
    problem.self_checked = 0.0
    result = MEASURES[measure](problem)
    return {
        "measure": measure,
        "weights": dtype,
        "parameters": count,
        "value": result.value,
        "CPU seconds": time.process_time() - began,
        "resident with the model, GiB": before / 2**30,
        "most resident, GiB": _highest() / 2**30,
        "bytes per parameter beyond the model": (_highest() - before) / count,
    }


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(rounds: int = 1) -> dict[str, Any]:
    """The table, for ``make bench``."""
    del rounds
    return table()


def main() -> None:
    """``python -m bench.memory`` prints the table; with ``--large NAMES`` each in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", nargs="*")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        print(json.dumps(large(arguments.one, arguments.dtype)))
        return
    if arguments.large is None:
        print(json.dumps(table(), indent=2))
        return
    for name in arguments.large or MEASURES:
        command = [sys.executable, "-m", "bench.memory", "--one", name, "--dtype", arguments.dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout.strip() or f"{name}: ended with {done.returncode}: {done.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
