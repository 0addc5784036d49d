"""Additive components: groups of components of equal shape, the predictor that sums them, and their inducing points."""

from .additive_predictor import AdditivePredictor
from .component_group import ComponentGroup
from .inducing_points import kmeans_points, quantile_points, regular_grid
from .levels import Levels

__all__ = ["AdditivePredictor", "ComponentGroup", "Levels", "kmeans_points", "quantile_points", "regular_grid"]
