"""
Bayesian generalized additive models for GPyTorch.

A predictor that is a sum of Gaussian processes, each on its own columns with its own kernel and inducing points, and a
variational posterior that couples them at about the cost of the mean-field approximation.
"""

from importlib import metadata as _metadata

from . import (
    components,
    data,
    diagnostics,
    distributions,
    effects,
    gam,
    kernels,
    likelihoods,
    mlls,
    models,
    operators,
    optim,
    settings,
    terms,
    training,
    variational,
    warnings,
)
from .components import AdditivePredictor, ComponentGroup
from .models import AdditiveGP, AdditiveModelMixin
from .optim import NaturalGradient
from .training import fit, polish
from .variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)

try:
    __version__ = _metadata.version("gpytorch-gam")
except _metadata.PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdditiveGP",
    "AdditiveModelMixin",
    "AdditivePredictor",
    "AdditiveVariationalStrategy",
    "BlockLowRankPrecisionVariationalDistribution",
    "ComponentGroup",
    "LowRankPrecisionVariationalDistribution",
    "NaturalGradient",
    "components",
    "data",
    "diagnostics",
    "distributions",
    "effects",
    "fit",
    "gam",
    "kernels",
    "likelihoods",
    "mlls",
    "models",
    "operators",
    "optim",
    "polish",
    "settings",
    "terms",
    "training",
    "variational",
    "warnings",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
