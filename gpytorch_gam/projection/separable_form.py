r"""
Kernels as products of functions of one column, the form in which the fused projection evaluates them:

.. math::
    k_c(\mathbf z, \mathbf x) = \prod_f \big[ \ell_f(z_f - x_f) + \mathbf a_f(z_f)^\top \mathbf b_f(x_f) \big] .

A factor has a local part, of one of the shapes in :class:`LocalShape`, and possibly a product of two vectors of length
2, which centres a kernel under a measure.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel, PeriodicKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.settings import trace_mode
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpytorch_gam.kernels.anova_kernel import ANOVAKernel, CentredParts
from gpytorch_gam.kernels.bounded_kernels import MATERN_KERNELS, RBF_KERNELS

_KNOWN_KERNELS = (*RBF_KERNELS, *MATERN_KERNELS, PeriodicKernel)

# Up to these numbers of rows and of entries, functions of the data are kept for the backward pass.
_CHUNK_SIZE = 8192
_CHUNK_ELEMENTS = 2**19


class LocalShape(enum.IntEnum):
    r"""
    The shapes of local parts, with :math:`d = z - x`, scale :math:`s`, rate :math:`r` and offsets :math:`o`:

    - RBF :math:`s\,e^{r d^2}`,
    - CENTRED_RBF :math:`-s\,e^{r d^2} (e^{-o(z) o(x)} - 1)`,
    - MATERN12, MATERN32, MATERN52 :math:`s\,p(t) e^{-t}` with :math:`t = r |d|` and p of degree 0, 1, 2,
    - MATERN12_DEVIATION, ... :math:`s\,(p(t) e^{-t} - 1)` without the subtraction,
    - PERIODIC :math:`s\,e^{r \sin^2 d}`,
    - PERIODIC_DEVIATION :math:`s\,(e^{r \sin^2 d} - 1)` without the subtraction.
    """

    RBF = 0
    CENTRED_RBF = 1
    MATERN12 = 2
    MATERN32 = 3
    MATERN52 = 4
    MATERN12_DEVIATION = 5
    MATERN32_DEVIATION = 6
    MATERN52_DEVIATION = 7
    PERIODIC = 8
    PERIODIC_DEVIATION = 9


class Factor(NamedTuple):
    """A function of one column of both inputs, with the parts of :class:`LocalShape`."""

    shape: LocalShape
    z: Tensor  # column of the inducing points, (*batch, C, M); of a periodic kernel times pi by the period
    x: Tensor  # column of the data, (*batch, C, n), likewise
    log_scale: Tensor  # log s, (*batch, C, 1)
    rate: Tensor  # r, (*batch, C, 1)
    offset_z: Tensor | None = None  # o(z), (*batch, C, M); only for CENTRED_RBF
    offset_x: Tensor | None = None  # o(x), (*batch, C, n); only for CENTRED_RBF
    left: Tensor | None = None  # a(z), (*batch, C, M, 2)
    right: Tensor | None = None  # b(x), (*batch, C, 2, n)


# The fields of a factor that are tensors.
FACTOR_TENSORS = Factor._fields[1:]


class SeparableForm(NamedTuple):
    """The product form of a batch of kernels between inducing points and data."""

    factors: tuple[Factor, ...]
    variance: Tensor  # the prior variance at the data, (*batch, C, n)


class _Part(NamedTuple):
    """A kernel of known kind and the columns that it reads: ``(*batch, C, M, d)`` and ``(*batch, C, n, d)``."""

    kernel: Kernel
    z: Tensor
    x: Tensor


def separable_form(kernel: Kernel, z: Tensor, x: Tensor) -> SeparableForm | None:
    """
    The form of a kernel of at most two columns between inducing points ``(*batch, C, M, d)`` and data
    ``(*batch, C, n, d)``; None if a part is unknown or the data have a lower precision than the hyperparameters. Known
    are RBF, Matern and periodic kernels, ANOVA kernels of these, and their products and scalings, but no subclasses.
    """
    if trace_mode.on() or any(torch.promote_types(p.dtype, x.dtype) != x.dtype for p in kernel.parameters()):
        return None
    parts: list[_Part] = []
    scales: list[Tensor] = []
    if not _take_apart(kernel, z, x, parts, scales) or not 1 <= sum(part.x.shape[-1] for part in parts) <= 2:
        return None
    batch_shape = torch.broadcast_shapes(kernel.batch_shape, z.shape[:-2], x.shape[:-2])
    pairs = [_factor(part, column) for part in parts for column in range(part.x.shape[-1])]
    pairs[0] = _scaled(*pairs[0], scales)
    variance = functools.reduce(torch.mul, (variance for _, variance in pairs))
    return SeparableForm(
        tuple(_expanded(factor, batch_shape) for factor, _ in pairs),
        variance.expand(*batch_shape, x.shape[-2]).to(x.dtype),
    )


def _take_apart(kernel: Kernel, z: Tensor, x: Tensor, parts: list[_Part], scales: list[Tensor]) -> bool:
    """Descend from a kernel to kernels of known kind, collecting them and their scales; False if one is unknown."""
    if kernel.active_dims is not None:
        is_same = x is z
        z = z.index_select(-1, kernel.active_dims)
        x = z if is_same else x.index_select(-1, kernel.active_dims)
    while type(kernel) is ScaleKernel and "forward" not in vars(kernel):
        scales.append(kernel.outputscale.to(x.dtype))
        # Its forward is called and not the kernel itself: active_dims, which were taken over, do not count again.
        kernel = kernel.base_kernel
    if "forward" in vars(kernel):  # forward was replaced on this object
        return False
    if type(kernel) is ProductKernel:
        return all(_take_apart(factor, z, x, parts, scales) for factor in kernel.kernels)
    if type(kernel) in RBF_KERNELS or (x.shape[-1] == 1 and _is_known(kernel)):
        parts.append(_Part(kernel, z, x))
        return True
    return False


def _is_known(kernel: Kernel) -> bool:
    base = _correlation(kernel)
    return "forward" not in vars(base) and type(base) in _KNOWN_KERNELS


def _correlation(kernel: Kernel) -> Kernel:
    """The kernel that an ANOVA kernel centres, without its scales; any other kernel itself."""
    base = kernel.base_kernel if type(kernel) is ANOVAKernel else kernel
    while base is not kernel and type(base) is ScaleKernel:
        base = base.base_kernel
    return base


def _factor(part: _Part, column: int) -> tuple[Factor, Tensor]:
    """One column of a kernel, and its variance at the data ``(*batch, C, n)`` or ``(*batch, C, 1)``."""
    kernel, z = part.kernel, part.z[..., column]
    x = z if part.x is part.z else part.x[..., column]
    if type(kernel) is ANOVAKernel:
        return _centred_factor(kernel, z, x)
    shape, rate, frequency = _local_part(kernel, column, x.dtype, is_deviation=False)
    if frequency is not None:
        z, x = z * frequency, x * frequency
    return Factor(shape, z, x, torch.zeros_like(rate), rate), torch.ones_like(rate)


def _local_part(
    kernel: Kernel, column: int, dtype: torch.dtype, is_deviation: bool
) -> tuple[LocalShape, Tensor, Tensor | None]:
    """Shape and rate ``(*batch, 1)`` of a stationary kernel, and the number by which its inputs are multiplied."""
    lengthscale = kernel.lengthscale.squeeze(-2).to(dtype)  # (*batch, 1), or a column each
    if isinstance(kernel, RBFKernel):
        lengthscale = lengthscale[..., column : column + 1] if lengthscale.shape[-1] > 1 else lengthscale
        shape = LocalShape.CENTRED_RBF if is_deviation else LocalShape.RBF
        return shape, -0.5 / lengthscale.square(), None
    if isinstance(kernel, PeriodicKernel):
        shape = LocalShape.PERIODIC_DEVIATION if is_deviation else LocalShape.PERIODIC
        return shape, -2.0 / lengthscale, math.pi / kernel.period_length.squeeze(-2).to(dtype)
    first = LocalShape.MATERN12_DEVIATION if is_deviation else LocalShape.MATERN12
    return LocalShape(first + round(kernel.nu - 0.5)), math.sqrt(2 * kernel.nu) / lengthscale, None


def _centred_factor(kernel: ANOVAKernel, z: Tensor, x: Tensor) -> tuple[Factor, Tensor]:
    shape, rate, frequency = _local_part(_correlation(kernel), 0, x.dtype, is_deviation=True)
    log_scale, offset_z, offset_x, left, right, variance = _centred_parts(kernel, z, x)
    if frequency is not None:
        z, x = z * frequency, x * frequency
    return Factor(shape, z, x, log_scale, rate, offset_z, offset_x, left, right), variance


class _CentredParts(torch.nn.Module):
    """:meth:`ANOVAKernel.centred_parts` in the dtype of the data, as a module for calls with other parameters."""

    def __init__(self, kernel: ANOVAKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, z: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """The parts as a tuple of tensors, in the order of their fields."""
        parts = self.kernel.centred_parts(z, x, x.dtype)
        return tuple(None if part is None else part.to(x.dtype) for part in parts)


def _centred_parts(kernel: ANOVAKernel, z: Tensor, x: Tensor) -> CentredParts:
    """
    The parts in the dtype of the data. Functions of the data take a hundred operations on vectors in float64, which
    autograd would keep: for many rows they are evaluated in chunks, and again in the backward pass.
    """
    module = _CentredParts(kernel)
    size = max(_CHUNK_SIZE, _CHUNK_ELEMENTS // math.prod(x.shape[:-1]))
    if x.shape[-1] <= size:
        return CentredParts(*module(z, x))
    # Those of now, wherever they come from: functional_call will have taken its own away by the backward pass.
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def evaluate(rows: Tensor) -> Any:
        return torch.func.functional_call(module, tensors, (z, rows))

    pieces = [CentredParts(*checkpoint(evaluate, rows, use_reentrant=False)) for rows in x.split(size, dim=-1)]
    offsets = [piece.offset2 for piece in pieces if piece.offset2 is not None]
    return pieces[0]._replace(
        offset2=torch.cat(offsets, dim=-1) if offsets else None,
        right=torch.cat([piece.right for piece in pieces], dim=-1),
        variance2=torch.cat([piece.variance2 for piece in pieces], dim=-1),
    )


def _scaled(factor: Factor, variance: Tensor, scales: list[Tensor]) -> tuple[Factor, Tensor]:
    """A factor and its variance, multiplied by output scales ``(*batch, C)``."""
    if not scales:
        return factor, variance
    scale = functools.reduce(torch.mul, scales).unsqueeze(-1)
    left = None if factor.left is None else factor.left * scale.unsqueeze(-1)
    log_scale = scale.clamp_min(torch.finfo(scale.dtype).tiny).log()  # components may be switched off by scale 0
    return factor._replace(log_scale=factor.log_scale + log_scale, left=left), variance * scale


def _expanded(factor: Factor, batch_shape: torch.Size) -> Factor:
    """The factor with all tensors expanded to all batch dimensions."""
    expanded: dict[str, Any] = {}
    for name, value in factor._asdict().items():
        if torch.is_tensor(value):
            num_own = 2 if name in ("left", "right") else 1
            expanded[name] = value.expand(*batch_shape, *value.shape[-num_own:])
    return factor._replace(**expanded)
