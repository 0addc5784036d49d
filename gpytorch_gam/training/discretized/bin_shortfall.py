"""What more inducing points would bring, from sums over the rows at the bins."""

from __future__ import annotations

import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.rows.likelihood_check import unwrapped
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ..shortfall import group_shortfall
from ._coordinates import Coordinate, index_of
from ._data import BinTables
from .column_bins import ColumnBins


def shortfall_at_bins(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, tables: BinTables, bins: ColumnBins
) -> dict[str, float]:
    """
    The gain from more inducing points for each component, as :func:`inducing_shortfall` gives it, over all rows of
    Gaussian data. Each component is read off the bins of the set of columns that it reads.
    """
    inner = unwrapped(likelihood)
    shares_noise = isinstance(inner, GaussianLikelihood) and tables.log_noise is None
    precision = 1.0 / inner.noise.detach().double() if shares_noise else 1.0
    found: dict[str, float] = {}
    for position, columns in enumerate(bins.terms):
        x = _inputs(strategy, columns, tables.places[position])
        for group in strategy.predictor.groups:
            read = bins.positions(group)
            if position not in read:
                continue
            with gradients_on():
                nats = group_shortfall(group, x, precision * tables.weights[position])
            found |= {
                name: each for name, t, each in zip(group.names, read, nats.tolist(), strict=True) if t == position
            }
    return {name: found[name] for name in strategy.predictor.names}


def _inputs(strategy: AdditiveVariationalStrategy, columns: tuple[Coordinate, ...], places: Tensor) -> Tensor:
    """Rows ``(U, D)`` at the bins of a set of columns; those of others are zero."""
    width = 1 + max(group.max_column for group in strategy.predictor.groups)
    x = torch.zeros(len(places), max(width, 1), dtype=torch.float64, device=places.device)
    x[:, [index_of(column) for column in columns]] = places
    return x
