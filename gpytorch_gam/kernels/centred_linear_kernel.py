"""The covariance of a line through a given centre."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base_kernels import one_column, result_dtype
from ._batched_kernel import BatchedKernel
from ._parameters import as_parameter, broadcast_parameters


class CentredLinearKernel(BatchedKernel):
    r"""
    The kernel of a straight line that is zero at a centre, with a normally distributed slope:

    .. math::

        k(x, y) = \frac{(x - c)(y - c)}{s^2}.

    With the mean and the standard deviation of the input as :math:`c` and :math:`s`, the prior variance is one on
    average over the data, the component sums to zero over them, and the ``outputscale`` of a
    :class:`~gpytorch.kernels.ScaleKernel` around it is the variance of the component. The kernel has rank one: one
    inducing point away from the centre determines the component everywhere.

    Centre and scale are buffers, kept in float64 if they are given as numbers. Inputs are centred in float64; the
    result has their dtype. A tensor of C values makes a kernel of batch shape ``(C)``, with one component for each
    value.

    :param centre: The input at which the line is zero (a number, or a tensor of shape ``batch_shape``).
    :param scale: The distance from the centre at which the prior standard deviation is one, above zero (same shapes).
    :param active_dims: The column of the input that the kernel reads, if the input has several.
    :raises ValueError: If a value is not finite, a scale not above zero, or the shapes do not broadcast; or, when
        called, if x has more than one column.

    Example:
        >>> kernel = ScaleKernel(CentredLinearKernel(train_x.mean(0), train_x.std(0)), batch_shape=train_x.shape[1:])
    """

    is_stationary = False
    batched_tensors = (("centre", 0), ("scale", 0))
    centre: Tensor
    scale: Tensor

    def __init__(
        self, centre: float | Tensor, scale: float | Tensor, active_dims: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(active_dims=active_dims)
        name = type(self).__name__
        centre, scale = broadcast_parameters(
            name, centre=as_parameter(name, "centre", centre), scale=as_parameter(name, "scale", scale)
        )
        if not bool((scale > 0).all()):
            raise ValueError(
                f"{name}: scale must be above zero, got {scale.tolist()}; a column that is constant has no slope, "
                "leave it out"
            )
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)

    def _part_shapes(self) -> tuple[torch.Size, ...]:
        return (self.centre.shape,)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel of inputs ``(*batch, n, d)`` and ``(*batch, m, d)``; see :class:`gpytorch.kernels.Kernel`."""
        dtype = result_dtype(x1, x2)
        offset1 = self._scaled_offset(one_column(self, x1, params)).to(dtype)
        offset2 = offset1 if x2 is x1 else self._scaled_offset(one_column(self, x2, params)).to(dtype)
        return offset1 * offset2 if diag else offset1.unsqueeze(-1) * offset2.unsqueeze(-2)

    def _scaled_offset(self, x: Tensor) -> Tensor:
        return (x.double() - self.centre.double().unsqueeze(-1)) / self.scale.double().unsqueeze(-1)
