r"""
The common part of the two posteriors that are tied to the training data: their parameters, and the fit of these.

Both posteriors are the prior times Gaussian sites, :math:`q \propto p \cdot \prod_n \exp(\theta_n f_n - \tfrac12
\lambda_n f_n^2)` with :math:`f_n` the sum of the components at row n (for the sparse one its projection on the inducing
variables) and :math:`\lambda = \Lambda^2`. With the prior covariance :math:`K` of these values the weights of the mean
are :math:`\boldsymbol\alpha = (I + \Lambda^2 K)^{-1} \boldsymbol\theta`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import check_rows, has_own_forward
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients

from ..additive_strategy import AdditiveStrategy
from .site_variational_distribution import SiteVariationalDistribution

# A natural-gradient direction leads uphill, so after this many halvings without a rise only rounding is left.
_MAX_HALVINGS = 30

# Largest fall of the bound in an accepted step, in units of the rounding of its terms.
_ROUNDING_UNITS = 16.0


class _SiteGradients(NamedTuple):
    elbo: float  # nats
    rounding: float  # size of the rounding error of the bound
    gradient: Tensor  # g = dE/dmean, (*batch, N), float64
    curvature: Tensor  # max(0, -2 dE/dvariance), (*batch, N), float64


class _SiteVariationalStrategy(AdditiveStrategy):
    """
    The base of strategies whose posterior has a weight and a root precision for each row of the training data, whose
    inputs ``(*batch, N, D)`` are kept as a buffer.
    """

    inputs: Tensor
    _variational_distribution: SiteVariationalDistribution

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        predictor: AdditivePredictor,
        inputs: Tensor,
        jitter_val: float | None = None,
        batch_shape: torch.Size | None = None,
    ) -> None:
        _validate_predictor(predictor, type(self).__name__)
        _check_data(model, predictor, inputs, type(self).__name__)
        try:
            own_batch = torch.broadcast_shapes(predictor.batch_shape, inputs.shape[:-2])
            batch_shape = own_batch if batch_shape is None else torch.Size(batch_shape)
            torch.broadcast_shapes(own_batch, batch_shape)
        except RuntimeError as error:
            raise ValueError(
                f"batch shapes do not broadcast: the predictor's is {tuple(predictor.batch_shape)}, that of inputs "
                f"{tuple(inputs.shape[:-2])}, batch_shape is {None if batch_shape is None else tuple(batch_shape)}"
            ) from error
        sites = SiteVariationalDistribution(inputs.shape[-2], batch_shape=batch_shape)
        sites = sites.to(device=predictor.device, dtype=predictor.dtype)
        AdditiveStrategy.__init__(self, model, predictor, sites, jitter_val)  # other bases need another distribution
        self.register_buffer("inputs", inputs.detach().clone())

    def _resize_posterior(self) -> None:
        """Keep the sites, of which there is one a row whatever the inducing points are."""

    def _data_inputs(self) -> Tensor:
        """The training inputs as the predictor reads them, ``(*batch, N, D)``."""
        if not has_own_forward(self.model):
            return self.inputs
        try:
            return self.read(self.inputs).inputs
        except ValueError as error:
            raise ValueError(f"inputs of {type(self).__name__} cannot be used: {error}") from error

    def _sites(self) -> tuple[Tensor, Tensor]:
        """Weights and root precisions ``(*batch, N)`` in float64."""
        q = self._variational_distribution
        return q.site_weights.double(), q.site_scales.double()

    @torch.no_grad()
    def set_sites(self, weights: Tensor, scales: Tensor) -> None:
        r"""
        Set the parameters of the posterior.

        :param weights: The weights :math:`\boldsymbol\alpha`, ``(*batch, N)``.
        :param scales: The root precisions :math:`\Lambda`, ``(*batch, N)``.
        :raises ValueError: If shapes differ from the distribution's, or values are not finite.
        """
        shape = self._variational_distribution.shape()
        for name, values in (("weights", weights), ("scales", scales)):
            if values.shape != shape:
                raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(values.shape)}")
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} contain NaN or infinity")
        self._write_sites(weights, scales)
        self._mark_initialized()

    def _write_sites(self, weights: Tensor, scales: Tensor) -> None:
        self._variational_distribution.site_weights.copy_(weights)
        self._variational_distribution.site_scales.copy_(scales)

    # ------------------------------------------------------------------ the optimal sites

    @abstractmethod
    def _data_geometry(self) -> Tensor:
        """The matrix of kernels at the training inputs for the algebra of the sites, in float64."""

    @abstractmethod
    def _covariance_product(self, geometry: Tensor, values: Tensor) -> Tensor:
        r"""The prior covariance of the sites' function values times a vector, :math:`K \mathbf v`, ``(*batch, N)``."""

    @abstractmethod
    def _weights_of_linear_term(self, geometry: Tensor, scales: Tensor, linear: Tensor) -> Tensor:
        r"""The weights :math:`\boldsymbol\alpha = (I + \Lambda^2 K)^{-1} \boldsymbol\theta`, each ``(*batch, N)``."""

    @torch.no_grad()
    def fit_sites(
        self,
        likelihood: Likelihood,
        y: Tensor,
        max_iterations: int = 100,
        tolerance: float = 1e-6,
        lr: float = 1.0,
    ) -> list[float]:
        r"""
        Set the sites to their optimum at the present hyperparameters, by natural-gradient steps on all rows.

        With the expected log-likelihood :math:`E_n` of row n under its present marginal, :math:`g_n = \partial E_n /
        \partial \mathrm{mean}_n` and :math:`\lambda_n = \max(0, -2\, \partial E_n / \partial \mathrm{variance}_n)`, a
        step of length r moves the sites' natural parameters,

        .. math::
            \Lambda_n^2 \leftarrow (1-r) \Lambda_n^2 + r \lambda_n, \qquad
            \theta_n \leftarrow (1-r) \theta_n + r (g_n + \lambda_n f_n),

        with :math:`f_n` the mean of the sum of the components. At the optimum :math:`\alpha_n = g_n` and
        :math:`\Lambda_n^2 = \lambda_n`: the optimum over *all* Gaussians of the inducing variables (or of the
        components) if the likelihood is log-concave, which keeps :math:`\lambda_n` from being cut off at zero. A
        Gaussian likelihood takes one step. Steps are halved while the bound would fall. Each iteration costs as much as
        a training forward on all rows. Sites cut off at zero have no gradient for an optimiser used afterwards.

        :param likelihood: Any likelihood of one predictor; its parameters stay fixed.
        :param y: Responses of all rows of ``inputs``, in their order, ``(N)`` or ``(*batch, N)``.
        :param max_iterations: Largest number of steps.
        :param tolerance: Stop when a step (at length 1) gains no more than this, in nats.
        :param lr: Length r of a step before halving, in (0, 1].
        :return: The evidence lower bound in nats, summed over the rows (and over a batch of models): before the first
            step, then after each. Priors of hyperparameters are left out.
        :raises ValueError: If the number of responses is not N, values are not finite, or an argument is out of range.
        :raises NotImplementedError: If models of a batch share their sites.
        """
        self._check_responses(y)
        checks.integer("max_iterations", max_iterations, least=0)
        checks.number("tolerance", tolerance, least=0)
        checks.number("lr", lr, above=0, most=1)
        self.predictor.check_inputs(self._data_inputs(), check_finite=self._looks_at_values(self.inputs))
        self._initialize_once()
        geometry = self._data_geometry()
        state = self._site_gradients(likelihood, y)
        if not math.isfinite(state.elbo):
            raise ValueError(f"the bound of {type(likelihood).__name__} is {state.elbo} at the present sites")
        history = [state.elbo]
        for _ in range(max_iterations):
            moved = self._step(likelihood, y, geometry, state, lr)
            if moved is None:
                break
            after, step = moved
            gain, state = after.elbo - state.elbo, after
            history.append(state.elbo)
            if gain <= tolerance * step:
                break
        return history

    def _step(
        self, likelihood: Likelihood, y: Tensor, geometry: Tensor, state: _SiteGradients, lr: float
    ) -> tuple[_SiteGradients, float] | None:
        """The longest step that does not lower the bound, with its length; None where there is none."""
        weights, scales = self._sites()
        weights, precision = weights.clone(), scales.square()
        function = self._covariance_product(geometry, weights)
        linear = weights + precision * function  # theta = (I + Lambda^2 K) alpha
        linear_target = state.gradient + state.curvature * function
        step = lr
        for _ in range(_MAX_HALVINGS):
            new_scales = torch.lerp(precision, state.curvature, step).sqrt()
            new_linear = torch.lerp(linear, linear_target, step)
            self._write_sites(self._weights_of_linear_term(geometry, new_scales, new_linear), new_scales)
            after = self._site_gradients(likelihood, y)
            if after.elbo >= state.elbo - state.rounding:  # false for NaN
                return after, step
            step = step / 2
        self._write_sites(weights, scales)
        return None

    def _site_gradients(self, likelihood: Likelihood, y: Tensor) -> _SiteGradients:
        """The bound at the present sites, and the gradients of its data term in the marginals of the rows."""
        with torch.autocast(self.inputs.device.type, enabled=False):
            marginals = self._projection().marginals(self.read(self.inputs))
            mean, variance = (part.squeeze(-2).to(self.inputs.dtype) for part in marginals[:2])
            if mean.shape != self._variational_distribution.shape():
                raise NotImplementedError(
                    f"fit_sites needs sites of each model's own: the predictor has batch shape "
                    f"{tuple(mean.shape[:-1])}, the sites {tuple(self._variational_distribution.batch_shape)}"
                )
            rows = expected_gradients(likelihood, y, mean, variance)
            divergence = self.kl_divergence().double()
        size = rows.expected.abs().sum() + divergence.abs().sum()
        return _SiteGradients(
            elbo=(rows.expected.sum() - divergence.sum()).item(),
            rounding=_ROUNDING_UNITS * torch.finfo(mean.dtype).eps * size.item(),
            gradient=rows.gradients,
            curvature=rows.curvatures,
        )

    def _check_responses(self, y: Tensor) -> None:
        checks.tensor("y", y)
        num_data = self._variational_distribution.num_data
        if y.dim() < 1 or y.shape[-1] != num_data:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but the strategy was made for {num_data} rows of inputs: pass the "
                "responses of all of them, in the same order"
            )
        if y.device != self.inputs.device:
            raise ValueError(f"y is on {y.device}, but the inputs are on {self.inputs.device}: move it with y.to(...)")
        if y.is_floating_point() and not torch.isfinite(y).all():
            raise ValueError(f"y has NaN or infinity in {int((~torch.isfinite(y)).sum())} of {y.numel()} entries")


def _check_data(model: gpytorch.Module, predictor: AdditivePredictor, inputs: Tensor, owner: str) -> None:
    """Check the inputs before the model is complete, when a ``forward`` of its own cannot be called yet."""
    try:
        if has_own_forward(model):
            check_rows(inputs)
        else:
            predictor.check_inputs(inputs)
    except (TypeError, ValueError) as error:
        raise type(error)(f"inputs of {owner} cannot be used: {error}") from error


def _validate_predictor(predictor: AdditivePredictor, owner: str) -> None:
    if not isinstance(predictor, AdditivePredictor):
        raise TypeError(f"predictor must be an AdditivePredictor, got {checks.shown(predictor)}")
    if predictor.num_predictors > 1:
        raise NotImplementedError(
            f"{owner} has one weight and one precision for each row, which serves one predictor; this one has "
            f"{predictor.num_predictors}: use AdditiveVariationalStrategy with a structured distribution"
        )
    marginal = [name for group in predictor.groups if group.missing == "marginal" for name in group.names]
    if marginal:
        raise NotImplementedError(
            f'{owner} takes no components with missing="marginal", as {marginal} have: use AdditiveVariationalStrategy'
        )
