"""Several models with weights, as an uncertain one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor

from .component_mixture import ComponentMixture, mixed_moments, mixed_variance
from .component_posterior import ComponentPosterior
from .component_sums import MixedSums, SumPrediction
from .joint_sum import JointSum
from .prediction import Prediction


class AdditiveModel(Protocol):
    """A model that knows the posterior of its components."""

    @property
    def predictor(self) -> AdditivePredictor:
        """The components and their prior."""

    def components(self, x: Tensor, *args: Any, **kwargs: Any) -> ComponentPosterior:
        """The joint posterior of the components."""

    def predict(self, x: Tensor, *args: Any, **kwargs: Any) -> Prediction:
        """The moments of the predictor and of its components."""

    def predict_sums(self, x: Tensor, *args: Any, **kwargs: Any) -> SumPrediction:
        """The moments of sums of components."""

    def joint_sums(self, pairs: Sequence[tuple[Tensor, Sequence[str] | str]], **kwargs: Any) -> list[JointSum]:
        """Sums of components as functions."""


class WeightedModels:
    """
    Models of the same components, such as one model with several values of its hyperparameters, with weights that sum
    to one. Where a method has an argument ``hyperparameters``, results are those of the mixture.

    :param strategies: The variational strategies of the models.
    :param weights: Their weights ``(K,)``, float64.
    """

    def __init__(self, strategies: Sequence[AdditiveModel], weights: Tensor) -> None:
        self._strategies = list(strategies)
        #: Weights of the models, ``(K,)``, float64.
        self.weights = weights

    def check_components(self, predictor: AdditivePredictor) -> None:
        """
        Refuse a model whose components are others.

        :param predictor: Those of the model.
        :raises ValueError: If their names differ.
        """
        own = self._strategies[0].predictor.names
        if predictor.names != own:
            raise ValueError(
                f"hyperparameters are those of a model with components {list(own)}, but this one has "
                f"{list(predictor.names)}: pass the HyperparameterUncertainty of this model"
            )

    def components(self, x: Tensor, *args: Any, **kwargs: Any) -> ComponentMixture:
        """
        The joint posterior of the components, see :meth:`AdditiveVariationalStrategy.components`.

        :param x: Inputs ``(n, D)``.
        :param args: Its further arguments.
        :param kwargs: Its further arguments.
        """
        return ComponentMixture([each.components(x, *args, **kwargs) for each in self._strategies], self.weights)

    def predict(self, x: Tensor, *args: Any, **kwargs: Any) -> Prediction:
        """
        The moments of the predictor and of its components, see :meth:`AdditiveVariationalStrategy.predict`.

        :param x: Inputs ``(n, D)``.
        :param args: Its further arguments.
        :param kwargs: Its further arguments.
        """
        return mixed_prediction(self.predictions(x, *args, **kwargs), self.weights)

    def predictions(self, x: Tensor, *args: Any, **kwargs: Any) -> list[Prediction]:
        """
        What each of the models predicts.

        :param x: Inputs ``(n, D)``.
        :param args: Further arguments, see :meth:`predict`.
        :param kwargs: Further arguments.
        """
        return [each.predict(x, *args, **kwargs) for each in self._strategies]

    def predict_sums(self, x: Tensor, *args: Any, **kwargs: Any) -> SumPrediction:
        """
        The moments of sums of components, see :meth:`AdditiveVariationalStrategy.predict_sums`.

        :param x: Inputs ``(n, D)``.
        :param args: Its further arguments.
        :param kwargs: Its further arguments.
        """
        total = MixedSums()
        for strategy, weight in zip(self._strategies, self.weights.tolist(), strict=True):
            if weight > 0:
                total.add(strategy.predict_sums(x, *args, **kwargs), weight)
        return total.moments

    def joint_sums(self, pairs: Sequence[tuple[Tensor, Sequence[str] | str]], **kwargs: Any) -> list[JointSum]:
        """
        Sums of components as functions, see :meth:`AdditiveVariationalStrategy.joint_sums`.

        :param pairs: For each sum its rows and the names of its components.
        :param kwargs: Further arguments.
        """
        models = zip(self._strategies, self.weights.tolist(), strict=True)
        found = [strategy.joint_sums(pairs, **kwargs) for strategy, weight in models if weight > 0]
        return [JointSum.mixed(parts, self.weights[self.weights > 0]) for parts in zip(*found, strict=True)]


def mixed_prediction(parts: Sequence[Prediction], weights: Tensor) -> Prediction:
    """
    The moments of the mixture of several models' predictions in the same rows.

    :param parts: The predictions.
    :param weights: Their weights ``(K,)``, which sum to one.
    """
    moments = mixed_moments([part.moments for part in parts], weights)
    means = [part.component_mean for part in parts if part.component_mean is not None]
    variances = [part.component_variance for part in parts if part.component_variance is not None]
    if not means:
        return Prediction(moments, parts[0].names)
    return Prediction(moments, parts[0].names, *mixed_variance(means, variances, weights))


def checked_models(hyperparameters: Any, predictor: AdditivePredictor) -> WeightedModels:
    """The argument ``hyperparameters`` of a model's method; a TypeError or a ValueError if it is not one of its own."""
    if not isinstance(hyperparameters, WeightedModels):
        raise TypeError(
            "hyperparameters must be a HyperparameterUncertainty(model, likelihood, data) of gpytorch_gam.diagnostics, "
            f"got {checks.shown(hyperparameters)}"
        )
    hyperparameters.check_components(predictor)
    return hyperparameters
