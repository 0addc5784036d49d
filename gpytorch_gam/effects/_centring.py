r"""
Averages of components over reference rows, which centred effects subtract.

With weights :math:`w_j` that sum to one the average is :math:`\bar f_c = \sum_j w_j f_c(\mathbf r_j)`. Means and
projections are linear in the component, so theirs are averages over the reference rows; the prior's averages are
:math:`\bar k_c(\mathbf x) = \sum_j w_j k_c(\mathbf x, \mathbf r_j)` and :math:`\bar{\bar k}_c = \sum_j w_j \bar
k_c(\mathbf r_j)`.

Averages are taken of differences to the first row, so that the average of a constant is exact.

The average :math:`\bar{\bar k}_c` costs the square of the number of rows. With many rows, only the part that the
inducing variables explain, :math:`\phi_c(\mathbf x)^\top \phi_c(\mathbf x')`, is averaged over all: the rest is small,
and its average is estimated from a part of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.kernels import Measure
from gpytorch_gam.numerics.triangular import solve_in_blocks

from .component_source import ComponentSource
from .group_posterior import GroupPosterior

# The prior variance of an average over m rows costs m^2 kernel evaluations a component. For more rows than this,
# equally spaced ones are used for the part that inducing variables do not explain.
_MOST_ROWS = 4096

# Relative jitter on the covariance of the inducing variables that correct for the rows left out.
_RELATIVE_JITTER = 1e-6

# Number of nodes in each of a measure's two panels, in one dimension, and in each of two dimensions.
_NUM_NODES, _NUM_NODES_OF_PAIRS = 32, 24

# Number of rows whose projections are in memory at a time, number of kernel values in memory at a time, and smallest
# number of their rows, because each call of a kernel has a cost that grows with the reference rows.
_ROWS_AT_A_TIME, _KERNEL_VALUES, _LEAST_ROWS = 512, 2**22, 16


class Reference(NamedTuple):
    """Weighted rows over which components are averaged."""

    rows: Tensor | None  # (*batch, m, D); None for the rows of the posterior itself
    weights: Tensor  # (C, m), float64, which sum to one for each component
    is_thinned: bool = False  # whether a part of the rows serves for what inducing variables do not explain


class GroupCentre(NamedTuple):
    """Averages of a group of components."""

    projections: Tensor  # of `GroupPosterior.stacked`, (*batch, C_g, 1 + R + r, 1)
    prior_cross: Tensor  # prior covariance of average and component at the posterior's rows, (*batch, C_g, n), float64
    prior_variance: Tensor  # prior variance of the average, (*batch, C_g, 1), float64


class _Component(NamedTuple):
    name: str
    columns: list[int]
    by: int | None  # column of the multiplier


def make_reference(
    predictor: AdditivePredictor, x: Tensor, indices: Sequence[int], over: Tensor | Measure | None
) -> Reference:
    """The reference rows of some components: ``x``, the rows ``over``, or nodes of the measure ``over`` per column."""
    if isinstance(over, Measure):
        return _reference_of_measure(predictor, x, indices, over)
    if over is not None and not torch.is_tensor(over):
        raise TypeError(
            "over must be None (the rows of this posterior), a tensor of rows (m, D) or a gpytorch_gam.kernels.Measure,"
            f" got {type(over).__name__}"
        )
    rows, name = (x, "x") if over is None else (over, "over")
    if over is not None:
        _check_batch_shape(x, over)
    _check_complete(predictor, rows, indices, name)
    weights = torch.full((1, rows.shape[-2]), 1.0 / rows.shape[-2], dtype=torch.float64, device=rows.device)
    return Reference(over, weights.expand(predictor.num_components, -1), rows.shape[-2] > _MOST_ROWS)


def _check_batch_shape(x: Tensor, over: Tensor) -> None:
    try:
        torch.broadcast_shapes(x.shape[:-2], over.shape[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"over has batch shape {tuple(over.shape[:-2])}, which does not broadcast with that of x, "
            f"{tuple(x.shape[:-2])}: pass rows (m, D)"
        ) from error


def _components(predictor: AdditivePredictor) -> list[_Component]:
    return [
        _Component(name, columns, by)
        for group in predictor.groups
        for name, columns, by in zip(group.names, group.columns.tolist(), group.multiplier_columns, strict=True)
    ]


def _check_complete(predictor: AdditivePredictor, rows: Tensor, indices: Sequence[int], name: str) -> None:
    """Refuse rows with missing values, for which the average is unknown."""
    is_finite, components = torch.isfinite(rows.detach()).flatten(0, -2), _components(predictor)
    for component in (components[index] for index in indices):
        columns = sorted({*component.columns, *([] if component.by is None else [component.by])})
        missing = int((~is_finite[:, columns].all(-1)).sum())
        if missing:
            raise ValueError(
                f"{name} has NaN or infinity in {missing} of {len(is_finite)} rows, in columns {columns} of component "
                f"{component.name!r}, which is averaged over them: pass complete rows as over"
            )


def _reference_of_measure(
    predictor: AdditivePredictor, x: Tensor, indices: Sequence[int], measure: Measure
) -> Reference:
    """
    Rows in which every column runs over the nodes serve all components of one column. Two columns need a product grid:
    one that separates columns whose number has a certain bit from all others serves all pairs that differ in that bit.
    """
    if measure.batch_shape:
        raise ValueError(
            f"over must be a single measure, got a {type(measure).__name__} with batch shape "
            f"{tuple(measure.batch_shape)}: centre one component at a time, such as parts['x0'].centred(measure[0])"
        )
    components, chosen = _components(predictor), set(indices)
    bits = [_bit_of_pair(component) if index in chosen else None for index, component in enumerate(components)]
    nodes, weights = (part.to(x.device) for part in measure.quadrature(_NUM_NODES))
    grids: list[tuple[int | None, Tensor, Tensor]] = [(None, nodes.unsqueeze(-1).expand(-1, x.shape[-1]), weights)]
    if any(bit is not None for bit in bits):
        nodes, weights = (part.to(x.device) for part in measure.quadrature(_NUM_NODES_OF_PAIRS))
        first, second = (grid.reshape(-1, 1) for grid in torch.meshgrid(nodes, nodes, indexing="ij"))
        column = torch.arange(x.shape[-1], device=x.device)
        for bit in sorted({bit for bit in bits if bit is not None}):
            rows = torch.where((column >> bit) % 2 == 0, first, second)
            grids.append((bit, rows, torch.outer(weights, weights).flatten()))
    largest = max(len(rows) for _, rows, _ in grids)
    if largest > _MOST_ROWS:
        raise ValueError(
            f"over has {largest} nodes for a component, but centring costs their square and takes at most {_MOST_ROWS}:"
            " use a measure with fewer atoms, such as Empirical.from_data(column, num_atoms=64)"
        )
    all_weights = [
        torch.stack([weights / weights.sum() if own == bit else torch.zeros_like(weights) for own in bits])
        for bit, _, weights in grids
    ]
    return Reference(torch.cat([rows for _, rows, _ in grids]).to(x.dtype), torch.cat(all_weights, dim=-1))


def _bit_of_pair(component: _Component) -> int | None:
    """The lowest bit in which the numbers of the component's two columns differ; None if it has fewer than two."""
    columns = sorted(set(component.columns))
    if component.by is not None:
        raise ValueError(
            f"component {component.name!r} has a multiplier, of which a measure says nothing: pass rows as over"
        )
    if len(columns) > 2:
        raise ValueError(
            f"component {component.name!r} reads {len(columns)} columns, but a measure serves at most two: pass rows "
            "as over"
        )
    if len(columns) < 2:
        return None
    difference = columns[0] ^ columns[1]
    return (difference & -difference).bit_length() - 1


