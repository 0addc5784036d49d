"""Posteriors in the form of Gaussian sites, one for each row."""

from .exact_effects import exact_components
from .full_additive_variational_strategy import FullAdditiveVariationalStrategy
from .site_variational_distribution import SiteVariationalDistribution
from .tied_additive_variational_strategy import TiedAdditiveVariationalStrategy

__all__ = [
    "FullAdditiveVariationalStrategy",
    "SiteVariationalDistribution",
    "TiedAdditiveVariationalStrategy",
    "exact_components",
]
