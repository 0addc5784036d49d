"""The components' shares in the variance of the predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.variational.model_check import additive_strategy


@dataclass(frozen=True)
class SobolIndices:
    """
    Shares of components in the variance of their predictor over inputs, with posterior intervals, as returned and
    explained by :func:`sobol_indices`.

    :ivar names: The names of the K components, in order.
    :ivar probability: The probability of the central posterior intervals.
    :ivar share: The posterior mean of each component's variance relative to the predictor's, ``(*batch, K)``.
    :ivar lower: The lower end of the share's interval, ``(*batch, K)``.
    :ivar upper: The upper end of the share's interval, ``(*batch, K)``.
    :ivar covariance_share: The posterior mean of each component's covariance with the predictor, relative to the
        predictor's variance, ``(*batch, K)``; over all components (and the mean module) these sum to one.
    :ivar covariance_lower: The lower end of the covariance share's interval, ``(*batch, K)``.
    :ivar covariance_upper: The upper end of the covariance share's interval, ``(*batch, K)``.
    """

    names: tuple[str, ...]
    probability: float
    share: Tensor
    lower: Tensor
    upper: Tensor
    covariance_share: Tensor
    covariance_lower: Tensor
    covariance_upper: Tensor

    def __str__(self) -> str:
        """A table of the shares, their intervals and the covariance shares; for a batch of models only the shapes."""
        if self.share.dim() > 1:
            return f"SobolIndices(names={list(self.names)}, share={tuple(self.share.shape)})"
        width = max(len(name) for name in (*self.names, "component"))
        lines = [f"{'component':<{width}}  share  {f'{self.probability:.0%} interval':>14}  covariance share"]
        for name, share, lower, upper, with_all in zip(
            self.names, self.share, self.lower, self.upper, self.covariance_share, strict=True
        ):
            lines.append(f"{name:<{width}}  {share:5.3f}  {lower:6.3f}  {upper:6.3f}  {with_all:16.3f}")
        return "\n".join(lines)


@torch.no_grad()
def sobol_indices(
    model: gpytorch.models.ApproximateGP,
    x: Tensor,
    num_samples: int = 200,
    names: Sequence[str] | str | None = None,
    probability: float = 0.95,
) -> SobolIndices:
    r"""
    The share of each component in the variance of its predictor over the rows of ``x``,
    :math:`\mathrm{Var}_x(f_c) / \mathrm{Var}_x(\rho)`, with its posterior distribution from joint draws of all
    components at these rows.

    These are Sobol indices of the predictor if (1) the columns of ``x`` are independent and its rows a sample of the
    distribution meant, (2) components have ANOVA kernels under that distribution, interactions products of them on
    different columns, and (3) no two components read the same set of columns. Then different components are
    uncorrelated over the inputs, and the shares sum to one but for the finite sample. If inputs are correlated or
    kernels contain constants and main effects of interactions, they need not; the covariance share
    :math:`\mathrm{Cov}_x(f_c, \rho) / \mathrm{Var}_x(\rho)` always adds up to one over all components (and the mean
    module), and can be negative.

    The interval is that of the function, given the rows and the hyperparameters. Moments over n random rows have an
    error of about :math:`n^{-1/2}` on top, which quasi-random rows avoid. Draws factorise an n x n matrix a component:
    use at most about 2000 rows.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy`.
    :param x: Inputs ``(*batch, n, D)``, at least two rows.
    :param num_samples: Number of joint draws from the posterior.
    :param names: Components to report; default all. The predictor always includes all components that belong to it.
    :param probability: Probability of the posterior intervals.
    :return: The shares; a predictor without variance gives 0.
    :raises TypeError: If the model's strategy is of another kind, or ``num_samples`` not an integer.
    :raises ValueError: If a name is unknown, or an argument out of range.

    Example:
        >>> x = low + (high - low) * torch.quasirandom.SobolEngine(3).draw(1024)
        >>> print(sobol_indices(model, x))
    """
    strategy = additive_strategy(model)
    _validate_arguments(x, num_samples, probability)
    predictor = strategy.predictor
    indices = predictor.component_indices(names)
    if x.isnan().any():
        missing = int(x.isnan().any(-1).sum())
        raise ValueError(
            f"x has NaN in {missing} of {x.shape[:-1].numel()} rows, where components vary for want of inputs and not "
            "with them: leave these rows out"
        )
    parts = strategy.components(x)
    draws = parts.sample(torch.Size([num_samples]))
    total = draws.total if predictor.num_predictors > 1 else draws.total.unsqueeze(-2)
    total = _deviations(total.double() + parts.prior_means.double())  # (S, *batch, P, n)
    components = _deviations(draws.components[..., indices, :].double())
    total = total[..., [predictor.predictor_of[index] for index in indices], :]
    variance = total.square().sum(-1)
    variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
    shares = components.square().sum(-1) / variance
    covariance_shares = (components * total).sum(-1) / variance
    lower, upper = _interval(shares, probability)
    covariance_lower, covariance_upper = _interval(covariance_shares, probability)
    return SobolIndices(
        names=tuple(predictor.names[index] for index in indices),
        probability=probability,
        share=shares.mean(0),
        lower=lower,
        upper=upper,
        covariance_share=covariance_shares.mean(0),
        covariance_lower=covariance_lower,
        covariance_upper=covariance_upper,
    )


def _interval(draws: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """The central interval of draws along the first dimension."""
    tails = torch.tensor([0.5 * (1 - probability), 0.5 * (1 + probability)], dtype=draws.dtype, device=draws.device)
    lower, upper = draws.quantile(tails, dim=0)
    return lower, upper


def _validate_arguments(x: Tensor, num_samples: int, probability: float) -> None:
    checks.integer("num_samples", num_samples, least=2)
    checks.number("probability", probability, above=0, below=1)
    checks.tensor("x", x)
    if x.dim() >= 2 and x.shape[-2] < 2:
        raise ValueError(f"x has {x.shape[-2]} rows, but a variance over the rows needs at least two")


def _deviations(values: Tensor) -> Tensor:
    """The deviations from the mean over the rows, the last dimension."""
    deviations = values - values[..., :1]  # constants become exactly zero
    return deviations - deviations.mean(-1, keepdim=True)
