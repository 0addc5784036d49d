r"""
Projections that do not store the kernel matrix.

For a group of C components with kernels in :class:`~gpytorch_gam.projection.separable_form.SeparableForm`,

.. math::
    H = \sum_c W_c^\top K_c, \qquad q_n = \sum_c \lVert V_c^\top K_c \mathbf e_n \rVert^2, \qquad
    K_c = k_c(Z_c, \mathbf x) \,\mathrm{diag}(\mathbf b_c),

are accumulated over blocks of rows, and so are their gradients: with :math:`P_c = V_c^\top K_c` and the gradients
:math:`\bar H, \bar q` of the loss,

.. math::
    \bar K_c = W_c \bar H + 2 V_c P_c \,\mathrm{diag}(\bar q), \qquad \bar W_c = K_c \bar H^\top, \qquad
    \bar V_c = 2 K_c \,\mathrm{diag}(\bar q) P_c^\top .

Only H and q outlive a pass; the kernel is evaluated again in the backward pass, unless it is small.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gpytorch_gam.numerics.transforms import is_transformed

from .separable_form import FACTOR_TENSORS, Factor, LocalShape

# Entries of the kernel matrix in a block: a megabyte a thread, which fits its caches, or enough work for a GPU.
_BLOCK_NUMBERS, _GPU_BLOCK_NUMBERS = 2**18, 2**24

# The least number of rows in a block, as each block goes through all weights.
_LEAST_ROWS = 64

# The number of entries up to which blocks are kept for the backward pass.
_KEPT_NUMBERS = 2**23

# Beyond this distance (1 + t) exp(-t) and the like are zero to working precision; the polynomials are still small.
_LARGEST_MATERN_DISTANCE = 50.0


class ProjectionInputs(NamedTuple):
    """Everything that projections depend on."""

    factors: tuple[Factor, ...]
    shared: Tensor  # W, (*batch, C, M, S)
    block: Tensor | None  # V, (*batch, C, M, r)
    multiplier: Tensor | None  # b, (*batch, C, n); None for ones

    def flat(self) -> list[Tensor | None]:
        """All tensors in a fixed order: the weights, the multiplier, and those of the factors."""
        return [self.shared, self.block, self.multiplier, *(t for factor in self.factors for t in factor[1:])]

    @classmethod
    def from_flat(cls, shapes: tuple[LocalShape, ...], tensors: Sequence[Any]) -> ProjectionInputs:
        """The inverse of :meth:`flat`."""
        return cls(_factors_of(shapes, tensors[3:]), *tensors[:3])


class ProjectionBackend(Protocol):
    """Evaluates projections and their gradients. Arguments and outputs are plain tensors without a graph."""

    def forward(self, inputs: ProjectionInputs, keep: bool) -> tuple[Tensor, Tensor | None, Any]:
        """
        H, ``(*batch, S, n)``, and q, ``(*batch, n)`` (None without block weights), and whatever the backward pass
        needs, which may be kept only if ``keep``.
        """

    def backward(
        self,
        inputs: ProjectionInputs,
        kept: Any,
        grad_shared: Tensor,
        grad_squares: Tensor | None,
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        """
        Gradients in the order of :meth:`ProjectionInputs.flat`, None where they are not ``needed``, from those with
        respect to H, ``(*batch, S, n)``, and q, ``(*batch, n)`` (None without block weights). What the forward pass has
        ``kept`` must be left unchanged.
        """


def fused_projection(inputs: ProjectionInputs, backend: ProjectionBackend) -> tuple[Tensor, Tensor | None]:
    """The projections H, ``(*batch, S, n)``, and q, ``(*batch, n)`` (None without block weights), differentiable."""
    shapes = tuple(factor.shape for factor in inputs.factors)
    return _FusedProjection.apply(shapes, backend, *inputs.flat())


class _FusedProjection(torch.autograd.Function):
    """The projections by a backend; gradients of gradients go through :func:`plain_projection`."""

    @staticmethod
    def forward(ctx: Any, shapes: tuple[LocalShape, ...], backend: ProjectionBackend, *tensors: Tensor | None) -> Any:
        ctx.shapes, ctx.backend = shapes, backend
        ctx.save_for_backward(*tensors)
        keep = any(ctx.needs_input_grad)
        shared, squares, ctx.kept = backend.forward(ProjectionInputs.from_flat(shapes, tensors), keep)
        return shared, squares

    @staticmethod
    def backward(ctx: Any, grad_shared: Tensor, grad_squares: Tensor | None) -> tuple[Any, ...]:
        inputs, needed = ProjectionInputs.from_flat(ctx.shapes, ctx.saved_tensors), ctx.needs_input_grad[2:]
        if inputs.block is None:
            grad_squares = None
        if torch.is_grad_enabled() or is_transformed(grad_shared):  # create_graph=True, or a batch of gradients
            return None, None, *_differentiable_backward(inputs, grad_shared, grad_squares, needed)
        return None, None, *ctx.backend.backward(inputs, ctx.kept, grad_shared, grad_squares, needed)


def _differentiable_backward(
    inputs: ProjectionInputs, grad_shared: Tensor, grad_squares: Tensor | None, needed: Sequence[bool]
) -> list[Tensor | None]:
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        shared, squares = plain_projection(inputs)
    values, grads = [shared], [grad_shared]
    if squares is not None and grad_squares is not None:
        values, grads = [shared, squares], [grad_shared, grad_squares]
    pairs = zip(inputs.flat(), needed, strict=True)
    wanted = [tensor for tensor, is_needed in pairs if is_needed and tensor is not None]
    found = iter(torch.autograd.grad(values, wanted, grads, create_graph=create_graph))
    return [next(found) if is_needed else None for is_needed in needed]


def plain_projection(inputs: ProjectionInputs) -> tuple[Tensor, Tensor | None]:
    """The projections by ordinary tensor operations on the whole kernel matrix: the reference of all backends."""
    shared, squares, _ = _evaluate(inputs)
    return shared, squares


def plain_kernel(factors: Sequence[Factor]) -> Tensor:
    """The kernel matrix, ``(*batch, C, M, n)``."""
    return functools.reduce(torch.mul, _values(factors, [_local(factor) for factor in factors]))


@torch.no_grad()
def kernel_values(factors: Sequence[Factor]) -> Tensor:
    """:func:`plain_kernel` without gradients, in fewer sweeps over matrices."""
    if is_transformed():
        return plain_kernel(factors)
    return functools.reduce(Tensor.mul_, [_factor_values(factor) for factor in factors])


def kernel_matrix(factors: Sequence[Factor]) -> Tensor:
    """:func:`plain_kernel` with a backward pass that sweeps fewer times over matrices, and keeps fewer of them."""
    if is_transformed():
        return plain_kernel(factors)
    return _KernelMatrix.apply(
        tuple(factor.shape for factor in factors), *(tensor for factor in factors for tensor in factor[1:])
    )


class _KernelMatrix(torch.autograd.Function):
    """The kernel matrix; gradients of gradients go through :func:`plain_kernel`."""

    @staticmethod
    def forward(ctx: Any, shapes: tuple[LocalShape, ...], *tensors: Tensor | None) -> Tensor:
        factors = _factors_of(shapes, tensors)
        locals_ = [_local(factor) for factor in factors]
        kernel = functools.reduce(torch.mul, _values(factors, locals_))
        ctx.shapes, ctx.locals = shapes, locals_
        ctx.save_for_backward(*tensors)
        return kernel.clone() if any(kernel is local.value for local in locals_) else kernel

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        factors, needed = _factors_of(ctx.shapes, ctx.saved_tensors), ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled() and not is_transformed(grad):
            return None, *_gradients_of_factors(factors, _values(factors, ctx.locals), ctx.locals, grad, needed)
        with torch.enable_grad():
            kernel = plain_kernel(factors)
        wanted = [tensor for tensor, is_needed in zip(ctx.saved_tensors, needed, strict=True) if is_needed]
        found = iter(torch.autograd.grad(kernel, wanted, grad, create_graph=torch.is_grad_enabled()))
        return None, *(next(found) if is_needed else None for is_needed in needed)


def _factors_of(shapes: Sequence[LocalShape], tensors: Sequence[Any]) -> tuple[Factor, ...]:
    size = len(FACTOR_TENSORS)
    return tuple(Factor(shape, *tensors[i * size : (i + 1) * size]) for i, shape in enumerate(shapes))


class _Evaluation(NamedTuple):
    """Results of a forward pass over some rows that a backward pass can use."""

    locals: tuple[_Local, ...]  # one for each factor
    projections: Tensor | None  # V' K, (*batch, C, r, n)


def _evaluate(inputs: ProjectionInputs) -> tuple[Tensor, Tensor | None, _Evaluation]:
    locals_ = tuple(_local(factor) for factor in inputs.factors)
    kernel = _with_multiplier(inputs, functools.reduce(torch.mul, _values(inputs.factors, locals_)))
    shared = inputs.shared.flatten(-3, -2).mT @ kernel.flatten(-3, -2)
    if inputs.block is None:
        return shared, None, _Evaluation(locals_, None)
    projections = inputs.block.mT @ kernel
    return shared, projections.square().sum((-3, -2)), _Evaluation(locals_, projections)


def _values(factors: Sequence[Factor], locals_: Sequence[_Local]) -> list[Tensor]:
    """The values of the factors, ``(*batch, C, M, n)`` each."""
    return [
        local.value if factor.left is None or factor.right is None else local.value + factor.left @ factor.right
        for factor, local in zip(factors, locals_, strict=True)
    ]


def _with_multiplier(inputs: ProjectionInputs, kernel: Tensor) -> Tensor:
    return kernel if inputs.multiplier is None else kernel * inputs.multiplier.unsqueeze(-2)


class _Local(NamedTuple):
    """The local part of a factor, ``(*batch, C, M, n)``, and intermediate results that its derivatives need."""

    value: Tensor
    difference: Tensor
    envelope: Tensor  # the exponential alone


def _local(factor: Factor) -> _Local:
    shape, log_scale, rate = factor.shape, factor.log_scale.unsqueeze(-1), factor.rate.unsqueeze(-1)
    difference = factor.z.unsqueeze(-1) - factor.x.unsqueeze(-2)
    if shape in (LocalShape.RBF, LocalShape.CENTRED_RBF):
        envelope = torch.addcmul(log_scale, difference * rate, difference).exp_()
        if shape is LocalShape.RBF:
            return _Local(envelope, difference, envelope)
        assert factor.offset_z is not None and factor.offset_x is not None
        product = factor.offset_z.unsqueeze(-1) * factor.offset_x.unsqueeze(-2)
        return _Local(-envelope * torch.expm1(-product), difference, envelope)
    if shape in (LocalShape.PERIODIC, LocalShape.PERIODIC_DEVIATION):
        exponent = difference.sin().square() * rate
        envelope = (exponent + log_scale).exp()
        value = envelope if shape is LocalShape.PERIODIC else log_scale.exp() * torch.expm1(exponent)
        return _Local(value, difference, envelope)
    return _matern(shape, log_scale, rate, difference)


def _matern(shape: LocalShape, log_scale: Tensor, rate: Tensor, difference: Tensor) -> _Local:
    is_deviation = shape >= LocalShape.MATERN12_DEVIATION
    dtype = difference.dtype
    distance = difference.abs() * rate
    envelope = (log_scale - distance).exp()
    if not is_deviation:
        return _Local(envelope * (1 + _matern_polynomial(shape, distance)), difference, envelope)
    # At short distances the differences from 1 are of second order, below the resolution of float32.
    distance = distance.double().clamp(max=_LARGEST_MATERN_DISTANCE)
    exponential, polynomial = torch.expm1(-distance), _matern_polynomial(shape, distance)
    # (1 + polynomial) (1 + exponential) - 1
    value = log_scale.double().exp() * torch.addcmul(polynomial, exponential, 1 + polynomial)
    return _Local(value.to(dtype), difference, envelope)


def _matern_polynomial(shape: LocalShape, distance: Tensor) -> Tensor:
    """The polynomial before the exponential of a Matern kernel, minus 1."""
    if shape in (LocalShape.MATERN12, LocalShape.MATERN12_DEVIATION):
        return torch.zeros_like(distance)
    if shape in (LocalShape.MATERN32, LocalShape.MATERN32_DEVIATION):
        return distance
    return torch.addcmul(distance, distance, distance, value=1 / 3)


def _factor_values(factor: Factor) -> Tensor:
    """The values of a factor ``(*batch, C, M, n)``, as a tensor of their own."""
    is_rbf = factor.shape is LocalShape.CENTRED_RBF
    is_matern = LocalShape.MATERN12_DEVIATION <= factor.shape <= LocalShape.MATERN52_DEVIATION
    if factor.left is None or factor.right is None or not (is_rbf or is_matern):
        return _values([factor], [_local(factor)])[0]
    products = factor.left @ factor.right
    log_scale, rate = factor.log_scale.unsqueeze(-1), factor.rate.unsqueeze(-1)
    difference = factor.z.unsqueeze(-1) - factor.x.unsqueeze(-2)
    if is_rbf:
        assert factor.offset_z is not None and factor.offset_x is not None
        envelope = torch.addcmul(log_scale, difference * rate, difference).exp_()
        deviation = (-factor.offset_z.unsqueeze(-1) * factor.offset_x.unsqueeze(-2)).expm1_()
        return products.addcmul_(envelope, deviation, value=-1)
    distance = difference.abs_().mul_(rate).double().clamp_(max=_LARGEST_MATERN_DISTANCE)  # see _matern
    deviation = (-distance).expm1_()
    if factor.shape is not LocalShape.MATERN12_DEVIATION:
        deviation.addcmul_(_matern_polynomial(factor.shape, distance), 1 + deviation)
    return products.addcmul_(deviation.to(products.dtype), log_scale.exp())


class BlockwiseProjection:
    """
    The backend in plain torch, for any device and dtype, which works on a block of rows at a time. At most
    ``block_numbers`` entries of the kernel matrix (at least one row, by default as many as suit the device) exist at a
    time; with up to ``kept_numbers`` in all, the blocks are kept for the backward pass.
    """

    def __init__(self, block_numbers: int | None = None, kept_numbers: int = _KEPT_NUMBERS) -> None:
        self.block_numbers, self.kept_numbers = block_numbers, kept_numbers

    def _blocks(self, inputs: ProjectionInputs) -> list[slice]:
        num_rows = inputs.factors[0].x.shape[-1]
        per_row = inputs.shared.shape[:-1].numel()
        if self.block_numbers is not None:
            size = max(1, self.block_numbers // per_row)
        else:
            numbers = _GPU_BLOCK_NUMBERS if inputs.shared.is_cuda else _BLOCK_NUMBERS * torch.get_num_threads()
            size = max(_LEAST_ROWS, numbers // per_row)
        return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]

    def _may_keep(self, inputs: ProjectionInputs) -> bool:
        per_row = len(inputs.factors) * inputs.shared.shape[:-1].numel()
        if inputs.block is not None:
            per_row += inputs.block.shape[:-2].numel() * inputs.block.shape[-1]
        return per_row * inputs.factors[0].x.shape[-1] <= self.kept_numbers

    def forward(self, inputs: ProjectionInputs, keep: bool) -> tuple[Tensor, Tensor | None, Any]:
        """See :class:`ProjectionBackend`."""
        keep = keep and self._may_keep(inputs)
        shared, squares, kept = [], [], []
        for block in self._blocks(inputs):
            shared_part, squares_part, evaluation = _evaluate(_rows(inputs, block))
            shared.append(shared_part)
            if squares_part is not None:
                squares.append(squares_part)
            kept.append(evaluation if keep else None)
        return torch.cat(shared, dim=-1), torch.cat(squares, dim=-1) if squares else None, kept

    def backward(
        self,
        inputs: ProjectionInputs,
        kept: list[_Evaluation | None],
        grad_shared: Tensor,
        grad_squares: Tensor | None,
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        """See :class:`ProjectionBackend`."""
        sums: list[Tensor | None] = [None] * len(needed)
        rows: list[list[Tensor]] = [[] for _ in needed]
        for block, evaluation in zip(self._blocks(inputs), kept, strict=True):
            part = _rows(inputs, block)
            evaluation = _evaluate(part)[2] if evaluation is None else evaluation
            squares = None if grad_squares is None else grad_squares[..., block]
            grads = _block_backward(part, evaluation, grad_shared[..., block], squares, needed)
            for index, grad in enumerate(grads):
                if grad is None:
                    continue
                if _is_per_row(index):
                    rows[index].append(grad)
                else:
                    total = sums[index]
                    sums[index] = grad if total is None else total.add_(grad)
        return [torch.cat(parts, dim=-1) if parts else total for parts, total in zip(rows, sums, strict=True)]


_PER_ROW = {"x", "offset_x", "right"}


def _is_per_row(index: int) -> bool:
    """Whether the last dimension of a tensor of :meth:`ProjectionInputs.flat` runs over the rows."""
    return index == 2 or (index > 2 and FACTOR_TENSORS[(index - 3) % len(FACTOR_TENSORS)] in _PER_ROW)


def factor_at(factor: Factor, rows: slice) -> Factor:
    """The factor of some of the data."""
    return factor._replace(
        x=factor.x[..., rows],
        offset_x=None if factor.offset_x is None else factor.offset_x[..., rows],
        right=None if factor.right is None else factor.right[..., rows],
    )


def _rows(inputs: ProjectionInputs, block: slice) -> ProjectionInputs:
    """The inputs of some rows."""
    factors = [factor_at(factor, block) for factor in inputs.factors]
    multiplier = None if inputs.multiplier is None else inputs.multiplier[..., block]
    return inputs._replace(factors=tuple(factors), multiplier=multiplier)


def _block_backward(
    inputs: ProjectionInputs,
    evaluation: _Evaluation,
    grad_shared: Tensor,
    grad_squares: Tensor | None,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    values = _values(inputs.factors, evaluation.locals)
    kernel = functools.reduce(torch.mul, values)
    scaled = _with_multiplier(inputs, kernel)

    sizes = inputs.shared.shape[-3:-1]
    grad_kernel = (inputs.shared.flatten(-3, -2) @ grad_shared).unflatten(-2, sizes)
    grads: list[Tensor | None] = [None, None, None]
    if needed[0]:
        grads[0] = (grad_shared @ scaled.flatten(-3, -2).mT).mT.unflatten(-2, sizes)
    if grad_squares is not None and inputs.block is not None and evaluation.projections is not None:
        weighted = evaluation.projections * (2 * grad_squares[..., None, None, :])
        grad_kernel += inputs.block @ weighted
        if needed[1]:
            grads[1] = scaled @ weighted.mT
    if inputs.multiplier is not None:
        if needed[2]:
            grads[2] = (grad_kernel * kernel).sum(-2)
        grad_kernel *= inputs.multiplier.unsqueeze(-2)

    return grads + _gradients_of_factors(inputs.factors, values, evaluation.locals, grad_kernel, needed[3:])


def _gradients_of_factors(
    factors: Sequence[Factor],
    values: Sequence[Tensor],
    locals_: Sequence[_Local],
    grad_kernel: Tensor,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of the tensors of all factors, None where they are not needed, from that of the kernel matrix."""
    grads: list[Tensor | None] = []
    size = len(FACTOR_TENSORS)
    for index, (factor, local) in enumerate(zip(factors, locals_, strict=True)):
        wanted = dict(zip(FACTOR_TENSORS, needed[index * size : (index + 1) * size], strict=True))
        found = {}
        if any(wanted.values()):
            others = [value for other, value in enumerate(values) if other != index]
            found = _factor_backward(factor, local, functools.reduce(torch.mul, others, grad_kernel), wanted)
        grads.extend(found.get(name) if wanted[name] else None for name in FACTOR_TENSORS)
    return grads


