"""The shares of terms in the variance of their predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .fitted import Fitted, alone
from .freedom import NO_FREEDOM

# Draws of effects, of which intervals are made.
_NUM_DRAWS = 1000

# Sums of the shares of a predictor that are about one.
_LEAST_SUM, _LARGEST_SUM = 0.8, 1.2


def effects_at_estimates(fitted: Fitted, rows: Tensor, freedoms: Sequence[float]) -> list[Tensor]:
    """
    Draws ``(S, n)`` of each term's effect at rows, hyperparameters at the estimates; zero if it is switched off.

    :param fitted: The fitted model.
    :param rows: The rows ``(n, D)``.
    :param freedoms: The effective degrees of freedom of each term.
    """
    drawn = _drawn_effects(replace(fitted, mixture=alone(fitted.model, fitted.likelihood)), rows)
    return [
        effect if freedom >= NO_FREEDOM else torch.zeros_like(effect)
        for effect, freedom in zip(drawn, freedoms, strict=True)
    ]


def _drawn_effects(fitted: Fitted, rows: Tensor) -> list[Tensor]:
    """Draws ``(S, n)`` of each term's effect at rows, from the mixture over hyperparameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = fitted.draws(rows, _NUM_DRAWS)  # (S, C, n)
    place = {name: index for index, name in enumerate(fitted.model.predictor.names)}
    return [draws[:, [place[name] for name in part.components]].sum(1) for part in fitted.parts]


def shares_of_terms(fitted: Fitted, rows: Tensor, effects: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """
    The terms' shares in the variance of their predictor over rows: medians of draws at the estimates, and intervals
    under the mixture over hyperparameters that hold these.

    :param fitted: The fitted model.
    :param rows: The rows ``(n, D)``.
    :param effects: Draws of each term's effect, by :func:`effects_at_estimates`.
    """
    lower, share, upper = _quantiles_of_shares(fitted, effects)
    if len(fitted.mixture) > 1:
        lower, _, upper = _quantiles_of_shares(fitted, _drawn_effects(fitted, rows))
    return {"share": share, "share_lower": np.minimum(lower, share), "share_upper": np.maximum(share, upper)}


def _quantiles_of_shares(fitted: Fitted, effects: Sequence[Tensor]) -> np.ndarray:
    """Ends of 95% intervals and, between them, the medians, over draws of all effects; ``(3, number of terms)``."""
    found = np.zeros((3, len(fitted.parts)))
    for predictor in range(len(fitted.design.parameters)):
        own = [position for position, part in enumerate(fitted.parts) if part.predictor == predictor]
        if own:
            total = torch.stack([effects[position] for position in own]).sum(0).var(-1)
            for position in own:
                share = (effects[position].var(-1) / total.clamp_min(torch.finfo(total.dtype).tiny)).numpy()
                found[:, position] = np.quantile(share, [0.025, 0.5, 0.975])
    return found


def warnings_of_overlap(fitted: Fitted, effects: Sequence[Tensor], shares: np.ndarray) -> list[str]:
    """
    A sentence for each predictor whose shares do not add up to about one, which names the pair of terms to blame.

    :param fitted: The fitted model.
    :param effects: Draws of each term's effect.
    :param shares: The share of each term.
    """
    found = []
    for predictor in range(len(fitted.design.parameters)):
        own = [position for position, part in enumerate(fitted.parts) if part.predictor == predictor]
        total = shares[own].sum()
        if len(own) < 2 or total == 0.0 or _LEAST_SUM <= total <= _LARGEST_SUM:
            continue
        covariance = torch.stack([effects[position].mean(0) for position in own]).cov()
        blamed = (-covariance if total > 1 else covariance).fill_diagonal_(-torch.inf)
        first, second = (fitted.parts[own[each]].label for each in sorted(divmod(int(blamed.argmax()), len(own))))
        found.append(
            f"shares sum to {total:.2f} instead of about 1, as effects of columns that are correlated "
            f"{'cancel in part' if total > 1 else 'go together'}, those of {first} and {second} most of all: a share "
            "is the size of an effect, not a part of the whole"
        )
    return found
