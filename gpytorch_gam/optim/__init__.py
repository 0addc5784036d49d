"""Optimisers that know the structure of the posterior, and a training loop."""

from ._distributed import average_gradients, row_weighted
from .fit import Epoch, fit
from .fit_discretized import fit_discretized
from .hyperparameter_uncertainty import HyperparameterUncertainty
from .inducing_shortfall import inducing_shortfall
from .initialize_posterior import initialize_posterior
from .natural_gradient import NaturalGradient
from .polish import polish
from .starting_values import null_predictor, start_from_responses

__all__ = [
    "Epoch",
    "HyperparameterUncertainty",
    "NaturalGradient",
    "average_gradients",
    "fit",
    "fit_discretized",
    "inducing_shortfall",
    "initialize_posterior",
    "null_predictor",
    "polish",
    "row_weighted",
    "start_from_responses",
]
