"""The evidence lower bound of a Gaussian likelihood with its optimal posterior inserted."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpytorch_gam import _checks as checks
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.likelihoods.row_argument import OFFSET, WEIGHTS, RowArgument
from gpytorch_gam.numerics.blocks import symmetric_product
from gpytorch_gam.numerics.capacitance import add_identity, capacitance_log_determinant
from gpytorch_gam.optim.rows.likelihood_check import (
    arguments_with_noise,
    check_row_arguments,
    unwrapped,
    with_noise_by_row,
)
from gpytorch_gam.variational.model_check import inducing_strategy

_NOISE = RowArgument("noise", 1.0, is_positive=True)


class RowPrecisions(NamedTuple):
    """The rows' weights over their noise variances, under a Gaussian likelihood."""

    precisions: Tensor | None  # weights, over the noise variances of rows that have some, (*batch, n); None for ones
    num_rows: Tensor | float  # sum of the weights
    log_noise: Tensor | None  # sum of w log sigma^2, (*batch); None where all rows share a noise variance

    @classmethod
    def of_rows(cls, y: Tensor, weights: Tensor | None, noise: Tensor | None) -> RowPrecisions:
        """
        From weights (None: ones) and noise variances (None: shared), ``(*batch, n)`` like y; a ValueError for bad
        values.
        """
        like = y.detach().double()
        weights = None if weights is None else WEIGHTS.read(weights, like)
        noise = None if noise is None else _NOISE.read(noise, like)
        num_rows = y.shape[-1] if weights is None else weights.expand(y.shape).sum(-1)
        if noise is None:
            return cls(None if weights is None else weights.expand(y.shape), num_rows, None)
        weights = torch.ones_like(like) if weights is None else weights
        return cls(weights / noise, num_rows, (weights * noise.log()).expand(y.shape).sum(-1))


class GaussianStatistics(NamedTuple):
    r"""
    Sums over the data, in float64, that determine the optimal posterior and bound with a Gaussian likelihood. Those of
    disjoint rows add up.

    With features :math:`\phi`, residuals :math:`r = y - \mu(x) - \text{offset}` and relative precisions :math:`\lambda`
    of the rows (1 without weights and noises by row):

    :ivar gram: The sum :math:`\sum_n \lambda_n \phi_n \phi_n^\top`, ``(*batch, Q, Q)``.
    :ivar projected: The sum :math:`\sum_n \lambda_n \phi_n r_n`, ``(*batch, Q)``.
    :ivar residual_square: The sum :math:`\sum_n \lambda_n r_n^2`, ``(*batch)``.
    :ivar unexplained: The sum :math:`\sum_n \lambda_n (k(x_n, x_n) - \phi_n^\top \phi_n)`, ``(*batch)``.
    :ivar num_rows: The number of rows, or with weights their sum.
    :ivar log_noise: The weighted sum of the logarithms of the rows' own noise variances; None where they share one.
    """

    gram: Tensor
    projected: Tensor
    residual_square: Tensor
    unexplained: Tensor
    num_rows: Tensor | float
    log_noise: Tensor | None = None

    def plus(self, other: GaussianStatistics) -> GaussianStatistics:
        """
        The statistics of the rows of both.

        :param other: The statistics of further rows.
        :raises ValueError: If only one of them has rows with noises of their own.
        """
        if (self.log_noise is None) != (other.log_noise is None):
            raise ValueError("some batches have the row-wise argument noise, and others do not: give it with each row")
        return GaussianStatistics(
            self.gram + other.gram,
            self.projected + other.projected,
            self.residual_square + other.residual_square,
            self.unexplained + other.unexplained,
            self.num_rows + other.num_rows,
            None if self.log_noise is None or other.log_noise is None else self.log_noise + other.log_noise,
        )