def group_centres(
    source: ComponentSource,
    x: Tensor,
    projections: Sequence[GroupPosterior],
    indices: Sequence[int],
    reference: Reference,
) -> list[GroupCentre]:
    """Averages of all groups over the reference rows; the prior's are zero for groups without any of ``indices``."""
    groups = source.predictor.groups
    weights = reference.weights.split([group.num_components for group in groups])
    averages = _average_projections(source, projections, reference.rows, weights)
    centres, start = [], 0
    for group, average, weight in zip(groups, averages, weights, strict=True):
        stop = start + group.num_components
        if not any(start <= index < stop for index in indices):
            prior = (weight.new_zeros(stop - start, 1), weight.new_zeros(stop - start, 1))
        elif reference.is_thinned:
            prior = _thinned_prior_averages(group, x, x if reference.rows is None else reference.rows)
        else:
            prior = _prior_averages(group, x, reference.rows, weight)
        centres.append(GroupCentre(average, *prior))
        start = stop
    return centres


def centred_group(group: GroupPosterior, centre: GroupCentre) -> GroupPosterior:
    r"""Projections of :math:`f_c - \bar f_c`, whose prior variance is that of :func:`centred_prior_covariance`."""
    variance = group.prior_variance.double() - 2 * centre.prior_cross + centre.prior_variance
    num_shared = group.shared.shape[-2]
    projections = group.stacked() - centre.projections
    return group._replace(
        mean=projections[..., 0, :],
        prior_variance=variance.clamp_min(0.0).to(group.prior_variance.dtype),
        shared=projections[..., 1 : 1 + num_shared, :],
        block=None if group.block is None else projections[..., 1 + num_shared :, :],
    )


