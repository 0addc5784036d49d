"""Joint posterior of the additive components at given inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows
from gpytorch_gam.kernels import Measure
from gpytorch_gam.numerics.marginals import Marginals, marginal_moments

from ._centring import GroupCentre, Reference, centred_group, centred_prior_covariance, group_centres, make_reference
from .component_source import ComponentProjections, ComponentSource


class ComponentSamples(NamedTuple):
    """
    Joint draws of components and their sum.

    :ivar components: The draws ``(*sample_shape, *batch, C, n)``; without C for a component chosen by its name.
    :ivar total: The sum of the drawn components, without the mean module, ``(*sample_shape, *batch, n)``; with several
        predictors ``(*sample_shape, *batch, P, n)``.
    """

    components: Tensor
    total: Tensor


class ComponentPosterior:
    r"""
    Joint posterior of C components :math:`f_1, \dots, f_C` at n rows of ``x``, made by
    :meth:`AdditiveVariationalStrategy.components`.

    With the coupled part :math:`s_i(\mathbf x) = F_i^\top \phi_i(\mathbf x)` and each component's own part
    :math:`V_i^\top \phi_i`,

    .. math::
        \mathrm{cov}(f_i(\mathbf x), f_j(\mathbf x')) = \delta_{ij} [k_i(\mathbf x, \mathbf x')
        - (V_i^\top\phi_i(\mathbf x))^\top (V_i^\top\phi_i(\mathbf x'))] - s_i(\mathbf x)^\top s_j(\mathbf x').

    Indexing by a list of names gives the joint posterior of these components. Indexing by one name gives that of one
    function, whose results have no dimension for the components, as with the columns of a data frame.

    The mean modules of the predictor, and a mean that the model's ``forward`` adds, belong to no component.

    Means and variances are those of the time when it was made; covariances over rows and samples are computed when they
    are asked for, from the model's parameters at that time. Make a new one after changing the model.

    :ivar names: The names of the components, in order.
    :ivar mean: The posterior means, ``(*batch, C, n)``.
    :ivar variance: The posterior variances, ``(*batch, C, n)``.
    :ivar prior_means: The predictors' means beside the components, ``(*batch, P, n)``.

    Example:
        >>> parts = model.variational_strategy.components(x)
        >>> parts["x0"].mean, parts["x0"].stddev     # effect of x0 with its standard deviation, (n,) each
        >>> parts[["x0", "x1"]].mean                 # (2, n)
        >>> parts.cross_covariance()                 # n x C x C: how the components trade off in each row
        >>> parts.sample(torch.Size([100])).components  # 100 x C x n
    """

    def __init__(
        self,
        source: ComponentSource,
        reading: Reading,
        names: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        projections: ComponentProjections | None = None,
    ) -> None:
        self._source, self._reading, self._x, self.prior_means = source, reading, reading.inputs, reading.means
        self._indices = source.predictor.component_indices(names, exclude)
        self.names = tuple(source.predictor.names[index] for index in self._indices)
        self._is_single = isinstance(names, str)
        self._projections = source.component_projections(reading.inputs) if projections is None else projections
        groups, sign = self._projections
        # Computed in the dtype of the projections, and returned in that of x.
        self._prior_variance = self._gather([group.prior_variance for group in groups])
        self._own_squares = self._gather([group.own_squares for group in groups])
        self._marginals = marginal_moments(
            self._gather([group.mean for group in groups]),
            self._prior_variance,
            self._own_squares,
            self._gather([group.shared for group in groups], dim=-3),
            sign,
        )
        self.mean, self.variance = self._given(self._marginals.mean, -2), self._given(self._marginals.variance, -2)

    def _gather(self, parts: Sequence[Tensor], dim: int = -2, every: Sequence[int] | None = None) -> Tensor:
        """
        Concatenate a quantity of all groups, or of those with the components ``every``, along the component dimension
        and select the chosen components.
        """
        batch = torch.broadcast_shapes(*(part.shape[:dim] for part in parts))
        joined = torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim=dim)
        every = range(self._source.predictor.num_components) if every is None else every
        if self._indices == list(every):
            return joined
        chosen = [every.index(index) for index in self._indices]
        return joined.index_select(dim, torch.tensor(chosen, device=joined.device))

    def _given(self, values: Tensor, *component_dims: int) -> Tensor:
        """Convert to the dtype of x, and drop the components' dimensions if a component was chosen by its name."""
        return (values.squeeze(component_dims) if self._is_single else values).to(self._x.dtype)

    @property
    def _selection(self) -> str | Sequence[str]:
        return self.names[0] if self._is_single else self.names

    def __getitem__(self, names: str | Sequence[str]) -> ComponentPosterior:
        """
        The posterior of one component by its name, or the joint posterior of several in a list.

        :param names: One name, or several.
        :raises TypeError: If it is neither.
        :raises ValueError: If a name is not among ``names``.
        """
        if not isinstance(names, str | Sequence):
            raise TypeError(
                f"components are chosen by name, got {checks.shown(names)}; the names are {list(self.names)}"
            )
        unknown = [name for name in ([names] if isinstance(names, str) else names) if name not in self.names]
        if unknown:
            raise ValueError(f"unknown components {unknown}; these are the components {list(self.names)}")
        return self._chosen(names)

    def _chosen(self, names: str | Sequence[str]) -> ComponentPosterior:
        return ComponentPosterior(self._source, self._reading, names, projections=self._projections)

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
        Lower and upper end ``(*batch, C, n)`` of pointwise bands around the means; the default is the central 95%.

        :param num_stddevs: Half-width in standard deviations.
        """
        half_width = num_stddevs * self.stddev
        return self.mean - half_width, self.mean + half_width

    def cross_covariance(self) -> Tensor:
        """The covariance between the components in each row, ``(*batch, n, C, C)``."""
        return self._given(self._marginals.covariance_in_rows(), -2, -1)

    def covariance(self) -> Tensor:
        """The covariance of each component over the rows, ``(*batch, C, n, n)``."""
        shared = self._marginals.shared
        return self._given(self._own_covariance() + self._marginals.sign * (shared.mT @ shared), -3)

    def full_cross_covariance(self) -> Tensor:
        """
        The covariance of every component in every row with every other, ``(*batch, C, n, C, n)``: entry ``[i, a, j,
        b]`` belongs to component i in row a and j in row b.
        """
        num_components, _, num_rows = self._marginals.shared.shape[-3:]
        stacked = self._marginals.shared.mT.flatten(-3, -2)  # (*batch, C n, R)
        full = (self._marginals.sign * (stacked @ stacked.mT)).unflatten(-2, (num_components, num_rows))
        full = full.unflatten(-1, (num_components, num_rows))
        own = torch.diag_embed(self._own_covariance().movedim(-3, -1), dim1=-4, dim2=-2)
        return self._given(full + own, -4, -2)

    def _own_covariance(self) -> Tensor:
        """The covariance over the rows without the coupled part, ``(*batch, C, n, n)``."""
        parts = []
        for own, posterior in zip(self._prior_covariances(), self._projections.groups, strict=True):
            parts.append(own if posterior.block is None else own - posterior.block.mT @ posterior.block)
        return self._gather(parts, dim=-3)

    def _prior_covariances(self) -> list[Tensor]:
        """The prior covariance of each group over the rows, ``(*batch, C_g, n, n)``."""
        x = self._x.to(self._prior_variance.dtype)
        pairs = zip(self._source.predictor.groups, self._projections.groups, strict=True)
        return [group.prior_covariance(x, posterior.unknown).to_dense() for group, posterior in pairs]

    def centred(self, over: Tensor | Measure | None = None) -> ComponentPosterior:
        r"""
        Joint posterior of the centred effects :math:`f_c - \bar f_c` in the same rows, where :math:`\bar f_c` is the
        mean of the component over reference inputs.

        A kernel that contains constants, such as a plain RBF kernel, shares the level of its component with the
        constant component: the data determine their sum alone. The bands of the component then include the uncertainty
        of its level, those of the centred effect do not. mgcv's smooths are centred over the data, which is the default
        here for a posterior at the data. Components with an ANOVA kernel have mean zero under its measure already.
        Multipliers (``by``) are a part of the component; where one is the indicator of a level, take rows of that level
        alone, for x and as reference.

        The prior variance of the average costs :math:`O(m^2)` kernel evaluations a component for m reference rows; with
        more than 4096, equally spaced ones are used for the part that the inducing variables do not explain.
        Samples draw the components at the n rows and the reference rows together, :math:`O((n + m)^3)`.

        :param over: The reference inputs. None: the rows of this posterior. A tensor ``(m, D)``: its rows. A
            :class:`~gpytorch_gam.kernels.Measure`: every column of a component has this distribution, independently,
            represented by quadrature nodes.
        :return: The centred effects, with the same interface: means, variances, covariances, choice by name, samples.
            They sum to the predictor without its mean module and without the means of the components.
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
            centres = group_centres(self._source, self._x, self._projections.groups, self._indices, reference)
        return _CentredComponentPosterior(self, reference, centres)

    def _read_reference(self, over: Tensor) -> Tensor:
        """The predictor's inputs at reference rows of the model's inputs."""
        try:
            return self._source.read(over).inputs
        except ValueError as error:
            raise ValueError(f"over cannot be used: {error}") from error

    def total(self) -> tuple[Tensor, Tensor]:
        """
        Mean and variance of the sum of the components in each row, with the covariances between them, ``(*batch, n)``
        each; with P > 1 predictors ``(*batch, P, n)``. The mean module is left out, as it is in samples; add
        :attr:`prior_means`.
        """
        totals = self._totals()
        return self._of_predictors(totals.mean), self._of_predictors(totals.variance)

    def _totals(self) -> Marginals:
        mean, _, shared, sign = self._marginals
        mean, prior, own = (self._sum(part, -2) for part in (mean, self._prior_variance, self._own_squares))
        return marginal_moments(mean, prior, own, self._sum(shared, -3), sign)

    def predictor_moments(self) -> PredictorMoments:
        """
        Mean ``(*batch, n, P)`` and covariance ``(*batch, n, P, P)`` in each row of the predictors that consist of these
        components alone, mean module included.
        """
        totals = self._totals()
        return PredictorMoments.of(totals._replace(mean=totals.mean + self.prior_means), self._x.dtype)

    @property
    def distribution(self) -> MultivariateNormal:
        """
        The predictor that consists of these components alone, mean module included, with independent rows. A likelihood
        takes it for predictions without the other components.
        """
        return independent_rows(self.predictor_moments())

    def _sum(self, parts: Tensor, dim: int) -> Tensor:
        """Sum over the components of each of P predictors; dimension ``dim`` becomes P."""
        predictor = self._source.predictor
        if predictor.num_predictors == 1:
            return parts.sum(dim, keepdim=True)
        owner = torch.tensor([predictor.predictor_of[index] for index in self._indices], device=parts.device)
        members = [(owner == index).nonzero().flatten() for index in range(predictor.num_predictors)]
        return torch.stack([parts.index_select(dim, chosen).sum(dim) for chosen in members], dim=dim)

    def _of_predictors(self, values: Tensor) -> Tensor:
        """Values ``(*batch, P, n)`` in the dtype of x; a single predictor's dimension is dropped."""
        return (values.squeeze(-2) if self._source.predictor.num_predictors == 1 else values).to(self._x.dtype)

    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        """:meth:`rsample` without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        """
        Draw functions from the joint posterior: first the inducing variables of all components, then each component
        given its own. Draws are consistent: their total is the sum of the components, with its posterior distribution.

        The conditional draw factorises an n x n matrix for each component; it is meant for grids of up to about a
        thousand rows.

        :param sample_shape: Shape of independent draws.
        :return: Draws of the components and of their sum.
        """
        components = self._draw(checks.shape("sample_shape", sample_shape))
        return ComponentSamples(self._given(components, -2), self._of_predictors(self._sum(components, -2)))

    def _draw(self, sample_shape: torch.Size) -> Tensor:
        """Draws of the chosen components, ``(*sample_shape, *batch, C, n)``."""
        return self._draw_at(self._x, sample_shape)

    def _draw_at(self, inputs: Tensor, sample_shape: torch.Size) -> Tensor:
        batch_shape = torch.broadcast_shapes(self._marginals.mean.shape[:-2], inputs.shape[:-2])
        owners = [place for place, group in enumerate(self._source.predictor.groups) for _ in group.names]
        places = sorted({owners[index] for index in self._indices})
        drawn = self._source.draw_components(inputs, batch_shape, sample_shape, places)
        every = [index for index, owner in enumerate(owners) if owner in places]
        return self._gather(drawn, every=every).to(inputs.dtype)


class _CentredComponentPosterior(ComponentPosterior):
    """The joint posterior of components minus their averages over reference rows."""

    def __init__(self, base: ComponentPosterior, reference: Reference, centres: list[GroupCentre]) -> None:
        self._base, self._reference, self._centres = base, reference, centres
        groups, sign = base._projections
        centred = ComponentProjections([centred_group(*pair) for pair in zip(groups, centres, strict=True)], sign)
        super().__init__(base._source, base._reading, base._selection, projections=centred)

    def _chosen(self, names: str | Sequence[str]) -> ComponentPosterior:
        return _CentredComponentPosterior(self._base[names], self._reference, self._centres)

    def centred(self, over: Tensor | Measure | None = None) -> ComponentPosterior:
        """The components centred over other reference inputs instead."""
        return self._base.centred(over)

    def _prior_covariances(self) -> list[Tensor]:
        pairs = zip(super()._prior_covariances(), self._centres, strict=True)
        return [centred_prior_covariance(*pair) for pair in pairs]

    def _draw(self, sample_shape: torch.Size) -> Tensor:
        if self._reference.is_thinned:
            count = self._reference.weights.shape[-1]
            raise ValueError(
                f"samples are drawn at the reference rows as well, and {count} are too many: centre over a "
                "part of them, such as over=x[torch.randperm(len(x))[:1000]], for samples"
            )
        rows, weights = self._reference.rows, self._reference.weights[self._indices].to(self._x.dtype)
        if rows is None:
            at_x = at_rows = self._draw_at(self._x, sample_shape)
        else:
            batch = torch.broadcast_shapes(self._x.shape[:-2], rows.shape[:-2])
            joint = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (self._x, rows)], dim=-2)
            at_x, at_rows = self._draw_at(joint, sample_shape).split([self._x.shape[-2], rows.shape[-2]], dim=-1)
        first = at_rows[..., :1]
        return at_x - first - ((at_rows - first) * weights).sum(-1, keepdim=True)
