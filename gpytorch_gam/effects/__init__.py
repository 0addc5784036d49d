"""The posterior of each component: joint moments, centred effects, bands, and predictions of many rows."""

from .component_posterior import ComponentPosterior, ComponentSamples
from .prediction import Prediction

__all__ = ["ComponentPosterior", "ComponentSamples", "Prediction"]
