"""Estimates of the gain from more inducing points."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.joined_groups import by_group, joined_groups
from gpytorch_gam.likelihoods import PoissonLikelihood, ZeroInflatedPoissonLikelihood
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients, joint_expected_gradients
from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import check_named_arguments, is_gaussian
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational.model_check import inducing_strategy
from gpytorch_gam.warnings import InducingPointsWarning

from ._row_count import number_of_rows
from ._some_rows import equally_spaced, rows_of_first_batches

# What to raise where points are too few.
POINTS_OF_TERMS = "num_inducing, as in GAMRegressor(num_inducing=30), or k= of a term,"

# Largest number of rows that represent the data, and of batches from which they are taken.
_NUM_ROWS = 512

# Jitter relative to the prior variance, in float64: small, so that the shortfall is not that of the model's jitter.
_JITTER = 1e-9

# Nats above which there is a warning: half the effective dimension of a usual smooth effect, so that the missing part
# widens its bands as much as all of the noise does.
_NOTABLE = 5.0

# Payment in nats below which the pull is ignored: with smooth kernels it is only some fifteen times the payment.
_NEGLIGIBLE = 0.05


def inducing_shortfall(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    num_data: int | None = None,
) -> dict[str, float]:
    r"""
    The gain from more inducing points for each component, in nats of the bound: about zero where there are enough.

    The bound pays :math:`T_c = \frac12 \sum_n \lambda_n (k_c(\mathbf x_n, \mathbf x_n) - \phi_{cn}^\top \phi_{cn})` for
    the variance that the inducing variables of component c do not determine, with the curvatures :math:`\lambda_n =
    -2\,\partial E_n / \partial v_n` of the expected log-likelihood (one over a Gaussian noise). Training avoids the
    payment by lengthscales that are too long for the data, so that it is small even where many nats are lost; but the
    data then pull at the lengthscale :math:`\ell_c` as hard as the payment holds it. The number is :math:`T_c -
    \partial T_c / \partial \log \ell_c`: the payment, and what the bound would gain, to first order, from a lengthscale
    shorter by a factor e, as far as its bounds allow that. It means something at hyperparameters that are trained, and
    is no exact forecast: on real data the refitted bound gained one to two and a half times the number, on a smooth
    function half of it. It is local: where an effect was given up as a straight line, nothing pulls.

    It is computed from 512 rows at most, out of the first eight batches.

    :param model: A model whose ``variational_strategy`` is an
        :class:`~gpytorch_gam.variational.AdditiveVariationalStrategy` without a batch shape.
    :param likelihood: Any likelihood of as many predictors as the model has.
    :param batches: The data, as for :func:`fit`.
    :param num_data: Number of rows of all the data; default that of the batches, where it is known.
    :return: The gain in nats, by the name of the component.
    :raises TypeError: If the model is of another kind.
    :raises ValueError: If the data cannot be read.

    Example:
        >>> inducing_shortfall(model, likelihood, loader)   # {"x0": 27.1, "x1": 0.03, "constant": 0.0}
    """
    check_named_arguments(likelihood, batches)
    num_data = number_of_rows(batches, num_data, Processes(None))
    return shortfall_of_batches(inducing_strategy(model), likelihood, batches, num_data)


def shortfall_of_batches(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any], num_data: int
) -> dict[str, float]:
    """The shortfall of each component by name, from some rows of batches that were checked."""
    rows = rows_of_first_batches(strategy, likelihood, batches, _NUM_ROWS)
    scale = num_data / sum(len(part.y) for part in rows)
    with gradients_on():
        totals = [_shortfall_of_rows(strategy, likelihood, part, scale) for part in rows]
    return dict(zip(strategy.predictor.names, torch.stack(totals).sum(0).tolist(), strict=True))


def notably_short(found: Mapping[str, float]) -> list[str]:
    """The components that would gain notably from more inducing points, given the nats of each."""
    return [name for name, nats in found.items() if nats > _NOTABLE]


def warn_of_shortfall(found: Mapping[str, float], likelihood: Likelihood) -> None:
    """Warn if a component would gain notably from more inducing points, given the nats of each."""
    notable = sorted(notably_short(found), key=lambda name: -found[name])
    if notable:
        listing = ", ".join(f"{name!r} ({found[name]:.2g} nats)" for name in notable[:3])
        more = f" and {len(notable) - 3} more" if len(notable) > 3 else ""
        warnings.warn(
            f"the data would bend these components further if they had more inducing points: {listing}{more}. Bands "
            f"do not hold what is smoothed away: raise {POINTS_OF_TERMS} until "
            f"gpytorch_gam.training.inducing_shortfall is small, or take a smoother kernel{_of_counts(likelihood)}",
            InducingPointsWarning,
            stacklevel=3,
        )


def _of_counts(likelihood: Likelihood) -> str:
    """What else asks for points where responses are counts that cannot vary more than their mean tells."""
    if not isinstance(getattr(likelihood, "likelihood", likelihood), PoissonLikelihood | ZeroInflatedPoissonLikelihood):
        return ""
    return (
        ". Counts that vary more than their family allows (overdispersion) ask for points, too: compare with a "
        "negative binomial"
    )


def shortfall_at_rows(strategy: AdditiveVariationalStrategy, x: Tensor, curvatures: Tensor) -> Tensor:
    """The shortfall of each component, ``(C,)``, from some of all rows ``(n, D)`` and their curvatures ``(n, P)``."""
    chosen = equally_spaced(len(x), _NUM_ROWS, x.device)
    weights = len(x) / len(chosen) * curvatures[chosen].detach()
    with gradients_on():
        return _shortfall(strategy, x[chosen], weights).detach()


def _shortfall_of_rows(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, rows: Rows, scale: float
) -> Tensor:
    with torch.no_grad():
        weights = scale * _curvatures(strategy, likelihood, rows)
    return _shortfall(strategy, rows.x, weights)


def _shortfall(strategy: AdditiveVariationalStrategy, x: Tensor, weights: Tensor) -> Tensor:
    """The shortfall of each component, ``(C,)``, at rows ``(n, D)`` with weighted curvatures ``(n, P)``."""
    inputs, groups = strategy.read(x).inputs.double(), list(strategy.predictor.groups)
    joined = joined_groups(groups, within_predictors=True)
    found = [
        group_shortfall(
            each.group, inputs, weights[..., each.group.predictor_index], [groups[place] for place in each.places]
        )
        for each in joined
    ]
    return torch.cat(by_group(joined, found, 0))


def _curvatures(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, rows: Rows) -> Tensor:
    """Minus twice the derivatives of the expected log-likelihood in the variance of each predictor, ``(n, P)``."""
    if strategy.predictor.num_predictors == 1 and is_gaussian(likelihood):  # the curvatures are the same everywhere
        zeros = torch.zeros_like(rows.y)
        return expected_gradients(likelihood, rows.y, zeros, zeros + 1, rows.row_arguments).curvatures.unsqueeze(-1)
    moments = strategy.training_moments(rows.x)
    if strategy.predictor.num_predictors == 1:
        mean, variance = moments.mean.squeeze(-1), moments.covariance.flatten(-3)
        return expected_gradients(likelihood, rows.y, mean, variance, rows.row_arguments).curvatures.unsqueeze(-1)
    found = joint_expected_gradients(likelihood, rows.y, moments.mean, moments.covariance, rows.row_arguments)
    return found.curvatures.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)


def group_shortfall(
    group: ComponentGroup, x: Tensor, weights: Tensor, members: Sequence[ComponentGroup] | None = None
) -> Tensor:
    """
    The shortfall of each component of a group, ``(C_g,)``, for inputs ``(n, D)`` and their curvatures ``(n,)``. A
    joined group has the parameters of its ``members``.
    """
    if group.exact:
        return x.new_zeros(group.num_components)
    payment = _payment(group, x, weights)
    if bool((payment < _NEGLIGIBLE).all()):
        return payment.detach()
    return payment.detach() + _pulls([group] if members is None else members, payment)


def _payment(group: ComponentGroup, x: Tensor, weights: Tensor) -> Tensor:
    rows = group.at_rows(x, _JITTER, relative=True)
    unexplained = rows.prior_variance.double() - rows.features.square().sum(-2)
    return 0.5 * (unexplained.clamp_min(0.0) @ weights.double())


def _pulls(groups: Sequence[ComponentGroup], payment: Tensor) -> Tensor:
    """Minus the derivatives of the components' payments in the logarithms of their trained lengthscales."""
    trained = [
        (place, part) for place, group in enumerate(groups) for part in group.kernel.modules() if _is_trained(part)
    ]
    raws = [part.raw_lengthscale for _, part in trained]
    slopes = torch.autograd.grad(payment.sum(), raws, allow_unused=True) if raws else ()
    pulls = [payment.new_zeros(group.num_components) for group in groups]
    for (place, part), by_raw in zip(trained, slopes, strict=True):
        if by_raw is not None:
            pulls[place] = pulls[place] + _pull(part, by_raw, groups[place].num_components)
    return torch.cat(pulls).clamp_min(0.0)


def _is_trained(kernel: torch.nn.Module) -> bool:
    """Whether it has a lengthscale that is."""
    raw = getattr(kernel, "raw_lengthscale", None)
    return raw is not None and raw.requires_grad


def _pull(kernel: Kernel, by_raw: Tensor, num_components: int) -> Tensor:
    """That of one kernel's lengthscales, given the derivatives in their raw values."""
    raw, lengthscale = kernel.raw_lengthscale, kernel.lengthscale
    (slope,) = torch.autograd.grad(lengthscale.sum(), raw)
    shortest = kernel.raw_lengthscale_constraint.lower_bound.clamp_min(torch.finfo(raw.dtype).tiny)
    room = (lengthscale.detach() / shortest).log().clamp(0.0, 1.0)
    by_log = (room * by_raw * lengthscale.detach() / slope).flatten(1).sum(-1)  # (C_g,), or (1,) if shared
    return -by_log * len(by_log) / num_components
