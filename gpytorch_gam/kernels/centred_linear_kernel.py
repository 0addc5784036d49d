"""The covariance of a line through a given centre."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from .batch_shapes import batch_index, batch_sizes
from .level_kernel import one_column, result_dtype
from .measures.measure import as_parameter, broadcast_parameters


class CentredLinearKernel(Kernel):
    r"""A straight line that is zero at a centre, with a normal slope:

    .. math::

        k(x, y) = \frac{(x - c)(y - c)}{s^2}.

    With the mean and the standard deviation of the input as :math:`c` and :math:`s`, the prior variance is one on
    average over the data, the component sums to zero over them, and the ``outputscale`` of a
    :class:`~gpytorch.kernels.ScaleKernel` around it is the variance of the component. The kernel has rank one: one
    inducing point away from the centre determines the component everywhere.

    Centre and scale are buffers, given as numbers kept in float64. Inputs are centred in float64; the result has
    their dtype. A tensor of C values makes a kernel of batch shape `(C)`, one component each.

    :param centre: Where the line is zero (a number, or a tensor of shape `batch_shape`).
    :param scale: The distance from the centre at which the prior standard deviation is one, above zero (same shapes).
    :param active_dims: The one column of the input to read, where it has more.
    :raises ValueError: If a value is not finite, a scale not above zero, or the shapes do not broadcast; or, when
        called, if x has more than one column.

    Example:
        >>> kernel = ScaleKernel(CentredLinearKernel(train_x.mean(0), train_x.std(0)), batch_shape=train_x.shape[1:])
    """

    is_stationary = False
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
                "leave it out."
            )
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of centre and scale."""
        return torch.broadcast_shapes(self._batch_shape, self.centre.shape)

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:
        self._batch_shape = value

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluate the kernel; see :class:`gpytorch.kernels.Kernel`.

        :param x1: The first inputs (`*batch x n x 1`).
        :param x2: The second inputs (`*batch x m x 1`).
        :param diag: Whether to return only the covariances of corresponding inputs (then `n = m`).
        :return: The matrix (`*batch x n x m`), or the diagonal (`*batch x n`).
        """
        dtype = result_dtype(x1, x2)
        offset1 = self._scaled_offset(one_column(self, x1, params)).to(dtype)
        offset2 = offset1 if x2 is x1 else self._scaled_offset(one_column(self, x2, params)).to(dtype)
        return offset1 * offset2 if diag else offset1.unsqueeze(-1) * offset2.unsqueeze(-2)

    def _scaled_offset(self, x: Tensor) -> Tensor:
        return (x.double() - self.centre.double().unsqueeze(-1)) / self.scale.double().unsqueeze(-1)

    def expand_batch(self, *sizes: Any) -> Kernel:
        """A copy of the kernel with a larger batch shape; see :meth:`gpytorch.kernels.Kernel.expand_batch`.

        :param sizes: The new batch shape, to which the present one must broadcast.
        """
        batch_shape = batch_sizes(sizes)
        if batch_shape == self.batch_shape:
            return self
        return self._with_parts(self.centre.expand(batch_shape), self.scale.expand(batch_shape))

    def __getitem__(self, index: Any) -> Kernel:
        """A copy of the kernel with its batch dimensions indexed; see :meth:`gpytorch.kernels.Kernel.__getitem__`.

        :param index: An index, or a tuple of them, into the batch dimensions.
        """
        batch_shape = self.batch_shape
        if len(batch_shape) == 0:
            return self
        index = batch_index(index, len(batch_shape))
        return self._with_parts(self.centre.expand(batch_shape)[index], self.scale.expand(batch_shape)[index])

    def _with_parts(self, centre: Tensor, scale: Tensor) -> CentredLinearKernel:
        new_kernel = deepcopy(self)
        new_kernel.centre, new_kernel.scale = centre, scale
        new_kernel.batch_shape = centre.shape
        return new_kernel
