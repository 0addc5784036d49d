"""Components whose inputs, computed by a model's ``forward``, are the same in all rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.warnings import ConstantColumnWarning

# Standard deviation over the rows, relative to the extent of the inducing points, up to which a column counts as
# constant: the shortest lengthscales that terms have by default are ten times as long.
_LEAST_SPREAD = 1e-3


def constant_inputs(predictor: AdditivePredictor, inputs: Tensor) -> list[str]:
    """
    The components of which a column hardly varies.

    :param predictor: The predictor.
    :param inputs: What it gets in rows, ``(n, D)``.
    """
    if len(inputs) < 2:
        return []
    spread, found = inputs.std(0), list[str]()
    for group in predictor.groups:
        points = group.inducing_points.detach().to(inputs)
        extent = points.amax(-2) - points.amin(-2)  # (C_g, d)
        is_constant = (spread[group.columns] <= _LEAST_SPREAD * extent).any(-1)
        found += [name for name, constant in zip(group.names, is_constant.tolist(), strict=True) if constant]
    return found


def warn_of_constant_inputs(names: Sequence[str]) -> None:
    """
    Warn of components with constant inputs.

    :param names: Their names.
    """
    if names:
        warnings.warn(
            f"the inputs that forward gives to {', '.join(map(repr, names))} are almost constant over the rows, so "
            "that these components have no effect: a network in front has been driven to where it no longer answers to "
            "its inputs. Make it anew, and train it by minibatches with a smaller lr, or in a loop of your own",
            ConstantColumnWarning,
            stacklevel=3,
        )
