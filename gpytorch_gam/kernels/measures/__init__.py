"""Distributions of one input variable, under which an ANOVA component has mean zero."""

from .empirical import Empirical
from .measure import Measure
from .normal import Normal
from .uniform import Uniform

__all__ = ["Empirical", "Measure", "Normal", "Uniform"]
