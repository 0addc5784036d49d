"""The negative binomial distribution of counts with an exposure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpytorch_gam.numerics.quadrature import bounded_exp

from .mean_dispersion_negative_binomial import MeanDispersionNegativeBinomial


class ExposedNegativeBinomial(MeanDispersionNegativeBinomial):
    r"""
    Negative binomial with mean :math:`E e^f`, which is proportional to the exposure exactly.

    :param log_rate: :math:`f`, any shape.
    :param exposure: :math:`E`, a shape that broadcasts.
    :param log_dispersion: :math:`\log\alpha`, a shape that broadcasts.
    """

    def __init__(self, log_rate: Tensor, exposure: Tensor, log_dispersion: Tensor) -> None:
        self.log_rate, self.exposure = torch.broadcast_tensors(log_rate, exposure)
        super().__init__(self.log_rate + self.exposure.log(), log_dispersion)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ExposedNegativeBinomial:
        """
        The same distribution with more batch dimensions.

        :param batch_shape: That of the result.
        """
        parts = (self.log_rate, self.exposure, self.log_dispersion)
        return ExposedNegativeBinomial(*(part.expand(batch_shape) for part in parts))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.exposure * bounded_exp(self.log_rate)
