"""Variational distributions with structured precision, and the strategy for sums of Gaussian processes."""

from .additive_variational_strategy import AdditiveVariationalStrategy
from .block_low_rank_precision_variational_distribution import BlockLowRankPrecisionVariationalDistribution
from .component_posterior import ComponentPosterior, ComponentSamples
from .concurvity import Concurvity, concurvity
from .exact_components import exact_components
from .full_additive_variational_strategy import FullAdditiveVariationalStrategy
from .low_rank_precision_variational_distribution import LowRankPrecisionVariationalDistribution
from .prediction import Prediction
from .row_moments import PredictorDistribution, PredictorMoments, row_moments
from .site_variational_distribution import SiteVariationalDistribution
from .sobol_indices import SobolIndices, sobol_indices
from .tied_additive_variational_strategy import TiedAdditiveVariationalStrategy

__all__ = [
    "AdditiveVariationalStrategy",
    "BlockLowRankPrecisionVariationalDistribution",
    "ComponentPosterior",
    "ComponentSamples",
    "Concurvity",
    "FullAdditiveVariationalStrategy",
    "LowRankPrecisionVariationalDistribution",
    "Prediction",
    "PredictorDistribution",
    "PredictorMoments",
    "SiteVariationalDistribution",
    "SobolIndices",
    "TiedAdditiveVariationalStrategy",
    "concurvity",
    "exact_components",
    "row_moments",
    "sobol_indices",
]
