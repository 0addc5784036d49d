"""Distributions that GPyTorch and torch lack: of the predictors in each row, and of responses."""

from .predictor_distribution import PredictorDistribution, PredictorMoments, row_moments
from .quantiles import predictive_quantiles

__all__ = ["PredictorDistribution", "PredictorMoments", "predictive_quantiles", "row_moments"]
