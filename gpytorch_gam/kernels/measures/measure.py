r"""
The interface between an input measure and the kernels that are centred under it.

The RBF kernel :math:`k(x, y) = \exp(-(x - y)^2 / 2 \ell^2)` gets its own functions here, because the integrals that
centre it cancel catastrophically at long lengthscales. They are written about the measure's mean :math:`c`, with

.. math::

    \alpha(x) = e^{-(x - c)^2 / 2 \ell^2}, \qquad
    k(x, y) = \alpha(x) \alpha(y) (1 + h(x, y)), \qquad h(x, y) = e^{(x - c)(y - c) / \ell^2} - 1,

so that :math:`\alpha(x) \alpha(y)`, the part that hardly depends on the inputs, can be removed before anything is
subtracted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._quadrature import constant, power_series

# The order K of the expansion in (x - c)(s - c) / l^2, and the largest magnitude of that where the expansion is used:
# the first term left out is below 1e-15 of those kept.
_NUM_TERMS = 24
_LARGEST_PRODUCT = 3.0

# The number of nodes a panel in the default RBF integrals.
_NUM_NODES = 64

# exp of the square of this is finite in float64, and exp of minus the square is zero to working precision.
_LARGEST_SCALED_OFFSET = 25.0


class RBFConstants(NamedTuple):
    """Integrals of an RBF kernel under a measure, each of shape ``(*batch, 1)``, float64."""

    double_mean: Tensor  # nu = E_st k(s, t)
    factor_mean: Tensor  # G = E_s alpha(s)
    remainder: Tensor  # P = nu - G^2 > 0 without the subtraction, only meaningful where Measure.is_long holds


class Measure(torch.nn.Module, ABC):
    r"""
    A probability distribution of one input variable, or a batch of them (one per additive component).

    Parameters are buffers, so that they move and convert with the kernel that owns the measure; numbers given as
    Python floats are kept in float64. All integrals are computed in float64 whatever the buffers' dtype.

    A subclass must implement :attr:`mean`, :attr:`standard_deviation` and :meth:`quadrature`. The remaining methods
    have defaults that sum over the quadrature nodes, exact for a discrete measure and a starting point for any other:
    override :meth:`split_quadrature` for a continuous measure (kernels may have a kink at zero distance), and the
    ``rbf_`` methods where closed forms exist.

    All buffers must have the shape ``(*batch, ...)`` with :attr:`num_event_dims` trailing dimensions.
    """

    #: Number of trailing dimensions of each buffer that are not batch dimensions.
    num_event_dims: int = 0

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the measure; its last dimension counts the components."""
        buffer = next(self.buffers(recurse=False))
        return buffer.shape[: buffer.dim() - self.num_event_dims]

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean, of shape ``(*batch)``, float64."""

    @property
    @abstractmethod
    def standard_deviation(self) -> Tensor:
        """The standard deviation, of shape ``(*batch)``, float64."""

    @abstractmethod
    def quadrature(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """
        Nodes and weights for the mean of a smooth function.

        :param num_nodes: The number of nodes a panel (ignored by a discrete measure).
        :return: Nodes and weights, each of shape ``(*batch, J)``, float64. The weights sum to one.
        """

    def split_quadrature(self, x: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """
        Nodes and weights for the mean of a function that is smooth except at one point.

        :param x: The points of non-smoothness ``(*batch, n)``, float64.
        :param num_nodes: The number of nodes a panel (ignored by a discrete measure).
        :return: Nodes and weights, each broadcastable with ``(*batch, n, J)``, float64.
        """
        nodes, weights = self.quadrature(num_nodes)
        return nodes.unsqueeze(-2), weights.unsqueeze(-2)

    @property
    def panel_width(self) -> Tensor:
        """The length of input that :meth:`split_quadrature` covers, ``(*batch)``; zero where it is exact."""
        return torch.zeros_like(self.mean)

    def is_long(self, lengthscale: Tensor) -> Tensor:
        """
        Whether a lengthscale is so long that the RBF kernel should be expanded about the measure's mean.

        :param lengthscale: The lengthscale ``(*batch, 1)``, float64.
        :return: A boolean tensor ``(*batch, 1)``.
        """
        return lengthscale > self.standard_deviation.unsqueeze(-1)

    def rbf_constants(self, lengthscale: Tensor) -> RBFConstants:
        """
        The integrals of the RBF kernel that do not depend on an input.

        :param lengthscale: The lengthscale ``(*batch, 1)``, float64.
        """
        return self._constants(lengthscale, self._moments(lengthscale))

    def _constants(self, lengthscale: Tensor, moments_and_use: tuple[Tensor, Tensor]) -> RBFConstants:
        moments, is_compact = moments_and_use
        factor_mean = moments[..., :1]
        nodes, weights = self.quadrature(_NUM_NODES)
        double_mean = (weights * self._rbf_mean(nodes, lengthscale)).sum(-1, keepdim=True)
        series = (moments[..., 1:].square() * _inverse_factorials(moments)).sum(-1, keepdim=True)
        remainder = torch.where(is_compact, series, double_mean - factor_mean.square())
        return RBFConstants(double_mean, factor_mean, remainder)

    def rbf_embedding(self, x: Tensor, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        The mean embedding of the RBF kernel and its remainder.

        :param x: The inputs ``(*batch, n)``, float64.
        :param lengthscale: The lengthscale ``(*batch, 1)``, float64.
        :return: :math:`\mu(x) = E_s k(x, s)`, and :math:`\mu(x) - G \alpha(x) = \alpha(x) E_s \alpha(s) h(x, s)`
            computed without that subtraction (only meaningful where :meth:`is_long` holds). Both ``(*batch, n)``.
        """
        return self._embedding(x, lengthscale, self._moments(lengthscale))

    def _embedding(
        self, x: Tensor, lengthscale: Tensor, moments_and_use: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        embedding = self._rbf_mean(x, lengthscale)
        moments, is_compact = moments_and_use
        offset, reach = self._offset(x), self._reach()
        scaled = offset / lengthscale
        is_near = is_compact & (scaled.abs() * reach / lengthscale < _LARGEST_PRODUCT)
        near = torch.where(is_near, scaled, torch.zeros_like(scaled))
        series = power_series(near, moments[..., 1:] * _inverse_factorials(moments))
        factor = torch.exp(-0.5 * scaled.square())
        return embedding, torch.where(is_near, factor * series, embedding - moments[..., :1] * factor)

    def rbf_integrals(self, x: Tensor, lengthscale: Tensor) -> tuple[RBFConstants, Tensor, Tensor]:
        """
        :meth:`rbf_constants` and both results of :meth:`rbf_embedding`, which may share what they compute.

        :param x: The inputs ``(*batch, n)``, float64.
        :param lengthscale: The lengthscale ``(*batch, 1)``, float64.
        """
        return self.rbf_constants(lengthscale), *self.rbf_embedding(x, lengthscale)

    def matern_deviation(self, x: Tensor, rate: Tensor, nu: float) -> Tensor | None:
        r"""
        The mean over s of :math:`k(x, s) / k(0) - 1` for a Matern kernel, where there is a closed form.

        :param x: The inputs ``(*batch, n)``, float64.
        :param rate: :math:`\sqrt{2 \nu} / \ell` ``(*batch, 1)``, float64.
        :param nu: The smoothness, 0.5, 1.5 or 2.5.
        :return: ``(*batch, n)``, or None if it takes quadrature.
        """
        return None

    def expand(self, batch_shape: torch.Size) -> Measure:
        """A copy of the measure with a larger batch shape, to which the present one must broadcast."""
        num_batch_dims = len(self.batch_shape)
        return self._map_buffers(
            lambda buffer: buffer.expand(*batch_shape, *buffer.shape[num_batch_dims:]).contiguous()
        )

    def __getitem__(self, index: Any) -> Measure:
        """A copy of the measure with its batch dimensions indexed."""
        index = index if isinstance(index, tuple) else (index,)
        if any(part is Ellipsis for part in index):
            index = (*index, *[slice(None)] * self.num_event_dims)
        return self._map_buffers(lambda buffer: buffer[index])

    def _map_buffers(self, function: Callable[[Tensor], Tensor]) -> Measure:
        new_measure = deepcopy(self)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(new_measure, name, function(buffer))
        return new_measure

    def _offset(self, x: Tensor) -> Tensor:
        return x - self.mean.unsqueeze(-1)

    def _reach(self) -> Tensor:
        """The largest distance of a node from the mean ``(*batch, 1)``."""
        return self._offset(self.quadrature(_NUM_NODES)[0]).abs().amax(-1, keepdim=True)

    def _rbf_mean(self, x: Tensor, lengthscale: Tensor) -> Tensor:
        """The mean of k(x, s) over the nodes ``(*batch, n)``."""
        nodes, weights = self.quadrature(_NUM_NODES)
        scale = math.sqrt(0.5) / lengthscale
        scaled, scaled_nodes = self._offset(x) * scale, self._offset(nodes) * scale
        distance = scaled.unsqueeze(-1) - scaled_nodes.unsqueeze(-2)  # (*batch, n, J)
        return (torch.exp(-distance.square()) @ weights.unsqueeze(-1)).squeeze(-1)

    def _moments(self, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        :math:`E \alpha(s) ((s - c) / \ell)^k` for k = 0, ..., K, ``(*batch, (K + 1))``, and where to use them. Where
        the nodes reach too far for the series, long lengthscales are still only a few times the spread, and the
        differences that the series replaces are harmless in float64.
        """
        nodes, weights = self.quadrature(_NUM_NODES)
        reach = self._reach()
        is_compact = (reach / lengthscale).square() < _LARGEST_PRODUCT
        scaled = self._offset(nodes) / torch.where(is_compact, lengthscale, reach)
        deviation = torch.expm1(-0.5 * scaled.square())
        # The mean of s - c is zero, so that the first moment is of third order: rounding must not give it a
        # first-order part.
        first = (weights * deviation * scaled).sum(-1, keepdim=True)
        powers = scaled.unsqueeze(-1).expand(*scaled.shape, _NUM_TERMS).cumprod(-1)[..., 1:]  # (*batch, J, K - 1)
        higher = ((weights * (1 + deviation)).unsqueeze(-1) * powers).sum(-2)
        # Where the series is not used, the factor's mean is that of the true lengthscale.
        factor = torch.exp(-0.5 * (self._offset(nodes) / lengthscale).square())
        zeroth = (weights * factor).sum(-1, keepdim=True)
        return torch.cat([zeroth, first, higher], -1), is_compact


def _inverse_factorials(like: Tensor) -> Tensor:
    """1 / k! for k = 1, ..., K."""
    return constant(tuple(1 / math.factorial(k) for k in range(1, _NUM_TERMS + 1)), like.device)


def rbf_without_factor(squared_distance: Tensor, product: Tensor) -> Tensor:
    r"""
    :math:`\alpha(x) \alpha(y) h(x, y)` as :math:`-k(x, y) (e^{-xy / \ell^2} - 1)`, without cancellation or overflow,
    from :math:`(x - y)^2 / 2 \ell^2` and the product of offsets :math:`(x - c) / \ell` that are cut off at
    :func:`largest_scaled_offset`.
    """
    return -torch.exp(-squared_distance) * torch.expm1(-product)


def largest_scaled_offset(dtype: torch.dtype) -> float:
    """The offset, in lengthscales, at which :func:`rbf_without_factor` must cut off to stay finite in a dtype."""
    return min(_LARGEST_SCALED_OFFSET, math.sqrt(0.9 * math.log(torch.finfo(dtype).max)))
