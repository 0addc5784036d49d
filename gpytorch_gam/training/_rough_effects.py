"""A search for effects of one to three columns that are too rough for the present inducing points."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients, joint_expected_gradients
from gpytorch_gam.numerics.triangular import triangular_solve
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import concatenated
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import InducingPointsWarning

from ._component_scales import Scale, reference_lengthscale, scales_of_group, set_lengthscale
from ._component_scan import RATIOS, Curves
from ._some_rows import rows_of_first_batches
from .shortfall import POINTS_OF_TERMS

# Largest number of rows that represent the data.
_NUM_ROWS = 20_000

# Numbers of cells into which the range of each column is divided, by the number of columns that a component reads.
_CELLS = {1: (16, 64, 256, 1024), 2: (8, 16, 32, 64), 3: (4, 8, 16)}

# Standard deviations by which products of residuals in a cell and its neighbours must exceed their mean under
# independence.
_NOTABLE_SCORE = 4.0

# Such standard deviations from which on a fit warns.
_DEPENDENT = 6.0

# Number of places along each column that stand for the rows where gains are computed, by the number of columns.
_NUM_PLACES = {1: 512, 2: 32, 3: 10}

# Denominators of sums over empty cells.
_TINY = torch.finfo(torch.float64).tiny

# Lengthscales that are tried, as multiples of the reference, which is a quarter of the range.
_LENGTHSCALES = (0.045, 0.1, 0.2, 0.4)

# Jitter relative to the prior variance, in float64.
_JITTER = 1e-8

# Nats that more points must bring, and the share of those that the largest number brings with which fewer are taken.
_LEAST_GAIN, _SHARE = 5.0, 0.9


class Residuals(NamedTuple):
    r"""
    What is left of the data at rows of a fitted model.

    :ivar x: The inputs of the predictor, ``(n, D)``, float64.
    :ivar gradients: Derivatives of the expected log-likelihood in the predictors' means, ``(P, n)``: residuals over the
        noise variance, with a Gaussian likelihood.
    :ivar curvatures: Minus twice those in their variances, ``(P, n)``.
    """

    x: Tensor
    gradients: Tensor
    curvatures: Tensor


@torch.inference_mode(False)
@torch.no_grad()
def residuals_of_batches(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any]
) -> Residuals:
    """What is left of some rows of the first batches, at the posterior of the model."""
    rows = concatenated(rows_of_first_batches(strategy, likelihood, batches, _NUM_ROWS))[0]
    moments = strategy.training_moments(rows.x)
    x = strategy.read(rows.x).inputs.double()
    if strategy.predictor.num_predictors == 1:
        mean, variance = moments.mean.squeeze(-1), moments.covariance.flatten(-3)
        found = expected_gradients(likelihood, rows.y, mean, variance, rows.row_arguments)
        return Residuals(x, found.gradients.double().unsqueeze(0), found.curvatures.double().unsqueeze(0))
    several = joint_expected_gradients(likelihood, rows.y, moments.mean, moments.covariance, rows.row_arguments)
    curvatures = several.curvatures.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
    return Residuals(x, several.gradients.double().mT, curvatures.double().mT)


class RoughEffect(NamedTuple):
    """
    What a component with more points at a shorter lengthscale would add to a fit.

    :ivar name: The component.
    :ivar num_inducing: The number of points M.
    :ivar factor: The lengthscale, as a multiple of the reference.
    :ivar variance: The prior variance.
    :ivar gain: In nats.
    """

    name: str
    num_inducing: int
    factor: float
    variance: float
    gain: float

    def start(self, group: ComponentGroup) -> None:
        """Give the component the lengthscale and the variance, from which a fit may start."""
        (scale,) = (scale for scale in scales_of_group(group) if scale.name == self.name)
        scale.set(self.variance)
        for part in scale.lengthscales:
            set_lengthscale(part, scale.entry, self.factor * reference_lengthscale(part))


class SumsAtPlaces(NamedTuple):
    """Sums over the rows at places."""

    places: Tensor  # (C, K, d)
    gradients: Tensor  # (C, K)
    curvatures: Tensor  # (C, K)


@torch.no_grad()
def rough_effects(
    predictor: AdditivePredictor, residuals: Residuals, processes: Processes | None = None
) -> list[RoughEffect]:
    """
    The components of one to three columns that would gain notably from more inducing points at lengthscales that are
    shorter than these can represent, where a fit cannot see that from its present hyperparameters.

    Residuals of neighbours along the columns are multiplied: if they are independent, whatever their variances, the sum
    of the products has mean zero. Where it is far from that, the gain is that of a further component beside those of
    the fit in closed form, see :class:`.Curves`, for all numbers of points that the fit may choose.

    :param predictor: The predictor of a fitted model.
    :param residuals: What is left.
    :param processes: Those among which the rows are shared. Default: this one has them all.
    """
    processes = Processes(None) if processes is None else processes
    found = []
    for group, scales in _smooths(predictor):
        columns = _Columns.of(group, residuals)
        notable = (columns.dependence(processes).scores > _NOTABLE_SCORE).any(0).tolist()
        chosen = [scale for scale in scales if notable[scale.entry]]
        if chosen and group.more_inducing_points() is not None:
            found += list(_gains(group, chosen, columns.sums_at_places(processes)))
    return found


@torch.no_grad()
def dependent_residuals(
    predictor: AdditivePredictor, residuals: Residuals, processes: Processes | None = None
) -> dict[str, float]:
    """
    The standard deviations by which the products of residuals of neighbours along a column exceed their mean under
    independence, where they are far from it, by the name of the component that reads the column.

    :param predictor: The predictor of a fitted model.
    :param residuals: What is left.
    :param processes: Those among which the rows are shared. Default: this one has them all.
    """
    processes = Processes(None) if processes is None else processes
    found: dict[str, float] = {}
    for group, scales in _smooths(predictor):
        scores, nats = _Columns.of(group, residuals).dependence(processes)
        notable = torch.where(nats > _LEAST_GAIN, scores, 0.0).amax(0).tolist()
        found |= {scale.name: notable[scale.entry] for scale in scales if notable[scale.entry] > _DEPENDENT}
    return found


def warn_of_dependence(found: Mapping[str, float]) -> None:
    """Warn if residuals of neighbours along a column are far from independent, given by how many deviations."""
    if found:
        listing = ", ".join(repr(name) for name in sorted(found, key=lambda name: -found[name]))
        warnings.warn(
            "what these components leave of the responses is alike in neighbouring places of their columns: "
            f"{listing}. "
            f"Either the effect varies faster than the component can (raise {POINTS_OF_TERMS} or "
            "stretch the column: lengthscales are at least a hundredth of the range), or the model lacks another "
            "effect of these columns, or the rows are not independent (as in series): then bands are too narrow",
            InducingPointsWarning,
            stacklevel=3,
        )


def _smooths(predictor: AdditivePredictor) -> Iterator[tuple[ComponentGroup, list[Scale]]]:
    """The groups of components of few columns, none a category, with lengthscales of their own, and their scales."""
    for group in predictor.groups:
        scales = [scale for scale in scales_of_group(group) if scale.lengthscales]
        has_levels = any(column in group.levels for column in group.columns.flatten().tolist())
        if group.input_dim in _CELLS and scales and not has_levels:
            yield group, scales


class Dependence(NamedTuple):
    """
    How far residuals of neighbours along the columns of components are from independent, ``(S, C)``, for each width of
    cells.

    :ivar scores: The sum of the products of different rows' gradients in the same cell, and half of those in
        neighbouring ones, over the standard deviation that it has if they are independent.
    :ivar nats: What the likelihood would gain if each cell had a mean of its own, less what it gains if they are
        independent.
    """

    scores: Tensor
    nats: Tensor


class _Columns(NamedTuple):
    """The columns that the components of a group read, with what is left there."""

    group: ComponentGroup
    low: Tensor  # of the ranges of the inducing points, (C, d)
    width: Tensor  # (C, d)
    relative: Tensor  # places on the ranges, between 0 and 1, (C, n, d)
    gradients: Tensor  # times multipliers, (C, n), zero outside the range
    curvatures: Tensor  # times their squares, (C, n)

    @classmethod
    def of(cls, group: ComponentGroup, residuals: Residuals) -> _Columns:
        points = group.inducing_points.detach().double()
        low, width = points.amin(-2), points.amax(-2) - points.amin(-2)
        places = group.select(residuals.x)
        periods = [part.period_length for part in group.kernel.modules() if hasattr(part, "period_length")]
        if periods and group.input_dim == 1:
            width = periods[0].detach().double().flatten().expand(len(low)).unsqueeze(-1)
            places = low[:, None] + (places - low[:, None]).remainder(width[:, None])
        relative = (places - low[:, None]) / width.clamp_min(_TINY)[:, None]
        multiplier = group.multiplier(residuals.x)
        inside = ((relative >= 0) & (relative <= 1)).all(-1).to(relative)
        multiplier = inside if multiplier is None else inside * multiplier
        owner = group.predictor_index
        return cls(
            group,
            low,
            width,
            relative.nan_to_num(0.0).clamp(0.0, 1.0),
            multiplier * residuals.gradients[owner],
            multiplier.square() * residuals.curvatures[owner],
        )

    def dependence(self, processes: Processes) -> Dependence:
        """How far the gradients of neighbours are from independent."""
        values = [self.gradients, self.gradients.square(), self.gradients.pow(4), self.curvatures]
        numbers = _CELLS[self.group.input_dim]
        tables = processes.sum([self._in_cells(number, each) for number in numbers for each in values])
        scores, nats = [], []
        for start in range(0, len(tables), len(values)):
            sums, squares, fourths, curvatures = tables[start : start + len(values)]
            products = sums.square() - squares
            beside = (sums[:, 1:] * sums[:, :-1]).sum(-1)
            spread = 2.0 * (squares.square() - fourths).sum(-1) + (squares[:, 1:] * squares[:, :-1]).sum(-1)
            scores.append((products.sum(-1) + beside) / spread.clamp_min(_TINY).sqrt())
            nats.append(0.5 * (products / curvatures.clamp_min(_TINY)).sum(-1))
        return Dependence(torch.stack(scores), torch.stack(nats))

    def sums_at_places(self, processes: Processes) -> SumsAtPlaces:
        """The sums at the centres of cells."""
        number = _NUM_PLACES[self.group.input_dim]
        gradients, curvatures = processes.sum(
            [self._in_cells(number, self.gradients), self._in_cells(number, self.curvatures)]
        )
        along = (torch.arange(number).to(self.low) + 0.5) / number
        centres = torch.cartesian_prod(*[along] * self.group.input_dim).view(-1, self.group.input_dim)
        return SumsAtPlaces(self.low[:, None] + self.width[:, None] * centres, gradients, curvatures)

    def _in_cells(self, number: int, values: Tensor) -> Tensor:
        """Sums over the rows in each of equal cells, of which a ``number`` divide each column, ``(C, number^d)``."""
        cell = torch.zeros_like(values, dtype=torch.long)
        for along in (self.relative * number).long().clamp_max(number - 1).unbind(-1):
            cell = cell * number + along
        return values.new_zeros(len(values), number**self.group.input_dim).scatter_add_(-1, cell, values)


def _gains(group: ComponentGroup, scales: Sequence[Scale], sums: SumsAtPlaces) -> Iterator[RoughEffect]:
    """The components that gain notably, with the fewest points that bring most of it."""
    present, *more = _all_points(group)
    at_most = _best(group, more[-1], scales, sums)
    candidates = [scale for scale in scales if at_most[scale.name].gain > _LEAST_GAIN]
    at_present = _best(group, present, candidates, sums)
    needy = [s for s in candidates if at_most[s.name].gain - max(at_present[s.name].gain, 0.0) > _LEAST_GAIN]
    for points in more:
        found = _best(group, points, needy, sums)
        for scale in list(needy):
            if found[scale.name].gain >= _SHARE * at_most[scale.name].gain:
                needy.remove(scale)
                yield found[scale.name]


def _all_points(group: ComponentGroup) -> Iterator[Tensor]:
    """The present points, and the larger sets that a fit may choose."""
    points: Tensor | None = group.inducing_points.detach()
    while points is not None:
        yield points
        points = None if group.placement is None else group.placement.more_points(points.shape[-2])


def _best(group: ComponentGroup, points: Tensor, scales: Sequence[Scale], sums: SumsAtPlaces) -> dict[str, RoughEffect]:
    """What each component gains at the best of the lengthscales, by name."""
    if not scales:
        return {}
    trial = deepcopy(group)
    trial.replace_inducing_points(points)
    own = {scale.name: scale for scale in scales_of_group(trial)}
    references = {name: [reference_lengthscale(part) for part in scale.lengthscales] for name, scale in own.items()}
    found: dict[str, RoughEffect] = {scale.name: RoughEffect(scale.name, 0, 1.0, 0.0, -math.inf) for scale in scales}
    for factor in _LENGTHSCALES:
        for name, scale in own.items():
            scale.set(1.0)
            for part, reference in zip(scale.lengthscales, references[name], strict=True):
                set_lengthscale(part, scale.entry, factor * reference)
        with suppress(torch.linalg.LinAlgError, NotPSDError, NanError):  # this lengthscale cannot be had
            for scale, (gain, ratio) in zip(scales, _gains_at(trial, scales, sums), strict=True):
                if gain > found[scale.name].gain:
                    variance = ratio * own[scale.name].value()
                    found[scale.name] = RoughEffect(scale.name, points.shape[-2], factor, variance, gain)
    return found


def _gains_at(group: ComponentGroup, scales: Sequence[Scale], sums: SumsAtPlaces) -> list[tuple[float, float]]:
    """The gains of components at the best ratios of their variances, and these ratios."""
    entries = [scale.entry for scale in scales]
    points = group.inducing_points.detach().double()
    both, variances = group.evaluate_with_variance(points, torch.cat([points, sums.places], dim=-2))
    inducing, cross = (part[entries] for part in both.split([points.shape[-2], sums.places.shape[-2]], dim=-1))
    cholesky = group.inducing_cholesky(_JITTER, True, inducing)
    features = triangular_solve(cholesky, cross)
    curvatures, gradients = sums.curvatures[entries], sums.gradients[entries]
    gram = (features * curvatures.unsqueeze(-2)) @ features.mT
    curves = Curves.of_schur_complements(
        gram,
        gram.new_zeros(*gram.shape[:-1], 1),
        (features @ gradients.unsqueeze(-1)).squeeze(-1),
        (curvatures * variances[entries, points.shape[-2] :]).sum(-1),
    )
    best = curves(gram.new_tensor(RATIOS)).max(-1)
    return [(gain, RATIOS[index]) for gain, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
