"""The paper's optimal sparse form: a precision tied to the training data."""

from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import IdentityLinearOperator
from torch import Tensor

from gpytorch_gam.numerics.compiler import without_compiler
from gpytorch_gam.numerics.precision import CovarianceFactors, kl_from_standard_normal, precision_covariance_factors
from gpytorch_gam.operators import LowRankPrecisionLinearOperator

from .._inducing_projection import InducingProjection
from ..additive_variational_strategy import AdditiveVariationalStrategy
from ._site_variational_strategy import _SiteVariationalStrategy
from .data_kernels import features_in_dtype_of


class TiedAdditiveVariationalStrategy(_SiteVariationalStrategy, AdditiveVariationalStrategy):
    r"""
    The optimal sparse form of Adam, Durrande and John (2018, last equation of section 4): a Gaussian over the
    whitened inducing variables of all components that is tied to the N rows of the training data, with a weight
    :math:`\alpha_n` and a root precision :math:`\Lambda_n` for each row, and the features of the training inputs under
    the *present* kernels (:doc:`/theory/families`). The optimum over all Gaussians has this form for every likelihood
    that factorises over the rows and is log-concave. So it reaches the bound of the coupled covariance with 2N
    parameters instead of :math:`Q + Q^2/2`.

    The covariance is read as :math:`I - FF^\top`, like that of the structured families. Every forward computes the
    features of all training rows, :math:`O(NQ^2 + Q^3)` (:math:`O(N^2 Q + N^3)` where N is below Q) whatever the size
    of its batch, in float64. It is a reference for small N, against which the structured families can be measured; for
    training at scale use those, with :class:`AdditiveVariationalStrategy`.

    Calls, :meth:`components`, :meth:`inducing_posterior` and the rest are those of
    :class:`AdditiveVariationalStrategy`. Train it with :class:`~gpytorch.mlls.VariationalELBO`, on batches of any rows,
    or set the sites to their optimum with :meth:`fit_sites`.

    :param model: The model that owns the strategy; its ``forward`` serves ``prior=True``.
    :param predictor: The components and their prior, with one predictor.
    :param inputs: Inputs of the training data, ``(N, D)`` or ``(*batch, N, D)``. Kept as a buffer.
    :param jitter_val: Jitter on the covariance of the inducing variables, as in :class:`AdditiveVariationalStrategy`.
    :param batch_shape: Batch shape of the sites; default that of the predictor and the inputs.
    :raises ValueError: If the inputs cannot be read by the components.
    :raises NotImplementedError: If there are several predictors.

    Example:
        >>> class GAM(gpytorch.models.ApproximateGP):
        >>>     def __init__(self, predictor, train_x):
        >>>         super().__init__(TiedAdditiveVariationalStrategy(self, predictor, train_x))
        >>>     def forward(self, x):
        >>>         return self.variational_strategy.predictor(x)
        >>> model.variational_strategy.fit_sites(likelihood, train_y)
    """

    _posterior_kind = "sites tied to inducing variables"

    def _data_features(self) -> Tensor:
        """Features of the training inputs in float64, ``(*batch, Q, N)``."""
        inputs = self._data_inputs().double()
        parts = [
            features_in_dtype_of(group, inputs, cholesky).flatten(-3, -2)
            for group, cholesky in zip(self.predictor.groups, self.inducing_choleskys(), strict=True)
        ]
        batch = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
        return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], dim=-2)

    def _mean_and_precision_factor(self) -> tuple[Tensor, Tensor]:
        r"""The mean :math:`\Phi\boldsymbol\alpha`, ``(*batch, Q)``, and a factor of :math:`\Phi\Lambda^2\Phi^\top`."""
        weights, scales = self._sites()
        features = self._data_features()
        mean = (features @ weights.unsqueeze(-1)).squeeze(-1)
        return mean, narrow_factor(features * scales.unsqueeze(-2))

    def _factors(self) -> tuple[CovarianceFactors, Tensor]:
        return precision_covariance_factors(*self._mean_and_precision_factor(), None)

    def covariance_factors(self) -> CovarianceFactors:
        """The posterior of the whitened inducing variables as mean and factors of its covariance, in float64."""
        return self._factors()[0]

    @without_compiler
    def kl_divergence(self) -> Tensor:
        """Kullback-Leibler divergence from the posterior to the prior, over all components at once, ``(*batch)``."""
        return kl_from_standard_normal(*self._factors()).to(self._variational_distribution.dtype)

    @property
    def variational_distribution(self) -> MultivariateNormal:
        """The posterior of the whitened inducing variables, of event size Q, from the present parameters."""
        mean, factor = self._mean_and_precision_factor()
        dtype = self._variational_distribution.dtype
        base = IdentityLinearOperator(mean.shape[-1], mean.shape[:-1], dtype=dtype, device=mean.device)
        return MultivariateNormal(mean.to(dtype), LowRankPrecisionLinearOperator(base, factor.to(dtype), inverse=True))

    def _projection_in(self, dtype: torch.dtype) -> InducingProjection:
        """A new projection each time, because it depends on the training inputs and on all of the kernels."""
        return InducingProjection.of(self.predictor, self.covariance_factors(), self.inducing_choleskys(), dtype)

    def _data_geometry(self) -> Tensor:
        return self._data_features()

    def _covariance_product(self, geometry: Tensor, values: Tensor) -> Tensor:
        return (geometry.mT @ (geometry @ values.unsqueeze(-1))).squeeze(-1)

    def _weights_of_linear_term(self, geometry: Tensor, scales: Tensor, linear: Tensor) -> Tensor:
        # (I + Lambda^2 Phi'Phi)^-1 theta = theta - Lambda^2 Phi' (I - F F') Phi theta
        projected = geometry @ linear.unsqueeze(-1)
        factors, _ = precision_covariance_factors(
            projected.squeeze(-1), narrow_factor(geometry * scales.unsqueeze(-2)), None
        )
        assert factors.explained_shared is not None
        solved = projected - factors.explained_shared @ (factors.explained_shared.mT @ projected)
        return linear - scales.square() * (geometry.mT @ solved).squeeze(-1)


def narrow_factor(factor: Tensor) -> Tensor:
    r"""
    A factor ``(*batch, Q, min(Q, N))`` of :math:`WW^\top`, from W, ``(*batch, Q, N)``.

    The columns are combined by an orthonormal basis of the rows of W. Held constant, the basis leaves the first
    derivative of :math:`WW^\top` exact, because it spans these rows, and avoids the derivative of the decomposition,
    which divides by numbers close to zero. Second derivatives are not available.
    """
    if factor.shape[-1] <= factor.shape[-2]:
        return factor
    basis = torch.linalg.qr(factor.detach().mT).Q  # (*batch, N, Q)
    return factor @ basis
