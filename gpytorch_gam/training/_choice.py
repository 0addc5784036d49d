"""The choice of the method of a fit, by what the methods can do and what they would cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import gpytorch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution
from gpytorch_gam.optim.rows.likelihood_check import is_gaussian, unwrapped
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._hyperparameters import hyperparameters_of
from ._likelihood_step import is_deterministic
from .discretized.discretized_fit import check_supported

METHODS = ("auto", "rows", "bins", "minibatches")

# Largest numbers of features of all rows in memory (of which some copies exist), of inducing variables, whose dense
# matrices are factorised, and of hyperparameters, of which there is a matrix of second derivatives.
_MAX_FEATURES, _MAX_INDUCING, _MAX_HYPERPARAMETERS = 2**25, 2048, 500

# Seconds that an evaluation of the rows' bound takes: fixed; for each feature of a row; for each product of two
# features of a row, once with a Gaussian likelihood and three times with others; for a cubed number of inducing
# variables. And the usual number of evaluations.
_FIXED, _PER_FEATURE, _PER_PRODUCT, _PER_CUBE, _EVALUATIONS = 2e-2, 1e-7, 1e-9, 3e-9, 40

# Seconds that the rows may take before bins, whose cost hardly depends on the number of rows, are preferred: with a
# Gaussian likelihood, and with others, where bins may end in a lower one of several maxima.
_PATIENCE, _PATIENCE_WITH_SITES = 4.0, 30.0

# Largest number of rows times components whose indices are kept in memory by bins, unless the likelihood is Gaussian.
_MAX_INDICES = 2**31


class Choice(NamedTuple):
    """A method, and why it was chosen."""

    method: str
    reason: str


def choose(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    num_data: int,
) -> Choice:
    """The method for ``method="auto"``."""
    predictor = model.variational_strategy.predictor
    size = f"{num_data} rows of {predictor.num_inducing_total} features"
    not_rows = why_not_rows(model, likelihood, batches, num_data)
    not_bins = why_not_bins(model, likelihood, batches)
    seconds = _seconds_of_rows(likelihood, num_data, predictor.num_inducing_total)
    patience = _PATIENCE if is_gaussian(likelihood) else _PATIENCE_WITH_SITES
    if not_rows is None and (seconds <= patience or not_bins is not None):
        return Choice("rows", f"{size} are few enough for the exact bound")
    keeps_rows = not is_gaussian(likelihood)
    if not_bins is None and (not keeps_rows or num_data * predictor.num_components <= _MAX_INDICES):
        return Choice("bins", not_rows or f"{size}: tables of bins are faster than the rows")
    if not_rows is None:
        return Choice("rows", f"{size}, and bins cannot be used: {not_bins}")
    return Choice("minibatches", f"{not_rows}; {not_bins or 'the indices of all rows would not fit into memory'}")


def _seconds_of_rows(likelihood: Likelihood, num_rows: int, num_inducing: int) -> float:
    products = (1 if is_gaussian(likelihood) else 3) * num_rows * num_inducing**2
    once = _FIXED + _PER_FEATURE * num_rows * num_inducing + _PER_PRODUCT * products + _PER_CUBE * num_inducing**3
    return _EVALUATIONS * once


def why_not_rows(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, batches: Iterable[Any], num_data: int
) -> str | None:
    """The reason for which rows cannot be used, or None."""
    num_inducing = model.variational_strategy.predictor.num_inducing_total
    number = sum(parameter.numel() for parameter in hyperparameters_of(model, likelihood))
    if num_inducing > _MAX_INDUCING:
        return f"{num_inducing} inducing variables are too many for dense matrices"
    if num_data * num_inducing > _MAX_FEATURES:
        return f"{num_data} rows of {num_inducing} features are too many for memory"
    if number > _MAX_HYPERPARAMETERS:
        return f"{number} hyperparameters are too many for a quasi-Newton method"
    return _why_no_passes(likelihood, batches)


def why_not_bins(model: gpytorch.models.ApproximateGP, likelihood: Likelihood, batches: Iterable[Any]) -> str | None:
    """The reason for which bins cannot be used, or None."""
    try:
        check_supported(model.variational_strategy, likelihood)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return _why_no_passes(likelihood, batches)


def why_not_minibatches(strategy: AdditiveVariationalStrategy) -> str | None:
    """The reason for which minibatches cannot be used, or None."""
    q = strategy._variational_distribution
    if isinstance(q, StructuredDistribution):
        return None
    return f"natural gradients need a structured posterior, this is a {type(q).__name__}"


def _why_no_passes(likelihood: Likelihood, batches: Iterable[Any]) -> str | None:
    if not is_deterministic(likelihood):
        return f"the expectations of a {type(unwrapped(likelihood)).__name__} may be random samples"
    try:
        every_row(batches)
    except ValueError as error:
        return str(error)
    return None
