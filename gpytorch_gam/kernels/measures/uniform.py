"""The uniform distribution on an interval."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .._parameters import as_parameter, broadcast_parameters
from ._quadrature import constant, gauss_legendre, integer_powers, panels, power_series
from .measure import Measure, RBFConstants

# Order of the expansion in (x - c)(s - c) / l^2, whose magnitude is at most _LARGEST_PRODUCT where it is used: the
# first term left out is 1e-15 of the first one kept.
_LARGEST_PRODUCT = 3.0
_NUM_EVEN_TERMS = 12
_NUM_MOMENT_NODES = 24

# Where the integral of a Matern kernel is summed as a series; the first term left out is below 1e-15.
_LARGEST_SERIES_DISTANCE, _NUM_SERIES_TERMS = 0.3, 12

# Beyond this, exp(-x) is zero to working precision, and polynomials are still finite.
_LARGEST_EXPONENT = 700.0


class Uniform(Measure):
    r"""
    The uniform distribution on the interval from ``low`` to ``high``.

    The mean embedding of an RBF kernel is a difference of error functions; at lengthscales beyond the standard
    deviation the remainder :math:`\alpha(x) E_s \alpha(s) h(x, s)` is summed as a series in even powers of
    :math:`(x - c) / \ell` (the odd ones vanish by symmetry) whose coefficients, and therefore the sum, are positive.

    :param low: The lower end (a number, or a tensor of shape ``batch_shape``).
    :param high: The upper end, above ``low`` (same shapes).
    :raises ValueError: If an end is not finite, the shapes do not broadcast, or ``low >= high`` anywhere.

    Example:
        >>> measure = Uniform(0.0, 1.0)  # every component's input is uniform on the unit interval
        >>> measure = Uniform(torch.zeros(3), torch.tensor([1.0, 2.0, 24.0]))  # one interval a component
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: float | Tensor, high: float | Tensor) -> None:
        super().__init__()
        low, high = broadcast_parameters(
            "Uniform", low=as_parameter("Uniform", "low", low), high=as_parameter("Uniform", "high", high)
        )
        if not bool((low < high).all()):
            raise ValueError(f"Uniform: low must be below high, got low={low.tolist()} and high={high.tolist()}")
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    @property
    def mean(self) -> Tensor:
        """The midpoint of the interval."""
        return 0.5 * (self.low.double() + self.high.double())

    @property
    def half_width(self) -> Tensor:
        """Half of the length of the interval, of shape ``(*batch)``, float64."""
        return 0.5 * (self.high.double() - self.low.double())

    @property
    def standard_deviation(self) -> Tensor:
        """The half width divided by the square root of three."""
        return self.half_width / math.sqrt(3.0)

    @property
    def panel_width(self) -> Tensor:
        """The length of the interval."""
        return 2 * self.half_width

    def quadrature(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Gauss-Legendre nodes, as many on each half of the interval; see :meth:`Measure.quadrature`."""
        nodes, weights = panels((self.low.double(), self.mean, self.high.double()), num_nodes)
        return nodes, weights / (2 * self.half_width.unsqueeze(-1))

    def split_quadrature(self, x: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Gauss-Legendre nodes, as many on each side of ``x``; see :meth:`Measure.split_quadrature`."""
        low, high = self.low.double().unsqueeze(-1), self.high.double().unsqueeze(-1)
        nodes, weights = panels((low, torch.clamp(x, low, high), high), num_nodes)
        return nodes, weights / (high - low).unsqueeze(-1)

    def rbf_constants(self, lengthscale: Tensor) -> RBFConstants:
        """See :meth:`Measure.rbf_constants`."""
        return self._constants_by_series(lengthscale, self._even_moments(lengthscale))

    def rbf_embedding(self, x: Tensor, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Measure.rbf_embedding`."""
        return self._embedding_by_series(x, lengthscale, self._even_moments(lengthscale))

    def rbf_integrals(self, x: Tensor, lengthscale: Tensor) -> tuple[RBFConstants, Tensor, Tensor]:
        """See :meth:`Measure.rbf_integrals`."""
        moments = self._even_moments(lengthscale)
        return self._constants_by_series(lengthscale, moments), *self._embedding_by_series(x, lengthscale, moments)

    def _constants_by_series(self, lengthscale: Tensor, moments: Tensor) -> RBFConstants:
        is_long = self.is_long(lengthscale)
        factor_mean = moments[..., :1]
        remainder = (moments[..., 1:].square() * _inverse_even_factorials(moments)).sum(-1, keepdim=True)
        width = 2 * self.half_width.unsqueeze(-1) / torch.where(is_long, torch.ones_like(lengthscale), lengthscale)
        # E k(s, t) = 2 / w^2 [ w sqrt(pi / 2) erf(w / sqrt(2)) + exp(-w^2 / 2) - 1 ], w the width in lengthscales
        error_function = width * math.sqrt(math.pi / 2) * torch.erf(width / math.sqrt(2.0))
        short = 2 / width.square() * (error_function + torch.expm1(-0.5 * width.square()))
        return RBFConstants(torch.where(is_long, remainder + factor_mean.square(), short), factor_mean, remainder)

    def _embedding_by_series(self, x: Tensor, lengthscale: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        offset, half_width = x - self.mean.unsqueeze(-1), self.half_width.unsqueeze(-1)
        root = math.sqrt(2.0) * lengthscale
        difference = torch.erf((offset + half_width) / root) - torch.erf((offset - half_width) / root)
        embedding = math.sqrt(math.pi / 2) * lengthscale / (2 * half_width) * difference

        scaled = offset / lengthscale
        is_near = scaled.abs() * half_width / lengthscale < _LARGEST_PRODUCT
        near = torch.where(is_near, scaled, torch.zeros_like(scaled)).square()
        series = power_series(near, moments[..., 1:] * _inverse_even_factorials(moments))
        factor = torch.exp(-0.5 * scaled.square())
        return embedding, torch.where(is_near, factor * series, embedding - moments[..., :1] * factor)

    def matern_deviation(self, x: Tensor, rate: Tensor, nu: float) -> Tensor | None:
        """See :meth:`Measure.matern_deviation`."""
        low, high = self.low.double().unsqueeze(-1), self.high.double().unsqueeze(-1)
        from_low, to_high = rate * (x - low), rate * (high - x)
        width = rate * (high - low)
        # The integrals are odd functions: outside of the interval the two are subtracted.
        near = (_matern_integral(from_low, nu) + _matern_integral(to_high, nu)) / width
        # Far outside, the kernel itself remains, and not its difference from 1.
        is_far = torch.minimum(from_low, to_high) < -_LARGEST_SERIES_DISTANCE
        first, last = torch.minimum(from_low.abs(), to_high.abs()), torch.maximum(from_low.abs(), to_high.abs())
        far = (_matern_tail(first, nu) - _matern_tail(last, nu)) / width - 1
        return torch.where(is_far, far, near)

    def _even_moments(self, lengthscale: Tensor) -> Tensor:
        r"""
        :math:`E \alpha(s) ((s - c) / \ell)^{2k}` for k = 0, ..., K, of shape ``(*batch, K + 1)``, where the expansion
        is used, and harmless numbers elsewhere.
        """
        nodes, weights = gauss_legendre(_NUM_MOMENT_NODES, lengthscale.device)
        half_width = self.half_width.unsqueeze(-1)
        used = torch.where(self.is_long(lengthscale), lengthscale, half_width)
        squares = (half_width / used * nodes).square()  # (*batch, J)
        factors = (weights * torch.exp(-0.5 * squares)).unsqueeze(-2)  # (*batch, 1, J)
        higher = (factors @ integer_powers(squares, _NUM_EVEN_TERMS)).squeeze(-2)
        return torch.cat([factors.sum(-1), higher], -1)


def _inverse_even_factorials(like: Tensor) -> Tensor:
    """1 / (2k)! for k = 1, ..., K."""
    return constant(tuple(1 / math.factorial(2 * k) for k in range(1, _NUM_EVEN_TERMS + 1)), like.device)


def _matern_integral(distance: Tensor, nu: float) -> Tensor:
    r""":math:`\int_0^t (p(s) e^{-s} - 1) \mathrm{d}s` for t >= 0 with the polynomial of a Matern kernel; odd in t."""
    t = distance.abs()
    whole = {0.5: 1.0, 1.5: 2.0, 2.5: 8.0 / 3.0}[nu]
    # At short distances, where terms of first order cancel, they are left out of a series.
    near = torch.where(t < _LARGEST_SERIES_DISTANCE, t, torch.zeros_like(t))
    series = torch.zeros_like(t)
    for coefficient in reversed(_matern_series(nu)):
        series = (series + coefficient) * near
    return torch.where(t < _LARGEST_SERIES_DISTANCE, series, whole - _matern_tail(t, nu) - t) * distance.sign()


def _matern_tail(t: Tensor, nu: float) -> Tensor:
    r""":math:`\int_t^\infty p(s) e^{-s} \mathrm{d}s`."""
    t = t.clamp(max=_LARGEST_EXPONENT)
    polynomial = {0.5: torch.ones_like(t), 1.5: 2 + t, 2.5: (8 + t * (5 + t)) / 3}[nu]
    return polynomial * torch.exp(-t)


@functools.lru_cache(maxsize=3)
def _matern_series(nu: float) -> tuple[float, ...]:
    """Coefficients of t, t^2, ... in the series of the integral."""
    polynomial = {0.5: (1.0, 0.0, 0.0), 1.5: (1.0, 1.0, 0.0), 2.5: (1.0, 1.0, 1.0 / 3.0)}[nu]
    coefficients = [0.0]
    for power in range(1, _NUM_SERIES_TERMS):
        terms = [
            factor * (-1) ** (power - shift) / math.factorial(power - shift)
            for shift, factor in enumerate(polynomial)
            if shift <= power
        ]
        coefficients.append(math.fsum(terms) / (power + 1))
    return tuple(coefficients)