class GaussianOptimum(NamedTuple):
    r"""
    The optimal posterior :math:`N(m, P^{-1})` of the whitened inducing variables at fixed hyperparameters, in float64.

    :ivar mean: The mean :math:`m`, ``(*batch, Q)``.
    :ivar precision: The precision :math:`P = I + \Phi\Lambda\Phi^\top`, with the rows' precisions :math:`\Lambda`, by
        default :math:`\sigma^{-2} I`; ``(*batch, Q, Q)``.
    :ivar bound: The collapsed bound in nats, summed over the data, ``(*batch)``.
    """

    mean: Tensor
    precision: Tensor
    bound: Tensor


class CollapsedELBO(gpytorch.Module):
    r"""
    The collapsed bound of Titsias (2009): the evidence lower bound of a Gaussian likelihood at the optimal posterior
    over the inducing variables of all components,

    .. math::
        \log N(\mathbf y; \boldsymbol\mu, \Phi^\top\Phi + \sigma^2 I)
        - \frac{1}{2\sigma^2} \sum_n \big(k(\mathbf x_n, \mathbf x_n) - \phi_n^\top\phi_n\big),

    an objective in the hyperparameters alone. No variational posterior reaches a higher bound with the same
    hyperparameters and inducing points. Cost :math:`O(NQ^2 + Q^3)` a call.

    Row-wise arguments are given by keyword, with the same meaning as in :class:`gpytorch.mlls.VariationalELBO`:
    ``weights`` and ``offset`` with a :class:`~gpytorch_gam.likelihoods.RowwiseLikelihood`, ``noise`` for variances by
    row, which replace the likelihood's.

    :param likelihood: A ``GaussianLikelihood`` or ``FixedNoiseGaussianLikelihood``, or a
        :class:`~gpytorch_gam.likelihoods.RowwiseLikelihood` of one.
    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy`.
    :param chunk_size: Number of rows whose features are in memory at a time.
    :raises TypeError: If the likelihood is not Gaussian, or the model is not additive.
    :raises ValueError: If the model has several predictors.

    Example:
        >>> objective = CollapsedELBO(likelihood, model)
        >>> loss = -objective(x, y)              # train the hyperparameters; q is not used
        >>> optimum = objective.optimum(x, y)    # posterior at the hyperparameters found
        >>> model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    """

    def __init__(self, likelihood: Likelihood, model: gpytorch.models.ApproximateGP, chunk_size: int = 8192) -> None:
        super().__init__()
        inner = unwrapped(checks.likelihood(likelihood))
        if not isinstance(inner, GaussianLikelihood | FixedNoiseGaussianLikelihood):
            raise TypeError(
                f"likelihood must be a GaussianLikelihood, got {type(inner).__name__}: others have no collapsed bound "
                "here, use gpytorch.mlls.VariationalELBO"
            )
        strategy = inducing_strategy(model)
        if strategy.predictor.num_predictors != 1:
            raise ValueError(f"model has {strategy.predictor.num_predictors} predictors, a Gaussian likelihood takes 1")
        self.likelihood = likelihood
        self.model = model
        self.chunk_size = checks.integer("chunk_size", chunk_size, least=1)

    def forward(self, x: Tensor, y: Tensor, **row_arguments: Tensor) -> Tensor:
        """
        The bound per row, ``(*batch)``, on the scale of :class:`gpytorch.mlls.VariationalELBO`; differentiable.

        :param x: Inputs ``(*batch, n, D)``, all rows of the data.
        :param y: Responses ``(*batch, n)``.
        :param row_arguments: Row-wise arguments of the likelihood, which broadcast to the responses.
        """
        bound = self._solve(self._summed_statistics(x, y, row_arguments)).bound / y.shape[-1]
        for _, module, prior, closure, _ in self.named_priors():
            bound = bound + prior.log_prob(closure(module)).sum() / y.shape[-1]
        return bound

    @torch.no_grad()
    def optimum(self, x: Tensor, y: Tensor, **row_arguments: Tensor) -> GaussianOptimum:
        """
        The optimal posterior and its bound, without the priors of hyperparameters, computed in chunks of rows.

        :param x: Inputs ``(*batch, n, D)``, all rows of the data.
        :param y: Responses ``(*batch, n)``.
        :param row_arguments: Row-wise arguments of the likelihood, which broadcast to the responses.
        """
        return self._solve(self._summed_statistics(x, y, row_arguments))

    def _summed_statistics(self, x: Tensor, y: Tensor, row_arguments: Mapping[str, Tensor]) -> GaussianStatistics:
        """Statistics of all rows. With gradients, chunks are recomputed in the backward pass instead of kept."""
        _check_lengths(x, y)
        row_arguments = arguments_with_noise(self.likelihood, y.shape[-1], row_arguments)
        if x.shape[-2] <= self.chunk_size:
            return self.statistics(x, y, **row_arguments)
        # Recomputing in a backward pass needs the same parameters; those of functional_call are gone by then.
        are_own = all(isinstance(parameter, torch.nn.Parameter) for parameter in self.parameters())
        total: GaussianStatistics | None = None
        by_row = {name: _by_row(name, value, y) for name, value in row_arguments.items()}
        for start in range(0, x.shape[-2], self.chunk_size):
            rows = slice(start, start + self.chunk_size)
            arguments = {name: value[..., rows] for name, value in by_row.items()}
            evaluate = functools.partial(self.statistics, x[..., rows, :], y[..., rows], **arguments)
            new = checkpoint(evaluate, use_reentrant=False) if are_own else evaluate()
            total = new if total is None else total.plus(new)
        assert total is not None
        return total

    @torch.no_grad()
    def optimum_of_batches(self, batches: Iterable[Any]) -> GaussianOptimum:
        """
        The optimal posterior from one pass over batches of rows, such as a ``DataLoader``. Memory does not depend on
        the number of rows.

        :param batches: Pairs of inputs ``(*batch, b, D)`` and responses ``(*batch, b)``, or triples, whose third entry
            maps names to row-wise arguments of the likelihood; each row of the data once. Rows that a ``DataLoader``
            would drop are read as well.
        :raises ValueError: If there is no batch.
        """
        checks.batches(batches)
        total: GaussianStatistics | None = None
        # An iterator, which can be read only once, is taken as it is.
        rows = batches if iter(batches) is batches else every_row(batches)
        for batch in with_noise_by_row(self.likelihood, rows):
            x, y, row_arguments = _taken_apart(batch)
            statistics = self.statistics(x, y, **row_arguments)
            total = statistics if total is None else total.plus(statistics)
        if total is None:
            raise ValueError("batches is empty: there is no data to fit")
        return self._solve(total)

    def statistics(self, x: Tensor, y: Tensor, **row_arguments: Tensor) -> GaussianStatistics:
        """
        Statistics of some rows.

        :param x: Inputs ``(*batch, n, D)``.
        :param y: Responses ``(*batch, n)``.
        :param row_arguments: Row-wise arguments of the likelihood, which broadcast to the responses.
        """
        strategy = self.model.variational_strategy
        _check_lengths(x, y)
        check_row_arguments(self.likelihood, row_arguments)
        reading = strategy.read(x)
        if not y.is_floating_point() or y.dtype != x.dtype or y.device != x.device:
            raise ValueError(f"y is {y.dtype} on {y.device}, but x is {x.dtype} on {x.device}: pass y.to(x)")
        if not torch.isfinite(y.detach().sum()):
            raise ValueError(f"y has NaN or infinity in {int((~torch.isfinite(y)).sum())} of {y.numel()} entries")
        precisions = RowPrecisions.of_rows(y, row_arguments.get("weights"), row_arguments.get("noise"))
        offset = OFFSET.read(row_arguments.get("offset"), y)
        # Sums over rows in float64: in float32 their rounding outgrows the identity that makes precisions positive.
        rows = strategy.at_rows(reading.inputs)
        residual = (y - reading.means.squeeze(-2) - offset).double()
        return gaussian_statistics(
            rows.features.double(), rows.prior_variances.double().squeeze(-2), residual, precisions
        )

    def _solve(self, statistics: GaussianStatistics) -> GaussianOptimum:
        if statistics.log_noise is None:
            return gaussian_optimum(statistics, unwrapped(self.likelihood).noise.double().squeeze(-1))
        return gaussian_optimum(statistics, torch.ones_like(statistics.residual_square))


