"""An optimiser that knows the structure of the posterior."""

from .natural_gradient import NaturalGradient

__all__ = ["NaturalGradient"]
