"""Leave-one-out cross-validation without refits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients, joint_expected_gradients
from gpytorch_gam.likelihoods.row_argument import WEIGHTS
from gpytorch_gam.optim.rows.likelihood_check import arguments_with_noise, check_number_of_predictors
from gpytorch_gam.optim.rows.predictors import predictor_segments
from gpytorch_gam.optim.rows.stream import Rows, check_finite_responses, checked_data
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational.model_check import inducing_strategy

from ._cavities import cavities
from .model_mixture import ModelMixture

#: Leverage from which a row is not left out reliably.
HIGH_LEVERAGE = 0.7

# The most rows that are listed.
_MOST_SHOWN = 10

# Numbers in the features of the rows that are in memory at a time.
_LARGEST_CHUNK = 2**22


@dataclass(frozen=True)
class LeaveOneOut:
    """
    Log predictive densities of rows that were left out, one at a time; printed, they are a summary. A row of weight w
    counts w times, and one of these is left out.

    :ivar log_densities: The log predictive density of each row given all others, in nats, ``(n,)``.
    :ivar log_densities_within: The same given all rows, ``(n,)``.
    :ivar leverages: The share of the posterior precision of a row's predictor that is due to the row itself, ``(n,)``.
        With several predictors, that in the direction where it is largest.
    :ivar weights: The weights of the rows, ``(n,)``.
    """

    log_densities: Tensor
    log_densities_within: Tensor
    leverages: Tensor
    weights: Tensor

    @property
    def total(self) -> float:
        """The sum over the rows: the expected log predictive density of as many new rows, elpd."""
        return (self.weights @ self.log_densities).item()

    @property
    def standard_error(self) -> float:
        """The standard error of :attr:`total`, as an estimate of what other rows of the same kind would give."""
        return error_of_sum(self.log_densities, self.weights)

    @property
    def num_parameters(self) -> float:
        """The effective number of parameters, by how much :attr:`total` is larger with all rows in the fit."""
        return (self.weights @ (self.log_densities_within - self.log_densities)).item()

    @property
    def unreliable_rows(self) -> list[int]:
        """The rows whose leverage is above .7, those of the largest first."""
        order = self.leverages.argsort(descending=True, stable=True)
        found: list[int] = order[self.leverages[order] > HIGH_LEVERAGE].tolist()
        return found

    @property
    def num_unreliable(self) -> int:
        """The number of rows whose leverage is above .7."""
        return len(self.unreliable_rows)

    def __str__(self) -> str:
        """The sum, its standard error, the effective number of parameters, and rows that are not reliable."""
        found = (
            f"leave-one-out log predictive density {self.total:.2f} ({self.standard_error:.2f}) nats over "
            f"{len(self.weights)} rows, {self.num_parameters:.1f} effective parameters"
        )
        rows = self.unreliable_rows
        if not rows:
            return found
        shown = ", ".join(map(str, rows[:_MOST_SHOWN])) + (", ..." if len(rows) > _MOST_SHOWN else "")
        return f"{found}; not reliable in {len(rows)} of them, with leverages above {HIGH_LEVERAGE}: rows {shown}"

    def __repr__(self) -> str:
        return str(self)


def error_of_sum(values: Tensor, weights: Tensor) -> float:
    """
    The standard error of a weighted sum of values in independent rows.

    :param values: The values ``(n,)``.
    :param weights: How often each counts, ``(n,)``.
    """
    mean = (weights @ values) / weights.sum()
    return (weights @ (values - mean).square()).sqrt().item()


class _Found(NamedTuple):
    """Of one model in some rows, each ``(n,)``."""

    left_out: Tensor
    within: Tensor
    leverages: Tensor


@torch.no_grad()
def leave_one_out(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    row_arguments: Mapping[str, Tensor] | None = None,
    *,
    hyperparameters: ModelMixture | None = None,
) -> LeaveOneOut:
    r"""
    The log predictive density of each row of the data under the posterior of all other rows, :math:`\log p(y_n |
    y_{-n})`, from the posterior of all rows.

    The Gaussian factor of each row is taken out of the posterior, by the formulas of :doc:`/theory/diagnostics`, and
    the density of its response is the expectation under what is left.

    **What it is.** With a Gaussian likelihood, the exact result of leaving a row out at the same hyperparameters (and
    inducing points), if the posterior is the optimal one. With any other, sites of the remaining rows stay as they are,
    where a refit would move them a little: errors are of second order in the leverage, the share :math:`S_n \Lambda_n`
    of the row in the precision of its predictor. With a Gaussian likelihood the leverage is also the Pareto index k of
    the weights :math:`1 / p(y_n | \rho_n)`, by which PSIS leaves rows out, so that the same threshold of .7 is used.

    **What it is not.** It estimates how well other rows of the same kind are predicted: not rows of new groups, of
    later times or beyond the range of the data. Hyperparameters are those of all rows. With ``hyperparameters``, the
    weights of the models are those without the row, :math:`w_k / p_k(y_n | y_{-n})` up to a factor, but the models
    stay. A posterior that is not the optimum, as of an interrupted fit or of a family that cannot hold it, gives a
    rough estimate.

    :param model: A trained model whose ``variational_strategy`` is an
        :class:`~gpytorch_gam.variational.AdditiveVariationalStrategy` without a batch shape.
    :param likelihood: Its likelihood, whose log marginal probabilities are one a row.
    :param x: Inputs of the rows of the fit, ``(n, D)``.
    :param y: Their responses ``(n,)``.
    :param row_arguments: Their row-wise arguments, such as ``{"weights": w}``. A row of weight w counts w times, and
        one of these is left out, or all of it if the weight is below one.
    :param hyperparameters: Models at several values of the hyperparameters, such as a
        :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty`.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If the rows cannot be read.

    Example:
        >>> fit(model, likelihood, (x, y))
        >>> print(leave_one_out(model, likelihood, x, y))
    """
    strategy = inducing_strategy(model)
    check_number_of_predictors(strategy, likelihood)
    rows = checked_data(strategy, likelihood, x, y, row_arguments)
    rows = rows._replace(row_arguments=dict(arguments_with_noise(likelihood, len(rows.y), rows.row_arguments)))
    check_finite_responses(rows)
    mixture = _checked_mixture(hyperparameters, model, likelihood, strategy.predictor)
    first = rows.y.double() if rows.y.dim() == 1 else rows.y[:, 0].double()
    weights = WEIGHTS.read(rows.row_arguments.pop("weights", None), first).expand(first.shape)
    share = weights.clamp_max(1.0)
    found = [
        _of_model(inducing_strategy(each), noise, rows, share)
        for each, noise in zip(mixture.models, mixture.likelihoods, strict=True)
    ]
    left_out, within, leverages = (torch.stack(part) for part in zip(*found, strict=True))
    of_models = mixture.weights.to(left_out).unsqueeze(-1)
    # What is known of the hyperparameters without a row is what is known with it, divided by the row's probability.
    without = torch.log_softmax(of_models.log() - share * left_out, 0)
    return LeaveOneOut(
        (without + left_out).logsumexp(0),
        (of_models.log() + within).logsumexp(0),
        (of_models * leverages).sum(0),
        weights,
    )


def _checked_mixture(
    hyperparameters: Any, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, predictor: AdditivePredictor
) -> ModelMixture:
    if hyperparameters is None:
        return ModelMixture([model], [likelihood], torch.ones(1, dtype=torch.float64))
    if not isinstance(hyperparameters, ModelMixture):
        raise TypeError(
            "hyperparameters must be a HyperparameterUncertainty or another ModelMixture, got "
            f"{checks.shown(hyperparameters)}"
        )
    hyperparameters.check_components(predictor)
    return hyperparameters


def _of_model(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, rows: Rows, share: Tensor) -> _Found:
    """Log densities and leverages under one model, in chunks of rows."""
    size = max(_LARGEST_CHUNK // max(strategy.predictor.num_inducing_total, 1), 1)
    chunks = zip(rows.split(size), share.split(size), strict=True)
    return _Found(*map(torch.cat, zip(*(_of_rows(strategy, likelihood, *chunk) for chunk in chunks), strict=True)))


def _of_rows(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, rows: Rows, share: Tensor) -> _Found:
    moments = strategy.training_moments(rows.x)
    seen, left_open = _prior_variances(strategy, rows.x)
    gradients, curvatures = _sites(likelihood, rows, moments)
    left_open = torch.diag_embed(left_open)
    own = moments.covariance.double() - left_open
    found = cavities(own, seen, share[:, None, None] * curvatures, share[:, None] * gradients)
    is_missing = any(group.missing == "marginal" for group in strategy.predictor.groups)
    within = strategy.predictor_moments(rows.x) if is_missing else moments
    unknown = within.covariance.double() - moments.covariance.double()  # of effects whose columns are missing in a row
    without = PredictorMoments(moments.mean.double() + found.shift, found.covariance + left_open + unknown)
    return _Found(_log_densities(likelihood, rows, without), _log_densities(likelihood, rows, within), found.leverages)


def _prior_variances(strategy: AdditiveVariationalStrategy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Prior variances of the predictors in the rows that the inducing variables determine, and the rest, ``(n, P)``."""
    at_rows = strategy.at_rows(strategy.read(x).inputs.double())
    features, prior = at_rows.features.double(), at_rows.prior_variances.double()
    seen = torch.zeros_like(prior)
    for owner, place in predictor_segments(strategy.predictor):
        seen[owner] += features[place].square().sum(0)
    return seen.mT, (prior - seen).clamp_min(0.0).mT


def _sites(likelihood: Likelihood, rows: Rows, moments: PredictorMoments) -> tuple[Tensor, Tensor]:
    """Gradients ``(n, P)`` and curvatures ``(n, P, P)`` of the rows' expected log-likelihoods."""
    mean, covariance = moments
    if mean.shape[-1] > 1:
        found = joint_expected_gradients(likelihood, rows.y, mean, covariance, rows.row_arguments)
        return found.gradients, found.curvatures
    found = expected_gradients(
        likelihood, rows.y, mean.squeeze(-1), covariance.flatten(-3), rows.row_arguments, clamped=False
    )
    return found.gradients.unsqueeze(-1), found.curvatures[:, None, None]


def _log_densities(likelihood: Likelihood, rows: Rows, moments: PredictorMoments) -> Tensor:
    """The logarithms of the expected probabilities of the responses, ``(n,)``."""
    moments = PredictorMoments(*(part.to(rows.x.dtype) for part in moments))
    return likelihood.log_marginal(rows.y, independent_rows(moments), **rows.row_arguments).double()
