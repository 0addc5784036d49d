"""Optimisers that know the structure of the posterior, and a training loop."""

from .fit import Epoch, fit
from .natural_gradient import NaturalGradient

__all__ = ["Epoch", "NaturalGradient", "fit"]
