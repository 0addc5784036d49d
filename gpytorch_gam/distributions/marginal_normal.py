"""The distribution of the predictor in a training step."""

from __future__ import annotations

import gpytorch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


class MarginalNormal(MultivariateNormal):
    """
    A multivariate normal whose variances are held at ``gpytorch.settings.min_variance`` without checking whether one is
    below, for which GPyTorch waits for a GPU. Those here are positive, and training does not depend on such small ones.
    """

    @property
    def variance(self) -> Tensor:
        """The variances, ``(*batch, n)``."""
        if not self.islazy:
            return super().variance
        diagonal = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        variance = diagonal.expand(self.batch_shape + self.event_shape)
        return variance.clamp_min(gpytorch.settings.min_variance.value(variance.dtype))
