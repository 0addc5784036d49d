"""Cholesky factors on the path of a training step, where a GPU must not be waited for."""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def cholesky(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor of matrices that have one but for rounding, such as the identity plus a square.

    :param matrix: ``(*batch, k, k)``.
    :return: ``(*batch, k, k)``. On a GPU, a matrix that has no factor gives NaN instead of an error.
    """
    return torch.linalg.cholesky(matrix) if matrix.device.type == "cpu" else cholesky_or_nan(matrix)


def safe_cholesky(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor, with ever more jitter if need be.

    Whether there is need is known only after a wait for the device. With gradients on a GPU, that is in a training
    step, the matrix must do without.

    :param matrix: ``(*batch, k, k)``.
    """
    on_hot_path = matrix.device.type != "cpu" and torch.is_grad_enabled()
    return cholesky_or_nan(matrix) if on_hot_path else psd_safe_cholesky(matrix)


def cholesky_or_nan(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor, NaN where there is none.

    :param matrix: ``(*batch, k, k)``.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill((info != 0)[..., None, None], torch.nan)
