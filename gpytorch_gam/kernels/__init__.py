"""Kernels for additive models: covariances without a constant part under a measure of the input."""

from .anova_kernel import ANOVAKernel
from .measures import Empirical, Measure, Normal, Uniform

__all__ = ["ANOVAKernel", "Empirical", "Measure", "Normal", "Uniform"]
