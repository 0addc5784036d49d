"""Joint posterior of the additive components at given inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows
from gpytorch_gam.kernels import Measure
from gpytorch_gam.numerics.triangular import solve_in_blocks
from gpytorch_gam.operators.posterior_covariance import covariance_in_rows, keep_positive

from ._centring import GroupCentre, Reference, centred_group, centred_prior_covariance, group_centres, make_reference
from .component_source import ComponentProjections, ComponentSource, GroupPosterior

# Added to the residual covariance of a draw, relative to the prior's variance.
SAMPLING_JITTER = 1e-8


class ComponentSamples(NamedTuple):
    """
    Joint draws of components and their sum.

    :ivar components: ``(*sample_shape, *batch, C, n)``.
    :ivar total: sum of the drawn components, without the mean module, ``(*sample_shape, *batch, n)``; with several
        predictors ``(*sample_shape, *batch, P, n)``.
    """

    components: Tensor
    total: Tensor


class ComponentPosterior:
    r"""
    Joint posterior of C components :math:`f_1, \dots, f_C` at n rows of ``x``, made by
    :meth:`AdditiveVariationalStrategy.components`.

    With :math:`s_i(\mathbf x) = F_i^\top \phi_i(\mathbf x)` the coupled part and :math:`V_i^\top \phi_i` the part of
    each component's own,

    .. math::
        \mathrm{cov}(f_i(\mathbf x), f_j(\mathbf x')) = \delta_{ij} [k_i(\mathbf x, \mathbf x')
        - (V_i^\top\phi_i(\mathbf x))^\top (V_i^\top\phi_i(\mathbf x'))] - s_i(\mathbf x)^\top s_j(\mathbf x').

    The mean modules of the predictor, and a mean that the model's ``forward`` adds, belong to no component.

    Means and variances are those of the moment it was made; covariances over rows and samples are computed when asked
    for, from the parameters that the model then has. Make a new one after changing the model.

    :ivar names: names of the components, in order.
    :ivar mean: posterior means, ``(*batch, C, n)``.
    :ivar variance: posterior variances, ``(*batch, C, n)``.
    :ivar prior_means: of the predictors, what they have beside the components, ``(*batch, P, n)``.

    Example:
        >>> parts = model.variational_strategy.components(x)
        >>> parts["x0"].mean, parts["x0"].stddev     # effect of x0 with its standard deviation, (1, n) each
        >>> parts.cross_covariance()                 # n x C x C: how the components trade off in each row
        >>> parts.sample(torch.Size([100])).components  # 100 x C x n
    """

    def __init__(
        self,
        source: ComponentSource,
        reading: Reading,
        indices: Sequence[int],
        projections: ComponentProjections | None = None,
    ) -> None:
        if projections is None:
            projections = source.component_projections(reading.inputs)
        groups, shared_sign = projections
        self._source, self._reading, self._groups, self._sign = source, reading, groups, shared_sign
        self._x, self.prior_means = reading.inputs, reading.means
        self._indices = list(indices)
        names = source.predictor.names
        self.names = tuple(names[index] for index in self._indices)
        # Computed in the precision of the projections, and given in that of x.
        self._mean = self._gather([group.mean for group in groups])
        self.mean = self._mean.to(self._x.dtype)
        self._prior_variance = self._gather([group.prior_variance for group in groups])
        self._shared = self._gather([group.shared for group in groups], dim=-3)  # (*batch, C, R, n)
        own = [_own_variance(group) for group in groups]
        self._own_variance = self._gather(own)
        variance = self._own_variance + shared_sign * self._shared.square().sum(-2)
        self._variance = keep_positive(variance, self._prior_variance)
        self.variance = self._variance.to(self._x.dtype)

    def _gather(self, parts: Sequence[Tensor], dim: int = -2) -> Tensor:
        """Join a quantity of all groups along the component dimension and take the chosen components."""
        batch = torch.broadcast_shapes(*(part.shape[:dim] for part in parts))
        joined = torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim=dim)
        return (
            joined if self._is_complete else joined.index_select(dim, torch.tensor(self._indices, device=joined.device))
        )

    @property
    def _is_complete(self) -> bool:
        return self._indices == list(range(self._source.predictor.num_components))

    def __getitem__(self, names: str | Sequence[str]) -> ComponentPosterior:
        """
        The joint posterior of some of the components.

        :param names: One name, or several.
        :raises ValueError: If a name is not among :attr:`names`.
        """
        if not isinstance(names, str | Sequence):
            raise ValueError(f"components are chosen by name, got {names!r}; the names are {list(self.names)}")
        names = [names] if isinstance(names, str) else list(names)
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise ValueError(f"unknown components {unknown}; these are the components {list(self.names)}")
        indices = self._source.predictor.component_indices(names)
        return ComponentPosterior(self._source, self._reading, indices, ComponentProjections(self._groups, self._sign))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ComponentPosterior(names={list(self.names)}, mean={tuple(self.mean.shape)})"

    @property
    def stddev(self) -> Tensor:
        """Posterior standard deviations, ``(*batch, C, n)``."""
        return self.variance.clamp_min(torch.finfo(self.variance.dtype).tiny).sqrt()

    def confidence_region(self, num_stddevs: float = 1.96) -> tuple[Tensor, Tensor]:
        """
        Pointwise band around the means; the default is the central 95%.

        :param num_stddevs: Half-width in standard deviations.
        :return: Lower and upper end, ``(*batch, C, n)`` each.
        """
        half_width = num_stddevs * self.stddev
        return self.mean - half_width, self.mean + half_width

    def cross_covariance(self) -> Tensor:
        """
        Covariance between the components in each row.

        :return: ``(*batch, n, C, C)``.
        """
        return covariance_in_rows(self._variance, self._shared, self._sign).to(self._x.dtype)

    def covariance(self) -> Tensor:
        """
        Covariance of each component over the rows.

        :return: ``(*batch, C, n, n)``.
        """
        return (self._own_covariance() + self._sign * (self._shared.mT @ self._shared)).to(self._x.dtype)

    def full_cross_covariance(self) -> Tensor:
        """
        Covariance of every component in every row with every other. It has :math:`(Cn)^2` entries.

        :return: ``(*batch, C, n, C, n)``; entry ``[i, a, j, b]`` belongs to component i in row a and j in row b.
        """
        num_components, _, num_rows = self._shared.shape[-3:]
        stacked = self._shared.mT.flatten(-3, -2)  # (*batch, C n, R)
        full = (self._sign * (stacked @ stacked.mT)).unflatten(-2, (num_components, num_rows))
        full = full.unflatten(-1, (num_components, num_rows))
        own = torch.diag_embed(self._own_covariance().movedim(-3, -1), dim1=-4, dim2=-2)
        return (full + own).to(self._x.dtype)

    def _own_covariance(self) -> Tensor:
        """Covariance over the rows without the coupled part, ``(*batch, C, n, n)``."""
        parts = []
        for own, posterior in zip(self._prior_covariances(), self._groups, strict=True):
            parts.append(own if posterior.block is None else own - posterior.block.mT @ posterior.block)
        return self._gather(parts, dim=-3)

    def _prior_covariances(self) -> list[Tensor]:
        """Prior covariance of each group over the rows, ``(*batch, C_g, n, n)``."""
        x = self._x.to(self._shared.dtype)
        return [group.prior_covariance(x).to_dense() for group in self._source.predictor.groups]

    def centred(self, over: Tensor | Measure | None = None) -> ComponentPosterior:
        r"""
        Joint posterior of the centred effects :math:`f_c - \bar f_c` in the same rows, where :math:`\bar f_c` is the
        mean of the component over reference inputs.

        A kernel that contains constants, such as a plain RBF kernel, shares the level of its component with the
        constant component: the data determine their sum alone. The bands of the component then include how uncertain
        its level is, those of the centred effect do not. mgcv's smooths are centred over the data, which is the default
        here for a posterior at the data. Components with an ANOVA kernel have mean zero under its measure already.
        Multipliers (``by``) are a part of the component; where one is the indicator of a level, take rows of that level
        alone, for x and as reference.

        The prior's share of the average costs :math:`O(m^2)` kernel evaluations a component for m reference rows; of
        more than 4096, equally spaced ones stand for that part of it which the inducing variables do not explain.
        Samples draw the components at the n rows and the reference rows together, :math:`O((n + m)^3)`.

        :param over: The reference inputs. None: the rows of this posterior. A tensor ``(m, D)``: its rows. A
            :class:`~gpytorch_gam.kernels.Measure`: every column of a component has this distribution, independently,
            represented by quadrature nodes.
        :return: The same interface: means, variances, covariances, choice by name, samples. Centred effects sum to the
            predictor without its mean module and without the means of the components.
        :raises TypeError: If ``over`` is none of these.
        :raises ValueError: If columns of these components are missing in a reference row, or if there is a measure and
            a component has a multiplier or reads more than two columns.

        Example:
            >>> effects = model.components(grid).centred(over=train_x[:1000])
            >>> lower, upper = effects["x0"].confidence_region()
        """
        with torch.autocast(self._x.device.type, enabled=False):
            rows = self._read_reference(over) if torch.is_tensor(over) else over
            reference = make_reference(self._source.predictor, self._x, self._indices, rows)
            centres = group_centres(self._source, self._x, self._groups, self._indices, reference)
        return _CentredComponentPosterior(self, reference, centres)

    def _read_reference(self, over: Tensor) -> Tensor:
        """The inputs that reference rows are to the predictor."""
        try:
            return self._source.read(over).inputs
        except ValueError as error:
            raise ValueError(f"over cannot be used: {error}") from error

    def total(self) -> tuple[Tensor, Tensor]:
        """
        Mean and variance of the sum of the components in each row, covariances between them included.

        The mean module is left out, as it is in samples; add :attr:`prior_means`.

        :return: ``(*batch, n)`` each; with P > 1 predictors ``(*batch, P, n)``.
        """
        mean, variance = self._total()
        return mean.to(self._x.dtype), variance.to(self._x.dtype)

    def _total(self) -> tuple[Tensor, Tensor]:
        mean, own, prior = (self._sum(part, -2) for part in (self._mean, self._own_variance, self._prior_variance))
        variance = own + self._sign * self._sum(self._shared, -3).square().sum(-2)
        return mean, keep_positive(variance, prior)

    def predictor_moments(self) -> PredictorMoments:
        """
        Moments in each row of the predictors that consist of these components alone, mean module included.

        :return: Mean ``(*batch, n, P)`` and covariance between predictors ``(*batch, n, P, P)``.
        """
        total, predictor = self._total(), self._source.predictor
        single = predictor.num_predictors == 1
        mean, variance = (part.unsqueeze(-2) for part in total) if single else total
        mean = mean + self.prior_means
        if single:
            covariance = variance.mT.unsqueeze(-1)
        else:
            covariance = covariance_in_rows(variance, self._sum(self._shared, -3), self._sign)
        return PredictorMoments(mean.mT.to(self._x.dtype), covariance.to(self._x.dtype))

    @property
    def distribution(self) -> MultivariateNormal:
        """
        The predictor that consists of these components alone, mean module included, with independent rows: what a
        likelihood takes for predictions without the other components.
        """
        return independent_rows(self.predictor_moments())

    def _sum(self, parts: Tensor, dim: int) -> Tensor:
        """Sum over the components, for several predictors over those of each, which then stand in the same place."""
        predictor = self._source.predictor
        if predictor.num_predictors == 1:
            return parts.sum(dim)
        owner = torch.tensor([predictor.predictor_of[index] for index in self._indices], device=parts.device)
        return torch.stack(
            [
                parts.index_select(dim, (owner == index).nonzero().flatten()).sum(dim)
                for index in range(predictor.num_predictors)
            ],
            dim=dim,
        )

    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        """:meth:`rsample` without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        r"""
        Draw functions from the joint posterior: first the inducing variables of all components, then each component
        given its own. Draws are consistent: their total is the sum of the components, with its posterior distribution.

        The conditional draw factorises an n x n matrix for each component: meant for grids of up to about a thousand
        rows.

        :param sample_shape: Shape of independent draws.
        :return: Draws of the components and of their sum.
        """
        if isinstance(sample_shape, int):
            raise ValueError(f"sample_shape must be a shape such as torch.Size([{sample_shape}]), got {sample_shape}")
        sample_shape = torch.Size(sample_shape)
        drawn = self._source.draw_components(self._x, self.mean.shape[:-2], sample_shape)
        components = self._gather(drawn).to(self.mean.dtype)
        return ComponentSamples(components, self._sum(components, -2))


class _CentredComponentPosterior(ComponentPosterior):
    """:class:`ComponentPosterior` of components from which averages over reference rows are subtracted."""

    def __init__(self, base: ComponentPosterior, reference: Reference, centres: list[GroupCentre]) -> None:
        self._base, self._reference, self._centres = base, reference, centres
        groups = [centred_group(*pair) for pair in zip(base._groups, centres, strict=True)]
        super().__init__(base._source, base._reading, base._indices, ComponentProjections(groups, base._sign))

    def __getitem__(self, names: str | Sequence[str]) -> ComponentPosterior:
        """
        The joint posterior of some of the centred components.

        :param names: One name, or several.
        :raises ValueError: If a name is not among :attr:`names`.
        """
        return _CentredComponentPosterior(self._base[names], self._reference, self._centres)

    def centred(self, over: Tensor | Measure | None = None) -> ComponentPosterior:
        """
        The components centred over other inputs instead.

        :param over: The reference inputs.
        """
        return self._base.centred(over)

    def _prior_covariances(self) -> list[Tensor]:
        pairs = zip(super()._prior_covariances(), self._centres, strict=True)
        return [centred_prior_covariance(*pair) for pair in pairs]

    def rsample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        """
        Draw functions from the joint posterior, and subtract the mean of each over the reference rows.

        :param sample_shape: Shape of independent draws.
        :return: Draws of the centred components and of their sum.
        :raises ValueError: If there are more than 4096 reference rows.
        """
        if self._reference.is_thinned:
            count = self._reference.weights.shape[-1]
            raise ValueError(
                f"samples are drawn at the reference rows as well, and {count} are too many: centre over a "
                "part of them, such as over=x[torch.randperm(len(x))[:1000]], for samples"
            )
        rows, weights = self._reference.rows, self._reference.weights[self._indices].to(self.mean.dtype)
        if rows is None:
            drawn = self._base.rsample(sample_shape).components
            at_x = at_rows = drawn
        else:
            batch = torch.broadcast_shapes(self._x.shape[:-2], rows.shape[:-2])
            joint = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (self._x, rows)], dim=-2)
            reading = self._reading._replace(inputs=joint)  # whose means draws of components do without
            drawn = ComponentPosterior(self._source, reading, self._indices).rsample(sample_shape).components
            at_x, at_rows = drawn.split([self._x.shape[-2], rows.shape[-2]], dim=-1)
        first = at_rows[..., :1]
        components = at_x - first - ((at_rows - first) * weights).sum(-1, keepdim=True)
        return ComponentSamples(components, self._sum(components, -2))


