"""Several models with their likelihoods and weights, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpytorch_gam.distributions.weighted_mixture import WeightedMixture
from gpytorch_gam.effects import Prediction, WeightedModels
from gpytorch_gam.optim.rows.likelihood_check import check_row_arguments


class ModelMixture(WeightedModels):
    """
    Models of the same components with their likelihoods and with weights that sum to one, such as a model with several
    values of its hyperparameters: ``model.predict(x, hyperparameters=mixture)`` and ``model.components(x,
    hyperparameters=mixture)`` are those of the mixture, and :meth:`responses` are new responses under it.

    :param models: The K models.
    :param likelihoods: Their likelihoods.
    :param weights: Their weights ``(K,)``, float64.
    """

    def __init__(
        self, models: Sequence[gpytorch.models.ApproximateGP], likelihoods: Sequence[Likelihood], weights: Tensor
    ) -> None:
        super().__init__([model.variational_strategy for model in models], weights)
        #: The models.
        self.models = tuple(models)
        #: Their likelihoods.
        self.likelihoods = tuple(likelihoods)

    def __len__(self) -> int:
        """The number of models."""
        return len(self.models)

    @torch.no_grad()
    def responses(self, x: Tensor, **row_arguments: Any) -> Distribution:
        """
        The distribution of new responses in independent rows, in which the hyperparameters of the likelihood, such as
        noise, are uncertain, too. It has a mean, variance, log-probabilities and samples, and a distribution function
        if those of the likelihood have; quantiles are found by
        :func:`~gpytorch_gam.distributions.predictive_quantiles`.

        :param x: Inputs ``(n, D)``.
        :param row_arguments: Row-wise arguments of the likelihood, such as ``offset``.
        :raises TypeError: If the likelihood does not know an argument.
        """
        return self.responses_given(self.predictions(x, components=False), **row_arguments)

    def responses_given(self, predictions: Sequence[Prediction], **row_arguments: Any) -> Distribution:
        """
        The distribution of new responses, see :meth:`responses`, from what each model predicts.

        :param predictions: Those of :meth:`predictions`.
        :param row_arguments: Row-wise arguments of the likelihood, such as ``offset``.
        :raises TypeError: If the likelihood does not know an argument.
        """
        check_row_arguments(self.likelihoods[0], row_arguments)
        parts = [
            _in_rows(likelihood(prediction.distribution, **row_arguments))
            for prediction, likelihood in zip(predictions, self.likelihoods, strict=True)
        ]
        return parts[0] if len(parts) == 1 else WeightedMixture(parts, self.weights)


def _in_rows(distribution: Distribution) -> Distribution:
    """A distribution of the responses of single rows."""
    if isinstance(distribution, MultivariateNormal):
        return Normal(distribution.mean, distribution.variance.sqrt(), validate_args=False)
    return distribution
