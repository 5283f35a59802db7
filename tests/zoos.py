"""Tiny zoos on disk: perceptrons of a few weights, their data, and a study of them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

BUILDER = "zoos:network"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def other_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def weights(seed: int, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=g) for n, t in (model or network()).state_dict().items()}


def write_data(folder: Path) -> None:
    g = np.random.default_rng(0)
    for name, shift in (("train", 0.0), ("iid", 0.0), ("shifted", 1.0)):
        x = g.normal(size=(12, 3)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x + np.float32(shift), y=(x.sum(1) > 0).astype(np.int64))


def write_zoo(folder: Path, count: int = 4) -> None:
    """Checkpoints ``runs/run-0.safetensors`` and so on, with ``runs.csv``."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with (folder / "runs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["checkpoint", "lr", "seed", "optimiser"])
        for i in range(count):
            save_file(weights(i), folder / "runs" / f"run-{i}.safetensors")
            table.writerow([f"run-{i}", 0.1 * (i + 1), i, "sgd" if i % 2 else "adam"])
    write_data(folder)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """A study of `write_zoo` as plain settings."""
    return {
        "zoo": {
            "checkpoints": str(folder / "runs" / "*.safetensors"),
            "builder": network,
            "hyperparameters": str(folder / "runs.csv"),
        },
        "data": {
            "train": str(folder / "train.npz"),
            "tests": {"iid": str(folder / "iid.npz"), "shifted": str(folder / "shifted.npz")},
        },
        "measures": [
            {"measure": "adaptive", "rho": [0.5, 1.0]},
            {"measure": "average-case", "geometry": "euclidean", "rho": 0.1, "samples": 4},
            {"measure": "gradient-norm", "geometry": "euclidean"},
        ],
        "batches": {"size": 6},
        "store": str(folder / "study.db"),
        "threads": 1,
        **changes,
    }


def write_vits(folder: Path, count: int) -> dict[str, Any]:
    """Vision transformers as Hugging Face folders, data like digits, and a study of both."""
    import transformers as tf

    config = tf.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_channels=1, num_labels=4, initializer_range=0.2,
    )  # fmt: skip
    with (folder / "vits.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["checkpoint", "lr", "optimiser"])
        for i in range(count):
            torch.manual_seed(i)
            tf.ViTForImageClassification(config).save_pretrained(folder / "vits" / f"vit-{i}")
            table.writerow([f"vit-{i}", 0.01 * (i % 4 + 1), "sgd" if i % 2 else "adamw"])
    g = np.random.default_rng(0)
    for name in ("train", "iid", "shifted"):
        x = g.normal(size=(64, 1, 8, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(64) % 4)
    plain = settings(folder)
    plain["zoo"] = {"checkpoints": str(folder / "vits" / "*"), "hyperparameters": str(folder / "vits.csv")}
    plain["measures"] = ["adaptive", "geodesic"]
    plain["batches"] = {"size": 32}
    return plain
