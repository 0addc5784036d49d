"""What the additive components are: groups of equal shape, the predictor that sums them, and factories."""

from .additive_predictor import AdditivePredictor
from .column_levels import ColumnLevels
from .component_group import ComponentGroup
from .constant import constant
from .inducing_points import kmeans_points, quantile_points, regular_grid

__all__ = [
    "AdditivePredictor",
    "ColumnLevels",
    "ComponentGroup",
    "constant",
    "kmeans_points",
    "quantile_points",
    "regular_grid",
]
