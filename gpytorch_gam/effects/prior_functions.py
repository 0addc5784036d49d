r"""
Functions from the prior of components, as sums of waves with random amplitudes.

A stationary kernel is an integral over frequencies, :math:`k(x - x') = \int \cos(\omega (x - x')) \, S(\omega) \,
d\omega`, of which a sum over well-chosen frequencies is left here. With :math:`\varphi(x)` the cosines and sines times
the roots of their weights, :math:`g(x) = \varphi(x)^\top \mathbf w` with standard normal weights is a function from the
prior that has a value everywhere. Its variance is that of the kernel at any place, and its covariances are those of the
kernel up to what is said in :class:`PriorFeatures`. A function that is conditioned on having mean zero is one whose
features have lost their direction of the mean; features of a product of kernels are products of features.

With it, the posterior of inducing variables :math:`\mathbf u` gives whole functions by Matheron's rule
:math:`f(x) = g(x) + k(x, Z) K^{-1} (\mathbf u - g(Z))`.

References:
    J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky, M. P. Deisenroth. Efficiently sampling functions from
    Gaussian process posteriors. ICML, 2020.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel
from scipy.optimize import brentq
from scipy.special import ive
from scipy.stats import chi, f
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel
from gpytorch_gam.kernels.evaluation import factors


class _Size(NamedTuple):
    """What is done for a factor in a product of one, two, or more kernels of numbers."""

    number: int  # of frequencies
    left_out: float  # the probability of frequencies above the highest
    ranges: float  # of the inducing points, after which waves meet again, besides some lengthscales


_SIZES = (_Size(256, 1e-8, 6.0), _Size(24, 1e-5, 3.0), _Size(8, 1e-4, 2.0))
_ISOTROPIC = _Size(24, 1e-6, 3.0)
_LENGTHSCALES = 10.0

# Harmonics of a period; directions of frequencies in several columns, which are turned by the golden section; nodes in
# each panel by which a mean over a measure is taken.
_NUM_HARMONICS, _NUM_DIRECTIONS, _GOLDEN, _NUM_NODES = 64, 48, 0.5 * (math.sqrt(5.0) - 1.0), 128


class PriorFeatures:
    r"""
    Features :math:`\varphi_c` of the components of a group, whose products are its kernel: apart from levels that are
    independent of each other, :math:`\varphi_c(x)^\top \varphi_c(x') \approx k_c(x, x')`.

    Variances are those of the kernel to 1e-3 for one column and to a hundredth for two. So are covariances, unless the
    kernel is rougher than it is sampled: with Matern kernels of smoothness 1/2, and lengthscales of a hundredth of the
    range, those at far places are off by some hundredths, and in two columns by far more. Places that are more than
    some ranges of the inducing points apart may be correlated.

    :param group: The components, made by a term of numbers: of RBF, Matern and periodic kernels, centred ones, and
        their products with each other and with kernels of levels. Its hyperparameters are those of now.
    :raises TypeError: If its kernel is of another kind.
    :ivar level_column: The column of the components that holds independent levels, which features do not know, or None.
    """

    def __init__(self, group: ComponentGroup) -> None:
        found = factors(group.kernel, group.input_dim)
        levels = [columns[0] for kernel, columns in found if type(kernel) is LevelKernel]
        self.level_column = levels[0] if levels else None
        others = [(kernel, columns) for kernel, columns in found if type(kernel) is not LevelKernel]
        num_waves = sum(not _is_of_levels(kernel) for kernel, _ in others)
        points = group.inducing_points.detach().double()
        self._factors = [
            (columns, _factor(kernel, points[..., columns], _SIZES[min(num_waves, len(_SIZES)) - 1]))
            for kernel, columns in others
        ]
        self._deviation = group.mean_prior_variance().detach().double().sqrt().expand(group.num_components)

    @property
    def number(self) -> int:
        """The number F of features."""
        return math.prod(factor.number for _, factor in self._factors)

    def at(self, inputs: Tensor) -> Tensor:
        """
        The features ``(C, n, F)``.

        :param inputs: Inputs of the components ``(C, n, d)``, as :meth:`ComponentGroup.select` gives them.
        """
        inputs = inputs.double()
        ones = self._deviation[:, None, None].expand(*inputs.shape[:-1], 1)
        parts = [factor.at(inputs[..., columns]) for columns, factor in self._factors]
        return functools.reduce(_products, parts, ones)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """All products of two sets of features ``(C, n, F)`` and ``(C, n, G)``, ``(C, n, F G)``."""
    return (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)


class _Factor(Protocol):
    """Features of one of the kernels of a product."""

    @property
    def number(self) -> int:
        """Their number."""

    def at(self, x: Tensor) -> Tensor:
        """Their values ``(C, n, F)`` at the columns that the kernel reads, ``(C, n, d)``."""


class _Waves(NamedTuple):
    """Cosines and sines."""

    frequencies: Tensor  # (C, L, d)
    weights: Tensor  # (C, L), which sum to one
    centre: Tensor  # (C, 1, d), from which phases are counted

    @property
    def number(self) -> int:
        return 2 * self.frequencies.shape[-2]

    def at(self, x: Tensor) -> Tensor:
        phases = (x - self.centre) @ self.frequencies.mT
        return torch.cat([phases.cos(), phases.sin()], -1) * self.weights.sqrt().repeat(1, 2).unsqueeze(-2)


class _Levels(NamedTuple):
    """Indicators of levels."""

    codes: Tensor  # (G,), in single precision

    @property
    def number(self) -> int:
        return len(self.codes)

    def at(self, x: Tensor) -> Tensor:
        return (x.float() == self.codes).double()


class _Centred:
    """Features without the direction of their mean, scaled to a variance of one on average."""

    def __init__(self, base: _Waves | _Levels, nodes: Tensor, weights: Tensor) -> None:
        at_nodes = base.at(nodes)  # (C, J, F)
        mean = (weights.unsqueeze(-1) * at_nodes).sum(-2, keepdim=True)  # (C, 1, F)
        self._base, self._direction = base, torch.nn.functional.normalize(mean, dim=-1)
        variance = (weights * self._rest(at_nodes).square().sum(-1)).sum(-1)
        self._scale = variance.rsqrt()[:, None, None]

    @property
    def number(self) -> int:
        return self._base.number

    def _rest(self, features: Tensor) -> Tensor:
        along = features @ self._direction.mT  # (C, n, 1)
        return features - along * self._direction

    def at(self, x: Tensor) -> Tensor:
        return self._scale * self._rest(self._base.at(x))


def _is_of_levels(kernel: Kernel) -> bool:
    return isinstance(kernel, CentredKernel) and type(kernel.base_kernel) is LevelKernel


def _factor(kernel: Kernel, points: Tensor, size: _Size) -> _Factor:
    """Features of a kernel with inducing points ``(C, M, d)``."""
    if isinstance(kernel, ANOVAKernel) and kernel.normalize:
        nodes, weights = kernel.measure.quadrature(_NUM_NODES)
        return _centred(_waves(kernel.base_kernel, points, size), nodes.unsqueeze(-1), weights, len(points))
    if isinstance(kernel, CentredKernel) and kernel.normalize:
        nodes, weights = kernel.points.double(), kernel.weights.double()
        is_of_levels = _is_of_levels(kernel)
        base = _Levels(nodes.float().flatten()) if is_of_levels else _waves(kernel.base_kernel, points, size)
        return _centred(base, nodes, weights / weights.sum(-1, keepdim=True), len(points))
    return _waves(kernel, points, size)


def _centred(base: _Waves | _Levels, nodes: Tensor, weights: Tensor, number: int) -> _Centred:
    return _Centred(base, nodes.expand(number, *nodes.shape[-2:]), weights.expand(number, weights.shape[-1]))


def _waves(kernel: Kernel, points: Tensor, size: _Size) -> _Waves:
    """Waves of a stationary kernel with inducing points ``(C, M, d)``."""
    lowest, highest = points.amin(-2, keepdim=True), points.amax(-2, keepdim=True)
    if not isinstance(kernel, MaternKernel | RBFKernel | PeriodicKernel):
        raise TypeError(f"functions of a {type(kernel).__name__} cannot be drawn")
    shape = (len(points), 1, points.shape[-1])
    lengthscales = kernel.lengthscale.detach().double().expand(shape)
    if isinstance(kernel, PeriodicKernel):
        harmonics = torch.arange(_NUM_HARMONICS, dtype=torch.float64, device=points.device).unsqueeze(-1)
        periods = kernel.period_length.detach().double().expand(shape)
        weights = _weights_of_harmonics(lengthscales.flatten(1), harmonics.squeeze(-1))
        return _Waves(2 * math.pi * harmonics / periods, weights, lowest)
    freedom = math.inf if isinstance(kernel, RBFKernel) else 2 * kernel.nu
    reaches = ((highest - lowest) / lengthscales).amax(-1).flatten().tolist()
    found = [_frequencies(freedom, points.shape[-1], reach, size) for reach in reaches]
    frequencies, weights = (torch.from_numpy(np.stack(each)).to(points) for each in zip(*found, strict=True))
    return _Waves(frequencies / lengthscales, weights, 0.5 * (lowest + highest))


def _frequencies(freedom: float, dimension: int, reach: float, size: _Size) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies ``(L, d)`` and weights ``(L,)`` of a kernel that depends on distance in lengthscales alone."""
    size = size if dimension == 1 else _ISOTROPIC
    radii, weights = _quadrature(_Radius(freedom, dimension), reach, size)
    directions = _directions(dimension, len(radii))
    number = directions.shape[1]
    return (radii[:, None, None] * directions).reshape(-1, dimension), np.repeat(weights / number, number)


