"""Moments of sums of components at many rows, such as those of the parts of one term."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.numerics.distinct_rows import distinct_rows
from gpytorch_gam.numerics.marginals import Marginals, keep_positive, marginal_moments

from .component_source import ComponentProjections
from .group_posterior import GroupPosterior


@dataclass(frozen=True)
class SumPrediction:
    """
    Posterior moments of K sums of components in each row, made by :meth:`AdditiveVariationalStrategy.predict_sums`.

    :ivar names: The names of the sums.
    :ivar mean: Their means, ``(*batch, K, n)``.
    :ivar variance: Their variances, in which the components of a sum covary, ``(*batch, K, n)``.
    """

    names: tuple[str, ...]
    mean: Tensor
    variance: Tensor

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, ``(*batch, K, n)``."""
        return self.variance.sqrt()


class MixedSums:
    r"""
    The moments of sums under a mixture of models, to which one model is added after the other, so that those of two are
    in memory at a time. With :math:`W` the weights so far and :math:`d = m_k - m`,

    .. math::
        m \leftarrow m + \frac{w_k}{W} d, \qquad v \leftarrow v + w_k v_k + w_k d\,(m_k - m)

    whose last factor has the new mean (West, 1979).
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._moments: SumPrediction | None = None

    def add(self, part: SumPrediction, weight: float) -> None:
        """
        Add a model.

        :param part: What it predicts; the tensors of the first are overwritten.
        :param weight: Its weight, above zero.
        """
        self._weight += weight
        if self._moments is None:
            part.variance.mul_(weight)
            self._moments = part
            return
        mean, variance = self._moments.mean, self._moments.variance
        step = part.mean - mean
        mean.add_(step, alpha=weight / self._weight)
        variance.add_(part.variance, alpha=weight)
        variance.addcmul_(step, part.mean - mean, value=weight)

    @property
    def moments(self) -> SumPrediction:
        """Those of the models so far, whose weights sum to one."""
        assert self._moments is not None
        return self._moments


def summed(projections: ComponentProjections, members: Sequence[Sequence[int]]) -> Marginals:
    """Moments ``(*batch, K, n)`` of K sums, of each of which ``members`` has the numbers of the components."""
    groups, sign = projections
    mean = _sums([group.mean for group in groups], members, -2)
    prior = _sums([group.prior_variance for group in groups], members, -2)
    own = _sums([group.own_squares for group in groups], members, -2)
    return marginal_moments(mean, prior, own, _sums([group.shared for group in groups], members, -3), sign)


def summed_over_rows(
    projections: ComponentProjections, groups: Iterable[ComponentGroup], members: Sequence[int], inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Mean ``(*batch, n)`` and covariance over the rows ``(*batch, n, n)`` of the sum of some components, by number: those
    of ``groups``, whose projections at these inputs are given.
    """
    start, parts = 0, []
    for group, posterior in zip(groups, projections.groups, strict=True):
        chosen = [index - start for index in members if start <= index < start + group.num_components]
        start += group.num_components
        if chosen:
            parts.append(_over_rows(group, posterior, chosen, inputs))
    mean, prior_variance, own_covariance, shared = (
        functools.reduce(torch.add, each) for each in zip(*parts, strict=True)
    )
    covariance = own_covariance + projections.sign * (shared.mT @ shared)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(keep_positive(diagonal, prior_variance))
    return mean.expand(diagonal.shape), covariance


def _over_rows(
    group: ComponentGroup, posterior: GroupPosterior, chosen: Sequence[int], inputs: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    Sums over some components of a group: the mean and the prior variance ``(*batch, n)``, the covariance over the rows
    without its coupled part ``(*batch, n, n)``, and the coupled directions ``(*batch, R, n)``.
    """
    index = _index(chosen, posterior.mean)
    prior = group.prior_covariance(inputs.to(posterior.mean.dtype), posterior.unknown).to_dense()
    covariance = prior.index_select(-3, index).sum(-3)
    if posterior.block is not None:
        block = posterior.block.index_select(-3, index).flatten(-3, -2)
        covariance = covariance - block.mT @ block
    mean, variance = (part.index_select(-2, index).sum(-2) for part in (posterior.mean, posterior.prior_variance))
    return mean, variance, covariance, posterior.shared.index_select(-3, index).sum(-3)


def _sums(parts: Sequence[Tensor], members: Sequence[Sequence[int]], dim: int) -> Tensor:
    """Sums of a quantity of all groups over some of the components, which run along ``dim``."""
    batch = torch.broadcast_shapes(*(part.shape[:dim] for part in parts))
    every = torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim)
    if len(members) == 1 and len(members[0]) == every.shape[dim]:
        return every.sum(dim, keepdim=True)
    return torch.stack([every.index_select(dim, _index(each, every)).sum(dim) for each in members], dim)


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)


def passes(predictor: AdditivePredictor, members: Sequence[Sequence[int]]) -> list[list[int]]:
    """
    Places of sums that are computed together: those that share groups of components, but no component, because each
    component has the coupled directions of one sum.
    """
    owners = _owners(predictor)
    found: list[tuple[list[int], set[int], set[int]]] = []
    for place, each in enumerate(members):
        groups, own = {owners[index] for index in each}, set(each)
        company = next((one for one in found if groups & one[1] and not own & one[2]), None)
        if company is None:
            found.append(([place], groups, own))
        else:
            company[0].append(place)
            company[1].update(groups)
            company[2].update(own)
    return [places for places, _, _ in found]


def _owners(predictor: AdditivePredictor) -> list[int]:
    """The place of the group of each component."""
    return [place for place, group in enumerate(predictor.groups) for _ in range(group.num_components)]


def groups_of(predictor: AdditivePredictor, members: Sequence[Sequence[int]]) -> list[ComponentGroup]:
    """The groups of the components of some sums."""
    owners = _owners(predictor)
    return [predictor.groups[place] for place in sorted({owners[index] for each in members for index in each})]


def columns_of(predictor: AdditivePredictor, members: Sequence[Sequence[int]]) -> list[int]:
    """The columns that the components of some sums read."""
    every = [
        [*columns, *([] if by is None else [by])]
        for group in predictor.groups
        for columns, by in zip(group.columns.tolist(), group.multiplier_columns, strict=True)
    ]
    return sorted({column for each in members for index in each for column in every[index]})


def moments_of_sums(
    function: Callable[[Tensor], Marginals], inputs: Tensor, columns: Sequence[int], chunk_size: int
) -> tuple[Tensor, Tensor]:
    """
    Means and variances ``(*batch, K, n)`` that a function gives for some rows at a time, and which depend on some of
    the columns: where these have few combinations of values, at one row for each.
    """
    found = distinct_rows(inputs, columns) if inputs.dim() == 2 else None
    rows = inputs if found is None else inputs[found[0]]
    parts = [function(chunk)[:2] for chunk in rows.split(chunk_size, dim=-2)]
    mean, variance = (torch.cat(each, -1) for each in zip(*parts, strict=True))
    return (mean, variance) if found is None else (mean[..., found[1]], variance[..., found[1]])
