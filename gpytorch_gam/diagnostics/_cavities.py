"""Posteriors of the predictors in a row without what the row itself says about them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Least share of the prior variance that counts as the posterior's: less is rounding.
_LEAST_SHARE = 1e-12


class Cavities(NamedTuple):
    """Moments in rows without the row's own site, and how much of the precision is the site's."""

    shift: Tensor  # of the means, (n, P)
    covariance: Tensor  # (n, P, P)
    leverages: Tensor  # the largest share of the precision in any direction, (n,)


def cavities(covariance: Tensor, prior: Tensor, curvatures: Tensor, gradients: Tensor) -> Cavities:
    r"""
    For predictors with covariances S, ``(n, P, P)``, and prior variances ``(n, P)``, without sites of precision
    :math:`\Lambda`, ``(n, P, P)``, whose gradients at the means are g, ``(n, P)``: covariance :math:`(S^{-1} -
    \Lambda)^{-1}` and mean less :math:`(S^{-1} - \Lambda)^{-1} g`. No direction gets more variance than the prior's.
    """
    scale = prior.clamp_min(0.0).sqrt()  # directions without prior variance have none left
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    values, vectors = torch.linalg.eigh(_scaled(covariance, inverse))
    values = values.clamp(_LEAST_SHARE, 1.0)
    own = _scaled(curvatures, scale)
    root = vectors * values.sqrt().unsqueeze(-2)
    leverages = torch.linalg.eigvalsh(root.mT @ own @ root)[..., -1]
    remaining, directions = torch.linalg.eigh((vectors / values.unsqueeze(-2)) @ vectors.mT - own)
    left = (directions / remaining.clamp_min(1.0).unsqueeze(-2)) @ directions.mT
    found = _scaled(left, scale)
    return Cavities(-(found @ gradients.unsqueeze(-1)).squeeze(-1), found, leverages)


def _scaled(matrices: Tensor, scale: Tensor) -> Tensor:
    return scale.unsqueeze(-1) * matrices * scale.unsqueeze(-2)