def _factor_backward(factor: Factor, local: _Local, grad: Tensor, wanted: dict[str, bool]) -> dict[str, Tensor]:
    """Gradients of the wanted tensors of a factor, given that of its values, ``(*batch, C, M, n)``."""
    found = {}
    if factor.left is not None and factor.right is not None:
        if wanted["left"]:
            found["left"] = grad @ factor.right.mT
        if wanted["right"]:
            found["right"] = factor.left.mT @ grad
    if not any(wanted[name] for name in FACTOR_TENSORS if name not in ("left", "right")):
        return found
    weighted = grad * local.value
    if wanted["log_scale"]:
        found["log_scale"] = weighted.sum((-2, -1)).unsqueeze(-1)
    if factor.offset_z is not None and factor.offset_x is not None and (wanted["offset_z"] or wanted["offset_x"]):
        # The derivative of 1 - exp(-o) is exp(-o), and envelope exp(-o) = envelope - value.
        product = torch.addcmul(-weighted, grad, local.envelope)
        found["offset_z"] = (product @ factor.offset_x.unsqueeze(-1)).squeeze(-1)
        found["offset_x"] = (factor.offset_z.unsqueeze(-2) @ product).squeeze(-2)
    if wanted["rate"] or wanted["z"] or wanted["x"]:
        found.update(_distance_backward(factor, local, grad, weighted, wanted))
    return found


