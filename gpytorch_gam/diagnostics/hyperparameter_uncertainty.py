"""The uncertainty of hyperparameters, and its contribution to the bands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.group_projection import project_components, whitened_weights
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.rows.likelihood_check import with_noise_by_row
from gpytorch_gam.optim.rows.stream import checked_rows
from gpytorch_gam.training.bound_gradients import bound_and_gradients
from gpytorch_gam.training.polishing import polish
from gpytorch_gam.variational import AdditiveVariationalStrategy


class _Coordinate(NamedTuple):
    """One entry of a hyperparameter, on a logarithmic scale if its constraint makes it positive."""

    name: str  # of the raw parameter, with a prefix "model." or "likelihood."
    raw: Tensor
    constraint: gpytorch.constraints.Interval
    entry: int  # index in the flattened parameter
    is_log: bool

    @property
    def value(self) -> float:
        """The constrained value."""
        return self.constraint.transform(self.raw.detach()).flatten()[self.entry].item()


class _Neighbour(NamedTuple):
    state: tuple[dict[str, Tensor], Tensor]  # state of the prior, and mean of the whitened inducing variables
    gradient: Tensor  # (p,)


class HyperparameterUncertainty:
    r"""
    The share of the uncertainty of predictor and components that is due to estimated hyperparameters, after training.

    A posterior given point estimates of the hyperparameters leaves out that these are uncertain, and its bands are
    somewhat too narrow. With the hyperparameters on a logarithmic scale, :math:`\mathbf z`, their posterior is taken to
    be Gaussian around the estimates (Laplace), with the curvature of the bound :math:`\mathcal L(\mathbf z)` at the
    optimal posterior for :math:`\mathbf z` and a normal prior of standard deviation ``prior_stddev`` around the
    estimates, so that directions that the data leave open stay bounded. To first order the mean of the predictor then
    has an additional variance (Kass and Steffey, 1989; for smoothing parameters Wood, Pya and Säfken, 2016)

    .. math::
        J(\mathbf x) V J(\mathbf x)^\top, \qquad
        V = \Big(-\frac{\partial^2 \mathcal L}{\partial \mathbf z^2} + \frac{1}{s^2} I\Big)^{-1}, \qquad
        J(\mathbf x) = \frac{\partial\, \mathrm{E} \rho(\mathbf x)}{\partial \mathbf z} ,

    and the components likewise, jointly. Derivatives are central differences: for p hyperparameters the posterior is
    brought to its optimum 2p times by :func:`polish`. A hyperparameter at one of its bounds counts as known. Inducing
    points and the parameters of mean modules without a constraint are held fixed.

    With a Gaussian likelihood and some thousand rows it takes seconds. For other likelihoods the bound is used in the
    same way.

    :param model: A trained model that :func:`polish` takes. It is copied and stays as it is.
    :param likelihood: Its likelihood, which is copied too.
    :param batches: All rows of the data, as for :func:`polish`.
    :param prior_stddev: Prior standard deviation of each hyperparameter around its estimate, on the logarithmic scale.
    :param step: Step of the central differences, on the logarithmic scale.
    :param max_passes: Largest number of passes of :func:`polish` for each neighbour of the estimates.
    :raises ValueError: If an argument is out of range or there is no hyperparameter to be uncertain of.

    Example:
        >>> uncertainty = HyperparameterUncertainty(model, likelihood, loader)
        >>> posterior = model(x)
        >>> stddev = (posterior.variance + uncertainty.variance(x)).sqrt()
        >>> parts = model.components(x)
        >>> effect_stddev = (parts.variance + uncertainty.component_variance(x)).sqrt()
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        batches: Iterable[Any],
        *,
        prior_stddev: float = 2.0,
        step: float = 0.05,
        max_passes: int = 5,
    ) -> None:
        checks.number("prior_stddev", prior_stddev, above=0)
        checks.number("step", step, above=0)
        checks.integer("max_passes", max_passes, least=1)
        self._batches, self._max_passes, self._step = every_row(batches), max_passes, step
        self._batches = with_noise_by_row(likelihood, self._batches)
        with torch.inference_mode(False):
            self._model, self._likelihood = deepcopy(model), deepcopy(likelihood)
            #: Covariance V of the hyperparameters :attr:`names` on the logarithmic scale, ``(p, p)``, float64.
            self.covariance = self._explored_covariance(prior_stddev)

    def _explored_covariance(self, prior_stddev: float) -> Tensor:
        """The covariance V, from the gradients at all neighbours of the estimates."""
        polish(self._model, self._likelihood, self._batches, max_passes=self._max_passes)
        self._origin = deepcopy((self._model.state_dict(), self._likelihood.state_dict()))
        self._coordinates = [c for c in self._all_coordinates() if self._may_move(c)]
        if not self._coordinates:
            raise ValueError("no hyperparameter is free to move: all are fixed, without a constraint, or at a bound")
        step = self._step
        pairs = [(self._explore(c, step), self._explore(c, -step)) for c in self._coordinates]
        self._load(*self._origin)
        self._states = [(ahead.state, behind.state) for ahead, behind in pairs]
        curvature = -torch.stack([(ahead.gradient - behind.gradient) / (2 * step) for ahead, behind in pairs])
        precision = 0.5 * (curvature + curvature.mT)
        precision.diagonal().add_(prior_stddev**-2)
        values, vectors = torch.linalg.eigh(precision)
        return (vectors / values.clamp_min(prior_stddev**-2)) @ vectors.mT

    @property
    def names(self) -> list[str]:
        """Names of the uncertain hyperparameters, with the index of the entry."""
        return [f"{c.name}[{c.entry}]" for c in self._coordinates]

    # ------------------------------------------------------------------ what it adds

    @torch.no_grad()
    def component_changes(self, x: Tensor) -> Tensor:
        """
        Changes of the components' means along independent directions of the hyperparameters, each of one standard
        deviation. The additional covariance of the components is the sum of their outer products over the first
        dimension.

        :param x: Inputs ``(n, D)``.
        :return: The changes ``(p, C, n)``.
        """
        differences = [
            self._component_means(*ahead, x) - self._component_means(*behind, x) for ahead, behind in self._states
        ]
        self._load(*self._origin)
        values, vectors = torch.linalg.eigh(self.covariance)
        root = (vectors * values.clamp_min(0).sqrt()).to(x)
        return torch.einsum("ik,icn->kcn", root, torch.stack(differences) / (2 * self._step))

    def component_variance(self, x: Tensor) -> Tensor:
        """
        Variance ``(C, n)`` to be added to the posterior variance of each component.

        :param x: Inputs ``(n, D)``.
        """
        return self.component_changes(x).square().sum(0)

    def variance(self, x: Tensor) -> Tensor:
        """
        Variance ``(n,)``, with several predictors ``(n, P)``, to be added to the posterior variance of the predictor.

        :param x: Inputs ``(n, D)``.
        """
        changes = self.component_changes(x)
        predictor = self._strategy.predictor
        if predictor.num_predictors == 1:
            return changes.sum(-2).square().sum(0)
        owner = torch.tensor(predictor.predictor_of, device=changes.device)
        own = [changes[:, owner == index].sum(-2) for index in range(predictor.num_predictors)]
        return torch.stack(own, dim=-1).square().sum(0)

    # ------------------------------------------------------------------ the hyperparameters

    @property
    def _strategy(self) -> AdditiveVariationalStrategy:
        return self._model.variational_strategy

    def _all_coordinates(self) -> Iterator[_Coordinate]:
        for owner, module in (("model", self._model), ("likelihood", self._likelihood)):
            for name, raw, constraint in module.named_parameters_and_constraints():
                if constraint is not None and raw.requires_grad:
                    is_log = bool((constraint.lower_bound >= 0).all())
                    for entry in range(raw.numel()):
                        yield _Coordinate(f"{owner}.{name}", raw, constraint, entry, is_log)

    def _may_move(self, coordinate: _Coordinate) -> bool:
        """Whether both neighbours of the estimate satisfy the constraint."""
        value, constraint = coordinate.value, coordinate.constraint
        lower, upper = (
            bound.expand(coordinate.raw.shape).flatten()[coordinate.entry].item()
            for bound in (constraint.lower_bound, constraint.upper_bound)
        )
        if coordinate.is_log:
            reach = math.exp(2 * self._step)
            return value > 0 and lower < value / reach and value * reach < upper
        return lower < value - 2 * self._step and value + 2 * self._step < upper

    # ------------------------------------------------------------------ exploring their neighbourhood

    def _load(self, model: dict[str, Tensor], likelihood: dict[str, Tensor]) -> None:
        self._model.load_state_dict(model)
        self._likelihood.load_state_dict(likelihood)

    def _explore(self, coordinate: _Coordinate, change: float) -> _Neighbour:
        """The optimal posterior and the gradient of the bound at a neighbour of the estimates."""
        self._load(*self._origin)
        _move(coordinate, change)
        polish(self._model, self._likelihood, self._batches, max_passes=self._max_passes)
        gradient = self._gradient()
        mean = self._strategy.covariance_factors().mean.detach().clone()
        return _Neighbour((self._prior_state(), mean), gradient)

    def _prior_state(self) -> dict[str, Tensor]:
        """The state of the model without its posterior: the predictor, and whatever else its forward reads."""
        names = {
            f"variational_strategy._variational_distribution.{name}"
            for name in self._strategy._variational_distribution.state_dict()
        }
        return {name: value.clone() for name, value in self._model.state_dict().items() if name not in names}

    def _gradient(self) -> Tensor:
        """The gradient of the bound in all coordinates, ``(p,)``, float64."""
        rows = (checked_rows(self._strategy, self._likelihood, batch) for batch in self._batches)
        num_data = sum(len(batch[1]) for batch in self._batches)
        parameters = {id(c.raw): c.raw for c in self._coordinates}
        _, found = bound_and_gradients(self._model, self._likelihood, rows, num_data, list(parameters.values()))
        totals = dict(zip(parameters, found, strict=True))
        return torch.stack([totals[id(c.raw)].flatten()[c.entry] * _slope(c) for c in self._coordinates])

    def _component_means(self, prior: dict[str, Tensor], mean: Tensor, x: Tensor) -> Tensor:
        """The components' means ``(C, n)`` at a neighbour of the estimates."""
        strategy = self._strategy
        self._model.load_state_dict(prior, strict=False)
        inputs = strategy.read(x).inputs
        parts = split_groups(mean.unsqueeze(-1), strategy.predictor.group_shapes)
        means = []
        for group, cholesky, part in zip(strategy.predictor.groups, strategy.inducing_choleskys(), parts, strict=True):
            projection = project_components(group, inputs, whitened_weights(cholesky, part).to(inputs.dtype), None)
            means.append(projection.shared.squeeze(-2))
        return torch.cat(means, dim=-2)


@torch.no_grad()
def _move(coordinate: _Coordinate, change: float) -> None:
    raw, constraint, entry = coordinate.raw, coordinate.constraint, coordinate.entry
    values = constraint.transform(raw).clone()
    value = values.view(-1)[entry]
    values.view(-1)[entry] = value * math.exp(change) if coordinate.is_log else value + change
    raw.view(-1)[entry] = constraint.inverse_transform(values).view(-1)[entry]


def _slope(coordinate: _Coordinate) -> Tensor:
    """The derivative of the raw parameter in the coordinate."""
    with gradients_on():
        raw = coordinate.raw.detach().double().requires_grad_()
        value = coordinate.constraint.transform(raw).flatten()[coordinate.entry]
        (derivative,) = torch.autograd.grad(value, raw)
    scale = value.detach() if coordinate.is_log else torch.ones_like(value)
    return scale / derivative.flatten()[coordinate.entry]