def _own_variance(group: GroupPosterior) -> Tensor:
    return group.prior_variance if group.block is None else group.prior_variance - group.block.square().sum(-2)


def draw_given_inducing(group: ComponentGroup, x: Tensor, cholesky: Tensor, whitened: Tensor) -> Tensor:
    r"""
    Draw :math:`f_c \mid \mathbf v_c \sim N(\phi_c^\top \mathbf v_c, k_c - \phi_c^\top \phi_c)` in float64.

    :param cholesky: :math:`L_c`, ``(*batch, num_blocks, size, size)``.
    :param whitened: draws of :math:`\mathbf v_c`, ``(*sample_shape, *batch, num_blocks, size, 1)``.
    :return: ``(*sample_shape, *batch, C_g, n)``.
    """
    inputs = group.select(x).double()
    covariance = group.evaluate_kernel(group.inducing_points.double(), inputs)
    features = solve_in_blocks(cholesky, covariance)
    whitened = whitened.flatten(-3).unflatten(-1, (group.num_components, group.num_inducing))
    mean = multiply_draws(features.mT, whitened)
    multiplier, missing = group.multiplier(x), group.missing_variance(x)
    is_free = group.undetermined_rows(x, cholesky) if group.exact else None
    if is_free is None or is_free.any():
        prior = group.evaluate_kernel(inputs)
        # Relative to the prior's variance, in whatever units that is; what is added is far below the jitter on K.
        scale = prior.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(torch.finfo(prior.dtype).tiny)
        relative = (prior - features.mT @ features) / scale
        identity = torch.eye(relative.shape[-1], dtype=relative.dtype, device=relative.device)
        root = psd_safe_cholesky(relative + SAMPLING_JITTER * identity) * scale.sqrt()
        if is_free is not None:
            root = root * is_free.unsqueeze(-1)
        mean = mean + multiply_draws(root, torch.randn(mean.shape, dtype=mean.dtype, device=mean.device))
    mean = mean if multiplier is None else mean * multiplier
    if missing is None:
        return mean
    # Held above zero for the gradient of the root, which is masked where nothing is missing.
    own_scale = missing.clamp_min(torch.finfo(missing.dtype).tiny).sqrt() * (missing > 0)
    return mean + own_scale * torch.randn_like(mean)


def multiply_draws(matrix: Tensor, draws: Tensor) -> Tensor:
    """
    The product of a matrix with each draw. Draws become columns: broadcasting would copy the matrix for each of them.

    :param matrix: ``(*batch, k, m)``.
    :param draws: ``(*sample_shape, *batch, m)``.
    :return: ``(*sample_shape, *batch, k)``.
    """
    num_leading = draws.dim() - matrix.dim() + 1
    if num_leading <= 0:
        return (matrix @ draws.unsqueeze(-1)).squeeze(-1)
    columns = draws.flatten(0, num_leading - 1).movedim(0, -1)
    return (matrix @ columns).movedim(-1, 0).unflatten(0, draws.shape[:num_leading])
