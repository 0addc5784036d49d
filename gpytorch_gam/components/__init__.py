"""What the additive components are: groups of equal shape, the predictor that sums them, and the terms of a GAM."""

from .additive_predictor import AdditivePredictor
from .column_levels import ColumnLevels
from .component_group import ComponentGroup
from .constant import constant
from .cyclic import cyclic
from .factor import factor
from .factor_smooth import factor_smooth
from .inducing_points import kmeans_points, quantile_points, regular_grid
from .interaction import interaction
from .levels import Levels, as_levels
from .linear import linear
from .ordinal import ordinal
from .random_effect import random_effect
from .smooth import smooth
from .spatial import spatial
from .tensor import tensor

__all__ = [
    "AdditivePredictor",
    "ColumnLevels",
    "ComponentGroup",
    "Levels",
    "as_levels",
    "constant",
    "cyclic",
    "factor",
    "factor_smooth",
    "interaction",
    "kmeans_points",
    "linear",
    "ordinal",
    "quantile_points",
    "random_effect",
    "regular_grid",
    "smooth",
    "spatial",
    "tensor",
]
