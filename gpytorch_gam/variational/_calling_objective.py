"""Which of GPyTorch's objectives asks for a divergence."""

from __future__ import annotations

import inspect

import torch
from gpytorch.mlls import MarginalLogLikelihood

# Frames from this function to that of an objective: a recorder, a strategy and those it derives from lie between.
_REACH = 5


def calling_objective() -> MarginalLogLikelihood | None:
    """
    The objective inside whose ``forward`` this is called, or None if there is none nearby.

    An objective calls ``strategy.kl_divergence()`` without saying who it is, and some of them, such as
    :class:`~gpytorch.mlls.PredictiveLogLikelihood`, look like the ELBO in everything that reaches the strategy. So this
    looks at the local variables of its callers, and finds nothing where there are no frames to look at.
    """
    if torch.compiler.is_compiling():
        return None
    frame = inspect.currentframe()
    for _ in range(_REACH):
        frame = None if frame is None else frame.f_back
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, MarginalLogLikelihood):
            return caller
    return None
