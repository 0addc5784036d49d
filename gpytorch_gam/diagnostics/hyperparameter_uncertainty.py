"""The uncertainty of hyperparameters, and predictions that include it."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.training.free_hyperparameters import FreeHyperparameters
from gpytorch_gam.training.optimal_bound import Evaluation, OptimalBound
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import ConvergenceWarning

from ._laplace_points import design, laplace, leading_directions, most_directions
from .model_mixture import ModelMixture

# Step of the forward differences of the gradient, in the coordinates: third derivatives bias larger ones, and smaller
# ones show where passes of the posterior ended.
_STEP = 0.02

# Curvature of the bound, in nats per squared unit of a coordinate, below which it counts as rising from the estimates,
# and nats by which it may be higher at a point nearby.
_NOTABLE_CURVATURE, _NOTABLE_RISE = -0.5, 2.0

# Weight of a model below which it is left out: it takes as long to evaluate as the others and changes nothing.
_NEGLIGIBLE = 1e-4


class _Point(NamedTuple):
    """A model with its likelihood at some hyperparameters, and their posterior probability up to a factor."""

    model: gpytorch.models.ApproximateGP
    likelihood: Likelihood
    log_weight: float


class HyperparameterUncertainty(ModelMixture):
    r"""
    The uncertainty of estimated hyperparameters after training, for predictions and effects that include it:
    ``model.predict(x, hyperparameters=uncertainty)``, ``model.components(x, hyperparameters=uncertainty)``, and
    :meth:`~gpytorch_gam.diagnostics.ModelMixture.responses`.

    A posterior given point estimates of the hyperparameters leaves out that these are uncertain, and its bands are
    somewhat too narrow. Results are those of a mixture of models with other hyperparameters, each with its optimal
    posterior, at points in the directions in which components and predictors change most; their weights are those of
    importance sampling from Laplace's approximation, and models of negligible weight are left out. The mathematics is
    in :doc:`/theory/diagnostics`.

    For p hyperparameters it takes p evaluations of the bound and its gradient, and one of the bound for each model,
    which is about as long as the fit, or less. The bound is that of all rows, of rounded columns, or of rows that are
    streamed, as in :func:`~gpytorch_gam.fit`. Hyperparameters at a bound of their constraint count as known, and so do
    those of components that are switched off; inducing points and parameters of modules beside kernels, mean and
    likelihood that have no constraint are held fixed.

    :param model: A trained model that :func:`~gpytorch_gam.fit` takes. It is copied and stays as it is.
    :param likelihood: Its likelihood, which is copied too.
    :param data: All rows, as for :func:`~gpytorch_gam.fit`.
    :param num_data: Number of rows of all the data, where batches do not tell it.
    :param prior_stddev: Prior standard deviation s of each hyperparameter around its estimate, in its coordinate.
    :param max_models: Largest number of models in the mixture; as many directions, less one, can be explored.
    :raises ValueError: If an argument is out of range or there is no hyperparameter to be uncertain of.
    :raises TypeError: If an argument is of another kind.

    Example:
        >>> fit(model, likelihood, (x, y))
        >>> uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
        >>> prediction = model.predict(x_new, hyperparameters=uncertainty)
        >>> effects = model.components(x_new, hyperparameters=uncertainty).centred(over=x)
        >>> low, high = predictive_quantiles(uncertainty.responses(x_new), [0.025, 0.975])
        >>> uncertainty.intervals()["likelihood.noise_covar.raw_noise[0]"]
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        data: Any,
        num_data: int | None = None,
        *,
        prior_stddev: float = 2.0,
        max_models: int = 8,
    ) -> None:
        self._prior_precision = checks.number("prior_stddev", prior_stddev, above=0) ** -2
        most = most_directions(checks.integer("max_models", max_models, least=2))
        with torch.inference_mode(False), torch.no_grad():
            own, noise = deepcopy(model), deepcopy(likelihood)
            bound = OptimalBound(own, noise, data, num_data)
            self._free = bound.free
            if not self.names:
                reasons = [f"{reason} ({number} of them)" for reason, number in Counter(self.left_out.values()).items()]
                raise ValueError(f"no hyperparameter is free to move: {', '.join(reasons) or 'none is trained'}")
            origin = bound.evaluate(self._free.position)
            curvature, changes = _derivatives(bound, origin, own.variational_strategy)
            found = laplace(curvature, self._prior_precision)
            #: Covariance V of the hyperparameters :attr:`names` in the coordinates, ``(p, p)``, float64.
            self.covariance = found.covariance
            directions = leading_directions(found.root, changes, most)
            points = list(self._points(bound, own, noise, directions))
            self._free.write(self._free.position)
        if not points:
            raise ValueError("the bound is finite at none of the points near the hyperparameters: are they a maximum?")
        log_weights = torch.tensor([point.log_weight for point in points], dtype=torch.float64, device="cpu")
        if found.least_curvature < _NOTABLE_CURVATURE or log_weights.max() > origin.value + _NOTABLE_RISE:
            _warn_of_no_maximum()
        models, likelihoods, weights = _notable(points, torch.softmax(log_weights, 0))
        super().__init__(models, likelihoods, weights)

    @property
    def names(self) -> list[str]:
        """The uncertain hyperparameters: names of the raw parameters, with the index of the entry."""
        return self._free.names

    @property
    def left_out(self) -> dict[str, str]:
        """The hyperparameters that count as known, with the reason."""
        return self._free.left_out

    def intervals(self, num_stddevs: float = 1.96) -> dict[str, tuple[float, float]]:
        """
        Intervals of the values of the hyperparameters, by :attr:`names`, from Laplace's approximation.

        :param num_stddevs: Half-width in standard deviations of the coordinates; the default is the central 95%.
        """
        half_width = checks.number("num_stddevs", num_stddevs, above=0) * self.covariance.diagonal().sqrt()
        ends = [self._free.values(self._free.position + sign * half_width).tolist() for sign in (-1.0, 1.0)]
        return dict(zip(self.names, zip(*ends, strict=True), strict=True))

    def _points(
        self, bound: OptimalBound, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, directions: Tensor
    ) -> Iterator[_Point]:
        """The models at the points of the design where the bound exists."""
        for signs in design(directions.shape[-1]).to(directions):
            move = directions @ signs
            found = bound.evaluate(self._free.position + move, gradient=False)
            if math.isfinite(found.value):
                bound.write_posterior()
                copies = deepcopy(model).eval(), deepcopy(likelihood).eval()
                yield _Point(*copies, found.value - 0.5 * self._prior_precision * move.square().sum().item())


