"""The jitter on the covariance of inducing variables."""

from __future__ import annotations

import torch
from gpytorch.settings import variational_cholesky_jitter

# GPyTorch's default for float32.
_DEFAULT_OF_SINGLE = variational_cholesky_jitter.value(torch.float32)


def relative_jitter(dtype: torch.dtype) -> float:
    """
    The value of ``gpytorch.settings.variational_cholesky_jitter`` for a model. Inducing covariances are always
    factorised in float64, so a float32 model takes the value of float64, unless that of float32 was set to another one.
    """
    value = variational_cholesky_jitter.value(dtype)
    if dtype == torch.float32 and value == _DEFAULT_OF_SINGLE:
        return variational_cholesky_jitter.value(torch.float64)
    return value
