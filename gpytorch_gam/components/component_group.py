"""Components of equal shape, evaluated together as one batched kernel."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
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
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel
from gpytorch_gam.kernels.level_kernel import level_column
from gpytorch_gam.numerics.transforms import for_transforms, is_transformed
from gpytorch_gam.numerics.triangular import safe_cholesky, solve_in_blocks
from gpytorch_gam.parameters.structure import STATE_KEY, Structure, as_bytes, difference, from_bytes, kernel_structure
from gpytorch_gam.projection.blockwise import plain_kernel
from gpytorch_gam.projection.separable_form import separable_form

from ._level_rows import LevelRows, find_levels, level_blocks
from ._mean_variance import is_product_of_scales, mean_diagonal, product_of_scales
from .levels import Levels, listed
from .names import default_names


class ComponentGroup(gpytorch.Module):
    r"""
    :math:`C_g` additive components of equal shape: one kernel class, one input dimension :math:`d`, one number of
    inducing points :math:`M`. The components are evaluated by a single call of a batched kernel.

    Component :math:`c` is :math:`f_c(\mathbf x) = b_c(\mathbf x) \, g_c(\mathbf x_c)` with
    :math:`g_c \sim GP(0, k_c)`, where :math:`\mathbf x_c` are the columns of the component and :math:`b_c` is 1,
    or the column named by ``by`` (a varying coefficient in the words of mgcv), or with ``by_levels`` the indicator that
    the column holds a level.

    The component dimension stands directly left of the data dimensions everywhere: kernels have batch shape
    ``(*batch, C_g)``, inducing points ``(*batch, C_g, M, d)``, covariances ``(*batch, C_g, M, n)``.

    :param kernel: A kernel over :math:`d` columns. Its batch shape is ``(*batch, C_g)`` for hyperparameters of each
        component's own, or ``()`` (or any shape that broadcasts) for shared ones. ``active_dims`` in it count the
        columns of a component (0 to d - 1), not those of ``x``.
    :param columns: For each component the columns of ``x`` it reads: ``C_g`` sequences of ``d`` indices. Columns may
        overlap and repeat between components. ``[[]]`` is a component without inputs, that is a constant.
    :param inducing_points: ``(*batch, C_g, M, d)``, or ``(M, d)`` to start every component at the same places, or a
        sequence of ``C_g`` tensors ``(M, d)``.
    :param names: One name a component. Default: built from the columns, such as ``x0``, ``x0:x1``, ``x0*x2`` for a
        multiplier, ``x0|x2=Oslo`` for a level; and ``x0.1`` for predictor 1.
    :param by: Multiplier column of each component (``None`` for none), or one index for all of them. With an ANOVA
        kernel :math:`g_c` has mean zero, which leaves the linear effect of the multiplier itself to another component.
    :param by_levels: For each component the level (a code) of its ``by`` column in whose rows it is; elsewhere it is
        zero. None for a component whose ``by`` column is a multiplier, or which has none.
    :param levels: Levels of those of the columns that are categories. Any other value is an error, unless they allow
        unseen levels because the kernel knows what to do with these.
    :param missing: What NaN in a component's own columns means. "error": it is refused. "marginal": in such a row the
        component has mean zero and its mean prior variance, independently of all other rows, whatever the data: the
        output scale with normalised ANOVA kernels, and otherwise the mean over the inducing points, which is exact for
        stationary kernels. NaN in ``by`` columns is an error in either case.
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param learn_inducing_locations: Whether the inducing points are parameters; otherwise they are buffers.
    :param exact: Declare that the inducing variables determine the components everywhere (a constant, the levels of
        a factor). No jitter is added to the covariance of such a group, so it must be well conditioned.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If shapes, columns or names do not fit each other.

    Example:
        >>> kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2]))
        >>> group = ComponentGroup(kernel, columns=[[0], [3]], inducing_points=regular_grid(0.0, 1.0, 16))
    """

    columns: Tensor
    by_columns: Tensor
    inducing_points: Tensor
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
    ) -> None:
        super().__init__()
        columns = _validated_columns(columns)
        by = _validated_by(by, len(columns))
        self.levels = _validated_levels(levels, columns, by)
        self._by_levels = _validated_by_levels(by_levels, by, self.levels)
        self.names = _validated_names(names, columns, by, self._by_levels, self.levels, predictor)
        self._label = f"component group {list(self.names)}"
        predictor = checks.integer(f"predictor of {self._label}", predictor, least=0)
        exact, learn_inducing_locations = (
            checks.flag("exact", exact),
            checks.flag("learn_inducing_locations", learn_inducing_locations),
        )
        if exact and learn_inducing_locations:
            raise ValueError(
                f"{self._label} is exact, so its inducing points (levels, or none) cannot be learnt: leave "
                "learn_inducing_locations=False"
            )
        if missing not in ("error", "marginal"):
            raise ValueError(f"missing of {self._label} must be 'error' or 'marginal', got {missing!r}")
        self.predictor_index = predictor
        self.exact = exact
        self.missing = missing
        self.kernel = kernel
        self._columns_read, self._multipliers_read = columns, by
        self.register_buffer(
            "columns", torch.tensor(columns, dtype=torch.long).reshape(len(columns), -1), persistent=False
        )
        # Components without a multiplier point at column 0 and are masked when the multiplier is evaluated.
        self.register_buffer("by_columns", torch.tensor([0 if b is None else b for b in by]), persistent=False)
        self.register_buffer("_has_by", torch.tensor([b is not None for b in by]), persistent=False)
        self._any_by = any(b is not None for b in by)
        self._max_column = max([column for row in columns for column in row] + [b for b in by if b is not None] + [-1])

        inducing_points = self._validated_inducing_points(inducing_points)
        if learn_inducing_locations and self.input_dim > 0:
            self.register_parameter("inducing_points", torch.nn.Parameter(inducing_points))
        else:
            self.register_buffer("inducing_points", inducing_points)
        indicated = [math.nan if level is None else level for level in self._by_levels]
        self.register_buffer("_indicated_levels", torch.tensor(indicated, dtype=torch.float32), persistent=False)
        self.register_buffer("_is_indicator", ~self._indicated_levels.isnan(), persistent=False)
        self._any_by_level = any(level is not None for level in self._by_levels)
        self._validate_kernel()
        self._has_known_mean_variance = is_product_of_scales(kernel, self.input_dim)
        self._level_blocks = None if learn_inducing_locations else level_blocks(kernel, inducing_points)

    def _validated_inducing_points(self, inducing_points: Tensor | Sequence[Tensor]) -> Tensor:
        if isinstance(inducing_points, np.ndarray):
            inducing_points = torch.as_tensor(inducing_points)
        if not torch.is_tensor(inducing_points):
            is_list = isinstance(inducing_points, Sequence) and all(map(torch.is_tensor, inducing_points))
            if not is_list or not len(inducing_points):
                raise TypeError(
                    f"inducing_points of {self._label} must be a tensor (M, d), or one for each component, got "
                    f"{checks.shown(inducing_points)}"
                )
            sizes = [tuple(points.shape) for points in inducing_points]
            if len(set(sizes)) > 1:
                raise ValueError(
                    f"inducing_points of {self._label} have unequal shapes {sizes}: components of one group share "
                    "one number of inducing points; put components that differ into groups of their own"
                )
            inducing_points = torch.stack(list(inducing_points))
        num_components, input_dim = self.columns.shape
        if inducing_points.dim() == 2:
            inducing_points = inducing_points.expand(num_components, *inducing_points.shape)
        expected = f"(*batch, {num_components}, M, {input_dim})"
        if inducing_points.dim() < 3 or inducing_points.shape[-3] != num_components:
            raise ValueError(
                f"inducing_points of {self._label} have shape {tuple(inducing_points.shape)}, expected {expected}: "
                f"{num_components} components"
            )
        if inducing_points.shape[-1] != input_dim:
            raise ValueError(
                f"inducing_points of {self._label} have shape {tuple(inducing_points.shape)}, expected {expected}: "
                f"each component reads {input_dim} column(s)"
            )
        if inducing_points.shape[-2] == 0:
            raise ValueError(f"inducing_points of {self._label} are empty, expected {expected} with M >= 1")
        if not inducing_points.is_floating_point():
            raise ValueError(
                f"inducing_points of {self._label} have dtype {inducing_points.dtype}; give a floating point tensor"
            )
        if not torch.isfinite(inducing_points).all():
            raise ValueError(f"inducing_points of {self._label} contain NaN or infinity")
        return inducing_points.detach().clone()

    def _validate_kernel(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise TypeError(
                f"kernel of {self._label} must be a GPyTorch kernel, such as ScaleKernel(RBFKernel()), got "
                f"{checks.shown(self.kernel)}"
            )
        for kernel, num_read in _with_numbers_of_columns(self.kernel, self.input_dim):
            if kernel.ard_num_dims not in (None, num_read):
                raise ValueError(
                    f"kernel of {self._label}: {type(kernel).__name__} has ard_num_dims={kernel.ard_num_dims}, but "
                    f"reads {num_read} column(s) of each component"
                )
        probe = self.inducing_points[..., :1, :]
        if self.kernel.num_outputs_per_input(probe, probe) != 1:
            raise ValueError(
                f"kernel of {self._label} must have one output for each input, {type(self.kernel).__name__} has more"
            )
        for module in self.kernel.modules():
            active_dims = getattr(module, "active_dims", None)
            if active_dims is not None and active_dims.numel() and int(active_dims.max()) >= self.input_dim:
                raise ValueError(
                    f"kernel of {self._label} has active_dims {active_dims.tolist()}, but its components read "
                    f"{self.input_dim} column(s): active_dims count the columns named in `columns`, not those of x"
                )
        kernel_batch = torch.Size(self.kernel.batch_shape)
        if len(kernel_batch) and kernel_batch[-1] not in (1, self.num_components):
            raise ValueError(
                f"kernel of {self._label} has batch_shape {tuple(kernel_batch)}; its last dimension must be the "
                f"number of components, {self.num_components} (or 1, or batch_shape=() for shared hyperparameters)"
            )
        try:
            torch.broadcast_shapes(kernel_batch, self.inducing_points.shape[:-2])
        except RuntimeError as error:
            raise ValueError(
                f"kernel of {self._label} has batch_shape {tuple(kernel_batch)}, which does not broadcast with the "
                f"batch shape {tuple(self.inducing_points.shape[:-2])} of inducing_points"
            ) from error

    @property
    def num_components(self) -> int:
        """Number of components :math:`C_g`."""
        return self.columns.shape[0]

    @property
    def input_dim(self) -> int:
        """Number of columns :math:`d` that each component reads."""
        return self.columns.shape[1]

    @property
    def num_inducing(self) -> int:
        """Number of inducing points :math:`M` of each component."""
        return self.inducing_points.shape[-2]

    @property
    def block_shape(self) -> tuple[int, int]:
        """
        Number and size of the blocks into which the prior covariance of the inducing variables falls: one a component,
        but one a level where levels are independent, as in :func:`random_effect` and :func:`factor_smooth`.
        """
        if self._level_blocks is None:
            return self.num_components, self.num_inducing
        return self.num_components * self._level_blocks.num_levels, self._level_blocks.num_places

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of independent models, without the component dimension."""
        with_components = torch.broadcast_shapes(self.kernel.batch_shape, self.inducing_points.shape[:-2])
        return torch.Size(with_components[:-1])

    @property
    def has_multiplier(self) -> bool:
        """Whether any component has a ``by`` column, as a multiplier or for a level of it."""
        return self._any_by

    @property
    def max_column(self) -> int:
        """Largest column index in use, -1 if none is."""
        return self._max_column

    def get_extra_state(self) -> Tensor:
        """What the group is apart from the numbers in its state: names, columns, levels, kinds of kernels."""
        return as_bytes(self._structure())

    def set_extra_state(self, state: Any) -> None:
        """
        Nothing is left to do: :meth:`check_state` was called before anything was loaded.

        :param state: From :meth:`get_extra_state`.
        """

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check_state(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """
        Raise an error if a state is not one of a group with the same names, columns, levels and kinds of kernels.

        :param state_dict: That holds the group's.
        :param prefix: Of the names of the group's entries.
        :raises ValueError: If it is another group's.
        """
        key = prefix + STATE_KEY
        if key not in state_dict:
            return  # torch's own error, unless strict=False
        found = difference(from_bytes(state_dict[key]), self._structure())
        if found is not None:
            raise ValueError(
                f"the state is that of other components than {list(self.names)}: {found}. Make the model with the "
                f"terms that were trained. (Without the entry {key!r}, a state is loaded unseen with strict=False.)"
            )

    def _structure(self) -> Structure:
        return {
            "names": list(self.names),
            "predictor": self.predictor_index,
            "columns": self._columns_read,
            "by": self._multipliers_read,
            "by_levels": list(self._by_levels),
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

        :param column: Its index.
        """
        reads = (self.columns == column).any(-1) | ((self.by_columns == column) & self._has_by)
        return [name for name, is_reader in zip(self.names, reads.tolist(), strict=True) if is_reader]

    def select(self, x: Tensor) -> Tensor:
        """
        Gather each component's own columns. An inducing point stands in for missing values, if these are allowed:
        what comes of it is masked by :meth:`multiplier`.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n, d)``.
        """
        gathered = x.mT[..., self.columns.reshape(-1), :]  # (*batch, C_g * d, n)
        selected = gathered.unflatten(-2, self.columns.shape).mT
        if not self._allows_missing:
            return selected
        points = self.inducing_points.detach()
        stand_in = points.reshape(-1, *points.shape[-3:])[0, :, :1].to(x.dtype)  # any place where kernels are finite
        return torch.where(selected.isnan(), stand_in, selected)

    @property
    def _allows_missing(self) -> bool:
        return self.missing == "marginal" and self.input_dim > 0

    def multiplier(self, x: Tensor) -> Tensor | None:
        """
        The values of the ``by`` columns or the indicators of their levels, 1 for components without; and 0 where a
        component's own columns are missing.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n)``, or None if it is one for all components, whatever the inputs.
        """
        multiplier = self._by_multiplier(x)
        if not self._allows_missing:
            return multiplier
        is_missing = self._is_missing(x)
        if multiplier is None:
            return (~is_missing).to(x.dtype)
        return torch.where(is_missing, torch.zeros_like(multiplier), multiplier)

    def _by_multiplier(self, x: Tensor) -> Tensor | None:
        if not self._any_by:
            return None
        values = x.mT[..., self.by_columns, :]
        if self._any_by_level:
            # In single precision, as level kernels compare: 0.1 is one level in float32 and in float64.
            has_level = values.float() == self._indicated_levels.float().unsqueeze(-1)
            values = torch.where(self._is_indicator.unsqueeze(-1), has_level.to(x.dtype), values)
        return torch.where(self._has_by.unsqueeze(-1), values, torch.ones_like(values))

    def _is_missing(self, x: Tensor) -> Tensor:
        """Rows in which a column of a component is NaN, ``(*batch, C_g, n)``."""
        missing = x.isnan().mT[..., self.columns.reshape(-1), :]
        return missing.unflatten(-2, self.columns.shape).any(-2)

    def mean_prior_variance(self) -> Tensor:
        """
        The prior variance of the components where their columns are not known, multipliers left out: see ``missing``.

        :return: ``(*batch, C_g)``, or a shape that broadcasts to it.
        """
        if self._has_known_mean_variance:
            scales = product_of_scales(self.kernel)
            points = self.inducing_points
            return scales if torch.is_tensor(scales) else points.new_full(points.shape[:-2], scales)
        return mean_diagonal(self.kernel, self.inducing_points.detach())

    def missing_variance(self, x: Tensor) -> Tensor | None:
        """
        What the rows in which a component's columns are missing add to :meth:`prior_variance`, independently of all
        other rows.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n)``, 0 where nothing is missing; None if missing values are not allowed.
        """
        if not self._allows_missing:
            return None
        variance, multiplier = self.mean_prior_variance().unsqueeze(-1), self._by_multiplier(x)
        variance = variance if multiplier is None else variance * multiplier.square()
        return torch.where(self._is_missing(x), variance, torch.zeros_like(variance)).to(x.dtype)

    def inducing_cholesky(self, jitter: float, relative: bool = False, covariance: Tensor | None = None) -> Tensor:
        """
        Cholesky factor of the prior covariance of the inducing variables, in float64.

        :param jitter: Added to the diagonal. An exact group takes none.
        :param relative: Whether the jitter is meant relative to the mean variance of each component.
        :param covariance: :meth:`inducing_covariance` in float64, if it is known already.
        :return: ``(*batch, num_blocks, size, size)``, see :attr:`block_shape`.
        """
        covariance = self.inducing_covariance(torch.float64) if covariance is None else covariance
        if self.exact or jitter == 0.0:
            return safe_cholesky(covariance)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        scale = diagonal.mean(-1, keepdim=True) if relative else torch.ones_like(diagonal[..., :1])
        return safe_cholesky(covariance + torch.diag_embed((jitter * scale).expand_as(diagonal)))

    def inducing_covariance(self, dtype: torch.dtype | None = None) -> Tensor:
        """
        Blocks of the prior covariance of the inducing variables, without jitter.

        :param dtype: Precision in which the kernel is evaluated; default that of the inducing points.
        :return: ``(*batch, num_blocks, size, size)``, see :attr:`block_shape`.
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
        :param diag: Only its diagonal.
        :return: ``(*batch, C_g, n, m)``, or the diagonal ``(*batch, C_g, n)``.
        """
        if is_transformed() and trace_mode.off():
            with for_transforms():
                return self.evaluate_kernel(left, right, diag)
        try:
            return _dense(self.kernel(left, right, diag=diag)).to(left.dtype)
        except RuntimeError:
            # Most kernels promote their hyperparameters to the dtype of the inputs; those with matrix products inside
            # (random features, neural networks) do not, and are called with hyperparameters that were.
            converted = {
                f"kernel.{name}": tensor.to(left.dtype) if tensor.is_floating_point() else tensor
                for name, tensor in (*self.kernel.named_parameters(), *self.kernel.named_buffers())
            }
            if all(tensor.dtype == left.dtype for tensor in self.kernel.parameters()):
                raise
            return torch.func.functional_call(_DenseKernel(self.kernel), converted, (left, right, diag))

    def cross_covariance(self, x: Tensor) -> Tensor:
        """
        Prior covariance between the inducing variables and the components at ``x``, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, M, n)``.
        """
        rows = self.level_rows(x)
        if rows is not None:
            return rows.matrix(self.num_inducing // rows.covariance.shape[-2])
        covariance = self.evaluate_kernel(self.inducing_points.to(x.dtype), self.select(x))
        multiplier = self.multiplier(x)
        return covariance if multiplier is None else covariance * multiplier.unsqueeze(-2)

    def features(self, x: Tensor, cholesky: Tensor) -> Tensor:
        r"""
        Features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)`, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :param cholesky: :math:`L_c` from :meth:`inducing_cholesky`, ``(*batch, num_blocks, size, size)``.
        :return: ``(*batch, C_g, M, n)``.
        """
        return solve_in_blocks(cholesky.to(x.dtype), self.cross_covariance(x))

    def level_rows(self, x: Tensor) -> LevelRows | None:
        """
        Where the rows find their levels, if these are independent.

        :param x: Inputs ``(*batch, n, D)``.
        :return: None for other groups, and under transformations that lookups do not know.
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
        Prior variance of the components at ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n)``.
        """
        variance, missing = self._observed_variance(x), self.missing_variance(x)
        return variance if missing is None else variance + missing

    def _observed_variance(self, x: Tensor) -> Tensor:
        """The prior variance without that of rows that miss columns, ``(*batch, C_g, n)``."""
        inputs = self.select(x)
        # Kernels take a diagonal for a matrix where a batch of components happens to be as long as the rows, unless the
        # inputs have all of the batch dimensions.
        batch_shape = torch.broadcast_shapes(self.kernel.batch_shape, inputs.shape[:-2])
        variance = self.evaluate_kernel(inputs.expand(*batch_shape, *inputs.shape[-2:]), diag=True)
        multiplier = self.multiplier(x)
        return variance if multiplier is None else variance * multiplier.square()

    def prior_covariance(self, x: Tensor) -> LinearOperator:
        """
        Prior covariance of each component over the rows of ``x``, lazily.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n, n)``.
        """
        covariance, missing = self._observed_covariance(x), self.missing_variance(x)
        if missing is None:
            return covariance
        shape = torch.broadcast_shapes(covariance.shape[:-1], missing.shape)
        if covariance.shape[:-1] != shape:
            covariance = covariance.expand(*shape, shape[-1])
        return SumLinearOperator(covariance, DiagLinearOperator(missing.expand(shape)))

    def _observed_covariance(self, x: Tensor) -> LinearOperator:
        """The prior covariance without the variance of rows that miss columns."""
        # As a rule, the inducing variables of an exact group determine it: the covariance is of their number's rank.
        if self.exact and not trace_mode.on() and not is_transformed(x):
            features = self.features(x, self.inducing_cholesky(0.0))
            # Training does not wait for a device to say that a row has an unseen level.
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
        Rows in which the inducing variables do not determine the components. For an exact group these hold levels that
        are none of the inducing points.

        :param x: Inputs ``(*batch, n, D)``.
        :param cholesky: :math:`L_c` from :meth:`inducing_cholesky`, ``(*batch, num_blocks, size, size)``.
        :return: ``(*batch, C_g, n)``.
        """
        return self._undetermined(x, self.features(x, cholesky))

    @torch.no_grad()
    def _undetermined(self, x: Tensor, features: Tensor) -> Tensor:
        variance = self._observed_variance(x)
        tolerance = math.sqrt(torch.finfo(variance.dtype).eps)  # of what is rounded on the way through a factorisation
        return variance - features.square().sum(-2) > tolerance * variance

    def extra_repr(self) -> str:
        """Names, sizes and predictor of the group."""
        return f"names={list(self.names)}, num_inducing={self.num_inducing}, predictor={self.predictor_index}"


class _DenseKernel(torch.nn.Module):
    """A kernel whose call returns a plain matrix: a lazy one would forget the hyperparameters it was called with."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, left: Tensor, right: Tensor | None, diag: bool) -> Tensor:
        return _dense(self.kernel(left, right, diag=diag))


def _dense(matrix: LinearOperator | Tensor) -> Tensor:
    return matrix if torch.is_tensor(matrix) else matrix.to_dense()


def _with_numbers_of_columns(kernel: Kernel, num_columns: int) -> Iterator[tuple[Kernel, int]]:
    """The kernel and those inside it that are handed its columns, each with the number of columns that it reads."""
    if kernel.active_dims is not None:
        num_columns = kernel.active_dims.numel()
    yield kernel, num_columns
    if isinstance(kernel, ScaleKernel | AdditiveKernel | ProductKernel | CentredKernel | ANOVAKernel):
        parts = kernel.kernels if isinstance(kernel, AdditiveKernel | ProductKernel) else [kernel.base_kernel]
        for part in parts:
            yield from _with_numbers_of_columns(part, num_columns)


def _validated_columns(columns: Sequence[Sequence[int]]) -> list[list[int]]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(
            f"columns must be one sequence of column indices for each component, got {checks.shown(columns)}"
        )
    rows = [list(row) if isinstance(row, Sequence) else row for row in columns]
    if not rows or not all(isinstance(row, list) for row in rows):
        raise ValueError(
            f"columns must be a non-empty sequence with one sequence of column indices for each component, such as "
            f"[[0], [1]], got {columns!r}"
        )
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            f"columns name unequal numbers of columns, {rows}: components of one group have the same input dimension; "
            "put components that differ into groups of their own"
        )
    for row in rows:
        for column in row:
            if isinstance(column, bool) or not isinstance(column, int) or column < 0:
                raise ValueError(f"columns must hold non-negative integers, got {column!r} in {row!r}")
    return rows


def _validated_by(by: int | Sequence[int | None] | None, num_components: int) -> list[int | None]:
    if by is None or isinstance(by, int):
        by = [by] * num_components
    if isinstance(by, str) or not isinstance(by, Iterable):
        raise TypeError(f"by must be one column index for each component (None for none), got {by!r}")
    by = list(by)
    if len(by) != num_components:
        raise ValueError(f"by names {len(by)} multiplier columns for {num_components} components: {by!r}")
    for column in by:
        if column is not None and (isinstance(column, bool) or not isinstance(column, int) or column < 0):
            raise ValueError(f"by must hold non-negative column indices or None, got {column!r}")
    return by


def _validated_levels(
    levels: Mapping[int, Levels] | None, columns: list[list[int]], by: list[int | None]
) -> dict[int, Levels]:
    if levels is None:
        return {}
    if not isinstance(levels, Mapping):
        raise ValueError(f"levels must map columns to Levels, got {type(levels).__name__}")
    used = {column for row in columns for column in row} | {column for column in by if column is not None}
    for column, levels_of in levels.items():
        if not isinstance(levels_of, Levels):
            raise ValueError(
                f"levels must map columns to Levels, got {type(levels_of).__name__} for column {column!r}: use "
                "Levels.of"
            )
        if column not in used:
            raise ValueError(f"levels names column {column!r}, but the components read only columns {sorted(used)}")
    return dict(levels)


def _validated_by_levels(
    by_levels: Sequence[float | None] | None, by: list[int | None], levels: dict[int, Levels]
) -> tuple[float | None, ...]:
    if by_levels is None:
        return (None,) * len(by)
    if isinstance(by_levels, str) or not isinstance(by_levels, Sequence):
        raise ValueError(f"by_levels must be a sequence with one level (or None) for each component, got {by_levels!r}")
    if len(by_levels) != len(by):
        raise ValueError(f"by_levels names {len(by_levels)} levels for {len(by)} components: {by_levels!r}")
    for level, column in zip(by_levels, by, strict=True):
        if level is None:
            continue
        if not isinstance(level, numbers.Real) or not math.isfinite(level):
            raise ValueError(f"by_levels must hold finite numbers or None, got {level!r}")
        if column is None:
            raise ValueError(f"by_levels has level {level!r} for a component without a column: name its column in `by`")
        if column in levels and level not in levels[column].codes:
            raise ValueError(
                f"by_levels has level {level!r}, which is none of the levels {listed(levels[column].codes)} of column "
                f"{column}"
            )
    return tuple(None if level is None else float(level) for level in by_levels)


def _validated_names(
    names: Sequence[str] | None,
    columns: list[list[int]],
    by: list[int | None],
    by_levels: tuple[float | None, ...],
    levels: dict[int, Levels],
    predictor: int,
) -> tuple[str, ...]:
    if names is None:
        return default_names(columns, by, by_levels, levels, predictor)
    if isinstance(names, str):
        raise ValueError(f"names must be a sequence with one name for each component, got the string {names!r}")
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a sequence with one string for each component, got {checks.shown(names)}")
    names = tuple(names)
    if len(names) != len(columns):
        raise ValueError(f"names has {len(names)} entries for {len(columns)} components: {list(names)}")
    return names
