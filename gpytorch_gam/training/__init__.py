"""Training: starting values, minibatch and discretised fits, and refinement of the posterior."""

from .discretized import ColumnRanges, FitStatistics
from .fit_result import Epoch, FitResult
from .fitting import fit
from .gains_of_components import component_gains
from .initialization import initialize_posterior
from .polishing import polish
from .shortfall import inducing_shortfall
from .starting_values import null_predictor, start_from_responses

__all__ = [
    "ColumnRanges",
    "Epoch",
    "FitResult",
    "FitStatistics",
    "component_gains",
    "fit",
    "inducing_shortfall",
    "initialize_posterior",
    "null_predictor",
    "polish",
    "start_from_responses",
]
