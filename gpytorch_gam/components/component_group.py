"""Components of equal shape, evaluated together as one batched kernel."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from gpytorch.kernels import Kernel
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    RootLinearOperator,
    to_linear_operator,
)
from torch import Tensor

from gpytorch_gam.kernels._separable_form import separable_form
from gpytorch_gam.operators._cholesky import safe_cholesky

from ._fused_projection import plain_kernel


class ComponentGroup(gpytorch.Module):
    r"""
    :math:`C_g` additive components of equal shape: one kernel class, one input dimension :math:`d`, one number of
    inducing points :math:`M`. The components are evaluated by a single call of a batched kernel.

    Component :math:`c` is :math:`f_c(\mathbf x) = b_c(\mathbf x) \, g_c(\mathbf x_c)` with
    :math:`g_c \sim GP(0, k_c)`, where :math:`\mathbf x_c` are the columns of the component and :math:`b_c` is 1,
    or the column named by ``by`` (a varying coefficient in the words of mgcv).

    The component dimension stands directly left of the data dimensions everywhere: kernels have batch shape
    ``(*batch, C_g)``, inducing points ``(*batch, C_g, M, d)``, covariances ``(*batch, C_g, M, n)``.

    :param kernel: A kernel over :math:`d` columns. Its batch shape is ``(*batch, C_g)`` for hyperparameters of each
        component's own, or ``()`` (or any shape that broadcasts) for shared ones. ``active_dims`` in it count the
        columns of a component (0 to d - 1), not those of ``x``.
    :param columns: For each component the columns of ``x`` it reads: ``C_g`` sequences of ``d`` indices. Columns may
        overlap and repeat between components. ``[[]]`` is a component without inputs, that is a constant.
    :param inducing_points: ``(*batch, C_g, M, d)``, or ``(M, d)`` to start every component at the same places, or a
        sequence of ``C_g`` tensors ``(M, d)``.
    :param names: One name a component. Default: built from the columns, such as ``x0`` or ``x0:x1``.
    :param by: Multiplier column of each component (``None`` for none), or one index for all of them. With an ANOVA
        kernel :math:`g_c` has mean zero, which leaves the linear effect of the multiplier itself to another component.
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param learn_inducing_locations: Whether the inducing points are parameters; otherwise they are buffers.
    :param exact: Declare that the inducing variables determine the components everywhere (a constant, the levels of
        a factor). No jitter is added to the covariance of such a group, so it must be well conditioned.
    :raises ValueError: If shapes, columns or names do not fit each other.

    Example:
        >>> kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2]))
        >>> group = ComponentGroup(kernel, columns=[[0], [3]], inducing_points=regular_grid(0.0, 1.0, 16))
    """

    columns: Tensor
    by_columns: Tensor
    inducing_points: Tensor

    def __init__(
        self,
        kernel: Kernel,
        columns: Sequence[Sequence[int]],
        inducing_points: Tensor | Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        by: int | Sequence[int | None] | None = None,
        predictor: int = 0,
        learn_inducing_locations: bool = False,
        exact: bool = False,
    ) -> None:
        super().__init__()
        columns = _validated_columns(columns)
        by = _validated_by(by, len(columns))
        self.names = _validated_names(names, columns, by)
        self._label = f"component group {list(self.names)}"
        if not isinstance(predictor, int) or predictor < 0:
            raise ValueError(f"predictor of {self._label} must be a non-negative integer, got {predictor!r}")
        if exact and learn_inducing_locations:
            raise ValueError(
                f"{self._label} is exact, so its inducing points (levels, or none) cannot be learnt: leave "
                "learn_inducing_locations=False"
            )
        self.predictor = predictor
        self.exact = exact
        self.kernel = kernel
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
        self._validate_kernel()

    def _validated_inducing_points(self, inducing_points: Tensor | Sequence[Tensor]) -> Tensor:
        if not torch.is_tensor(inducing_points):
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
    def batch_shape(self) -> torch.Size:
        """Batch shape of independent models, without the component dimension."""
        with_components = torch.broadcast_shapes(self.kernel.batch_shape, self.inducing_points.shape[:-2])
        return torch.Size(with_components[:-1])

    @property
    def has_multiplier(self) -> bool:
        """Whether any component has a ``by`` column."""
        return self._any_by

    @property
    def max_column(self) -> int:
        """Largest column index in use, -1 if none is."""
        return self._max_column

    def select(self, x: Tensor) -> Tensor:
        """
        Gather each component's own columns.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n, d)``.
        """
        gathered = x.mT[..., self.columns.reshape(-1), :]  # (*batch, C_g * d, n)
        return gathered.unflatten(-2, self.columns.shape).mT

    def multiplier(self, x: Tensor) -> Tensor | None:
        """
        The values of the ``by`` columns, 1 for components without one.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n)``, or None if no component has a multiplier.
        """
        if not self._any_by:
            return None
        values = x.mT[..., self.by_columns, :]
        return torch.where(self._has_by.unsqueeze(-1), values, torch.ones_like(values))

    def inducing_cholesky(self, jitter: float, relative: bool = False, covariance: Tensor | None = None) -> Tensor:
        """
        Cholesky factor of the prior covariance of the inducing variables, in float64.

        :param jitter: Added to the diagonal. An exact group takes none.
        :param relative: Whether the jitter is meant relative to the mean variance of each component.
        :param covariance: The covariance in float64, if it is known already, ``(*batch, C_g, M, M)``.
        :return: ``(*batch, C_g, M, M)``.
        """
        covariance = self.inducing_covariance(torch.float64) if covariance is None else covariance
        if self.exact or jitter == 0.0:
            return safe_cholesky(covariance)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        scale = diagonal.mean(-1, keepdim=True) if relative else torch.ones_like(diagonal[..., :1])
        return safe_cholesky(covariance + torch.diag_embed((jitter * scale).expand_as(diagonal)))

    def inducing_covariance(self, dtype: torch.dtype | None = None) -> Tensor:
        """
        Prior covariance of the inducing variables, without jitter.

        :param dtype: Precision in which the kernel is evaluated; default that of the inducing points.
        :return: ``(*batch, C_g, M, M)``.
        """
        points = self.inducing_points if dtype is None else self.inducing_points.to(dtype)
        if points.device.type != "cpu":
            # GPyTorch's kernels compare their inputs, which waits for the device.
            form = separable_form(self.kernel, points, points)
            if form is not None:
                return plain_kernel(form.factors)
        return self.evaluate_kernel(points)

    def evaluate_kernel(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """
        The kernel matrix in the dtype of the inputs, whatever that of the hyperparameters.

        :param left: Selected inputs ``(*batch, C_g, n, d)``.
        :param right: Selected inputs ``(*batch, C_g, m, d)``; default ``left``.
        :return: ``(*batch, C_g, n, m)``.
        """
        try:
            return self.kernel(left, right).to_dense().to(left.dtype)
        except RuntimeError:
            # Most kernels promote their hyperparameters to the dtype of the inputs; those with matrix products inside
            # (random features, neural networks) do not, and are called with hyperparameters that were.
            converted = {
                f"kernel.{name}": tensor.to(left.dtype) if tensor.is_floating_point() else tensor
                for name, tensor in (*self.kernel.named_parameters(), *self.kernel.named_buffers())
            }
            if all(tensor.dtype == left.dtype for tensor in self.kernel.parameters()):
                raise
            return torch.func.functional_call(_DenseKernel(self.kernel), converted, (left, right))

    def cross_covariance(self, x: Tensor) -> Tensor:
        """
        Prior covariance between the inducing variables and the components at ``x``, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, M, n)``.
        """
        covariance = self.kernel(self.inducing_points, self.select(x)).to_dense()
        multiplier = self.multiplier(x)
        return covariance if multiplier is None else covariance * multiplier.unsqueeze(-2)

    def features(self, x: Tensor, cholesky: Tensor) -> Tensor:
        r"""
        Features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)`, multipliers included.

        :param x: Inputs ``(*batch, n, D)``.
        :param cholesky: :math:`L_c` from :meth:`inducing_cholesky`, ``(*batch, C_g, M, M)``.
        :return: ``(*batch, C_g, M, n)``.
        """
        return torch.linalg.solve_triangular(cholesky.to(x.dtype), self.cross_covariance(x), upper=False)

    def prior_variance(self, x: Tensor) -> Tensor:
        """
        Prior variance of the components at ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n)``.
        """
        inputs = self.select(x)
        # Kernels take a diagonal for a matrix where a batch of components happens to be as long as the rows, unless the
        # inputs have all of the batch dimensions.
        batch_shape = torch.broadcast_shapes(self.kernel.batch_shape, inputs.shape[:-2])
        variance = self.kernel(inputs.expand(*batch_shape, *inputs.shape[-2:]), diag=True)
        multiplier = self.multiplier(x)
        return variance if multiplier is None else variance * multiplier.square()

    def prior_covariance(self, x: Tensor) -> LinearOperator:
        """
        Prior covariance of each component over the rows of ``x``, lazily.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, C_g, n, n)``.
        """
        if self.exact:  # determined by the inducing variables, so of their number's rank
            return RootLinearOperator(self.features(x, self.inducing_cholesky(0.0)).mT)
        covariance = to_linear_operator(self.kernel(self.select(x)))
        multiplier = self.multiplier(x)
        if multiplier is None:
            return covariance
        scale = DiagLinearOperator(multiplier)
        return MatmulLinearOperator(scale, MatmulLinearOperator(covariance, scale))

    def extra_repr(self) -> str:
        """Names, sizes and predictor of the group."""
        return f"names={list(self.names)}, num_inducing={self.num_inducing}, predictor={self.predictor}"


class _DenseKernel(torch.nn.Module):
    """A kernel whose call returns a plain matrix: a lazy one would forget the hyperparameters it was called with."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, left: Tensor, right: Tensor | None) -> Tensor:
        return self.kernel(left, right).to_dense()


def _validated_columns(columns: Sequence[Sequence[int]]) -> list[list[int]]:
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
    by = list(by)
    if len(by) != num_components:
        raise ValueError(f"by names {len(by)} multiplier columns for {num_components} components: {by!r}")
    for column in by:
        if column is not None and (isinstance(column, bool) or not isinstance(column, int) or column < 0):
            raise ValueError(f"by must hold non-negative column indices or None, got {column!r}")
    return by


def _validated_names(names: Sequence[str] | None, columns: list[list[int]], by: list[int | None]) -> tuple[str, ...]:
    if names is None:
        return tuple(_default_name(row, multiplier) for row, multiplier in zip(columns, by, strict=True))
    if isinstance(names, str):
        raise ValueError(f"names must be a sequence with one name for each component, got the string {names!r}")
    names = tuple(names)
    if len(names) != len(columns):
        raise ValueError(f"names has {len(names)} entries for {len(columns)} components: {list(names)}")
    return names


def _default_name(row: list[int], by: int | None) -> str:
    name = ":".join(f"x{column}" for column in row) or "constant"
    return name if by is None else f"{name}*x{by}"
