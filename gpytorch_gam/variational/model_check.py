"""Checks that a model is one of this package."""

from __future__ import annotations

from typing import Any

from gpytorch_gam import _checks as checks

from .additive_strategy import AdditiveStrategy
from .additive_variational_strategy import AdditiveVariationalStrategy


def additive_strategy(model: Any) -> AdditiveStrategy:
    """The strategy of an additive model; any other model raises a TypeError."""
    strategy = checks.approximate_gp(model).variational_strategy
    if isinstance(strategy, AdditiveStrategy):
        return strategy
    hint = ""
    if hasattr(strategy, "base_variational_strategy"):
        hint = (
            ". Models inside GPyTorch's multitask wrappers are for loops of your own, with torch's optimisers; for "
            "several tasks here make one AdditivePredictor of component groups with predictor=0, predictor=1, ... and "
            "take MultitaskGaussianLikelihood or another likelihood of several predictors"
        )
    raise TypeError(
        "model must have an AdditiveVariationalStrategy as its variational_strategy, got "
        f"{type(strategy).__name__}{hint}"
    )


def inducing_strategy(model: Any) -> AdditiveVariationalStrategy:
    """The strategy of an additive model; a NotImplementedError without inducing variables, a TypeError for others."""
    strategy = additive_strategy(model)
    if not isinstance(strategy, AdditiveVariationalStrategy):
        raise NotImplementedError(
            f"{type(strategy).__name__} has no inducing variables: use TiedAdditiveVariationalStrategy or "
            "AdditiveVariationalStrategy"
        )
    return strategy
