"""The distribution of the predictor in a training step."""

from __future__ import annotations

import gpytorch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


class MarginalNormal(MultivariateNormal):
    """
    A multivariate normal whose variances on a GPU are held at ``gpytorch.settings.min_variance`` without a look at
    whether one is below: GPyTorch looks, to warn, and waits for the device to do so.
    """

    @property
    def variance(self) -> Tensor:
        """The variances, ``(*batch, n)``."""
        if self.mean.device.type == "cpu" or not self.islazy:
            return super().variance
        diagonal = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        variance = diagonal.expand(self.batch_shape + self.event_shape)
        return variance.clamp_min(gpytorch.settings.min_variance.value(variance.dtype))
