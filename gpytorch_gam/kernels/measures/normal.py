"""The normal distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._parameters import as_parameter, broadcast_parameters
from ._quadrature import panels
from .measure import Measure, RBFConstants

# Quadrature covers this many standard deviations each side; what lies beyond has probability 2e-17.
_NUM_STANDARD_DEVIATIONS = 8.5


class Normal(Measure):
    r"""
    The normal distribution with mean ``mean`` and standard deviation ``sd``.

    The integrals of an RBF kernel are closed forms, with :math:`r = s^2 / \ell^2` for a standard deviation :math:`s`:
    :math:`G^2 = (1 + r)^{-1}`, :math:`\nu = (1 + 2r)^{-1/2}`, and :math:`P = G^2 (\sqrt{1 + r^2 / (1 + 2r)} - 1)`,
    which is computed by ``expm1``.

    :param mean: The mean (a number, or a tensor of shape ``batch_shape``).
    :param sd: The standard deviation, positive (same shapes).
    :raises ValueError: If a value is not finite, the shapes do not broadcast, or ``sd <= 0`` anywhere.

    Example:
        >>> measure = Normal(0.0, 1.0)  # standardised inputs
    """

    location: Tensor
    sd: Tensor

    def __init__(self, mean: float | Tensor, sd: float | Tensor) -> None:
        super().__init__()
        location, sd = broadcast_parameters(
            "Normal", mean=as_parameter("Normal", "mean", mean), sd=as_parameter("Normal", "sd", sd)
        )
        if not bool((sd > 0).all()):
            raise ValueError(f"Normal: sd must be positive, got {sd.tolist()}")
        self.register_buffer("location", location)
        self.register_buffer("sd", sd)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.location.double()

    @property
    def standard_deviation(self) -> Tensor:
        """The standard deviation."""
        return self.sd.double()

    @property
    def panel_width(self) -> Tensor:
        """Seventeen standard deviations, ``(*batch)``."""
        return 2 * _NUM_STANDARD_DEVIATIONS * self.standard_deviation

    def quadrature(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Gauss-Legendre nodes weighted by the density, as many on each side of the mean."""
        reach = _NUM_STANDARD_DEVIATIONS * self.standard_deviation
        nodes, weights = panels((self.mean - reach, self.mean, self.mean + reach), num_nodes)
        return nodes, weights * self._density(nodes, 1)

    def split_quadrature(self, x: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Gauss-Legendre nodes weighted by the density, as many on each side of ``x``."""
        mean, reach = self.mean.unsqueeze(-1), _NUM_STANDARD_DEVIATIONS * self.standard_deviation.unsqueeze(-1)
        low, high = mean - reach, mean + reach
        nodes, weights = panels((low, torch.clamp(x, low, high), high), num_nodes)
        return nodes, weights * self._density(nodes, 2)

    def rbf_constants(self, lengthscale: Tensor) -> RBFConstants:
        """See :meth:`Measure.rbf_constants`."""
        ratio = (self.standard_deviation.unsqueeze(-1) / lengthscale).square()
        squared_factor_mean = 1 / (1 + ratio)
        remainder = squared_factor_mean * torch.expm1(0.5 * torch.log1p(ratio.square() / (1 + 2 * ratio)))
        return RBFConstants((1 + 2 * ratio).rsqrt(), squared_factor_mean.sqrt(), remainder)

    def rbf_embedding(self, x: Tensor, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Measure.rbf_embedding`."""
        ratio = (self.standard_deviation.unsqueeze(-1) / lengthscale).square()
        half_square = 0.5 * ((x - self.mean.unsqueeze(-1)) / lengthscale).square()
        # mu(x) = G exp(-x^2 / 2 (l^2 + s^2)), of which G alpha(x) is the fraction exp(-x^2 s^2 / 2 l^2 (l^2 + s^2))
        embedding = (1 + ratio).rsqrt() * torch.exp(-half_square / (1 + ratio))
        return embedding, -embedding * torch.expm1(-half_square * ratio / (1 + ratio))

    def _density(self, nodes: Tensor, num_node_dims: int) -> Tensor:
        mean = self.mean[(..., *[None] * num_node_dims)]
        sd = self.standard_deviation[(..., *[None] * num_node_dims)]
        return torch.exp(-0.5 * ((nodes - mean) / sd).square()) / (sd * math.sqrt(2 * math.pi))
