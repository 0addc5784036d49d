"""The components of an exact Gaussian process whose prior is an additive predictor."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import ZeroLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import Reading, read_rows
from gpytorch_gam.effects.component_posterior import ComponentPosterior
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.group_posterior import GroupPosterior

from .data_kernels import component_covariance, sample_prior


def exact_components(
    model: ExactGP, x: Tensor, names: Sequence[str] | str | None = None, exclude: Sequence[str] | str | None = None
) -> ComponentPosterior:
    r"""
    Joint posterior of the components of an :class:`~gpytorch.models.ExactGP` whose ``forward`` returns the prior of an
    :class:`~gpytorch_gam.AdditivePredictor`, with a mean added or not.

    With :math:`S = \sum_c K_c + \Sigma` over the N training rows X, :math:`\Sigma` the likelihood's noise, and
    :math:`\boldsymbol\alpha = S^{-1} (\mathbf y - \mu(X))`,

    .. math::
        \mathrm E f_c(\mathbf x) = k_c(\mathbf x, X) \boldsymbol\alpha, \qquad
        \mathrm{cov}(f_i(\mathbf x), f_j(\mathbf x')) = \delta_{ij} k_i(\mathbf x, \mathbf x')
        - k_i(\mathbf x, X) S^{-1} k_j(X, \mathbf x') .

    Inducing points are not used. The cost is :math:`O(N^3 + C N^2 n)`, in float64 whatever the dtype of the model.

    :param model: A model with training data and a Gaussian likelihood, with a single noise or fixed ones for each row.
    :param x: Inputs ``(*batch, n, D)``.
    :param names: A list of components; default all. A single name gives results without the components' dimension, as
        indexing by it does.
    :param exclude: Components to leave out, instead of ``names``.
    :return: Means, variances, covariances, centred effects and samples of the components.
    :raises TypeError: If the model is no ExactGP, or its likelihood another one.
    :raises ValueError: If the model has no training data, or not one AdditivePredictor, ``x`` cannot be read, or a
        name is unknown.
    :raises NotImplementedError: For several predictors, and components with ``missing="marginal"``.

    Example:
        >>> class Exact(gpytorch.models.ExactGP):
        >>>     def __init__(self, x, y, likelihood, predictor):
        >>>         super().__init__(x, y, likelihood)
        >>>         self.predictor = predictor
        >>>     def forward(self, x):
        >>>         return self.predictor(x)
        >>> parts = exact_components(model, x_new)
        >>> lower, upper = parts["x0"].confidence_region()
    """
    source = _ExactSource(model)
    source.predictor.component_indices(names, exclude)  # reports wrong names before any work
    x = x.unsqueeze(-1) if torch.is_tensor(x) and x.dim() == 1 else x
    return ComponentPosterior(source, source.read(x), names, exclude)


class _ExactSource:
    """The posterior of all components, given the model's present training data."""

    def __init__(self, model: ExactGP) -> None:
        self._model, self.predictor = model, _predictor_of(model)
        likelihood = model.likelihood
        if not isinstance(likelihood, GaussianLikelihood | FixedNoiseGaussianLikelihood):
            raise TypeError(
                "an exact posterior needs a GaussianLikelihood or a FixedNoiseGaussianLikelihood, got "
                f"{type(likelihood).__name__}: use AdditiveGP and its components(x)"
            )
        if not model.train_inputs or model.train_targets is None:
            raise ValueError(
                "model has no training data, without which its posterior is the prior: set_train_data(x, y)"
            )
        if len(model.train_inputs) > 1:
            raise ValueError(f"model has {len(model.train_inputs)} inputs, of which a predictor reads one: join them")
        reading = self.read(model.train_inputs[0])
        self._inputs = reading.inputs.double()
        self._noise = _noise(likelihood, reading, model.train_inputs[0])
        covariance = torch.stack([component_covariance(group, self._inputs).sum(-3) for group in self.predictor.groups])
        self._cholesky = psd_safe_cholesky(covariance.sum(0) + self._noise)
        self._residual = model.train_targets.double() - reading.means.squeeze(-2).double()

    def read(self, x: Tensor) -> Reading:
        """The predictor's inputs and its prior mean."""
        batch_shape = torch.broadcast_shapes(
            self.predictor.batch_shape, torch.Size(self._model.train_targets.shape[:-1])
        )
        return read_rows(self._model, self.predictor, x, batch_shape, gpytorch.settings.debug.on(), {})

    def _solve(self, columns: Tensor) -> Tensor:
        return torch.cholesky_solve(columns, self._cholesky)

    def component_projections(self, inputs: Tensor) -> ComponentProjections:
        r"""Means :math:`k_c(\mathbf x, X) \boldsymbol\alpha` and directions :math:`L_S^{-1} k_c(X, \mathbf x)`."""
        x, groups = inputs.double(), []
        weights = self._solve(self._residual.unsqueeze(-1)).unsqueeze(-3)  # (*batch, 1, N, 1)
        for group in self.predictor.groups:
            cross = component_covariance(group, self._inputs, x)  # (*batch, C_g, N, n)
            shared = torch.linalg.solve_triangular(self._cholesky.unsqueeze(-3), cross, upper=False)
            mean = (weights.mT @ cross).squeeze(-2)
            groups.append(GroupPosterior(mean, group.prior_variance(x), shared, None))
        return ComponentProjections(groups, -1)

    def draw_components(
        self,
        inputs: Tensor,
        batch_shape: torch.Size,
        sample_shape: torch.Size,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Joint draws of all components: draws from the prior, corrected by the residuals of the data."""
        x, n = inputs.double(), inputs.shape[-2]
        joint = torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in (x, self._inputs)], dim=-2)
        drawn = [sample_prior(group, joint, sample_shape) for group in self.predictor.groups]
        total = torch.stack([values[..., n:].sum(-2) for values in drawn]).sum(0)  # (*sample_shape, *batch, N)
        root = psd_safe_cholesky(self._noise)
        noise = (root @ torch.randn_like(total).unsqueeze(-1)).squeeze(-1)
        weights = self._solve((self._residual - total - noise).unsqueeze(-1)).mT.unsqueeze(-3)
        groups = self.predictor.groups
        return [
            drawn[place][..., :n] + (weights @ component_covariance(groups[place], self._inputs, x)).squeeze(-2)
            for place in (range(len(groups)) if places is None else places)
        ]


def _predictor_of(model: ExactGP) -> AdditivePredictor:
    if not isinstance(model, ExactGP):
        raise TypeError(
            f"model must be a gpytorch.models.ExactGP, got {type(model).__name__}; that of an ApproximateGP has "
            "model.variational_strategy.components(x)"
        )
    found = [module for module in model.modules() if isinstance(module, AdditivePredictor)]
    if len(found) != 1:
        raise ValueError(
            f"model has {len(found)} AdditivePredictors among its modules: assign one, self.predictor = predictor, and "
            "return self.predictor(x) from forward"
        )
    predictor = found[0]
    if predictor.num_predictors > 1:
        raise NotImplementedError(f"an exact posterior has one predictor, this one has {predictor.num_predictors}")
    marginal = [name for group in predictor.groups if group.missing == "marginal" for name in group.names]
    if marginal:
        raise NotImplementedError(
            f'components {marginal} have missing="marginal", which exact_components does not serve: use AdditiveGP'
        )
    return predictor


def _noise(likelihood: gpytorch.likelihoods.Likelihood, reading: Reading, x: Tensor) -> Tensor:
    """The covariance of the noise of the training rows, ``(*batch, N, N)``, float64."""
    mean = reading.means.squeeze(-2)
    nothing = ZeroLinearOperator(*mean.shape, mean.shape[-1], dtype=mean.dtype, device=mean.device)
    noise = likelihood(MultivariateNormal(mean, nothing), [x]).lazy_covariance_matrix
    return noise.to_dense().double()