def centred_prior_covariance(covariance: Tensor, centre: GroupCentre) -> Tensor:
    r"""It is :math:`k_c(\mathbf x, \mathbf x') - \bar k_c(\mathbf x) - \bar k_c(\mathbf x') + \bar{\bar k}_c`."""
    half = centre.prior_cross - 0.5 * centre.prior_variance
    return (covariance.double() - half.unsqueeze(-1) - half.unsqueeze(-2)).to(covariance.dtype)


def _average_projections(
    source: ComponentSource,
    projections: Sequence[GroupPosterior],
    rows: Tensor | None,
    weights: Sequence[Tensor],
) -> list[Tensor]:
    chunks = _own_chunks(projections) if rows is None else _chunks_of_rows(source, rows)
    first: list[Tensor] = []
    deviations: list[Tensor] = []
    start = 0
    for chunk in chunks:
        first = first or [part[..., :1] for part in chunk]
        stop = start + chunk[0].shape[-1]
        new = [
            (part - base).double() @ weight[:, start:stop].unsqueeze(-1)
            for part, base, weight in zip(chunk, first, weights, strict=True)
        ]
        deviations = [old + more for old, more in zip(deviations, new, strict=True)] if deviations else new
        start = stop
    return [base + deviation.to(base.dtype) for base, deviation in zip(first, deviations, strict=True)]


def _own_chunks(projections: Sequence[GroupPosterior]) -> Iterator[list[Tensor]]:
    for start in range(0, projections[0].mean.shape[-1], _ROWS_AT_A_TIME):
        yield [group.stacked(slice(start, start + _ROWS_AT_A_TIME)) for group in projections]


def _chunks_of_rows(source: ComponentSource, rows: Tensor) -> Iterator[list[Tensor]]:
    for chunk in rows.split(_ROWS_AT_A_TIME, dim=-2):
        yield [group.stacked() for group in source.component_projections(chunk).groups]


class _Inputs(NamedTuple):
    columns: Tensor  # (*batch, C_g, n, d), float64
    multiplier: Tensor | None  # (*batch, C_g, n), float64


