"""The methods of additive models: components, and predictions by component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.effects import ComponentPosterior, JointSum, Prediction, SumPrediction, WeightedModels
from gpytorch_gam.effects.joint_sum import checked_pairs
from gpytorch_gam.variational.model_check import additive_strategy


class AdditiveModelMixin:
    """
    The methods of :class:`AdditiveGP` for model classes of your own: the posterior of the components, and predictions
    by component. They are those of the model's ``variational_strategy``, which is an
    :class:`~gpytorch_gam.variational.AdditiveVariationalStrategy` or another strategy of this package; with any other
    they raise a TypeError.

    Example:
        >>> class GAM(AdditiveModelMixin, gpytorch.models.ApproximateGP):
        >>>     def __init__(self, predictor):
        >>>         q = BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=16)
        >>>         super().__init__(AdditiveVariationalStrategy(self, predictor, q))
        >>>     def forward(self, x):
        >>>         return self.predictor(x)
        >>> GAM(predictor).components(x)
    """

    @property
    def predictor(self) -> AdditivePredictor:
        """The components and their prior."""
        return additive_strategy(self).predictor

    def components(
        self,
        x: Tensor,
        names: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> ComponentPosterior:
        """
        The joint posterior of the components, see
        :meth:`~gpytorch_gam.variational.AdditiveVariationalStrategy.components`.

        :param x: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column.
        :param names: A list of components; default all. A single name gives results without the components' dimension.
        :param exclude: Components to leave out, instead of ``names``.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the result then includes; by default they are taken as known.
        :param kwargs: Further arguments of the model's ``forward``.
        """
        return additive_strategy(self).components(_as_rows(x), names, exclude, hyperparameters, **kwargs)

    def predict(
        self,
        x: Tensor,
        components: Sequence[str] | str | bool = True,
        chunk_size: int | None = None,
        exclude: Sequence[str] | str | None = None,
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> Prediction:
        """
        Means and variances of the predictor and of its components at any number of rows, see
        :meth:`~gpytorch_gam.variational.AdditiveVariationalStrategy.predict`.

        :param x: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column; on any device.
        :param components: Components whose moments to return: True for all, False for none, or names.
        :param chunk_size: Number of rows whose projections are in memory at a time.
        :param exclude: Components to leave out of the predictor, such as random effects.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include, at the cost of a prediction for each of its points.
        :param kwargs: Further arguments of the model's ``forward``.
        """
        return additive_strategy(self).predict(_as_rows(x), components, chunk_size, exclude, hyperparameters, **kwargs)

    def predict_sums(
        self,
        x: Tensor,
        sums: Mapping[str, Sequence[str] | str],
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> SumPrediction:
        """
        Means and variances of sums of components at any number of rows, such as that of the line and the curve of one
        column, see
        :meth:`~gpytorch_gam.variational.AdditiveVariationalStrategy.predict_sums`.

        :param x: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column; on any device.
        :param sums: For the name of each sum its components.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include.
        :param kwargs: Further arguments of the model's ``forward``.
        """
        return additive_strategy(self).predict_sums(_as_rows(x), sums, hyperparameters, **kwargs)

    def joint_sums(
        self,
        pairs: Sequence[tuple[Tensor, Sequence[str] | str]],
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> list[JointSum]:
        """
        Sums of components as functions: means, covariances over rows, and draws, see
        :meth:`~gpytorch_gam.variational.AdditiveVariationalStrategy.joint_sums`.

        :param pairs: For each sum its rows, inputs ``(*batch, n, D)``, or ``(n)`` for a single column, and the names of
            its components.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the result then includes.
        :param kwargs: Further arguments of the model's ``forward``.
        """
        pairs = [(_as_rows(x), names) for x, names in checked_pairs(pairs)]
        return additive_strategy(self).joint_sums(pairs, hyperparameters, **kwargs)


def _as_rows(x: Any) -> Any:
    """A single column ``(n)`` as rows ``(n, 1)``; what is no tensor is reported later."""
    return x.unsqueeze(-1) if torch.is_tensor(x) and x.dim() == 1 else x
