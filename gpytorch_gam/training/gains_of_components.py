"""Nats that further components would add to the bound of a fitted model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.known_inputs import any_inputs
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import check_number_of_predictors, with_noise_by_row
from gpytorch_gam.optim.rows.predictors import predictor_segments
from gpytorch_gam.optim.rows.stream import Rows, concatenated
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational.model_check import inducing_strategy

from ._component_scales import Scale, reference_lengthscale, scales_of_group, set_lengthscale
from ._component_scan import RATIOS, Curves, SiteView
from ._data_sources import as_batches
from ._row_bound import RowBound
from ._some_rows import rows_of_first_batches

# Largest number of rows that represent the data, and of batches from which they are taken.
_NUM_ROWS = 10_000

# Lengthscales that are tried, as multiples of the first one of the terms, a quarter of the range: wavy, bent, straight.
_LENGTHSCALES = (1.0, 3.0, 10.0)


def component_gains(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, data: Any, groups: Iterable[ComponentGroup]
) -> dict[str, float]:
    r"""
    The nats that each of some components would add to the bound of a fitted model that lacks them, before any is added:
    for choosing interactions among many.

    The other components are integrated out at their present hyperparameters, and Gaussian factors stand for a
    likelihood that is not Gaussian, those of the optimal posterior. Then a component with features :math:`\sqrt r F`
    and prior variances :math:`r k_n` in the rows adds

    .. math::
        \frac12 \Big( r\, u'(I + r S)^{-1} u - \log|I + r S| - r \sum_n \lambda_n (k_n - |F_n|^2) \Big),

    where S and u are Schur complements of its gram matrix :math:`F \Lambda F'` and of its projected targets. That is a
    closed form for all variances r at once, and the best one is taken, at the best of three lengthscales: a quarter of
    the range of the column, and three and ten times as much. With a Gaussian likelihood the number is exact at these
    hyperparameters, so that a fit with the component reaches more; several components may explain the same, so that
    their gains do not add up. It is computed from 10,000 rows at most, which then are all of the evidence.

    :param model: A fitted model whose ``variational_strategy`` is an
        :class:`~gpytorch_gam.variational.AdditiveVariationalStrategy` without a batch shape. It stays as it is.
    :param likelihood: Its likelihood.
    :param data: The data, as for :func:`~gpytorch_gam.fit`.
    :param groups: Groups of components that terms return, with trained variances, such as ``tensor((0, 1), x)``. Those
        that gain anything get the variance and the lengthscales of the best trial, from which a fit may start.
    :return: The gain in nats, 0 or more, by the name of the component.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If a component has no variance that is trained, or a predictor that the model lacks, or the data
        cannot be read.

    Example:
        >>> pairs = tensor([(0, 1), (0, 2), (1, 2)], x)
        >>> component_gains(model, likelihood, (x, y), [pairs])   # {"x0:x1": 31.2, "x0:x2": 0.0, "x1:x2": 0.4}
    """
    strategy = inducing_strategy(model)
    checks.likelihood(likelihood)
    check_number_of_predictors(strategy, likelihood)
    groups = list(groups)
    for group in groups:
        _check_group(group, strategy)
    with torch.inference_mode(False), torch.no_grad(), any_inputs():  # x has the columns of the groups, too
        batches = with_noise_by_row(likelihood, every_row(as_batches(data)))
        rows = concatenated(rows_of_first_batches(strategy, likelihood, batches, _NUM_ROWS))[0]
        others = _Others.of(deepcopy(model), deepcopy(likelihood), rows)
        inputs = strategy.read(rows.x).inputs.double()
        return {name: nats for group in groups for name, nats in others.best(group, inputs).items()}


def _check_group(group: ComponentGroup, strategy: AdditiveVariationalStrategy) -> None:
    if not isinstance(group, ComponentGroup):
        raise TypeError(f"groups must hold groups of components, as terms return them, got {checks.shown(group)}")
    if group.predictor_index >= strategy.predictor.num_predictors:
        raise ValueError(
            f"the components {list(group.names)} belong to predictor {group.predictor_index}, but the model has "
            f"{strategy.predictor.num_predictors}"
        )
    if not list(scales_of_group(group)):
        raise ValueError(f"the components {list(group.names)} have no trained variance of each one's own")


class _Others(NamedTuple):
    """The components of a model at rows, with Gaussian factors in the place of the likelihood."""

    strategy: AdditiveVariationalStrategy
    view: SiteView
    cholesky: Tensor  # of the precision of the whitened variables, (Q, Q)
    solved: Tensor  # the projected targets, solved by it, (Q,)

    @classmethod
    def of(cls, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, rows: Rows) -> _Others:
        strategy = model.variational_strategy
        view = RowBound(model.train(), likelihood.train(), rows, Processes(None)).site_view()
        if view is None:
            raise ValueError("the bound is not finite at the hyperparameters of the model: fit it before")
        size = len(view.features)
        precision, projected = torch.eye(size).to(view.features), view.features.new_empty(size)
        for owner, part in predictor_segments(strategy.predictor):
            precision[part] += _cross(view, strategy, view.features[part], owner)
            projected[part] = view.features[part] @ view.targets[owner]
        cholesky = torch.linalg.cholesky(precision)
        solved = torch.linalg.solve_triangular(cholesky, projected.unsqueeze(-1), upper=False).squeeze(-1)
        return cls(strategy, view, cholesky, solved)

    def best(self, group: ComponentGroup, inputs: Tensor) -> dict[str, float]:
        """The gain of each component of a group, which gets the best hyperparameters of those tried."""
        scales = list(scales_of_group(group))
        references = [[reference_lengthscale(part) for part in scale.lengthscales] for scale in scales]
        variances = [scale.value() for scale in scales]
        factors = _LENGTHSCALES if any(scale.lengthscales for scale in scales) else (1.0,)
        found: dict[float, list[tuple[float, float]]] = {}  # gain and ratio of each component
        origin = deepcopy(group.state_dict())
        for factor in factors:
            _set_lengthscales(scales, references, factor)
            with suppress(torch.linalg.LinAlgError, NotPSDError, NanError):  # this lengthscale cannot be had
                found[factor] = list(self._gains(group, inputs))
        group.load_state_dict(origin)
        gains = {}
        for index, scale in enumerate(scales):
            gain, ratio, factor = max(((*each[index], factor) for factor, each in found.items()), default=(0.0, 0, 0))
            gains[scale.name] = gain
            if gain > 0:
                scale.set(ratio * variances[index])
                _set_lengthscales([scale], [references[index]], factor)
        return gains

    def _gains(self, group: ComponentGroup, inputs: Tensor) -> Iterator[tuple[float, float]]:
        """The gain of each component at the best ratio of its variance, and that ratio."""
        rows = group.at_rows(inputs, self.strategy.jitter_val, self.strategy._jitter_is_relative)
        owner = group.predictor_index
        weights, targets = self.view.curvatures[owner, owner], self.view.targets[owner]
        for features, variance in zip(rows.features, rows.prior_variance.expand(-1, len(inputs)), strict=True):
            cross = _cross(self.view, self.strategy, features, owner)
            half = torch.linalg.solve_triangular(self.cholesky, cross.mT, upper=False).mT
            curves = Curves.of_schur_complements(
                ((features * weights) @ features.mT).unsqueeze(0),
                half.unsqueeze(0),
                (features @ targets - half @ self.solved).unsqueeze(0),
                (weights @ variance).unsqueeze(0),
            )
            gain, best = curves(features.new_tensor(RATIOS)).squeeze(0).max(0)
            yield gain.item(), RATIOS[int(best)]


def _cross(view: SiteView, strategy: AdditiveVariationalStrategy, features: Tensor, owner: int) -> Tensor:
    """Features ``(M, n)`` of a predictor times those of the model, by Lambda, ``(M, Q)``."""
    return torch.cat(
        [
            (features * view.curvatures[owner, other]) @ view.features[part].mT
            for other, part in predictor_segments(strategy.predictor)
        ],
        dim=-1,
    )


def _set_lengthscales(scales: Sequence[Scale], references: Sequence[Sequence[Tensor]], factor: float) -> None:
    """Give components lengthscales that are a multiple of their references."""
    for scale, own in zip(scales, references, strict=True):
        for part, reference in zip(scale.lengthscales, own, strict=True):
            set_lengthscale(part, scale.entry, factor * reference)
