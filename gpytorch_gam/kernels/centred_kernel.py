"""
A kernel conditioned on a mean of zero over given points.

Reference:
    N. Durrande, D. Ginsbourger, O. Roustant, L. Carraro. ANOVA kernels and RKHS of zero mean functions for
    model-based sensitivity analysis. Journal of Multivariate Analysis, 2013.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import _checks as checks

from ._base_kernels import check_base_kernel, check_call, result_dtype
from ._batched_kernel import BatchedKernel
from ._parameters import as_parameter, checked_weights
from .batch_shapes import resize_for_state
from .evaluation import evaluate
from .measures import Measure

_EPSILON = torch.finfo(torch.float64).eps


class CentredKernel(BatchedKernel):
    r"""
    Any kernel, conditioned on the weighted mean of the function over given points being zero.

    The weighted mean of the kernel over the points is zero in each argument: the constant of the additive model takes
    up the mean. Use it where :class:`~gpytorch_gam.kernels.ANOVAKernel` cannot be used: for any number of columns,
    without a product measure, and for categories. With a :class:`~gpytorch_gam.kernels.LevelKernel` and all L levels as
    points it is the factor whose effects sum to zero, which is determined by any L - 1 of them. A product with kernels
    of other columns centred in the same way is an interaction without main effects: ``ANOVAKernel(...,
    active_dims=[0]) * CentredKernel(LevelKernel(), levels, active_dims=[1])``. The mathematics is in
    :doc:`/theory/anova_kernels`.

    By default the kernel is also divided by the weighted mean of its diagonal over the points, so that the
    ``outputscale`` of a :class:`~gpytorch.kernels.ScaleKernel` *around* it is that of the prior variance.
    (:class:`~gpytorch_gam.kernels.ANOVAKernel` explains why; bound lengthscales at something like ten times the range
    of the input here, too.)

    **Accuracy.** The base kernel is evaluated in float64, and the result rounded to the common dtype of inputs and
    parameters. Differences of nearly equal numbers lose :math:`(\ell / \mathrm{range})^2` at long lengthscales, which
    leaves errors of 1e-10 of the mean variance at a hundred times the range. Where the mean is zero already, the base
    kernel stays as it is. Where the mean determines the function, as with a line, the result is zero.

    **Cost.** A call at n and m' inputs takes n m' evaluations of the base kernel, (n + m') m for the means, and
    :math:`m^2` for the mean of the means, whether or not ``diag`` is asked for; all are kept for the gradient. Keep m
    at a few hundred at most, by a sample of the rows or by k-means with weights.

    :param base_kernel: A kernel with one output, of any number of columns. It is not modified. Its ``active_dims``
        count the columns of the points.
    :param points: The points over which the mean is taken, ``(m, d)`` or ``(*batch, m, d)``, or ``(m,)`` for one
        column.
    :param weights: The weights of the points, nonnegative, ``(m,)`` or ``(*batch, m)``; normalised to sum to one.
        (Default: equal weights.)
    :param normalize: Whether to divide by the mean prior variance over the points. (Default: True.)
    :param active_dims: The columns of the input to read, as many as the points have.
    :raises TypeError: If ``base_kernel`` is not a kernel.
    :raises ValueError: If points or weights are not finite, their shapes do not fit, a weight is negative, fewer than
        two distinct points have weight, or the base kernel has several outputs or an output scale that
        ``normalize=True`` would cancel; or, when called, if x has another number of columns than the points.

    Example:
        >>> levels = torch.arange(5.0)
        >>> factor = ScaleKernel(CentredKernel(LevelKernel(), levels))
        >>> space = ScaleKernel(CentredKernel(MaternKernel(nu=1.5), train_x[torch.randperm(1000)[:256]]))
    """

    is_stationary = False
    batched_tensors = (("points", 2), ("weights", 1))
    base_kernel: Kernel
    points: Tensor
    weights: Tensor

    def __init__(
        self,
        base_kernel: Kernel,
        points: Any,
        weights: Any = None,
        normalize: bool = True,
        active_dims: tuple[int, ...] | None = None,
    ) -> None:
        points = _checked_points(points)
        weights = _checked_weights(weights, points)
        _check_base_kernel(base_kernel, points, normalize)
        super().__init__(active_dims=active_dims)
        if self.active_dims is not None and self.active_dims.numel() != points.shape[-1]:
            raise ValueError(
                f"active_dims {self.active_dims.tolist()} must name as many columns as points have, {points.shape[-1]}"
            )
        self.base_kernel = base_kernel
        self.normalize = checks.flag("normalize", normalize)
        self.register_buffer("points", points)
        self.register_buffer("weights", weights)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        resize_for_state(self, {"points": -2, "weights": -1}, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _part_shapes(self) -> tuple[torch.Size, ...]:
        return self.base_kernel.batch_shape, self.points.shape[:-2], self.weights.shape[:-1]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel of inputs ``(*batch, n, d)`` and ``(*batch, m, d)``; see :class:`gpytorch.kernels.Kernel`."""
        check_call(self, params)
        if x1.size(-1) != self.points.size(-1):
            raise ValueError(
                f"x has {x1.size(-1)} columns, but the points of CentredKernel have {self.points.size(-1)}; choose "
                "columns by active_dims=[...]"
            )
        dtype = result_dtype(x1, x2, self.base_kernel)
        x2_is_x1, x1 = x2 is x1, x1.double()
        x2 = x1 if x2_is_x1 else x2.double()
        points, weights = self.points.double(), self.weights.double()
        weights = weights / weights.sum(-1, keepdim=True)

        point_mean = self._mean(points, points, weights)  # (*batch, m)
        double_mean = (weights * point_mean).sum(-1, keepdim=True)  # (*batch, 1)
        point_variance = _evaluate(self.base_kernel, points, points, diag=True)
        mean_variance = (weights * point_variance).sum(-1, keepdim=True)
        # A mean that is zero but for rounding would be divided by its own variance, which is also mere rounding.
        is_centred = double_mean <= 4 * _EPSILON * mean_variance
        inverse = torch.where(is_centred, 0.0, 1 / torch.where(is_centred, 1.0, double_mean))
        if self.normalize:
            variance = mean_variance - inverse * (weights * point_mean.square()).sum(-1, keepdim=True)
            # A function that the mean determines is zero, and its variance is rounding, possibly negative.
            is_zero = variance <= _rounding(points) * mean_variance
            scale = torch.where(is_zero, 0.0, 1 / torch.where(is_zero, 1.0, variance))
        else:
            scale = torch.ones_like(double_mean)

        mean1 = self._mean(x1, points, weights)
        mean2 = mean1 if x2_is_x1 else self._mean(x2, points, weights)
        base = _evaluate(self.base_kernel, x1, x2, diag)
        if diag:
            covariance = base - inverse * mean1 * mean2
            # Other negative numbers would mean that the base is no covariance.
            is_rounding = (covariance < 0) & (covariance >= -_rounding(points) * base)
            return (scale * torch.where(is_rounding, 0.0, covariance)).to(dtype)
        covariance = base - (inverse * mean1).unsqueeze(-1) * mean2.unsqueeze(-2)
        return (scale.unsqueeze(-1) * covariance).to(dtype)

    def _mean(self, x: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean over the points of the base kernel at x, of shape ``(*batch, n)``."""
        # GPyTorch takes differences from the mean of the first inputs: with the points there, one far row of x costs
        # the others no precision.
        return (weights.unsqueeze(-2) @ _evaluate(self.base_kernel, points, x)).squeeze(-2)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        """The number of outputs, which is one."""
        return 1


def _evaluate(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    return evaluate(kernel, x1, None if x2 is x1 else x2, diag).double()


def _rounding(points: Tensor) -> float:
    """A bound on the relative rounding error of a sum over the points."""
    return (points.shape[-2] + 8) * _EPSILON


def _checked_points(points: Any) -> Tensor:
    if isinstance(points, Measure):
        raise TypeError(
            f"points of CentredKernel must hold numbers, such as those of a grid, got {type(points).__name__}: a "
            "measure is for ANOVAKernel"
        )
    points = as_parameter("CentredKernel", "points", points)
    if points.dim() == 1:
        points = points.unsqueeze(-1)
    if points.dim() == 0 or 0 in points.shape:
        raise ValueError(
            f"points of CentredKernel must have shape (m, d), (*batch, m, d), or (m) for one column, got "
            f"{tuple(points.shape)}"
        )
    return points


def _checked_weights(weights: Any, points: Tensor) -> Tensor:
    if weights is None:
        weights = torch.ones(points.shape[-2], dtype=torch.float64)
    weights = checked_weights("CentredKernel", weights, points[..., 0], "points")
    # With a single distinct point of positive weight, the function would be zero there and averaged nowhere else.
    used = (weights > 0).unsqueeze(-1)
    low = torch.where(used, points, torch.inf).amin(-2)
    high = torch.where(used, points, -torch.inf).amax(-2)
    if not bool((low < high).any(-1).all()):
        raise ValueError(
            "CentredKernel needs two or more distinct points with positive weight (in every batch); leave a component "
            "whose input is constant out"
        )
    return weights.double() / weights.double().sum(-1, keepdim=True)


def _check_base_kernel(kernel: Any, points: Tensor, normalize: bool) -> None:
    is_scaled = isinstance(kernel, Kernel) and _has_output_scale(kernel)
    check_base_kernel("CentredKernel", kernel, points[..., :1, :], normalize and is_scaled)
    for part in [kernel, *kernel.sub_kernels()]:
        if part.active_dims is not None and int(part.active_dims.max()) >= points.shape[-1]:
            raise ValueError(
                f"base_kernel has active_dims {part.active_dims.tolist()}, but points have {points.shape[-1]} columns; "
                "those of base_kernel count the columns of the points, those of CentredKernel the columns of x"
            )
    try:
        torch.broadcast_shapes(points.shape[:-2], kernel.batch_shape)
    except RuntimeError:
        raise ValueError(
            f"points have batch shape {tuple(points.shape[:-2])}, which does not broadcast with that of base_kernel, "
            f"{tuple(kernel.batch_shape)}; give points for each component, or the same for all"
        ) from None


def _has_output_scale(kernel: Kernel) -> bool:
    if isinstance(kernel, ProductKernel):
        return any(_has_output_scale(part) for part in kernel.kernels)
    return isinstance(kernel, ScaleKernel)
