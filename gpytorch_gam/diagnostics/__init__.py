"""Diagnostics of a fitted model."""

from .concurvity_of_components import Concurvity, concurvity
from .cross_validation import LeaveOneOut, leave_one_out
from .evidence_of_components import component_evidence
from .hyperparameter_uncertainty import HyperparameterUncertainty
from .model_mixture import ModelMixture
from .score_test_of_components import score_test
from .variance_decomposition import SobolIndices, sobol_indices

__all__ = [
    "Concurvity",
    "HyperparameterUncertainty",
    "LeaveOneOut",
    "ModelMixture",
    "SobolIndices",
    "component_evidence",
    "concurvity",
    "leave_one_out",
    "score_test",
    "sobol_indices",
]
