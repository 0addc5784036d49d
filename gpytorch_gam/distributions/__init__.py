"""Distributions that GPyTorch and torch lack: those of the predictors in each row, and those of responses."""

from .predictor_distribution import PredictorDistribution, PredictorMoments, row_moments
from .quantiles import predictive_quantiles

__all__ = ["PredictorDistribution", "PredictorMoments", "predictive_quantiles", "row_moments"]
