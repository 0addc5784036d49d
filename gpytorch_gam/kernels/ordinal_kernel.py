"""The covariance of ordered levels of a category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._base_kernels import keywords_of_kernels, result_dtype
from ._batched_kernel import BatchedKernel
from ._parameters import as_parameter
from .level_kernel import LARGEST_CODE, level_column, same_level

# At smaller lengthscales the correlation of neighbours, exp(-1000), is zero in every precision.
_SMALLEST_LENGTHSCALE = 1e-3


class OrdinalKernel(BatchedKernel):
    r"""
    The kernel of ordered levels of a category, whose effects form a stationary first-order autoregression along the
    order:

    .. math::

        k(a, b) = \exp(-|\mathrm{rank}(a) - \mathrm{rank}(b)| / \ell), \qquad
        \rho = e^{-1 / \ell} \text{ between neighbours}.

    It shrinks neighbours towards each other; at a short lengthscale it is a :class:`~gpytorch_gam.kernels.LevelKernel`.
    The precision matrix over the levels is tridiagonal, and the condition number of the kernel matrix at most
    :math:`((1 + \rho) / (1 - \rho))^2`.

    Levels are numbers in one column of the input, compared as in :class:`~gpytorch_gam.kernels.LevelKernel`. The rank
    of a level is its position in ``levels``, whatever the numbers. A number that is not one of the levels is
    independent of all others, with variance 1.

    The ``lengthscale``, ``(*batch, 1, 1)``, is in units of levels. As a function of the numbers the kernel is not
    stationary.

    :param levels: The levels in their order, two or more distinct finite numbers.
    :param kwargs: Passed to :class:`~gpytorch.kernels.Kernel`: ``batch_shape``, ``active_dims`` (one column of the
        input), ``lengthscale_prior``, ``lengthscale_constraint``.
    :raises ValueError: If there are fewer than two levels, or they are not finite, or not distinct in single precision,
        or beyond :math:`2^{24}`; or, when called, if x has more than one column, or contains numbers beyond
        :math:`2^{24}`.

    Example:
        >>> kernel = ScaleKernel(OrdinalKernel([3.0, 1.0, 2.0]))  # 1 and 2 are neighbours, 3 and 2 are not
        >>> kernel(torch.tensor([[1.0], [2.0], [7.0]])).shape
        torch.Size([3, 3])
    """

    has_lengthscale = True
    batched_tensors = (("raw_lengthscale", 2),)
    levels: Tensor

    def __init__(self, levels: Sequence[float] | Tensor, **kwargs: Any) -> None:
        if kwargs.get("ard_num_dims") not in (None, 1):
            raise ValueError(
                f"OrdinalKernel is a kernel of one column, but ard_num_dims={kwargs['ard_num_dims']}; leave it out"
            )
        super().__init__(**keywords_of_kernels("OrdinalKernel", kwargs))
        self.register_buffer("levels", _checked_levels(levels))

    @property
    def is_stationary(self) -> bool:
        """False, because the numbers of the levels say nothing about their distance."""
        return False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel of inputs ``(*batch, n, d)`` and ``(*batch, m, d)``; see :class:`gpytorch.kernels.Kernel`."""
        column1, column2 = level_column(self, x1, params), level_column(self, x2, params)
        dtype = torch.promote_types(result_dtype(x1, x2), self.raw_lengthscale.dtype)
        (rank1, is_known1), (rank2, is_known2) = self._ranks(column1), self._ranks(column2)
        lengthscale = self.lengthscale.to(dtype)  # (*batch, 1, 1)
        if diag:
            lengthscale = lengthscale.squeeze(-1)
        else:
            rank1, is_known1 = rank1.unsqueeze(-1), is_known1.unsqueeze(-1)
            rank2, is_known2 = rank2.unsqueeze(-2), is_known2.unsqueeze(-2)
        correlation = torch.exp(-(rank1 - rank2).abs() / lengthscale.clamp_min(_SMALLEST_LENGTHSCALE))
        same = same_level(column1, column2, diag, x1_is_x2=x2 is x1).to(dtype)
        return torch.where(is_known1 & is_known2, correlation, same)

    def _ranks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rank of each number, from 0 to L - 1, which is arbitrary if it is no level, and whether it is one."""
        codes, ranks = self.levels.float().sort()
        position = torch.searchsorted(codes, x.contiguous()).clamp(max=codes.numel() - 1)
        return ranks[position], codes[position] == x


def _checked_levels(levels: Sequence[float] | Tensor) -> Tensor:
    codes = as_parameter("OrdinalKernel", "levels", levels)
    if codes.dim() != 1 or codes.numel() < 2:
        raise ValueError(
            f"levels must be a list of two or more numbers in their order, got shape {tuple(codes.shape)}; leave the "
            "component of a column with one level out"
        )
    if bool((codes.abs() > LARGEST_CODE).any()) or codes.float().unique().numel() < codes.numel():
        raise ValueError(
            f"levels must be distinct in single precision and at most {LARGEST_CODE:.0f} in magnitude, got "
            f"{codes.tolist()}; use whole numbers, such as 0 to {codes.numel() - 1}"
        )
    return codes
