"""Optimisers that know the structure of the posterior, and a training loop."""

from .fit import Epoch, fit
from .initialize_posterior import initialize_posterior
from .natural_gradient import NaturalGradient
from .polish import polish

__all__ = ["Epoch", "NaturalGradient", "fit", "initialize_posterior", "polish"]
