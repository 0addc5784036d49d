"""Variational distributions with structured precision, and the strategies for sums of Gaussian processes."""

from .additive_variational_strategy import AdditiveVariationalStrategy
from .block_low_rank_precision_variational_distribution import BlockLowRankPrecisionVariationalDistribution
from .low_rank_precision_variational_distribution import LowRankPrecisionVariationalDistribution
from .sites import (
    FullAdditiveVariationalStrategy,
    SiteVariationalDistribution,
    TiedAdditiveVariationalStrategy,
    exact_components,
)

__all__ = [
    "AdditiveVariationalStrategy",
    "BlockLowRankPrecisionVariationalDistribution",
    "FullAdditiveVariationalStrategy",
    "LowRankPrecisionVariationalDistribution",
    "SiteVariationalDistribution",
    "TiedAdditiveVariationalStrategy",
    "exact_components",
]