def _directions(dimension: int, number: int) -> np.ndarray:
    """Evenly spread directions ``(number, A, d)``, of which the opposite ones mean the same, turned for each radius."""
    if dimension == 1:
        return np.ones((number, 1, 1))
    turned = _GOLDEN * np.arange(number)[:, None]
    place = np.arange(_NUM_DIRECTIONS)
    if dimension == 2:
        angles = np.pi * (place + turned) / _NUM_DIRECTIONS
        return np.stack([np.cos(angles), np.sin(angles)], -1)
    height = np.broadcast_to((place + 0.5) / _NUM_DIRECTIONS, (number, _NUM_DIRECTIONS))
    angles, width = 2 * np.pi * (_GOLDEN * place + turned), np.sqrt(1 - height**2)
    return np.stack([width * np.cos(angles), width * np.sin(angles), height], -1)


class _Radius(NamedTuple):
    """The distribution of the length of frequencies: vectors of a multivariate t, or normal, distribution."""

    freedom: float
    dimension: int

    def pdf(self, radius: np.ndarray) -> np.ndarray:
        if math.isinf(self.freedom):
            found = chi.pdf(radius, self.dimension)
        else:
            ratio = radius**2 / self.dimension
            found = 2 * radius / self.dimension * f.pdf(ratio, self.dimension, self.freedom)
        return np.asarray(found)

    def isf(self, probability: float) -> float:
        if math.isinf(self.freedom):
            return float(chi.isf(probability, self.dimension))
        return math.sqrt(self.dimension * f.isf(probability, self.dimension, self.freedom))


