r"""
Rows of data that several predictors share. In :math:`\Phi_n`, ``(Q, P)``, the features of a component stand in the
column of its predictor, and a row has a curvature :math:`\Lambda_n`, ``(P, P)``. With one predictor these are the
features and a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.blocks import symmetric_product


class Segment(NamedTuple):
    """Adjacent inducing variables whose components belong to one predictor."""

    owner: int  # the predictor
    place: slice  # in the inducing vector


#: All inducing variables belong to one predictor.
ONE_PREDICTOR = (Segment(0, slice(None)),)


def predictor_segments(predictor: AdditivePredictor) -> tuple[Segment, ...]:
    """The segments of the inducing vector, in order."""
    if predictor.num_predictors == 1:
        return ONE_PREDICTOR
    owners = [
        group.predictor_index for group in predictor.groups for _ in range(group.num_components * group.num_inducing)
    ]
    runs = [(owner, len(list(run))) for owner, run in groupby(owners)]
    ends = list(accumulate(length for _, length in runs))
    return tuple(Segment(owner, slice(end - length, end)) for (owner, length), end in zip(runs, ends, strict=True))


def scale_features(features: Tensor, coefficients: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The features ``(Q, n)``, each multiplied by the coefficient ``(P, n)`` of its predictor in the row."""
    if len(segments) == 1:
        return features * coefficients[0]
    return torch.cat([features[place] * coefficients[owner] for owner, place in segments])


def product_in_rows(features: Tensor, columns: Tensor, num_predictors: int, segments: Sequence[Segment]) -> Tensor:
    r""":math:`\Phi_n^\top X` for each row, ``(P, n, k)``, from features ``(Q, n)`` and X, ``(Q, k)``."""
    if len(segments) == 1:
        return (columns.mT @ features).mT.unsqueeze(0)  # faster than the product of transposed features
    seen = features.new_zeros(num_predictors, features.shape[-1], columns.shape[-1])
    for owner, place in segments:
        seen[owner] += features[place].mT @ columns[place]
    return seen


def sum_over_rows(features: Tensor, values: Tensor, segments: Sequence[Segment]) -> Tensor:
    r""":math:`\sum_n \Phi_n V_n`, ``(Q, k)``, from features ``(Q, n)`` and V, ``(P, n, k)``."""
    if len(segments) == 1:
        return features @ values[0]
    return torch.cat([features[place] @ values[owner] for owner, place in segments])


def weighted_gram(features: Tensor, curvatures: Tensor, segments: Sequence[Segment]) -> Tensor:
    r""":math:`\sum_n \Phi_n \Lambda_n \Phi_n^\top`, ``(Q, Q)``, of features ``(Q, n)`` and curvatures ``(P, P, n)``."""
    if len(segments) == 1:
        return symmetric_product(features * curvatures[0, 0], features)
    gram = features.new_empty(len(features), len(features))
    for index, (owner, place) in enumerate(segments):
        for other, there in segments[: index + 1]:
            block = (features[place] * curvatures[owner, other]) @ features[there].mT
            gram[place, there], gram[there, place] = block, block.mT
    return gram


def semidefinite_rows(curvatures: Tensor) -> Tensor:
    r"""
    Curvatures ``(P, P, n)`` made positive semidefinite in each row: negative diagonal entries become zero, and
    correlations between predictors shrink as far as needed, :math:`\Lambda_{pq} \to t \Lambda_{pq}` with the largest
    :math:`t \le 1`.

    The curvature of, say, a normal location and log scale is indefinite in nearly every row. Dropping its negative
    eigenvalue would make the precision of both predictors too large on average; keeping the diagonal, which determines
    it, does not.
    """
    diagonal = curvatures.diagonal(dim1=0, dim2=1).mT.clamp_min(0.0)  # (P, n)
    if len(curvatures) == 1:
        return diagonal.unsqueeze(0)
    scale = diagonal.sqrt()
    bounds = scale.unsqueeze(0) * scale.unsqueeze(1)
    identity = torch.eye(len(curvatures), dtype=curvatures.dtype, device=curvatures.device).unsqueeze(-1)
    correlations = curvatures / torch.where(bounds > 0, bounds, torch.ones_like(bounds)) * (bounds > 0) * (1 - identity)
    lowest = torch.linalg.eigvalsh(correlations.movedim(-1, 0))[..., 0]
    shrinkage = 1.0 / (-lowest).clamp_min(1.0)
    return (correlations * shrinkage + identity) * bounds


def positive_part(matrix: Tensor) -> Tensor:
    """A symmetric matrix ``(Q, Q)`` without its negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0.0)) @ vectors.mT