def _distance_backward(
    factor: Factor, local: _Local, grad: Tensor, weighted: Tensor, wanted: dict[str, bool]
) -> dict[str, Tensor]:
    """Gradients of the rate and of both inputs. The memory of ``weighted`` is overwritten."""
    shape, difference, rate = factor.shape, local.difference, factor.rate.unsqueeze(-1)
    found = {}
    if shape in (LocalShape.RBF, LocalShape.CENTRED_RBF):
        along = weighted.mul_(difference)
        by_rate, slope = difference, 2 * rate
    elif shape in (LocalShape.PERIODIC, LocalShape.PERIODIC_DEVIATION):
        along = grad * local.envelope
        by_rate, slope = difference.sin().square(), rate * (2 * difference).sin()
    else:
        along = grad * local.envelope * _matern_slope(shape, difference.abs() * rate)
        by_rate, slope = difference.abs(), rate * difference.sign()
    if wanted["z"] or wanted["x"]:
        by_difference = along * slope
        found["z"], found["x"] = by_difference.sum(-1), -by_difference.sum(-2)
    if wanted["rate"]:
        found["rate"] = along.mul_(by_rate).sum((-2, -1)).unsqueeze(-1)
    return found


def _matern_slope(shape: LocalShape, distance: Tensor) -> Tensor:
    """The derivative of (1 + polynomial) exp(-t), without the exponential."""
    if shape in (LocalShape.MATERN12, LocalShape.MATERN12_DEVIATION):
        return torch.full_like(distance, -1.0)
    if shape in (LocalShape.MATERN32, LocalShape.MATERN32_DEVIATION):
        return -distance
    return -(distance + distance.square()) / 3
