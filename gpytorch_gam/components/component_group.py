"""Components of equal shape, evaluated together as one batched kernel."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gpytorch
import torch
from gpytorch.kernels import Kernel
from gpytorch.settings import trace_mode
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    RootLinearOperator,
    SumLinearOperator,
    to_linear_operator,
)
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.kernels.evaluation import evaluate
from gpytorch_gam.kernels.joined_kernels import joined, structure_of
from gpytorch_gam.kernels.level_kernel import level_column
from gpytorch_gam.numerics.transforms import for_transforms, is_transformed
from gpytorch_gam.numerics.triangular import safe_cholesky, solve_in_blocks, triangular_solve
from gpytorch_gam.parameters.structure import STATE_KEY, Structure, as_bytes, difference, from_bytes, kernel_structure
from gpytorch_gam.projection.blockwise import kernel_matrix, plain_kernel
from gpytorch_gam.projection.separable_form import separable_form

from ._group_arguments import (
    check_kernel,
    checked_by,
    checked_by_levels,
    checked_columns,
    checked_inducing_points,
    checked_levels,
    checked_names,
)
from ._level_rows import LevelRows, find_levels, level_blocks
from ._mean_variance import is_product_of_scales, mean_diagonal, product_of_scales
from .inducing_points import filled_up
from .levels import Levels
from .names import default_names
from .point_placement import PointPlacement

# The tensors of a group, all with the components in the first dimension.
_JOINED_TENSORS = ("inducing_points", "columns", "_by_columns", "_has_by", "_indicated_levels", "_is_indicator")


class GroupRows(NamedTuple):
    """A group at its inducing points and at rows of data."""

    cholesky: Tensor  # of the inducing covariance in float64, (*batch, num_blocks, size, size)
    features: Tensor  # (*batch, C_g, M, n)
    prior_variance: Tensor  # see ComponentGroup.observed_variance, (*batch, C_g, n)


class ComponentGroup(gpytorch.Module):
    r"""
    :math:`C_g` additive components of equal shape: one kernel class, one input dimension :math:`d`, one number of
    inducing points :math:`M`. The components are evaluated by a single call of a batched kernel.

    Component :math:`c` is :math:`f_c(\mathbf x) = b_c(\mathbf x) \, g_c(\mathbf x_c)` with :math:`g_c \sim GP(0, k_c)`,
    where :math:`\mathbf x_c` are the columns of the component and :math:`b_c` is 1, or the column named by ``by`` (what
    mgcv calls a varying coefficient), or with ``by_levels`` the indicator that this column holds a level.

    The component dimension always stands directly left of the data dimensions: kernels have batch shape
    ``(*batch, C_g)``, inducing points ``(*batch, C_g, M, d)``, covariances ``(*batch, C_g, M, n)``.

    :param kernel: A kernel over :math:`d` columns. Its batch shape is ``(*batch, C_g)`` if each component has
        hyperparameters of its own, or ``()`` (or any shape that broadcasts) for shared ones. Its ``active_dims`` count
        the columns of a component (0 to d - 1), not those of ``x``.
    :param columns: For each component the columns of ``x`` it reads: ``C_g`` sequences of ``d`` indices. Columns may
        overlap and repeat between components. ``[[]]`` is a component without inputs, that is a constant.
    :param inducing_points: ``(*batch, C_g, M, d)``, or ``(M, d)`` to start every component at the same places, or a
        sequence of ``C_g`` tensors ``(M, d)``.
    :param names: One name a component. Default: built from the columns, such as ``x0``, ``x0:x1``, ``x0*x2`` for a
        multiplier, ``x0|x2=Oslo`` for a level; and ``x0.1`` for predictor 1.
    :param by: Multiplier column of each component (``None`` for none), or one index for all of them. With an ANOVA
        kernel :math:`g_c` has mean zero, which leaves the linear effect of the multiplier itself to another component.
    :param by_levels: For each component the level (a code) of its ``by`` column to whose rows it is confined; in other
        rows it is zero. None for a component whose ``by`` column is a multiplier, or which has no such column.
    :param levels: For each column that is a category, its levels. Any other value in the column is an error, unless the
        levels allow unseen ones, which the kernel must then be able to handle.
    :param missing: The meaning of NaN in the columns that a component reads. "error": it is refused. "marginal": the
        component is unknown in such a row. Predictions have mean zero there, and for a variance the mean of its square
        over the inducing points, independently of all other rows. In the prior that is the output scale with normalised
        ANOVA kernels, and otherwise the mean of the variances. Training takes the mean alone, with a variance of zero,
        so that such rows say nothing of the component, its hyperparameters included, and something of all others; how
        much it varies there is taken for noise. See :doc:`/theory/model`, also for when this is biased. NaN in ``by``
        columns is an error in either case.
    :param predictor: The number of the additive predictor, in a likelihood of several parameters, to which the
        components belong.
    :param learn_inducing_locations: Whether the inducing points are parameters; otherwise they are buffers.
    :param exact: Declare that the inducing variables determine the components everywhere (a constant, the levels of a
        factor). No jitter is added to the covariance of such a group, so it must be well conditioned.
    :param placement: Places for other numbers of inducing points, from which a fit may choose. Default: none, the
        number is that of ``inducing_points``.
    :ivar names: One name a component.
    :ivar predictor_index: The additive predictor that the components belong to.
    :ivar levels: The levels of each column that is a category.
    :ivar multiplier_columns: The ``by`` column of each component, be it a multiplier or a category, or None.
    :ivar multiplier_levels: The level of the ``by`` column to whose rows a component is confined, or None.
    :ivar placement: Places for other numbers of inducing points, or None if their number is fixed.
    :ivar has_multiplier: Whether any component has a ``by`` column.
    :ivar max_column: The largest index of a column in use, -1 if no column is.
    :raises TypeError: If an argument has the wrong type.
    :raises ValueError: If shapes, columns or names do not fit each other.

    Example:
        >>> kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2]))
        >>> group = ComponentGroup(kernel, columns=[[0], [3]], inducing_points=regular_grid(0.0, 1.0, 16))
    """

    columns: Tensor
    inducing_points: Tensor
    _by_columns: Tensor
    _has_by: Tensor
    _indicated_levels: Tensor
    _is_indicator: Tensor

    def __init__(
        self,
        kernel: Kernel,
        columns: Sequence[Sequence[int]],
        inducing_points: Tensor | Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        by: int | Sequence[int | None] | None = None,
        by_levels: Sequence[float | None] | None = None,
        levels: Mapping[int, Levels] | None = None,
        missing: Literal["error", "marginal"] = "error",
        predictor: int = 0,
        learn_inducing_locations: bool = False,
        exact: bool = False,
        placement: PointPlacement | None = None,
    ) -> None:
        super().__init__()
        columns = checked_columns(columns)
        by = checked_by(by, len(columns))
        self.levels = checked_levels(levels, columns, by)
        self.multiplier_levels = checked_by_levels(by_levels, by, self.levels)
        if names is None:
            self.names = default_names(columns, by, self.multiplier_levels, self.levels, predictor)
        else:
            self.names = checked_names(names, len(columns))
        label = f"component group {list(self.names)}"
        self.predictor_index = checks.integer(f"predictor of {label}", predictor, least=0)
        self.exact = checks.flag("exact", exact)
        self.missing = checks.choice(f"missing of {label}", missing, ("error", "marginal"))
        if checks.flag("learn_inducing_locations", learn_inducing_locations) and exact:
            raise ValueError(
                f"{label} is exact, so its inducing points (levels, or none) cannot be learnt: leave "
                "learn_inducing_locations=False"
            )
        if placement is not None and not isinstance(placement, PointPlacement):
            raise TypeError(f"placement of {label} must be a PointPlacement or None, got {checks.shown(placement)}")
        if placement is not None and exact:
            raise ValueError(f"{label} is exact, so other inducing points have no place in it: leave out placement")
        self.placement = placement
        inducing_points = checked_inducing_points(label, inducing_points, len(columns), len(columns[0]))
        check_kernel(label, kernel, inducing_points)
        self.kernel = kernel
        if learn_inducing_locations and columns[0]:
            self.register_parameter("inducing_points", torch.nn.Parameter(inducing_points))
        else:
            self.register_buffer("inducing_points", inducing_points)
        self.multiplier_columns = by
        tables = {
            "columns": torch.tensor(columns, dtype=torch.long).reshape(len(columns), -1),
            # Components without a multiplier point at column 0 and are masked when the multiplier is evaluated.
            "_by_columns": torch.tensor([0 if column is None else column for column in by]),
            "_has_by": torch.tensor([column is not None for column in by]),
            "_indicated_levels": torch.tensor(
                [math.nan if level is None else level for level in self.multiplier_levels], dtype=torch.float32
            ),
            "_is_indicator": torch.tensor([level is not None for level in self.multiplier_levels]),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)
        # Kept on the CPU, so that nothing waits for a device to read it.
        self._component_columns = columns
        self.has_multiplier = any(column is not None for column in by)
        self._has_indicator = any(level is not None for level in self.multiplier_levels)
        self.max_column = max([-1, *(c for row in columns for c in row), *(c for c in by if c is not None)])
        self._has_known_mean_variance = is_product_of_scales(kernel, self.input_dim)
        self._level_blocks = None if learn_inducing_locations else level_blocks(kernel, inducing_points)

    @property
    def num_components(self) -> int:
        """The number of components :math:`C_g`."""
        return self.columns.shape[0]

    @property
    def input_dim(self) -> int:
        """The number of columns :math:`d` that each component reads."""
        return self.columns.shape[1]

    @property
    def num_inducing(self) -> int:
        """The number of inducing points :math:`M` of each component."""
        return self.inducing_points.shape[-2]

    @property
    def block_shape(self) -> tuple[int, int]:
        """
        The number and the size of the diagonal blocks of the prior covariance of the inducing variables: one block a
        component, or one a level where levels are independent, as in :func:`random_effect` and :func:`factor_smooth`.
        """
        if self._level_blocks is None:
            return self.num_components, self.num_inducing
        return self.num_components * self._level_blocks.num_levels, self._level_blocks.num_places

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of independent models, without the component dimension."""
        with_components = torch.broadcast_shapes(self.kernel.batch_shape, self.inducing_points.shape[:-2])
        return torch.Size(with_components[:-1])

    def joining_key(self) -> Hashable | None:
        """What groups that can be joined by :meth:`joined` have in common; None for a group that has to stay alone."""
        points = self.inducing_points
        if type(self) is not ComponentGroup or self._level_blocks is not None or points.dim() != 3:
            return None
        structure = structure_of(self.kernel)
        if structure is None:
            return None
        multipliers = self.has_multiplier, self._has_indicator
        return structure, points.shape[1:], points.dtype, points.device, self.exact, self.missing, *multipliers

    @classmethod
    def joined(cls, groups: Sequence[ComponentGroup]) -> ComponentGroup:
        """
        The components of several groups as one, which takes as many operations to evaluate as any of them. It has no
        parameters of its own, and gradients go to those of the groups.

        :param groups: Groups with the same :meth:`joining_key`.
        :return: A group for use before any of the groups is changed.
        """
        first, counts = groups[0], [group.num_components for group in groups]
        whole = cls.__new__(cls)
        whole.__dict__.update(first.__dict__)
        tensors = {name: torch.cat([getattr(group, name) for group in groups]) for name in _JOINED_TENSORS}
        whole.__dict__.update(
            _parameters={},
            _buffers=tensors,
            _modules={"kernel": joined([group.kernel for group in groups], counts)},
            names=tuple(name for group in groups for name in group.names),
            levels={column: levels for group in groups for column, levels in group.levels.items()},
            max_column=max(group.max_column for group in groups),
            multiplier_columns=[column for group in groups for column in group.multiplier_columns],
            multiplier_levels=[level for group in groups for level in group.multiplier_levels],
            _component_columns=[columns for group in groups for columns in group._component_columns],
        )
        return whole

    def get_extra_state(self) -> Tensor:
        """The properties of the group that are no numbers of its state: names, columns, levels and kinds of kernels."""
        return as_bytes(self._structure())

    def set_extra_state(self, state: Any) -> None:
        """Do nothing: :meth:`check_state` was called before anything was loaded."""

    def more_inducing_points(self) -> Tensor | None:
        """
        The next larger set of inducing points, ``(*batch, C_g, M, d)``, which keeps points whose locations are learnt;
        None if their number is fixed or the largest.
        """
        points = None if self.placement is None else self.placement.more_points(self.num_inducing)
        if points is None:
            return None
        present = self.inducing_points.detach()
        points = points.to(present).expand(*present.shape[:-2], *points.shape[-2:])
        if not isinstance(self.inducing_points, torch.nn.Parameter):
            return points.clone()
        pairs = zip(present.flatten(0, -3), points.flatten(0, -3), strict=True)
        return torch.stack([filled_up(own, others, len(others)) for own, others in pairs]).view_as(points)

    def replace_inducing_points(self, points: Tensor) -> None:
        """
        Set inducing points whose number differs from the present one; those that are learnt become another parameter.

        :param points: The points, ``(*batch, C_g, M, d)``.
        """
        present = self.inducing_points
        points = points.detach().to(present, copy=True)
        is_learnt = isinstance(present, torch.nn.Parameter)
        self.inducing_points = torch.nn.Parameter(points, requires_grad=present.requires_grad) if is_learnt else points
        self._level_blocks = None if is_learnt else level_blocks(self.kernel, points)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check_state(self, state_dict: Mapping[str, Any], prefix: str = "", any_number: bool = False) -> None:
        """
        Raise an error unless a state is one of a group with the same names, columns, levels and kinds of kernels.

        :param state_dict: A state with the entries of the group.
        :param prefix: The beginning of the names of these entries.
        :param any_number: Whether the state may have another number of inducing points, if this is left to a fit.
        :raises ValueError: If the state is that of another group.
        """
        key = prefix + STATE_KEY
        if key not in state_dict:
            return  # torch raises its own error, unless strict=False
        own = self._structure()
        if any_number and self.placement is not None:
            del own["num_inducing"]
        found = difference(from_bytes(state_dict[key]), own)
        if found is not None:
            raise ValueError(
                f"the state is that of other components than {list(self.names)}: {found}. Make the model with the "
                f"terms that were trained. (Without the entry {key!r}, a state is loaded unseen with strict=False.)"
            )

    def _structure(self) -> Structure:
        return {
            "names": list(self.names),
            "predictor": self.predictor_index,
            "columns": self._component_columns,
            "by": self.multiplier_columns,
            "by_levels": list(self.multiplier_levels),
            "levels": {
                str(column): [list(pair) for pair in zip(levels.codes, levels.labels, strict=True)]
                for column, levels in self.levels.items()
            },
            "exact": self.exact,
            "num_inducing": self.num_inducing,
            "kernel": kernel_structure(self.kernel),
        }

    def names_reading(self, column: int) -> list[str]:
        """
        Names of the components that read a column of ``x``, as an input or in ``by``.

        :param column: The index of the column.
        """
        read = zip(self.names, self._component_columns, self.multiplier_columns, strict=True)
        return [name for name, columns, multiplier in read if column in (*columns, multiplier)]

    def select(self, x: Tensor) -> Tensor:
        """
        The columns that each component reads. An inducing point stands in for missing values, if these are allowed; the
        results for such rows are masked by :meth:`multiplier`.

        :param x: Inputs ``(*batch, n, D)``.
        :return: Inputs of the components ``(*batch, C_g, n, d)``.
        """
        gathered = x.mT[..., self.columns.reshape(-1), :]  # (*batch, C_g * d, n)
        return self.without_missing(gathered.unflatten(-2, self.columns.shape).mT)

    def without_missing(self, selected: Tensor) -> Tensor:
        """
        Inputs of the components with an inducing point in the place of missing values, if these are allowed.

        :param selected: Inputs of the components ``(*batch, C_g, n, d)``.
        """
        if not self._allows_missing:
            return selected
        points = self.inducing_points.detach()
        # Any point at which kernels are finite
        stand_in = points.reshape(-1, *points.shape[-3:])[0, :, :1].to(selected.dtype)
        return torch.where(selected.isnan(), stand_in, selected)

    @property
    def _allows_missing(self) -> bool:
        return self.missing == "marginal" and self.input_dim > 0

    def multiplier(self, x: Tensor) -> Tensor | None:
        """
        The values of the ``by`` columns or the indicators of their levels, 1 for components without such a column, and
        0 in rows where a column that the component reads is missing.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The multipliers ``(*batch, C_g, n)``, or None if they are one for all components, whatever the inputs.
        """
        multiplier = self._by_multiplier(x)
        if not self._allows_missing:
            return multiplier
        is_missing = self._is_missing(x)
        if multiplier is None:
            return (~is_missing).to(x.dtype)
        return torch.where(is_missing, torch.zeros_like(multiplier), multiplier)

    def _by_multiplier(self, x: Tensor) -> Tensor | None:
        return self.multiplier_of(x.mT[..., self._by_columns, :]) if self.has_multiplier else None

    def multiplier_of(self, values: Tensor) -> Tensor:
        """
        The multipliers for values of the ``by`` columns: the values, or the indicators of their levels.

        :param values: Values of each component's ``by`` column ``(*batch, C_g, n)``; without one, any.
        """
        if self._has_indicator:
            # Compared in single precision, as by level kernels: 0.1 is one level in float32 and in float64.
            has_level = values.float() == self._indicated_levels.float().unsqueeze(-1)
            values = torch.where(self._is_indicator.unsqueeze(-1), has_level.to(values.dtype), values)
        return torch.where(self._has_by.unsqueeze(-1), values, torch.ones_like(values))

    def _is_missing(self, x: Tensor) -> Tensor:
        """Whether a column that a component reads is NaN in a row, ``(*batch, C_g, n)``."""
        missing = x.isnan().mT[..., self.columns.reshape(-1), :]
        return missing.unflatten(-2, self.columns.shape).any(-2)

    def mean_prior_variance(self) -> Tensor:
        """
        The prior variance of the components in rows where their columns are missing, without multipliers: see
        ``missing``.

        :return: The variances ``(*batch, C_g)``, or a shape that broadcasts to it.
        """
        if self._has_known_mean_variance:
            scales = product_of_scales(self.kernel)
            points = self.inducing_points
            return scales if torch.is_tensor(scales) else points.new_full(points.shape[:-2], scales)
        return mean_diagonal(self.kernel, self.inducing_points.detach())

    def missing_variance(self, x: Tensor, factor: Tensor | None = None) -> Tensor | None:
        """
        The part of :meth:`prior_variance` that comes from rows in which a column of a component is missing, and which
        is independent of all other rows.

        :param x: Inputs ``(*batch, n, D)``.
        :param factor: What a posterior makes of these variances, relative to the prior, ``(*batch, C_g)``.
        :return: The variances ``(*batch, C_g, n)``, 0 where nothing is missing; None if missing values are not allowed.
        """
        if not self._allows_missing:
            return None
        variance, multiplier = self.mean_prior_variance().unsqueeze(-1), self._by_multiplier(x)
        variance = variance if factor is None else variance * factor.unsqueeze(-1)
        variance = variance if multiplier is None else variance * multiplier.square()
        return torch.where(self._is_missing(x), variance, torch.zeros_like(variance)).to(x.dtype)

    def inducing_cholesky(self, jitter: float, relative: bool = False, covariance: Tensor | None = None) -> Tensor:
        """
        The Cholesky factor of the prior covariance of the inducing variables, in float64.

        :param jitter: The number to add to the diagonal; an exact group takes none.
        :param relative: Whether the jitter is relative to the mean variance of each component.
        :param covariance: The :meth:`inducing_covariance` in float64, if it is known already.
        :return: The factor of each block, ``(*batch, num_blocks, size, size)``, see :attr:`block_shape`.
        """
        covariance = self.inducing_covariance(torch.float64) if covariance is None else covariance
        if self.exact or jitter == 0.0:
            return safe_cholesky(covariance)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        scale = diagonal.mean(-1, keepdim=True) if relative else torch.ones_like(diagonal[..., :1])
        return safe_cholesky(covariance + torch.diag_embed((jitter * scale).expand_as(diagonal)))

    def inducing_covariance(self, dtype: torch.dtype | None = None) -> Tensor:
        """
        The diagonal blocks of the prior covariance of the inducing variables, without jitter.

        :param dtype: The precision in which the kernel is evaluated; default that of the inducing points.
        :return: The blocks ``(*batch, num_blocks, size, size)``, see :attr:`block_shape`.
        """
        points = self.inducing_points if dtype is None else self.inducing_points.to(dtype)
        if self._level_blocks is not None:
            _, num_levels, num_places = self._level_blocks
            block = self.evaluate_kernel(points[..., :num_places, :])  # the same for every level
            return block.unsqueeze(-3).expand(*block.shape[:-2], num_levels, -1, -1).flatten(-4, -3)
        if points.device.type != "cpu":
            # GPyTorch's kernels compare their inputs, which waits for the device.
            form = separable_form(self.kernel, points, points)
            if form is not None:
                return plain_kernel(form.factors)
        return self.evaluate_kernel(points)

    def evaluate_kernel(self, left: Tensor, right: Tensor | None = None, diag: bool = False) -> Tensor:
        """
        The kernel matrix in the dtype of the inputs, whatever that of the hyperparameters.

        :param left: Selected inputs ``(*batch, C_g, n, d)``.
        :param right: Selected inputs ``(*batch, C_g, m, d)``; default ``left``.
        :param diag: Whether to return only the diagonal of the matrix.
        :return: The matrix ``(*batch, C_g, n, m)``, or the diagonal ``(*batch, C_g, n)``.
        """
        if is_transformed() and trace_mode.off():
            with for_transforms():
                return self.evaluate_kernel(left, right, diag)
        return evaluate(self.kernel, left, right, diag)

    def cross_covariance(self, x: Tensor) -> Tensor:
        """
        The prior covariance between the inducing variables and the components at ``x``, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The covariances ``(*batch, C_g, M, n)``.
        """
        rows = self.level_rows(x)
        if rows is not None:
            return rows.matrix(self.num_inducing // rows.covariance.shape[-2])
        covariance = self.evaluate_kernel(self.inducing_points.to(x.dtype), self.select(x))
        multiplier = self.multiplier(x)
        return covariance if multiplier is None else covariance * multiplier.unsqueeze(-2)

    def features(self, x: Tensor, cholesky: Tensor) -> Tensor:
        r"""
        The features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)`, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :param cholesky: :math:`L_c` from :meth:`inducing_cholesky`, ``(*batch, num_blocks, size, size)``.
        :return: The features ``(*batch, C_g, M, n)``.
        """
        return solve_in_blocks(cholesky.to(x.dtype), self.cross_covariance(x))

    def at_rows(self, x: Tensor, jitter: float, relative: bool = False) -> GroupRows:
        """
        The Cholesky factor of the inducing covariance, and features and prior variances at ``x``, from a single
        evaluation of the kernel where that is possible: in float64, without batch dimensions.

        :param x: Inputs ``(*batch, n, D)``.
        :param jitter: See :meth:`inducing_cholesky`.
        :param relative: See :meth:`inducing_cholesky`.
        """
        points = self.inducing_points.double()
        if self._level_blocks is not None or x.dtype != torch.float64 or x.dim() != 2 or points.dim() != 3:
            cholesky = self.inducing_cholesky(jitter, relative)
            return GroupRows(cholesky, self.features(x, cholesky), self.observed_variance(x))
        both, variance = self.evaluate_with_variance(points, torch.cat([points, self.select(x)], dim=-2))
        inducing, cross = both.split([self.num_inducing, len(x)], dim=-1)
        variance, multiplier = variance[..., self.num_inducing :], self.multiplier(x)
        if multiplier is not None:
            cross, variance = cross * multiplier.unsqueeze(-2), variance * multiplier.square()
        cholesky = self.inducing_cholesky(jitter, relative, inducing)
        return GroupRows(cholesky, triangular_solve(cholesky, cross), variance)

    def evaluate_with_variance(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """
        The kernel matrix and the variances at its columns, from a single evaluation of the kernel where it is known how
        to take it apart.

        :param left: Selected inputs ``(*batch, C_g, n, d)``.
        :param right: Selected inputs ``(*batch, C_g, m, d)``.
        :return: The matrix ``(*batch, C_g, n, m)`` and the variances ``(*batch, C_g, m)``.
        """
        form = None if is_transformed() else separable_form(self.kernel, left, right)
        if form is None:
            return self.evaluate_kernel(left, right), self.evaluate_kernel(right, diag=True)
        return kernel_matrix(form.factors), form.variance

    def level_rows(self, x: Tensor) -> LevelRows | None:
        """
        The levels of the rows among the inducing points, if levels are independent.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The rows' levels; None for other groups, and inside of transformations that do not support lookups.
        """
        blocks = self._level_blocks
        if blocks is None or trace_mode.on() or is_transformed(x):
            return None
        inputs, points = self.select(x), self.inducing_points.to(x.dtype)
        column = level_column(self.kernel, inputs[..., blocks.column : blocks.column + 1], {})
        level, is_known = find_levels(column, blocks.codes(points))
        first = points[..., : blocks.num_places, :]
        covariance = self.evaluate_kernel(first, blocks.at_first_level(inputs, points)) * is_known.unsqueeze(-2)
        multiplier = self.multiplier(x)
        return LevelRows(level, covariance if multiplier is None else covariance * multiplier.unsqueeze(-2))

    def prior_variance(self, x: Tensor) -> Tensor:
        """
        The prior variance of the components at ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The variances ``(*batch, C_g, n)``.
        """
        variance, missing = self.observed_variance(x), self.missing_variance(x)
        return variance if missing is None else variance + missing

    def observed_variance(self, x: Tensor) -> Tensor:
        """
        The prior variance of the components as training takes it: 0, in the place of :meth:`missing_variance`, in rows
        in which a column of a component is missing.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The variances ``(*batch, C_g, n)``.
        """
        variance, multiplier = self.evaluate_kernel(self.select(x), diag=True), self.multiplier(x)
        return variance if multiplier is None else variance * multiplier.square()

    def prior_covariance(self, x: Tensor, factor: Tensor | None = None) -> LinearOperator:
        """
        The prior covariance of each component over the rows of ``x``, lazily.

        :param x: Inputs ``(*batch, n, D)``.
        :param factor: See :meth:`missing_variance`.
        :return: The covariances ``(*batch, C_g, n, n)``.
        """
        covariance, missing = self._observed_covariance(x), self.missing_variance(x, factor)
        if missing is None:
            return covariance
        shape = torch.broadcast_shapes(covariance.shape[:-1], missing.shape)
        if covariance.shape[:-1] != shape:
            covariance = covariance.expand(*shape, shape[-1])
        return SumLinearOperator(covariance, DiagLinearOperator(missing.expand(shape)))

    def _observed_covariance(self, x: Tensor) -> LinearOperator:
        """The prior covariance without the variance of rows with missing columns."""
        # As a rule the inducing variables of an exact group determine it: the rank of the covariance is their number.
        if self.exact and not trace_mode.on() and not is_transformed(x):
            features = self.features(x, self.inducing_cholesky(0.0))
            # Training does not wait for a device to find rows with an unseen level.
            if (self.training and x.device.type != "cpu") or not self._undetermined(x, features).any():
                return RootLinearOperator(features.mT)
        covariance = to_linear_operator(self._lazy_kernel(self.select(x)))
        multiplier = self.multiplier(x)
        if multiplier is None:
            return covariance
        scale = DiagLinearOperator(multiplier)
        return MatmulLinearOperator(scale, MatmulLinearOperator(covariance, scale))

    def _lazy_kernel(self, inputs: Tensor) -> LinearOperator | Tensor:
        """The kernel matrix in the dtype of the inputs, lazily where the hyperparameters have that dtype."""
        is_lazy = inputs.dtype == self.inducing_points.dtype and not is_transformed()
        return self.kernel(inputs) if is_lazy else self.evaluate_kernel(inputs)

    def undetermined_rows(self, x: Tensor, cholesky: Tensor) -> Tensor:
        """
        The rows in which the inducing variables do not determine the components. For an exact group these hold levels
        that are none of the inducing points.

        :param x: Inputs ``(*batch, n, D)``.
        :param cholesky: :math:`L_c` from :meth:`inducing_cholesky`, ``(*batch, num_blocks, size, size)``.
        :return: Booleans ``(*batch, C_g, n)``.
        """
        return self._undetermined(x, self.features(x, cholesky))

    @torch.no_grad()
    def _undetermined(self, x: Tensor, features: Tensor) -> Tensor:
        variance = self.observed_variance(x)
        tolerance = math.sqrt(torch.finfo(variance.dtype).eps)  # for rounding errors of a factorisation
        return variance - features.square().sum(-2) > tolerance * variance

    def extra_repr(self) -> str:
        """Names, sizes and predictor of the group."""
        return f"names={list(self.names)}, num_inducing={self.num_inducing}, predictor={self.predictor_index}"