def _prior_averages(group: ComponentGroup, x: Tensor, rows: Tensor | None, weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""The averages :math:`\bar k_c` at x, ``(*batch, C_g, n)``, and :math:`\bar{\bar k}_c`, ``(*batch, C_g, 1)``."""
    own = _inputs(group, x)
    if rows is None:
        cross = _prior_average(group, own, own, weights)
        return cross, _weighted_mean(cross.unsqueeze(-2), weights)
    reference, weights = _with_weight(_inputs(group, rows), weights)
    at_reference = _prior_average(group, reference, reference, weights)
    return _prior_average(group, own, reference, weights), _weighted_mean(at_reference.unsqueeze(-2), weights)


def _thinned_prior_averages(group: ComponentGroup, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same as :func:`_prior_averages` for equally weighted rows, approximately and in linear time."""
    chosen = torch.linspace(0, rows.shape[-2] - 1, _MOST_ROWS, dtype=torch.float64, device=rows.device).round().long()
    some = rows[..., chosen, :]
    weights = torch.full((group.num_components, _MOST_ROWS), 1.0 / _MOST_ROWS, dtype=torch.float64, device=rows.device)
    cross, variance = _prior_averages(group, x, some, weights)
    cholesky = group.inducing_cholesky(_RELATIVE_JITTER, relative=True)
    over_all, over_some = (_mean_features(group, part, cholesky) for part in (rows, some))  # (*batch, C_g, M, 1)
    difference = over_all - over_some
    explained = [(part.mT @ difference).squeeze(-1) for part in _features_in_chunks(group, x, cholesky)]
    more = (difference * (over_all + over_some)).sum(-2)
    return cross + torch.cat(explained, dim=-1), variance + more


def _mean_features(group: ComponentGroup, rows: Tensor, cholesky: Tensor) -> Tensor:
    sums = [part.sum(-1, keepdim=True) for part in _features_in_chunks(group, rows, cholesky)]
    return torch.stack(sums).sum(0) / rows.shape[-2]


def _features_in_chunks(group: ComponentGroup, x: Tensor, cholesky: Tensor) -> Iterator[Tensor]:
    """Features in float64, multipliers included, ``(*batch, C_g, M, n)``."""
    points = group.inducing_points.double()
    for rows in x.split(_MOST_ROWS, dim=-2):
        inputs = _inputs(group, rows)
        features = solve_in_blocks(cholesky, group.evaluate_kernel(points, inputs.columns))
        yield features if inputs.multiplier is None else features * inputs.multiplier.unsqueeze(-2)


def _inputs(group: ComponentGroup, x: Tensor) -> _Inputs:
    multiplier = group.multiplier(x)
    return _Inputs(group.select(x).double(), None if multiplier is None else multiplier.double())


def _with_weight(inputs: _Inputs, weights: Tensor) -> tuple[_Inputs, Tensor]:
    """Select for each component the rows with a weight, padded with others to the largest number of them."""
    has_weight = weights != 0
    count = int(has_weight.sum(-1).max())
    order = has_weight.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :count]
    columns = inputs.columns.take_along_dim(order.expand(*inputs.columns.shape[:-2], count).unsqueeze(-1), dim=-2)
    multiplier = inputs.multiplier
    if multiplier is not None:
        multiplier = multiplier.take_along_dim(order.expand(*multiplier.shape[:-1], count), dim=-1)
    return _Inputs(columns, multiplier), weights.take_along_dim(order, dim=-1)


def _prior_average(group: ComponentGroup, left: _Inputs, right: _Inputs, weights: Tensor) -> Tensor:
    r"""The average :math:`\bar k_c` at the left inputs over the right ones, ``(*batch, C_g, n)``."""
    batch = torch.broadcast_shapes(left.columns.shape[:-2], right.columns.shape[:-2])
    columns, others = (part.columns.expand(*batch, *part.columns.shape[-2:]) for part in (left, right))
    num_values = torch.broadcast_shapes(batch[:-1], group.batch_shape).numel() * weights.numel()
    averages = []
    for chunk in columns.split(max(_LEAST_ROWS, _KERNEL_VALUES // num_values), dim=-2):
        covariance = group.evaluate_kernel(chunk, others)
        if right.multiplier is not None:
            covariance = covariance * right.multiplier.unsqueeze(-2)
        averages.append(_weighted_mean(covariance, weights))
    average = torch.cat(averages, dim=-1)
    return average if left.multiplier is None else average * left.multiplier


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over the last dimension of ``(*batch, C_g, n, m)``, with weights ``(C_g, m)``."""
    first = values[..., :1]
    return (first + (values - first) @ weights.unsqueeze(-1)).squeeze(-1)
