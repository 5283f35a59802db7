"""A made-up study for the tests of reports: what a real one has, and names that try to break out of a page."""

from __future__ import annotations

import math

import numpy as np

from spiritlevel.study.table import StudyTable

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=2</script>",
    "\"'><svg onload=window.broken=3>",
    "<!-- <script x",  # inside a script element this keeps the next end tag from ending it
    "{{7*7}}${7*7}`window.broken=4`",
    "a\u2028b\u202e $x^2$ & 漢字 é",
)


def made_up(n: int = 40, seed: int = 0, measures: int = 4, hostile: bool = False) -> StudyTable:
    """Geodesic sharpness that tells, adaptive that tells less, and everything a report can show."""
    rng = np.random.default_rng(seed)
    lr, optimiser = rng.choice([1e-4, 3e-4, 1e-3], n), rng.choice(["adamw", "sgd"], n)
    hidden = np.log10(lr) + 4 + 0.5 * (optimiser == "sgd") + 0.6 * rng.normal(size=n)
    complexity, per_batch = {}, {}
    for family, noise in (("geodesic", 0.3), ("adaptive", 0.9)):
        for rho in (0.05 * 2**k for k in range(measures // 2)):
            name = f"{family}@{rho:g}"
            complexity[name] = rho * np.exp(hidden + noise * rng.normal(size=n))
            per_batch[name] = tuple(tuple(v * np.exp(0.2 * rng.normal(size=4))) for v in complexity[name])
    gap = 0.05 + 0.02 * hidden + 0.006 * rng.normal(size=n)
    complexity["parameter-norm"] = 30 + rng.normal(size=n)
    complexity["adaptive@0.05"][3] = math.nan
    names = [f"vit-{i:04d}" for i in range(n)]
    bad = HOSTILE if hostile else ()
    names[: len(bad)] = bad
    hp = {"lr": tuple(map(float, lr)), "optimiser": tuple(map(str, optimiser)), "seed": tuple(range(n))}
    gen = {"train_loss": np.exp(0.3 * hidden + 0.3 * rng.normal(size=n)), "test_gap": gap}
    gen["rotated_gap"] = gap + 0.03 * rng.normal(size=n)
    failures = [(names[3], "adaptive@0.05", "expected a finite loss, got nan")]
    checks = [{"measure": m, "checkpoint": names[i], "before": 0.1, "after": 0.1 * factor}
              for m, factor in (("geodesic@0.05", 1 + 1e-6), ("adaptive@0.05", 7.0)) for i in range(3)]  # fmt: skip
    for i, word in enumerate(bad):
        hp[word] = tuple([word] * (n - 1) + ["other"])
        complexity[f"{word}@0.1"] = rng.normal(size=n)
        gen[f"{word}_gap"] = rng.normal(size=n)
        failures.append((names[i], word, word))
        checks.append({"measure": word, "checkpoint": word, "before": 1.0, "after": 2.0})
    return StudyTable(tuple(names), hp, complexity, gen, {"test": 2000}, per_batch, tuple(failures),
                      {"orbit_check": checks, "versions": {"spiritlevel": "0"}, **dict.fromkeys(bad, "x")})  # fmt: skip
