"""Every error this package raises on purpose.

::

    SpiritlevelError
    ├── ArgumentError            a setting is out of its range (also a ValueError)
    │   └── ConfigError          the same in the configuration of a study
    ├── DataError                batches, labels or a data file cannot be used (also a ValueError)
    ├── ModelError               the model or its weights cannot be measured
    │   └── CheckpointError      a checkpoint cannot be read, or is refused
    ├── LossError                the loss is not a finite scalar
    ├── NondeterminismError      two passes over the same data disagree
    ├── SymmetryError            a claimed symmetry does not hold
    ├── ReparametrisationError   a change of variables is no bijection, or a metric is singular, where it is used
    ├── DerivativeError          the model has no derivative of the order asked for
    ├── EngineError              the machines that a study is to run on are not there, or not alike
    ├── RanksError               processes that measure together do not agree, or one of them is gone
    ├── StoreError               the file that holds a study's results cannot be read or written
    └── MissingDependencyError   an optional package is not installed (also an ImportError)

Each message says what was expected, what came, and what to do. When one is raised, nothing was changed: neither the
model nor any file.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DerivativeError",
    "EngineError",
    "LossError",
    "MissingDependencyError",
    "ModelError",
    "NondeterminismError",
    "RanksError",
    "ReparametrisationError",
    "SpiritlevelError",
    "StoreError",
    "SymmetryError",
]


class SpiritlevelError(Exception):
    """Base of all errors raised by spiritlevel."""


class ArgumentError(SpiritlevelError, ValueError):
    """A setting is out of its range."""


class ConfigError(ArgumentError):
    """A setting of a study is wrong; the message starts with its file, line and column."""


class DataError(SpiritlevelError, ValueError):
    """Batches, labels or a data file cannot be used."""


class ModelError(SpiritlevelError):
    """The model or its weights cannot be measured."""


class CheckpointError(ModelError):
    """A checkpoint cannot be read, or is refused."""


class LossError(SpiritlevelError):
    """The loss is not a finite scalar."""


class NondeterminismError(SpiritlevelError):
    """Two passes over the same data disagree."""


class SymmetryError(SpiritlevelError):
    """A claimed symmetry does not hold."""


class ReparametrisationError(SpiritlevelError):
    """A change of variables is no bijection, or a metric is singular, where it is used."""


class DerivativeError(SpiritlevelError):
    """The model has no derivative of the order asked for."""


class EngineError(SpiritlevelError):
    """The machines that a study is to run on are not there, or not alike."""


class RanksError(SpiritlevelError):
    """Processes that measure together do not agree, or one of them is gone."""


class StoreError(SpiritlevelError):
    """The file that holds a study's results cannot be read or written."""


class MissingDependencyError(SpiritlevelError, ImportError):
    """An optional package is not installed."""
