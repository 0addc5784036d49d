"""Kernels for additive models: those without a constant part, and those of categories and straight lines."""

from .anova_kernel import ANOVAKernel
from .centred_kernel import CentredKernel
from .centred_linear_kernel import CentredLinearKernel
from .level_kernel import LevelKernel
from .measures import Empirical, Measure, Normal, Uniform
from .ordinal_kernel import OrdinalKernel

__all__ = [
    "ANOVAKernel",
    "CentredKernel",
    "CentredLinearKernel",
    "Empirical",
    "LevelKernel",
    "Measure",
    "Normal",
    "OrdinalKernel",
    "Uniform",
]
