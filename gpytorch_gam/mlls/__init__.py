"""Objectives that GPyTorch lacks."""

from .collapsed_elbo import CollapsedELBO, GaussianOptimum, GaussianStatistics

__all__ = ["CollapsedELBO", "GaussianOptimum", "GaussianStatistics"]
