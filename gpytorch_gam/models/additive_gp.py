"""A ready-made model: an additive predictor with a variational posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, DeltaVariationalDistribution
from gpytorch.variational._variational_distribution import _VariationalDistribution
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import predictor_alone
from gpytorch_gam.effects import ComponentPosterior, Prediction, SumPrediction, WeightedModels
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)

FAMILIES = ("block_low_rank", "low_rank", "mean_field", "coupled", "delta")


class AdditiveGP(ApproximateGP):
    r"""
    An additive Gaussian process :math:`\rho(\mathbf x) = m(\mathbf x) + \sum_c f_c(\mathbf x_c)` with a sparse
    variational posterior, ready to use without a class of your own. Train it like any
    :class:`~gpytorch.models.ApproximateGP`, but the first three families with natural gradients for the posterior
    (:class:`~gpytorch_gam.optim.NaturalGradient`, or :func:`~gpytorch_gam.training.fit`): Adam alone takes thousands of
    steps until their precision has grown to its size. Until then bands are too wide, and a warning says so.

    :param predictor: The components and their prior.
    :param family: The posterior over the inducing variables of all components:

        - ``"block_low_rank"``: :class:`BlockLowRankPrecisionVariationalDistribution`, the default;
        - ``"low_rank"``: :class:`LowRankPrecisionVariationalDistribution`, the paper's; needs a large ``rank``;
        - ``"mean_field"``: independent components, each with a full covariance;
        - ``"coupled"``: one full covariance over all inducing variables, for small models;
        - ``"delta"``: a point estimate (maximum a posteriori).
    :param rank: Number of columns of the low-rank factor, for the first two families. Default 32 for
        ``"block_low_rank"`` and 64 for ``"low_rank"``, or the number of inducing points if that is smaller. ``"auto"``
        chooses it from the data, see :class:`LowRankPrecisionVariationalDistribution`.
    :param batch_shape: Batch shape of independent models; default that of the predictor.
    :param jitter_val: Absolute jitter, see :class:`AdditiveVariationalStrategy`.
    :param rank_tolerance: Nats that an automatic rank may lose against the optimum; default that of the distribution.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If the family is unknown, or a rank is given to a family without one.

    Example:
        >>> model = AdditiveGP(predictor, family="block_low_rank", rank=32)
        >>> mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
        >>> loss = -mll(model(x), y)
    """

    def __init__(
        self,
        predictor: AdditivePredictor,
        family: str = "block_low_rank",
        rank: int | str | None = None,
        batch_shape: torch.Size | None = None,
        jitter_val: float | None = None,
        rank_tolerance: float | None = None,
    ) -> None:
        if not isinstance(predictor, AdditivePredictor):
            raise TypeError(
                f"predictor must be an AdditivePredictor, got {checks.shown(predictor)}: wrap component groups in one"
            )
        batch_shape = predictor.batch_shape if batch_shape is None else checks.shape("batch_shape", batch_shape)
        if rank_tolerance is not None:
            checks.number("rank_tolerance", rank_tolerance, above=0)
        distribution = _make_distribution(predictor, family, rank, batch_shape, rank_tolerance)
        super().__init__(AdditiveVariationalStrategy(self, predictor, distribution, jitter_val=jitter_val))

    @property
    def predictor(self) -> AdditivePredictor:
        """The components and their prior."""
        return self.variational_strategy.predictor

    def __call__(self, inputs: Tensor, prior: bool = False, **kwargs: Any) -> MultivariateNormal:
        """
        The posterior (or, with ``prior=True``, prior) of the predictor at the rows of ``inputs``.

        :param inputs: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column.
        :param prior: Return the prior instead of the posterior.
        :param kwargs: Further arguments of :meth:`forward`, for subclasses whose method has some.
        :raises TypeError: For arguments that :meth:`forward` does not have. Those of the likelihood, such as offsets,
            belong to the objective: ``mll(model(x), y, offset=...)``.
        """
        return super().__call__(checks.tensor("inputs", inputs), prior=checks.flag("prior", prior), **kwargs)

    @predictor_alone
    def forward(self, x: Tensor) -> MultivariateNormal:
        """
        The prior of the predictor at the rows of ``x``. Subclasses may give it other inputs and add a mean, as in
        ``self.mean_module(x) + self.predictor(self.network(x))``; the posterior then includes them.

        :param x: Inputs ``(*batch, n, D)``.
        """
        return self.predictor(x)

    def components(
        self,
        x: Tensor,
        names: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> ComponentPosterior:
        """
        The joint posterior of the components, see :meth:`AdditiveVariationalStrategy.components`.

        :param x: Inputs ``(*batch, n, D)``.
        :param names: A list of components; default all. A single name gives results without the components' dimension.
        :param exclude: Components to leave out, instead of ``names``.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the result then includes; by default they are taken as known.
        :param kwargs: Further arguments of :meth:`forward`, for subclasses whose method has some.
        """
        x = x.unsqueeze(-1) if torch.is_tensor(x) and x.dim() == 1 else x
        return self.variational_strategy.components(x, names, exclude, hyperparameters, **kwargs)

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
        :meth:`AdditiveVariationalStrategy.predict`.

        :param x: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column; on any device.
        :param components: Components whose moments to return: True for all, False for none, or names.
        :param chunk_size: Number of rows whose projections are in memory at a time.
        :param exclude: Components to leave out of the predictor, such as random effects.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include, at the cost of a prediction for each of its points.
        :param kwargs: Further arguments of :meth:`forward`, for subclasses whose method has some.
        """
        x = x.unsqueeze(-1) if torch.is_tensor(x) and x.dim() == 1 else x
        return self.variational_strategy.predict(x, components, chunk_size, exclude, hyperparameters, **kwargs)

    def predict_sums(
        self,
        x: Tensor,
        sums: Mapping[str, Sequence[str] | str],
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> SumPrediction:
        """
        Means and variances of sums of components at any number of rows, such as that of the line and the curve of one
        column, see :meth:`AdditiveVariationalStrategy.predict_sums`.

        :param x: Inputs ``(*batch, n, D)``, or ``(n)`` for a single column; on any device.
        :param sums: For the name of each sum its components.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include.
        :param kwargs: Further arguments of :meth:`forward`, for subclasses whose method has some.
        """
        x = x.unsqueeze(-1) if torch.is_tensor(x) and x.dim() == 1 else x
        return self.variational_strategy.predict_sums(x, sums, hyperparameters, **kwargs)


def _make_distribution(
    predictor: AdditivePredictor,
    family: str,
    rank: int | str | None,
    batch_shape: torch.Size,
    rank_tolerance: float | None,
) -> _VariationalDistribution:
    checks.choice("family", family, FAMILIES)
    if rank is not None and family not in ("block_low_rank", "low_rank"):
        raise ValueError(f"family {family!r} has no rank, got rank={rank!r}")
    total = predictor.num_inducing_total
    options: dict[str, Any] = {"batch_shape": batch_shape}
    if rank_tolerance is not None:
        options["rank_tolerance"] = rank_tolerance
    if family == "low_rank":
        return LowRankPrecisionVariationalDistribution(total, rank=rank, **options)
    if family == "coupled":
        return CholeskyVariationalDistribution(total, batch_shape=batch_shape)
    if family == "delta":
        return DeltaVariationalDistribution(total, batch_shape=batch_shape)
    if family == "mean_field":
        rank = 0
    return BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=rank, **options)
