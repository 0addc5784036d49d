"""
Bayesian generalized additive models for GPyTorch.

A predictor that is a sum of Gaussian processes, each on its own columns with its own kernel and inducing points, and a
variational posterior that couples them at about the cost of the mean-field approximation.
"""

from importlib.metadata import PackageNotFoundError, version

from . import components, data, kernels, likelihoods, mlls, models, operators, optim, settings, variational
from .components import AdditivePredictor, ComponentGroup
from .models import AdditiveGP
from .variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)

try:
    __version__ = version("gpytorch-gam")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdditiveGP",
    "AdditivePredictor",
    "AdditiveVariationalStrategy",
    "BlockLowRankPrecisionVariationalDistribution",
    "ComponentGroup",
    "LowRankPrecisionVariationalDistribution",
    "components",
    "data",
    "kernels",
    "likelihoods",
    "mlls",
    "models",
    "operators",
    "optim",
    "settings",
    "variational",
]
