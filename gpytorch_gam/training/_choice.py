"""The choice of the method of a fit, by what the methods can do and what they would cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution
from gpytorch_gam.optim.rows.likelihood_check import is_gaussian, unwrapped
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._growing import MOST_INDUCING
from ._hyperparameters import hyperparameters_of
from ._likelihood_step import is_deterministic
from ._network_weights import has_network
from .discretized.discretized_fit import MAX_BINS, check_supported

METHODS = ("auto", "rows", "bins", "minibatches")

# Largest numbers of features of all rows in memory (of which some copies exist), of inducing variables, whose dense
# matrices are factorised, and of hyperparameters, of which there is a matrix of second derivatives.
_MAX_FEATURES, _MAX_INDUCING, _MAX_HYPERPARAMETERS = 2**25, 2048, 500

# Seconds of a fit by rows and by bins, from a dozen fits each to 1,000 to 20,000 rows on one thread: for whatever there
# is; for each feature at a distinct value of its columns, and at a row; for each product of two features of a row, once
# with a Gaussian likelihood and three times with others; for each entry of a table of two sets of columns times an
# inducing variable of one of them; and for a cubed number of inducing variables.
_FIXED, _PER_VALUE, _PER_FEATURE, _PER_PRODUCT, _PER_ENTRY, _PER_CUBE = 0.8, 1.6e-5, 4e-6, 1e-8, 1.8e-8, 1e-8

# Seconds that the rows may take, and multiple of the seconds of bins, before these are preferred: they round columns,
# so that the bounds of models are compared up to some tenths of a nat. Where they would blur a component, the rows may
# take longer: a column is rounded to less than this number of bins for each inducing point.
_PATIENCE, _WORTH_EXACTNESS = 3.0, 1.5
_PATIENCE_WITH_BLUR, _BINS_PER_POINT = 120.0, 8

# Largest number of rows in which distinct values are counted, and their share from which on there are as many as rows.
_MOST_COUNTED, _ALL_DISTINCT = 20_000, 0.6

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
    worth_exactness: float = _WORTH_EXACTNESS,
) -> Choice:
    """
    The method for ``method="auto"``: rows, unless they take some seconds and more than a multiple of those of bins.
    """
    predictor = model.variational_strategy.predictor
    if has_network(model) and why_not_minibatches(model.variational_strategy) is None:
        return Choice("minibatches", "forward has a network, whose weights rows would move as far as the bound rises")
    size = f"{num_data} rows of {predictor.num_inducing_total} features"
    not_rows = why_not_rows(model, likelihood, batches, num_data)
    not_bins = why_not_bins(model, likelihood, batches)
    if not_rows is None and not_bins is not None:
        return Choice("rows", f"{size}, and bins cannot be used: {not_bins}")
    costs = None if not_bins else _Costs.of(model.variational_strategy, likelihood, batches, num_data)
    if not_rows is None and costs is not None:
        if costs.of_rows <= max(_PATIENCE, worth_exactness * costs.of_bins):
            return Choice("rows", f"{size} are few enough for the exact bound")
        if costs.has_blur and costs.of_rows <= _PATIENCE_WITH_BLUR:
            return Choice("rows", f"{size}: bins would blur components of so many inducing points")
    keeps_rows = not is_gaussian(likelihood)
    if not_bins is None and (not keeps_rows or num_data * predictor.num_components <= _MAX_INDICES):
        coarse = "; bins are coarse for components of so many inducing points" if costs and costs.has_blur else ""
        return Choice("bins", (not_rows or f"{size}: tables of bins are faster than the rows") + coarse)
    if not_rows is None:
        return Choice("rows", f"{size}, and the indices of all rows would not fit into memory")
    return Choice("minibatches", f"{not_rows}; {not_bins or 'the indices of all rows would not fit into memory'}")


class _Costs(NamedTuple):
    """Predicted seconds of a fit, and whether bins are coarse for a component."""

    of_rows: float
    of_bins: float
    has_blur: bool

    @classmethod
    def of(
        cls, strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any], num_data: int
    ) -> _Costs:
        num_inducing = strategy.predictor.num_inducing_total
        counts = _distinct_counts(_some_inputs(batches), num_data)
        at_values, has_blur, bins, entries = 0.0, False, {}, 0.0
        for group in strategy.predictor.groups:
            for columns in group.columns.tolist():
                most = MAX_BINS[min(max(len(columns), 1), len(MAX_BINS)) - 1]
                own = [counts.get(column, num_data) for column in columns]
                is_rounded = any(number > most for number in own)
                bins[tuple(columns)] = min(math.prod(min(number, most) for number in own), num_data)
                at_values += group.num_inducing * (own[0] if len(own) == 1 else num_data)
                entries += group.num_inducing * bins[tuple(columns)]
                along_column = group.num_inducing ** (1.0 / max(len(columns), 1))
                has_blur |= is_rounded and along_column * _BINS_PER_POINT > most
        products = (1 if is_gaussian(likelihood) else 3) * num_data * num_inducing**2
        cubes = _PER_CUBE * num_inducing**3
        at_rows = _PER_VALUE * at_values + _PER_FEATURE * num_data * num_inducing + _PER_PRODUCT * products
        at_bins = _PER_ENTRY * entries * sum(bins.values())
        return cls(_FIXED + at_rows + cubes, _FIXED + at_bins + cubes, has_blur)


def _distinct_counts(x: Tensor | None, num_data: int) -> dict[int, int]:
    """The number of distinct values of each column in all of the data, from some of the rows."""
    if x is None:
        return {}
    some = x[torch.linspace(0, len(x) - 1, min(len(x), _MOST_COUNTED), device=x.device).round().long()]
    seen = {column: len(torch.unique(values)) for column, values in enumerate(some.detach().mT)}
    return {column: num_data if number > _ALL_DISTINCT * len(some) else number for column, number in seen.items()}


def _some_inputs(batches: Iterable[Any]) -> Tensor | None:
    """
    The inputs of the first batch, None if there are none that can be read; a loader that shuffles draws as if nobody
    had looked.
    """
    with torch.random.fork_rng(devices=[]):
        first = next(iter(every_row(batches)), None)
    x = first[0] if isinstance(first, list | tuple) and len(first) > 1 else None
    return x if torch.is_tensor(x) and x.dim() == 2 and x.layout == torch.strided else None


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


def most_inducing(method: str, num_data: int) -> int:
    """The largest number of inducing points of all components that a fit by a method gives them."""
    return min(MOST_INDUCING, _MAX_FEATURES // num_data) if method == "rows" else MOST_INDUCING


def why_not_bins(model: gpytorch.models.ApproximateGP, likelihood: Likelihood, batches: Iterable[Any]) -> str | None:
    """The reason for which bins cannot be used, or None."""
    try:
        check_supported(model.variational_strategy, likelihood)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    obstacle = _why_no_passes(likelihood, batches)
    if obstacle is not None:
        return obstacle
    x = _some_inputs(batches)
    if x is not None and not model.variational_strategy.read(x[:2]).is_plain:
        return f"{type(model).__name__}.forward gives its predictor other inputs than x, or adds a mean"
    return None


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
