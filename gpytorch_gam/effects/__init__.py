"""The posterior of each component: joint moments, centred effects, bands, and predictions of many rows."""

from .component_mixture import ComponentMixture
from .component_posterior import ComponentPosterior, ComponentSamples
from .component_sums import SumPrediction
from .joint_sum import JointSum
from .prediction import Prediction
from .weighted_models import WeightedModels, mixed_prediction

__all__ = [
    "ComponentMixture",
    "ComponentPosterior",
    "ComponentSamples",
    "JointSum",
    "Prediction",
    "SumPrediction",
    "WeightedModels",
    "mixed_prediction",
]
