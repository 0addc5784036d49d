"""The evidence lower bound of a Gaussian likelihood with its optimal posterior inserted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpytorch_gam import _checks as checks
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.numerics.capacitance import add_identity, capacitance_log_determinant
from gpytorch_gam.variational.model_check import additive_strategy


class GaussianStatistics(NamedTuple):
    r"""
    What a Gaussian likelihood needs to know of the data, in float64. Statistics of disjoint rows add up.

    With features :math:`\phi` and residuals :math:`r = y - \mu(x)`:

    :ivar gram: :math:`\sum_n \phi_n \phi_n^\top`, ``(*batch, Q, Q)``.
    :ivar projected: :math:`\sum_n \phi_n r_n`, ``(*batch, Q)``.
    :ivar residual_square: :math:`\sum_n r_n^2`, ``(*batch)``.
    :ivar unexplained: :math:`\sum_n (k(x_n, x_n) - \phi_n^\top \phi_n)`, ``(*batch)``.
    :ivar num_rows: number of rows.
    """

    gram: Tensor
    projected: Tensor
    residual_square: Tensor
    unexplained: Tensor
    num_rows: int

    def plus(self, other: GaussianStatistics) -> GaussianStatistics:
        """Statistics of the rows of both."""
        return GaussianStatistics(
            self.gram + other.gram,
            self.projected + other.projected,
            self.residual_square + other.residual_square,
            self.unexplained + other.unexplained,
            self.num_rows + other.num_rows,
        )


class GaussianOptimum(NamedTuple):
    r"""
    The optimal posterior :math:`N(m, P^{-1})` of the whitened inducing variables at fixed hyperparameters, in float64.

    :ivar mean: :math:`m`, ``(*batch, Q)``.
    :ivar precision: :math:`P = I + \Phi\Phi^\top / \sigma^2`, ``(*batch, Q, Q)``.
    :ivar bound: the collapsed bound in nats, summed over the data, ``(*batch)``.
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

    :param likelihood: A Gaussian likelihood with one noise variance.
    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy`.
    :param chunk_size: Rows whose features exist at a time.
    :raises TypeError: If the likelihood is not Gaussian, or the model is not additive.
    :raises ValueError: If the model has several predictors.

    Example:
        >>> objective = CollapsedELBO(likelihood, model)
        >>> loss = -objective(x, y)              # train the hyperparameters; q is not used
        >>> optimum = objective.optimum(x, y)    # posterior at the hyperparameters found
        >>> model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    """

    def __init__(
        self, likelihood: GaussianLikelihood, model: gpytorch.models.ApproximateGP, chunk_size: int = 8192
    ) -> None:
        super().__init__()
        if not isinstance(checks.likelihood(likelihood), GaussianLikelihood):
            raise TypeError(
                f"likelihood must be a GaussianLikelihood, got {type(likelihood).__name__}: others, and noises by row, "
                "have no collapsed bound here, use gpytorch.mlls.VariationalELBO"
            )
        strategy = additive_strategy(model)
        if strategy.predictor.num_predictors != 1:
            raise ValueError(f"model has {strategy.predictor.num_predictors} predictors, a Gaussian likelihood takes 1")
        self.likelihood = likelihood
        self.model = model
        self.chunk_size = checks.integer("chunk_size", chunk_size, least=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """
        The bound per row, on the scale of :class:`gpytorch.mlls.VariationalELBO`; differentiable.

        :param x: Inputs ``(*batch, n, D)``, all rows of the data.
        :param y: Responses ``(*batch, n)``.
        :return: ``(*batch)``.
        """
        bound = self._solve(self._summed_statistics(x, y)).bound / y.shape[-1]
        for _, module, prior, closure, _ in self.named_priors():
            bound = bound + prior.log_prob(closure(module)).sum() / y.shape[-1]
        return bound

    @torch.no_grad()
    def optimum(self, x: Tensor, y: Tensor) -> GaussianOptimum:
        """
        The optimal posterior and its bound (priors of hyperparameters left out), in chunks of rows.

        :param x: Inputs ``(*batch, n, D)``, all rows of the data.
        :param y: Responses ``(*batch, n)``.
        """
        return self._solve(self._summed_statistics(x, y))

    def _summed_statistics(self, x: Tensor, y: Tensor) -> GaussianStatistics:
        """Statistics of all rows. With gradients, chunks are evaluated again in the backward pass and not kept."""
        _check_lengths(x, y)
        if x.shape[-2] <= self.chunk_size:
            return self.statistics(x, y)
        # Evaluating again needs the parameters that are there later; functional_call puts others in their place.
        are_own = all(isinstance(parameter, torch.nn.Parameter) for parameter in self.parameters())
        total: GaussianStatistics | None = None
        for rows in zip(x.split(self.chunk_size, dim=-2), y.split(self.chunk_size, dim=-1), strict=True):
            new = checkpoint(self.statistics, *rows, use_reentrant=False) if are_own else self.statistics(*rows)
            total = new if total is None else total.plus(new)
        assert total is not None
        return total

    @torch.no_grad()
    def optimum_of_batches(self, batches: Iterable[tuple[Tensor, Tensor]]) -> GaussianOptimum:
        """
        The optimal posterior from one pass over batches of rows, such as a ``DataLoader``. Memory does not depend on
        the number of rows.

        :param batches: Pairs of inputs ``(*batch, b, D)`` and responses ``(*batch, b)``; each row of the data once.
            Rows that a ``DataLoader`` would drop are taken as well.
        :raises ValueError: If there is no batch.
        """
        checks.batches(batches)
        total: GaussianStatistics | None = None
        # What can be gone through only once is taken as it is.
        for batch in batches if iter(batches) is batches else every_row(batches):
            statistics = self.statistics(*_pair(batch))
            total = statistics if total is None else total.plus(statistics)
        if total is None:
            raise ValueError("batches is empty: there is no data to fit")
        return self._solve(total)

    def statistics(self, x: Tensor, y: Tensor) -> GaussianStatistics:
        """
        Statistics of some rows.

        :param x: Inputs ``(*batch, n, D)``.
        :param y: Responses ``(*batch, n)``.
        """
        strategy = self.model.variational_strategy
        _check_lengths(x, y)
        reading = strategy.read(x)
        if not y.is_floating_point() or y.dtype != x.dtype or y.device != x.device:
            raise ValueError(f"y is {y.dtype} on {y.device}, but x is {x.dtype} on {x.device}: pass y.to(x)")
        if not torch.isfinite(y.detach().sum()):
            raise ValueError(f"y has NaN or infinity in {int((~torch.isfinite(y)).sum())} of {y.numel()} entries")
        # Sums over rows in float64: in float32 their rounding outgrows the identity that makes the precision positive.
        predictor = strategy.predictor
        features = predictor.features(reading.inputs, strategy.inducing_choleskys()).double()
        residual = (y - reading.means.squeeze(-2)).unsqueeze(-1).double()
        prior = sum(group.prior_variance(reading.inputs).double().sum((-2, -1)) for group in predictor.groups)
        return GaussianStatistics(
            gram=features @ features.mT,
            projected=(features @ residual).squeeze(-1),
            residual_square=residual.square().sum((-2, -1)),
            unexplained=prior - features.square().sum((-2, -1)),
            num_rows=x.shape[-2],
        )

    def _solve(self, statistics: GaussianStatistics) -> GaussianOptimum:
        return gaussian_optimum(statistics, self.likelihood.noise.double().squeeze(-1))


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"batches must hold pairs (x, y), without row-wise arguments, got {checks.shown(batch)}: pass [(x, y)] for "
            "a single one"
        )
    return batch[0], batch[1]


def _check_lengths(x: Tensor, y: Tensor) -> None:
    if checks.tensor("x", x).dim() < 2:
        raise ValueError(f"x must have shape (*batch, n, D), got {tuple(x.shape)}")
    if checks.tensor("y", y).dim() == 0 or y.shape[-1] != x.shape[-2]:
        hint = ": pass y.squeeze(-1)" if y.shape == (x.shape[-2], 1) else ""
        entries = y.shape[-1] if y.dim() else 0
        raise ValueError(f"y has {entries} entries, shape {tuple(y.shape)}, but x has {x.shape[-2]} rows{hint}")


def gaussian_optimum(statistics: GaussianStatistics, noise: Tensor) -> GaussianOptimum:
    """
    The optimal posterior and its bound from statistics of all rows. Cost :math:`O(Q^3)`, whatever the number of rows.

    :param statistics: Of all rows.
    :param noise: Variance of the noise, ``(*batch)``.
    """
    precision = add_identity(statistics.gram / noise[..., None, None])
    cholesky = torch.linalg.cholesky(precision)
    scaled = (statistics.projected / noise[..., None]).unsqueeze(-1)
    half = torch.linalg.solve_triangular(cholesky, scaled, upper=False)  # L_P^-1 Phi r / noise
    mean = torch.linalg.solve_triangular(cholesky.mT, half, upper=True).squeeze(-1)
    logdet = capacitance_log_determinant(cholesky)
    # log N(r; 0, Phi' Phi + noise I) by the matrix inversion and determinant lemmas
    fit = (statistics.residual_square + statistics.unexplained) / noise - half.square().sum((-2, -1))
    bound = -0.5 * (statistics.num_rows * (math.log(2 * math.pi) + noise.log()) + logdet + fit)
    return GaussianOptimum(mean, precision, bound)