def _weights_of_harmonics(lengthscales: Tensor, harmonics: Tensor) -> Tensor:
    r"""The Fourier series of :math:`e^{-(1 - \cos t) / \lambda}`: scaled Bessel functions of :math:`1 / \lambda`."""
    inverse = (1.0 / lengthscales).cpu().numpy()  # (C, 1)
    values = torch.from_numpy(ive(harmonics.cpu().numpy(), inverse)).to(lengthscales)
    values = torch.where(harmonics > 0, 2.0, 1.0) * values
    return values / values.sum(-1, keepdim=True)


def _quadrature(spectrum: _Radius, reach: float, size: _Size) -> tuple[np.ndarray, np.ndarray]:
    """
    Lengths of frequencies and weights by the midpoint rule, which is exact but for what meets after a period of the
    lowest: equally spaced first, then ever wider, to reach the highest.
    """
    spacing = 2 * math.pi / (size.ranges * reach + _LENGTHSCALES)
    ratio = spectrum.isf(size.left_out) / (size.number * spacing)
    bend = brentq(lambda z: math.sinh(z) / z - ratio, 1e-3, 60.0) if ratio > 1.0 + 1e-6 else 1e-3
    step = bend / size.number
    places = step * (np.arange(size.number) + 0.5)
    frequencies = spacing / step * np.sinh(places)
    weights = spectrum.pdf(frequencies) * np.cosh(places)
    return frequencies, weights / weights.sum()
