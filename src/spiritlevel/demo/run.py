"""The demonstration: one network, two ways to write its weights, and what each measure says of them."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from spiritlevel.core.progress import progress
from spiritlevel.core.results import Measurement
from spiritlevel.errors import MissingDependencyError
from spiritlevel.geometry import Euclidean
from spiritlevel.measures import adaptive_sharpness, geodesic_sharpness, worst_case
from spiritlevel.problem import Problem
from spiritlevel.symmetry import find_symmetries, move_along_orbit, verify_symmetries

__all__ = ["digits", "run_demo", "small_vit", "train"]

_TRAINED_ON = 1280  # of 1797 digits; the rest is for testing


def _optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module)
        raise MissingDependencyError(
            f"expected the package {package!r} for the demonstration: pip install 'spiritlevel[demo]'"
        ) from error


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Scikit-learn's 8 x 8 digits, shuffled once: (images, labels) for training and for testing."""
    data = _optional("sklearn.datasets").load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (images[:_TRAINED_ON], labels[:_TRAINED_ON]), (images[_TRAINED_ON:], labels[_TRAINED_ON:])


def small_vit(hidden: int = 64, layers: int = 4, heads: int = 4, image: int = 8, patch: int = 2) -> nn.Module:
    """A vision transformer of transformers' own class, with random weights."""
    transformers = _optional("transformers")
    config = transformers.ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * hidden,
        image_size=image,
        patch_size=patch,
        num_channels=1,
        num_labels=10,
    )
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def train(seed: int = 0, epochs: int = 25, show_progress: bool | None = None, **shape: int) -> nn.Module:
    """A `small_vit` trained on the digits with AdamW and a one-cycle schedule; the same for the same seed."""
    (images, labels), _ = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_vit(**shape)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * -(-len(labels) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    with progress("training", steps, show_progress) as advance:
        for _ in range(epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(128):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]).logits, labels[rows]).backward()
                optimizer.step()
                schedule.step()
                advance()
    return model.eval()


def run_demo(seed: int, console: Console) -> dict[str, Any]:
    """Train, show the symmetries, move along the orbit, and measure before and after.

    Returns:
        The numbers as plain data.
    """
    (images, labels), (test_images, test_labels) = digits()
    console.print("Training a small vision transformer on scikit-learn's digits ...")
    model = train(seed)
    with torch.no_grad():
        accuracy = float((model(test_images).logits.argmax(-1) == test_labels).float().mean())
    console.print(f"... done: {100 * accuracy:.1f} % of {len(test_labels)} test digits are right.\n")
    blocks = find_symmetries(model)
    console.print(blocks)
    moved = copy.deepcopy(model)
    moved.load_state_dict(move_along_orbit(model, blocks, seed=seed, condition=100.0))
    drift = max(verify_symmetries(model, (images[:64], labels[:64]), blocks, seed).values())
    console.print(
        "\nNow every head's weights are multiplied by a random invertible matrix (condition number 100) in a way that "
        f"leaves the function as it is (outputs change by at most {drift:.0e}, block by block):\n"
    )
    batches = [(images[i : i + 128], labels[i : i + 128]) for i in range(0, 256, 128)]
    table = Table("measure", "before", "after the move", "ratio", title="Sharpness", title_justify="left")
    report: dict[str, Any] = {"seed": seed, "test_accuracy": accuracy, "symmetries": blocks.to_dict(), "measures": []}
    measures: dict[str, Callable[[Problem], Measurement]] = {
        "Euclidean sharpness, rho 0.02": lambda p: worst_case(p, Euclidean(), 0.02),
        "adaptive sharpness, rho 0.5": lambda p: adaptive_sharpness(p, 0.5),
        "geodesic sharpness, rho 0.1": lambda p: geodesic_sharpness(p, 0.1),
    }
    for name, measure in measures.items():
        before, after = (measure(Problem(m, batches)) for m in (model, moved))
        ratio = after.value / before.value
        table.add_row(name, f"{before.value:.5f}", f"{after.value:.5f}", f"{ratio:.4f}")
        report["measures"].append({"name": name, "before": before.to_dict(), "after": after.to_dict(), "ratio": ratio})
    console.print(table)
    console.print(
        "\nThe network computes the same before and after. Only geodesic sharpness says so.\n"
        "Next, on a checkpoint of yours: spiritlevel measure CHECKPOINT --data DATA --rho 0.05 0.1 0.2"
    )
    return report
