"""The base class of the likelihoods of several predictors."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, row_moments

from ._joint_expectation import row_cholesky
from .predictor_likelihood import PredictorLikelihood
from .row_arguments_likelihood import with_offset


class JointLikelihood(PredictorLikelihood):
    """
    A likelihood whose distribution in each row has P predictors as its parameters. Expectations are taken under the
    **joint** Gaussian of the predictors of a row, in train and eval mode alike. (GPyTorch's generic methods sample from
    independent marginals in train mode; called on this class they sample jointly.)
    """

    num_predictors = 2

    def _draw_likelihood_samples(
        self, function_dist: MultivariateNormal, *args: Any, sample_shape: torch.Size | None = None, **kwargs: Any
    ) -> Distribution:
        """The sampling behind GPyTorch's generic methods, from the joint Gaussian of each row."""
        if sample_shape is None:
            sample_shape = torch.Size([gpytorch.settings.num_likelihood_samples.value()])
        mean, covariance = row_moments(function_dist)
        return self.forward(drawn_predictors(mean, covariance, sample_shape), *args, **kwargs)

    def _moments(self, function_dist: MultivariateNormal) -> PredictorMoments:
        return row_moments(function_dist)

    def _in_rows(self, predictors: Tensor) -> Tensor:
        if predictors.shape[-1] != self.num_predictors:
            raise ValueError(
                f"{type(self).__name__} reads {self.num_predictors} predictors in each row, but got "
                f"{predictors.shape[-1]}: give the model's component groups predictor=0 to "
                f"predictor={self.num_predictors - 1}"
            )
        return predictors[..., 0]

    def _shifted(self, predictors: Tensor, offset: Any) -> Tensor:
        return with_offset(predictors, offset)


def drawn_predictors(mean: Tensor, covariance: Tensor, sample_shape: torch.Size) -> Tensor:
    """Samples ``(*sample, *batch, n, P)`` of the predictors of each row from their joint Gaussian."""
    noise = torch.randn(*sample_shape, *mean.shape, dtype=mean.dtype, device=mean.device)
    return mean + (row_cholesky(covariance) @ noise.unsqueeze(-1)).squeeze(-1)
