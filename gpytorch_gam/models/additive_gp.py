"""A ready-made model: an additive predictor with a variational posterior."""

from __future__ import annotations

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
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)

from .additive_model_mixin import AdditiveModelMixin

FAMILIES = ("block_low_rank", "low_rank", "mean_field", "coupled", "delta")


class AdditiveGP(AdditiveModelMixin, ApproximateGP):
    r"""
    An additive Gaussian process :math:`\rho(\mathbf x) = m(\mathbf x) + \sum_c f_c(\mathbf x_c)` with a sparse
    variational posterior, ready to use without a class of your own; a class of your own gets its methods from
    :class:`AdditiveModelMixin`. Train it like any :class:`~gpytorch.models.ApproximateGP`, but the first three families
    with natural gradients for the posterior (:class:`~gpytorch_gam.optim.NaturalGradient`, or
    :func:`~gpytorch_gam.training.fit`): Adam alone takes thousands of steps until their precision has grown to its
    size. Until then bands are too wide, and a warning says so.

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
