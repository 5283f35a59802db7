"""Settings of the curvature measures when they are called by name, from the command line or a study."""

from __future__ import annotations

from dataclasses import dataclass

from spiritlevel.errors import ArgumentError
from spiritlevel.measures.common import Over
from spiritlevel.measures.hessian.operator import PerLayer
from spiritlevel.measures.hessian.trace import Method
from spiritlevel.problem import Matrix
from spiritlevel.problem.curvature import MATRICES, Engine

__all__ = ["CurvatureOptions"]


@dataclass(frozen=True)
class CurvatureOptions:
    """What curvature measures take beside geometry and seed; each what concerns it.

    Attributes:
        matrix: ``hessian``, ``gauss_newton``, ``fisher`` or ``empirical_fisher``.
        engine: ``reverse``, or ``forward`` where memory is short.
        over: all data together, or the mean over batches.
        per_layer: layer by layer; a function of the layer's name joins layers. None for each measure's own default.
        k: how many eigenvalues.
        estimator: of the trace.
        vectors: most random vectors for traces, norms and diagonals.
        tolerance: wanted relative error; None for each measure's own default.
        steps: Lanczos steps; None for each measure's own default.
        probes: random directions for densities and entropies; None for each measure's own default.
        alpha: order of the Rényi entropy.
        damping: of the log-determinant and the effective dimension.
        seconds: stop after this time with what there is.
    """

    matrix: Matrix = "hessian"
    engine: Engine = "reverse"
    over: Over = "union"
    per_layer: PerLayer | None = None
    k: int = 1
    estimator: Method = "hutchinson"
    vectors: int = 100
    tolerance: float | None = None
    steps: int | None = None
    probes: int | None = None
    alpha: float = 1.5
    damping: float = 1.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check what would otherwise come out late."""
        if self.matrix not in MATRICES:
            raise ArgumentError(f"expected a curvature matrix out of {', '.join(MATRICES)}; got {self.matrix!r}")
