"""Additive Gaussian processes without inducing points."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import IdentityLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.capacitance import add_identity, capacitance_log_determinant
from gpytorch_gam.numerics.compiler import without_compiler
from gpytorch_gam.operators import LowRankPrecisionLinearOperator

from ._data_projection import DataProjection
from ._site_variational_strategy import _SiteVariationalStrategy
from .data_kernels import component_covariance, sample_prior

# Jitter on the covariance of the sum of the components where its root is needed, relative to its mean variance.
_ROOT_JITTER = 1e-10


class FullAdditiveVariationalStrategy(_SiteVariationalStrategy):
    r"""
    Variational inference for a sum of Gaussian processes without inducing points (Adam, Durrande and John, 2018,
    section 4.1 and appendix B): a Gaussian over the values of all components at the N training inputs, with one weight
    :math:`\alpha_n` and one root precision :math:`\Lambda_n` for each row, shared by the components. Only the
    covariance of their sum is ever needed. The optimal Gaussian has this form for every likelihood that factorises over
    the rows and is log-concave; with a Gaussian likelihood the bound is the exact log marginal likelihood. The
    mathematics is in :doc:`/theory/families`.

    Cost :math:`O(N^3 + N^2 n)` and memory :math:`O(N^2 + Nn)` for each forward at n rows (times C for the kernels),
    the N-sided algebra in float64. It is a reference for small N, up to a few thousand rows, that no choice of inducing
    points enters; beyond that use :class:`AdditiveVariationalStrategy`. Use a float64 model for reference values: in
    float32, products with the weights of many rows cancel to about 1e-4 of the predictor's scale.

    Calls, :meth:`predictor_moments` and :meth:`components` are those of :class:`AdditiveVariationalStrategy`. The
    inducing points of the predictor's groups are not used, except that groups declared ``exact`` are still read through
    theirs, which determine them. Train it with :class:`~gpytorch.mlls.VariationalELBO`, on batches of any rows, or set
    the sites to their optimum with :meth:`fit_sites`.

    :param model: The model that owns the strategy; its ``forward`` serves ``prior=True``.
    :param predictor: The components and their prior, with one predictor.
    :param inputs: Inputs of the training data, ``(N, D)`` or ``(*batch, N, D)``. Kept as a buffer.
    :param jitter_val: Absolute jitter on each :math:`K_c` (times the square of a ``by`` multiplier; none for exact
        groups). Nothing here needs it, A being at least the identity. It is there for comparison with inducing points
        at the training inputs and the same jitter; values other than 0 loosen the bound by about their size.
    :param batch_shape: Batch shape of the sites; default that of the predictor and the inputs.
    :raises ValueError: If the inputs cannot be read by the components, or the jitter is negative.
    :raises NotImplementedError: If there are several predictors.

    Example:
        >>> class GAM(gpytorch.models.ApproximateGP):
        >>>     def __init__(self, predictor, train_x):
        >>>         super().__init__(FullAdditiveVariationalStrategy(self, predictor, train_x))
        >>>     def forward(self, x):
        >>>         return self.variational_strategy.predictor(x)
        >>> model.variational_strategy.fit_sites(likelihood, train_y)
    """

    _posterior_kind = "sites without inducing variables"

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        predictor: AdditivePredictor,
        inputs: Tensor,
        jitter_val: float = 0.0,
        batch_shape: torch.Size | None = None,
    ) -> None:
        super().__init__(model, predictor, inputs, jitter_val, batch_shape)

    # ------------------------------------------------------------------ the sum of the components at the data

    @property
    def inducing_points(self) -> Tensor:
        """The training inputs, ``(*batch, N, D)``, which replace inducing points."""
        return self.inputs

    @property
    def _num_whitened(self) -> int:
        return self._variational_distribution.num_data

    def sum_covariance(self) -> Tensor:
        """
        The prior covariance :math:`K_s` of the sum of the components at the training inputs, in float64, ``(*batch, N,
        N)``.
        """
        inputs = self._data_inputs().double()
        covariance = sum(component_covariance(group, inputs).sum(-3) for group in self.predictor.groups)
        assert torch.is_tensor(covariance)
        return covariance if self.jitter_val == 0.0 else covariance + torch.diag_embed(self.jitter_variance())

    def jitter_variance(self) -> Tensor:
        """The share of the jitter in the variance of the sum at the training inputs, ``(*batch, N)``, float64."""
        inputs = self._data_inputs().double()
        total = inputs.new_zeros(inputs.shape[:-1])
        for group in self.predictor.groups:
            if group.exact:
                continue
            multiplier = group.multiplier(inputs)
            total = total + (group.num_components if multiplier is None else multiplier.square().sum(-2))
        return self.jitter_val * total

    def _capacitance(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""The matrices :math:`K_s`, :math:`\Lambda K_s \Lambda` and :math:`L_A`, each ``(*batch, N, N)``, float64."""
        covariance = self.sum_covariance()
        scaled = _scale_both_sides(covariance, self._sites()[1])
        return covariance, scaled, psd_safe_cholesky(add_identity(scaled))

    @without_compiler
    def kl_divergence(self) -> Tensor:
        """Kullback-Leibler divergence from the posterior to the prior, over all components at once, ``(*batch)``."""
        weights, _ = self._sites()
        covariance, scaled, cholesky = self._capacitance()
        quadratic = (weights * (covariance @ weights.unsqueeze(-1)).squeeze(-1)).sum(-1)
        explained = torch.cholesky_solve(scaled, cholesky)  # I - A^-1 = A^-1 Lambda K_s Lambda
        trace = explained.diagonal(dim1=-2, dim2=-1).sum(-1)
        divergence = 0.5 * (quadratic - trace + capacitance_log_determinant(cholesky))
        return divergence.to(self._variational_distribution.dtype)

    @property
    def variational_distribution(self) -> MultivariateNormal:
        r"""
        The posterior of the whitened sum of the components at the training inputs, :math:`\mathbf v = L_s^{-1} \sum_c
        f_c(X)` with :math:`K_s = L_s L_s^\top`, of event size N: :math:`N(L_s^\top\boldsymbol\alpha, (I + L_s^\top
        \Lambda^2 L_s)^{-1})`. Its divergence to :attr:`prior_distribution`, a standard normal, is that of the
        posterior, since the components depend on the data through their sum.

        The root takes a relative jitter of 1e-10, which is used nowhere else. For the posterior of the sum itself, call
        the model at the training inputs.
        """
        weights, scales = self._sites()
        covariance = self.sum_covariance()
        jitter = _ROOT_JITTER * covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        root = psd_safe_cholesky(covariance + torch.diag_embed(jitter.expand(covariance.shape[:-1])))
        mean = (root.mT @ weights.unsqueeze(-1)).squeeze(-1)
        factor = root.mT * scales.unsqueeze(-2)
        dtype = self._variational_distribution.dtype
        base = IdentityLinearOperator(mean.shape[-1], mean.shape[:-1], dtype=dtype, device=mean.device)
        return MultivariateNormal(mean.to(dtype), LowRankPrecisionLinearOperator(base, factor.to(dtype), inverse=True))

    # ------------------------------------------------------------------ the posterior at any rows

    def _projection_in(self, dtype: torch.dtype) -> DataProjection:
        r"""The projection with weights :math:`[\Lambda L_A^{-\top}, \boldsymbol\alpha]`."""
        weights, scales = self._sites()
        *_, cholesky = self._capacitance()
        root = torch.linalg.solve_triangular(cholesky, torch.diag_embed(scales), upper=False).mT
        batch = torch.broadcast_shapes(root.shape[:-2], weights.shape[:-1])
        columns = [root.expand(*batch, *root.shape[-2:]), weights.expand(*batch, -1).unsqueeze(-1)]
        data = self._data_inputs().to(dtype, copy=True)
        return DataProjection(self.predictor, torch.cat(columns, dim=-1).to(dtype), data)

    def draw_components(
        self,
        inputs: Tensor,
        batch_shape: torch.Size,
        sample_shape: torch.Size,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        r"""
        Joint draws of all components: draws :math:`f_c` from the prior at :math:`[\mathbf x, X]`, corrected by the
        sites as if :math:`\Lambda \sum_c f_c(X)` were observed with unit noise :math:`\varepsilon`: :math:`f_c(\mathbf
        x) + k_c(\mathbf x, X)[\boldsymbol\alpha - \Lambda A^{-1} (\Lambda \sum_i f_i(X) + \varepsilon)]`. This
        factorises a matrix of n + N rows for each component.
        """
        weights, scales = self._sites()
        *_, cholesky = self._capacitance()
        x, data = inputs.double(), self._data_inputs().double()
        joint = torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in (x, data)], dim=-2)
        groups = self.predictor.groups
        drawn = [sample_prior(group, joint, sample_shape) for group in groups]
        n = x.shape[-2]
        total = sum(values[..., n:].sum(-2) for values in drawn)  # (*sample_shape, *batch, N)
        assert torch.is_tensor(total)
        if self.jitter_val != 0.0:  # the jitter is a part of what the sites observe
            total = total + self.jitter_variance().sqrt() * torch.randn_like(total)
        observed = (scales * total + torch.randn_like(total)).unsqueeze(-1)
        corrected = weights - scales * torch.cholesky_solve(observed, cholesky).squeeze(-1)
        corrected = corrected[..., None, None, :]  # (*sample_shape, *batch, 1, 1, N)
        return [
            drawn[place][..., :n] + (corrected @ component_covariance(groups[place], data, x)).squeeze(-2)
            for place in (range(len(groups)) if places is None else places)
        ]

    # ------------------------------------------------------------------ the algebra of the sites

    def _data_geometry(self) -> Tensor:
        return self.sum_covariance()

    def _covariance_product(self, geometry: Tensor, values: Tensor) -> Tensor:
        return (geometry @ values.unsqueeze(-1)).squeeze(-1)

    def _weights_of_linear_term(self, geometry: Tensor, scales: Tensor, linear: Tensor) -> Tensor:
        # (I + Lambda^2 K)^-1 theta = theta - Lambda A^-1 Lambda K theta
        cholesky = psd_safe_cholesky(add_identity(_scale_both_sides(geometry, scales)))
        right = scales.unsqueeze(-1) * (geometry @ linear.unsqueeze(-1))
        return linear - scales * torch.cholesky_solve(right, cholesky).squeeze(-1)


def _scale_both_sides(covariance: Tensor, scales: Tensor) -> Tensor:
    r"""The product :math:`\Lambda K \Lambda`."""
    return scales.unsqueeze(-1) * covariance * scales.unsqueeze(-2)