def _notable(points: Sequence[_Point], weights: Tensor) -> tuple[list[Any], list[Likelihood], Tensor]:
    """The models, likelihoods and weights of the points whose weight is not negligible."""
    kept = [index for index, weight in enumerate(weights.tolist()) if weight >= _NEGLIGIBLE]
    own = weights[kept]
    return [points[index].model for index in kept], [points[index].likelihood for index in kept], own / own.sum()


def _derivatives(
    bound: OptimalBound, origin: Evaluation, strategy: AdditiveVariationalStrategy
) -> tuple[Tensor, Tensor]:
    """
    By forward differences: minus the second derivatives of the bound, ``(p, p)``, and the derivatives of the quantities
    of :func:`_quantities`, ``(p, m)``.
    """
    free = bound.free
    free.write(free.position)
    scale = strategy.predict(bound.rows, components=False).moments.covariance.diagonal(dim1=-2, dim2=-1).mean(0).sqrt()
    before = _quantities(strategy, origin.mean, bound.rows, scale)
    units = torch.diag(torch.ones_like(free.position))
    curvature, changes = torch.zeros_like(units), before.new_zeros(len(units), len(before))
    stages = _stages(free, strategy)
    with bound.pausing() as pause:
        for stage in stages:
            for index in stage.entries:
                ahead = bound.evaluate(free.position + _STEP * units[index])
                curvature[index] = (origin.gradient - ahead.gradient) / _STEP
                changes[index] = (_quantities(strategy, ahead.mean, bound.rows, scale) - before) / _STEP
            free.write(free.position)
            pause(stage.parameters)
    numbers = {index: number for number, stage in enumerate(stages) for index in stage.entries}
    order = torch.tensor([numbers[index] for index in range(len(units))], device=units.device)
    # Each stage has the second derivatives with those that follow.
    curvature = torch.where(order.unsqueeze(-1) <= order, curvature, curvature.mT)
    of_likelihood = units[:, free.is_of_likelihood]
    # A unit of a coordinate of the likelihood counts as much as a standard deviation of the predictor in all rows.
    return curvature, torch.cat([changes, len(bound.rows) ** 0.5 * of_likelihood], dim=-1)


class _Stage(NamedTuple):
    """Hyperparameters that move one after the other."""

    entries: list[int]  # among the free ones
    parameters: list[Tensor]  # that stay afterwards


def _stages(free: FreeHyperparameters, strategy: AdditiveVariationalStrategy) -> list[_Stage]:
    """The free hyperparameters of each group of components, of the largest one first; at last all other ones."""
    stages, remaining = [], dict(enumerate(free.owners))
    for group in sorted(strategy.predictor.groups, key=lambda group: -group.num_components * group.num_inducing):
        parameters = [raw for raw in group.parameters() if raw.requires_grad]
        own = {id(raw) for raw in parameters}
        entries = [index for index, owner in remaining.items() if id(owner) in own]
        stages.append(_Stage(entries, parameters))
        remaining = {index: owner for index, owner in remaining.items() if id(owner) not in own}
    return [*stages, _Stage(list(remaining), [])]


def _quantities(strategy: AdditiveVariationalStrategy, mean: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """
    The means of predictors and centred components at some rows, in units of the predictors' standard deviations,
    ``(m,)``, under a posterior with the whitened mean ``(Q,)``.
    """
    reading, predictor = strategy.read(rows), strategy.predictor
    features = strategy.at_rows(reading.inputs.double()).features  # (Q, n)
    weighted = (mean.unsqueeze(-1) * features).split(predictor.num_inducing_per_component)
    owners = torch.tensor(predictor.predictor_of, device=features.device)
    components = torch.stack([part.sum(0) for part in weighted]) / scale[owners].double().unsqueeze(-1)
    predictors = (reading.means.double() / scale.double().unsqueeze(-1)).index_add(0, owners, components)
    return torch.cat([predictors, components - components.mean(-1, keepdim=True)]).flatten()


def _warn_of_no_maximum() -> None:
    warnings.warn(
        "the bound is higher near the hyperparameters of the model than at them, where their uncertainty is that of a "
        "maximum: go on with fit(model, likelihood, data, warm_start=True) before",
        ConvergenceWarning,
        stacklevel=3,
    )