def _taken_apart(batch: object) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The inputs, responses and row-wise arguments of a batch."""
    is_known = isinstance(batch, tuple | list) and len(batch) in (2, 3)
    if not is_known or (len(batch) == 3 and not isinstance(batch[2], Mapping)):  # type: ignore[arg-type, index]
        raise ValueError(
            "batches must hold pairs (x, y), or triples (x, y, dict of row-wise arguments), got "
            f"{checks.shown(batch)}: pass [(x, y)] for a single one"
        )
    return batch[0], batch[1], dict(batch[2]) if len(batch) == 3 else {}  # type: ignore[arg-type, index]


def _by_row(name: str, value: Tensor, y: Tensor) -> Tensor:
    """A row-wise argument, expanded to one entry for each response."""
    return RowArgument(name, 0.0).read(value, y).expand(y.shape)


def _check_lengths(x: Tensor, y: Tensor) -> None:
    if checks.tensor("x", x).dim() < 2:
        raise ValueError(f"x must have shape (*batch, n, D), got {tuple(x.shape)}")
    if checks.tensor("y", y).dim() == 0 or y.shape[-1] != x.shape[-2]:
        hint = ": pass y.squeeze(-1)" if y.shape == (x.shape[-2], 1) else ""
        entries = y.shape[-1] if y.dim() else 0
        raise ValueError(f"y has {entries} entries, shape {tuple(y.shape)}, but x has {x.shape[-2]} rows{hint}")


def gaussian_statistics(
    features: Tensor, prior_variance: Tensor, residual: Tensor, rows: RowPrecisions
) -> GaussianStatistics:
    """Statistics of rows from features ``(*batch, Q, n)``, prior variances and residuals ``(*batch, n)``, float64."""
    precisions, num_rows, log_noise = rows
    weighted = features if precisions is None else features * precisions.unsqueeze(-2)
    square = residual.square() if precisions is None else precisions * residual.square()
    prior = (prior_variance if precisions is None else precisions * prior_variance).sum(-1)
    gram = symmetric_product(weighted, features)
    return GaussianStatistics(
        gram=gram,
        projected=(weighted @ residual.unsqueeze(-1)).squeeze(-1),
        residual_square=square.sum(-1),
        unexplained=prior - gram.diagonal(dim1=-2, dim2=-1).sum(-1),
        num_rows=num_rows,
        log_noise=log_noise,
    )


def gaussian_optimum(statistics: GaussianStatistics, noise: Tensor) -> GaussianOptimum:
    """The optimal posterior and bound in :math:`O(Q^3)`; ``noise`` is a shared variance ``(*batch)``, or ones."""
    precision = add_identity(statistics.gram / noise[..., None, None])
    cholesky = torch.linalg.cholesky(precision)
    scaled = (statistics.projected / noise[..., None]).unsqueeze(-1)
    half = torch.linalg.solve_triangular(cholesky, scaled, upper=False)  # L_P^-1 Phi r / noise
    mean = torch.linalg.solve_triangular(cholesky.mT, half, upper=True).squeeze(-1)
    logdet = capacitance_log_determinant(cholesky)
    # log N(r; 0, Phi' Phi + noise Lambda^-1) by the matrix inversion and determinant lemmas
    fit = (statistics.residual_square + statistics.unexplained) / noise - half.square().sum((-2, -1))
    bound = -0.5 * (statistics.num_rows * (math.log(2 * math.pi) + noise.log()) + logdet + fit)
    if statistics.log_noise is not None:
        bound = bound - 0.5 * statistics.log_noise
    return GaussianOptimum(mean, precision, bound)
