"""The jitter on the covariance of inducing variables."""

from __future__ import annotations

import torch
from gpytorch.settings import variational_cholesky_jitter

# That of float32 unless somebody sets it.
_DEFAULT_OF_SINGLE = variational_cholesky_jitter.value(torch.float32)


def relative_jitter(dtype: torch.dtype) -> float:
    """
    The value of ``gpytorch.settings.variational_cholesky_jitter`` for a model. Covariances of inducing variables are
    evaluated and factorised in float64 whatever the dtype of the model, so one in float32 takes the value of float64,
    unless one of its own was set.
    """
    value = variational_cholesky_jitter.value(dtype)
    if dtype == torch.float32 and value == _DEFAULT_OF_SINGLE:
        return variational_cholesky_jitter.value(torch.float64)
    return value
