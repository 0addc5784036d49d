"""The evidence lower bound at the optimal posterior of all rows, as a function of the hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients, joint_expected_gradients
from gpytorch_gam.likelihoods.row_argument import OFFSET
from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.mlls.collapsed_elbo import GaussianStatistics, RowPrecisions, gaussian_optimum, gaussian_statistics
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import unwrapped
from gpytorch_gam.optim.rows.predictors import (
    positive_part,
    predictor_segments,
    product_in_rows,
    sum_over_rows,
    weighted_gram,
)
from gpytorch_gam.optim.rows.stream import Rows

from ._component_scan import SiteView, Trial
from ._hyperparameters import hyperparameters_of, shared_noise
from ._model_at_rows import ModelAtRows, RowView
from ._site_rows import SiteRows, total_weight
from ._sites import Acceleration, Posterior, Sites
from .bound_gradients import linear_function, log_prior, log_prior_in_nats, sum_over_processes

# Gain of a pass in nats below which the posterior counts as optimal, and the gain promised to the next one. That is
# smaller, as the posterior's distance from the optimum is its root, and derivatives are off by a multiple of that, a
# large one where rows say much, as large counts do; a bound without its derivatives is not.
_GAIN, _PROMISE, _PROMISE_OF_VALUE = 1e-5, 1e-10, 1e-4

# Gain that the model's own posterior may promise if there is no other one to start from.
_NEAR = 0.1

# Largest numbers of passes and halvings.
_MAX_PASSES, _MAX_HALVINGS = 50, 30

# Share of a step below which it forgets curvatures that are not semidefinite.
_LEAST_RAW_SHARE = 0.125

# Number of passes in a row with gains below the least one that end the search, although they were short.
_MAX_IDLE = 2

# Largest fall of the bound, relative to the sizes of its terms, that counts as rounding.
_ROUNDING = 1e-11

# Largest difference of the entries of a matrix and its positive part, relative to the largest, that counts as rounding.
_SAME = 1e-9

# Variances of the predictor for which derivatives are computed at the start, besides that of the present posterior.
_FIRST_VARIANCES = (0.1, 1e-3)


class _Slopes(NamedTuple):
    """Derivatives in the parts of a :class:`RowView`."""

    features: Tensor  # (Q, n)
    prior: Tensor  # (P, n)
    means: Tensor  # (P, n)


class _Settled(NamedTuple):
    """The optimal posterior at some hyperparameters."""

    state: Tensor  # all parameters but those of the posterior, (k,)
    promise: float  # that the next pass may have
    view: RowView
    posterior: Posterior


class RowBound:
    """
    The bound at the optimal posterior of any precision, priors of the hyperparameters included, as a function of all
    hyperparameters of model and likelihood. With a Gaussian likelihood it is a closed form; otherwise the posterior is
    found from the last one by passes over the rows, each of which replaces the rows by sites. At the optimum the bound
    has no derivative in the posterior, so its gradient is that at a fixed one.

    Each process has ``rows`` of its own; all of them call it together.
    """

    def __init__(
        self, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, rows: Rows, processes: Processes
    ) -> None:
        self._model, self._likelihood = model, likelihood
        self._strategy = model.variational_strategy
        #: Those among which the rows are shared.
        self.processes = processes
        self._num_predictors = self._strategy.predictor.num_predictors
        self._x = rows.x
        self._y = rows.y.double() if rows.y.is_floating_point() else rows.y
        self._arguments = {
            name: value.double() if value.is_floating_point() else value for name, value in rows.row_arguments.items()
        }
        inner = unwrapped(likelihood)
        self._is_closed_form = (
            isinstance(inner, GaussianLikelihood | FixedNoiseGaussianLikelihood)
            and self._num_predictors == 1
            and processes.is_alone
        )
        if self._is_closed_form:
            self._precisions = RowPrecisions.of_rows(
                self._y, self._arguments.get("weights"), self._arguments.get("noise")
            )
            self._shifted = self._y - OFFSET.read(self._arguments.get("offset"), self._y)
        # Sites of the best posterior so far: where hyperparameters were bad, they may be far from those of others.
        self._sites: Sites | None = None
        #: Number of passes over the rows so far.
        self.passes = 0
        #: The optimal posterior where the bound was evaluated last, None where it does not exist.
        self.posterior: GaussianOptimum | None = None
        self.read_components()

    def read_components(self) -> None:
        """Take the model's inducing points as they are now, and go on from the same sites."""
        self._view = ModelAtRows(self._strategy, self._x)
        self._segments = predictor_segments(self._strategy.predictor)
        self._best = -math.inf
        self._last: _Settled | None = None
        of_posterior = {id(each) for each in self._strategy._variational_distribution.parameters()}
        parameters = (*self._model.parameters(), *self._likelihood.parameters())
        self._parameters = [each for each in parameters if id(each) not in of_posterior]

    def __call__(self) -> Tensor:
        """The bound in nats, differentiable in the hyperparameters; NaN where it does not exist."""
        view = self._view()
        if self._is_closed_form:
            self.passes += 1
            return self._gaussian_bound(view) + log_prior(self._model, self._likelihood)
        promise = _PROMISE if torch.is_grad_enabled() else _PROMISE_OF_VALUE
        with torch.no_grad():
            settled = self._settle(promise, view.detach())
        if settled is None:
            self.posterior = None
            return view.features.sum() * torch.nan
        posterior = settled.posterior
        self.posterior = posterior.as_optimum()
        own = self._expected(view, posterior)
        if not self.processes.is_alone:
            own = sum_over_processes(self.processes, own, hyperparameters_of(self._model, self._likelihood))
        return own - posterior.divergence + log_prior(self._model, self._likelihood)

    @torch.no_grad()
    def optimum(self) -> GaussianOptimum:
        """The optimal posterior at the present hyperparameters, and its bound without their priors."""
        if self._is_closed_form:
            return self._gaussian_optimum(self._view())
        settled = self._settle(_PROMISE)
        if settled is None:
            raise ValueError("the bound is not finite at the present hyperparameters")
        return settled.posterior.as_optimum()

    @property
    def noise_parameter(self) -> Tensor | None:
        """The parameter of the noise variance that all rows share with a Gaussian likelihood, None if there is none."""
        return None if "noise" in self._arguments else shared_noise(self._likelihood, self._num_predictors)

    @torch.no_grad()
    def trial(self) -> Trial:
        """The components at the rows."""
        view = self._view()
        return Trial(view.features, view.variances)

    @torch.no_grad()
    def site_view(self) -> SiteView | None:
        """The model at the rows, with the sites of the optimum in the place of the likelihood, None without one."""
        if self._is_closed_form:
            view = self._view()
            precisions, _, log_noise = self._precisions
            weights = torch.ones_like(self._shifted) if precisions is None else precisions
            weights = weights / self._shared_noise() if log_noise is None else weights
            residual = self._shifted - view.means.squeeze(0)
            return SiteView(view.features, view.variances, weights.view(1, 1, -1), (weights * residual).unsqueeze(0))
        settled = self._settle(_PROMISE)
        if settled is None:
            return None
        view, posterior = settled.view, settled.posterior
        sites = posterior.next_sites.semidefinite(posterior.predictors)
        shift = (sites.curvatures * view.means.unsqueeze(0)).sum(1)
        return SiteView(view.features, view.variances, sites.curvatures, sites.targets - shift)

    def site_rows(self) -> list[SiteRows]:
        """The rows with the sites of the optimum, none without one."""
        view = self.site_view()
        if view is None:
            return []
        weight = total_weight(self._x, self._arguments)
        return [SiteRows(self._x, view.features, view.curvatures, weight, self._view.features)]

    # ------------------------------------------------------------------ a Gaussian likelihood

    def _shared_noise(self) -> Tensor:
        return unwrapped(self._likelihood).noise.double().squeeze(-1)

    def _gaussian_bound(self, view: RowView) -> Tensor:
        """The collapsed bound, differentiable."""
        precisions, num_rows, log_noise = self._precisions
        noise = self._shared_noise() if log_noise is None else torch.ones_like(self._shifted[0])
        with torch.no_grad():
            known, fixed = view.detach(), noise.detach()
            statistics = self._statistics(known)
            optimum = self.posterior = gaussian_optimum(statistics, fixed)
        if not torch.is_grad_enabled():
            return optimum.bound
        with torch.no_grad():
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(optimum.precision))
            weights = torch.ones_like(self._shifted) if precisions is None else precisions
            residual = self._shifted - known.means.squeeze(0) - optimum.mean @ known.features
            gradients, curvatures = (weights * residual / fixed).unsqueeze(0), (weights / fixed).view(1, 1, -1)
            change = self._change_of_features(known, covariance)
            slopes = self._slopes(known, optimum.mean, covariance, change, gradients, curvatures)
            # The expected sum of the weighted squares of the responses' distances from the predictor.
            explained = fixed * (len(covariance) - covariance.diagonal().sum())
            squares = (weights * residual.square()).sum() + statistics.unexplained + explained
        likelihood = -0.5 * (num_rows * noise.log() + squares / noise)
        return _with_slopes(optimum.bound + (likelihood - likelihood.detach()), view, slopes)

    def _gaussian_optimum(self, view: RowView) -> GaussianOptimum:
        statistics = self._statistics(view)
        shares_noise = statistics.log_noise is None
        return gaussian_optimum(statistics, self._shared_noise() if shares_noise else torch.ones_like(self._shifted[0]))

    def _statistics(self, view: RowView) -> GaussianStatistics:
        residual = self._shifted - view.means.squeeze(0)
        return gaussian_statistics(view.features, view.prior.squeeze(0), residual, self._precisions)

    # ------------------------------------------------------------------ any likelihood

    def _settle(self, promise: float, view: RowView | None = None) -> _Settled | None:
        """
        The optimal posterior at the present hyperparameters, None if no bound is finite; that of the last call where
        nothing has moved since. ``view`` is the model there, if it is known.
        """
        parts = (each.detach().flatten() for each in self._parameters)
        state = torch.cat([self._x.new_empty(0), *parts]).double()
        if self._last is not None and self._last.promise <= promise and torch.equal(self._last.state, state):
            return self._last
        self._last = None  # makes room
        view = self._view() if view is None else view
        posterior = self._settled(view, promise)
        self._last = None if posterior is None else _Settled(state, promise, view, posterior)
        return self._last

    def _settled(self, view: RowView, promise: float) -> Posterior | None:
        """The optimal posterior, from the sites of the best one so far; None if no bound is finite."""
        present = self._first(view) if self._sites is None else self._posterior(view, self._sites)
        if present is None:
            return None
        acceleration, share, num_idle = Acceleration(self.processes), 1.0, 0
        for _ in range(_MAX_PASSES):
            if self._promised(view, present) <= promise:
                break
            moved = self._moved(view, present, acceleration.extrapolated(present), min(2.0 * share, 1.0))
            if moved is None:
                break
            after, share = moved
            gain, present = after.bound - present.bound, after
            # Where expectations are not smooth, as quadrature of a Laplace density, short steps gain next to nothing.
            num_idle = num_idle + 1 if gain <= _GAIN else 0
            if gain <= _GAIN * share or num_idle == _MAX_IDLE:
                break
            if share < 1:
                acceleration = Acceleration(self.processes)
        value = present.bound + log_prior_in_nats(self._model, self._likelihood)
        if value >= self._best:
            self._sites, self._best = present.sites, value
        return present

    def _promised(self, view: RowView, present: Posterior) -> float:
        r"""
        At most what the next sites gain, in nats, if the bound is the quadratic that they take it for: half of
        :math:`g^\top S g` in the mean, whose slope is g, and a quarter of :math:`\mathrm{tr}\, (S \Delta)^2` in the
        covariance, where :math:`\Delta` is the change of the precision. With one predictor of variance s in a row that
        is at most :math:`\sum_n s_n \Delta_n^2 / \Lambda_n`, too, as :math:`S \Phi \Lambda \Phi^\top S \le S`. Infinite
        where nothing is known.
        """
        if present.is_clipped:
            return math.inf
        spread = present.covariances.diagonal(dim1=0, dim2=1).mT.sqrt()  # (P, n)
        change = (present.next_sites.curvatures - present.sites.curvatures).abs()
        relative = (change * spread.unsqueeze(0) * spread.unsqueeze(1)).sum()
        gradients = present.next_sites.gradients(present.predictors)
        slope = sum_over_rows(view.features, gradients.unsqueeze(-1), self._segments).squeeze(-1)
        own = (change.square() * present.covariances / present.sites.curvatures)[change > 0]
        total = own.sum() if self._num_predictors == 1 and (own >= 0).all() else torch.full_like(relative, math.inf)
        slope, relative, total = self.processes.sum([slope, relative, total])
        slope = slope - present.mean
        of_covariance = torch.minimum(relative.square(), total)
        return (0.5 * slope @ present.covariance @ slope + 0.25 * of_covariance).item()

    def _moved(
        self, view: RowView, before: Posterior, extrapolated: Sites | None, share: float
    ) -> tuple[Posterior, float] | None:
        """
        The posterior of the extrapolated sites, or else of a share of the way to the next sites, and that share, halved
        until the bound does not fall; None if it falls everywhere.
        """
        lowest = before.bound - _ROUNDING * (abs(before.expected) + abs(before.bound))
        if extrapolated is not None:
            after = self._posterior(view, extrapolated)
            if after is not None and after.bound >= lowest:
                return after, 1.0
        proposed = before.next_sites
        for _ in range(_MAX_HALVINGS):
            if share < _LEAST_RAW_SHARE and proposed is before.next_sites:
                proposed = before.next_sites.semidefinite(before.predictors)
            after = self._posterior(view, before.sites.towards(proposed, share))
            if after is not None and after.bound >= lowest:
                return after, share
            share /= 2
        return None

    def _first(self, view: RowView) -> Posterior | None:
        """
        The best posterior of the sites at the present one, and at the same mean with small variances, all without
        curvatures between predictors.
        """
        best: Posterior | None = None
        for sites in self._first_sites(view):
            found = self._posterior(view, sites)
            if found is not None and (best is None or found.bound > best.bound):
                best = found
            if best is not None and self._promised(view, best) <= _NEAR:
                break
        return best

    def _first_sites(self, view: RowView) -> Iterator[Sites]:
        moments = self._strategy.training_moments(self._x)
        mean, covariance = moments.mean.double().mT, moments.covariance.double().movedim(0, -1)
        identity = torch.eye(self._num_predictors).to(mean).unsqueeze(-1)
        for each in (covariance, *(variance * identity.expand_as(covariance) for variance in _FIRST_VARIANCES)):
            _, sites = self._derivatives(mean, each)
            yield sites.uncorrelated(mean) if sites.are_finite() else sites

    def _posterior(self, view: RowView, sites: Sites) -> Posterior | None:
        self.passes += 1
        offsets = (sites.curvatures * view.means.unsqueeze(0)).sum(1)
        gram = weighted_gram(view.features, sites.curvatures, self._segments)
        projected = sum_over_rows(view.features, (sites.targets - offsets).unsqueeze(-1), self._segments).squeeze(-1)
        has_negative = (sites.curvatures < 0).any().to(gram)
        gram, projected, has_negative = self.processes.sum([gram, projected, has_negative])
        if not torch.isfinite(gram.sum() + projected.sum()):
            return None
        is_clipped = False
        if self._num_predictors > 1 or bool(has_negative):
            kept = positive_part(gram)
            is_clipped, gram = not torch.allclose(kept, gram, rtol=0.0, atol=_SAME * gram.abs().max().item()), kept
        precision = add_identity(gram)
        cholesky, info = torch.linalg.cholesky_ex(precision)
        if info.any():
            return None
        mean = torch.cholesky_solve(projected.unsqueeze(-1), cholesky).squeeze(-1)
        covariance = torch.cholesky_inverse(cholesky)
        excess = covariance.diagonal().sum() - len(mean) + 2.0 * cholesky.diagonal().log().sum() + mean.square().sum()
        change = self._change_of_features(view, covariance)
        means, covariances = self._moments(view, mean, covariance, change)
        expected, next_sites = self._derivatives(means, covariances)
        # The divergence is that of the first process, so that all take the same decisions.
        own = [expected, 0.0 if next_sites.are_finite() else math.nan, excess.item() if self.processes.leads else 0.0]
        total, flaw, excess = self.processes.sum([excess.new_tensor(own)])[0]
        if not torch.isfinite(total + flaw):
            return None
        bound = (total - 0.5 * excess).item()
        return Posterior(
            sites=sites,
            mean=mean,
            precision=precision,
            covariance=covariance,
            divergence=0.5 * excess,
            own=expected,
            expected=total.item(),
            bound=bound,
            next_sites=next_sites,
            predictors=means,
            covariances=covariances,
            change=change,
            is_clipped=is_clipped,
        )

    def _change_of_features(self, view: RowView, covariance: Tensor) -> Tensor | None:
        r""":math:`(S - I) \Phi`, the largest part of the work, with one predictor; None with several."""
        return torch.addmm(view.features, covariance, view.features, beta=-1) if self._num_predictors == 1 else None

    def _moments(self, view: RowView, mean: Tensor, covariance: Tensor, change: Tensor | None) -> tuple[Tensor, Tensor]:
        """Means ``(P, n)`` and covariances ``(P, P, n)`` of the predictors in each row."""
        number = self._num_predictors
        means = view.means + product_in_rows(view.features, mean.unsqueeze(-1), number, self._segments).squeeze(-1)
        if change is not None:
            variance = view.prior + (view.features * change).sum(0)
            return means, variance.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(0)
        rows = [[torch.zeros_like(view.prior[0]) for _ in range(number)] for _ in range(number)]
        for owner, place in self._segments:
            phi = view.features[place]
            rows[owner][owner] = rows[owner][owner] - phi.square().sum(0)
            for other, there in self._segments:
                product = (phi * (covariance[place, there] @ view.features[there])).sum(0)
                rows[owner][other] = rows[owner][other] + product
        return means, torch.stack([torch.stack(row) for row in rows]) + torch.diag_embed(view.prior.mT).movedim(0, -1)

    def _derivatives(self, mean: Tensor, covariance: Tensor) -> tuple[float, Sites]:
        """The sum of the rows' expected log-likelihoods, and their sites, which may not be finite."""
        with self.processes.sharing_errors("evaluate its likelihood", mean.device):
            return self._own_derivatives(mean, covariance)

    def _own_derivatives(self, mean: Tensor, covariance: Tensor) -> tuple[float, Sites]:
        if self._num_predictors == 1:
            found = expected_gradients(
                self._likelihood, self._y, mean[0], covariance[0, 0], self._arguments, clamped=False
            )
            gradients, curvatures = found.gradients.unsqueeze(0), found.curvatures.view(1, 1, -1)
        else:
            found = joint_expected_gradients(
                self._likelihood, self._y, mean.mT, covariance.movedim(-1, 0), self._arguments
            )
            gradients, curvatures = found.gradients.mT, found.curvatures.movedim(0, -1)
        targets = gradients + (curvatures * mean.unsqueeze(0)).sum(1)
        return found.expected.sum().item(), Sites(curvatures, targets)

    def _expected(self, view: RowView, posterior: Posterior) -> Tensor:
        """The sum of this process's expected log-likelihoods at a fixed posterior, differentiable."""
        with torch.no_grad():
            gradients = posterior.next_sites.gradients(posterior.predictors)
            slopes = self._slopes(
                view.detach(),
                posterior.mean,
                posterior.covariance,
                posterior.change,
                gradients,
                posterior.next_sites.curvatures,
            )
        if not any(parameter.requires_grad for parameter in self._likelihood.parameters()):
            return _with_slopes(posterior.divergence.new_tensor(posterior.own), view, slopes)
        mean, covariance = posterior.predictors, posterior.covariances
        if self._num_predictors == 1:
            rows = MarginalNormal(mean[0], DiagLinearOperator(covariance[0, 0]))
        else:
            rows = independent_rows(PredictorMoments(mean.mT, covariance.movedim(-1, 0)))
        expected = self._likelihood.expected_log_prob(self._y, rows, **self._arguments).double().sum()
        return _with_slopes(expected, view, slopes)

    def _slopes(
        self,
        view: RowView,
        mean: Tensor,
        covariance: Tensor,
        change: Tensor | None,
        gradients: Tensor,
        curvatures: Tensor,
    ) -> _Slopes:
        r"""
        The derivatives of the expected log-likelihoods at a fixed posterior :math:`N(m, S)`, from those in the rows'
        predictors: :math:`m g_n^\top - (S - I) \Phi_n \Lambda_n` in the features.
        """
        by_prior = -0.5 * curvatures.diagonal(dim1=0, dim2=1).mT
        if change is not None:
            return _Slopes(torch.outer(mean, gradients[0]) - curvatures[0] * change, by_prior, gradients)
        by_features = torch.empty_like(view.features)
        for owner, place in self._segments:
            by_features[place] = torch.outer(mean[place], gradients[owner])
            for other, there in self._segments:
                smoothed = covariance[place, there] @ view.features[there]
                smoothed = smoothed - view.features[there] if there == place else smoothed
                by_features[place] -= curvatures[owner, other] * smoothed
        return _Slopes(by_features, by_prior, gradients)


def _with_slopes(value: Tensor, view: RowView, slopes: _Slopes) -> Tensor:
    """A number with given derivatives in the features and in the variances and means of the predictors."""
    parts = [(view.features, slopes.features), (view.prior, slopes.prior), (view.means, slopes.means)]
    moving = [(slope, part) for part, slope in parts if part.requires_grad]
    return linear_function(value, *zip(*moving, strict=True)) if moving else value
