"""
A one-dimensional kernel made orthogonal to constants under an input measure.

References:
    N. Durrande, D. Ginsbourger, O. Roustant, L. Carraro. ANOVA kernels and RKHS of zero mean functions for
    model-based sensitivity analysis. Journal of Multivariate Analysis, 2013.

    V. Adam, N. Durrande, S. John. Scalable GAM using sparse variational Gaussian processes. AABI, 2018.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import CosineKernel, Kernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.settings import debug, trace_mode
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.interpolation import by_table
from gpytorch_gam.numerics.transforms import is_transformed

from ._base_kernels import check_base_kernel, keywords_of_kernels, one_column, result_dtype
from ._batched_kernel import BatchedKernel
from .bounded_kernels import MATERN_KERNELS
from .measures import Measure
from .measures.measure import largest_scaled_offset, rbf_without_factor

# At this distance a Matern kernel has fallen to 1e-19, while its polynomial can still be subtracted from itself.
_LARGEST_MATERN_DISTANCE = 50.0

# This leaves errors of 1e-6 in the mean embedding of a PeriodicKernel of lengthscale .5. The harmonics of shorter
# lengthscales reach further, in proportion to the root.
_NODES_PER_PERIOD = 12
_SMOOTH_PERIODIC_LENGTHSCALE = 0.5


class ANOVAKernel(BatchedKernel):
    r"""
    A stationary kernel of one input, made orthogonal to constants under a measure of that input.

    A Gaussian process with this covariance is one with that of the base kernel, conditioned on having mean zero under
    the measure: the constant of the additive model takes up the mean. A product of such kernels on different columns is
    an interaction orthogonal to both main effects: ``ANOVAKernel(..., active_dims=[0]) * ANOVAKernel(...,
    active_dims=[1])``. The mathematics is in :doc:`/theory/anova_kernels`.

    By default the kernel is also divided by the mean of its diagonal under the measure, so that the ``outputscale`` of
    a :class:`~gpytorch.kernels.ScaleKernel` *around* it is the prior variance of the component, on average. Without
    that, training on a nearly linear effect runs away along a ridge of ever longer lengthscales and larger scales.
    Bound the lengthscale in any case, at something like ten times the range of the input::

        RBFKernel(batch_shape=torch.Size([6]), lengthscale_constraint=Interval(0.01, 10.0))

    **Accuracy.** An :class:`~gpytorch.kernels.RBFKernel` takes a path of its own, without cancellation at long
    lengthscales or overflow far from the measure: all vectors and constants are float64, and the kernel matrix has the
    dtype that the base kernel would give (the common one of inputs and parameters).

    **Other stationary kernels** (Matern, RQ, periodic, cosine, sums and products of them, ...) are evaluated in float64
    throughout and rounded at the end. A Matern kernel has closed forms under uniform and empirical measures. For others
    embeddings are by quadrature at ``num_quadrature_nodes`` nodes on each side of x: a call at n and m inputs takes
    about ``n m + 2 (n + m) num_quadrature_nodes`` evaluations of the base kernel a component. Periodic kernels need at
    least twelve nodes for each period in the range of the measure (in 17 standard deviations of a normal one) and raise
    an error below that; kernels that bend at distances other than zero, such as those with compact support, are less
    accurate.

    Inputs have one column: ``(*batch, C, n, 1)`` for a kernel with batch shape ``(*batch, C)``, one component for each
    entry of the last batch dimension.

    :param base_kernel: A stationary kernel of one input. It is not modified. If it has ``active_dims``, this kernel
        takes them over. With ``normalize=False`` it may be a :class:`~gpytorch.kernels.ScaleKernel`.
    :param measure: The distribution of the input. Its batch shape must broadcast with that of the base kernel.
    :param normalize: Whether to divide by the mean prior variance under the measure. (Default: True. False is the
        kernel of Adam, Durrande and John 2018.)
    :param num_quadrature_nodes: The number of quadrature nodes a panel. (Default: 48.)
    :param kwargs: Passed to :class:`~gpytorch.kernels.Kernel`: ``active_dims``, one column of the input.
    :raises TypeError: If ``base_kernel`` is not a kernel or ``measure`` not a measure.
    :raises ValueError: If the base kernel is not stationary, has more than one input or output, or has an output scale
        that ``normalize=True`` would cancel; if the batch shape of the measure does not cover the base kernel's; or,
        when called, if x has more than one column, or there are too few nodes for a periodic kernel.

    Example:
        >>> base_kernel = RBFKernel(batch_shape=torch.Size([6]))
        >>> kernel = ScaleKernel(ANOVAKernel(base_kernel, Uniform(0.0, 1.0)), batch_shape=torch.Size([6]))
        >>> kernel(torch.rand(6, 100, 1)).shape
        torch.Size([6, 100, 100])
    """

    base_kernel: Kernel
    measure: Measure

    def __init__(
        self,
        base_kernel: Kernel,
        measure: Measure,
        normalize: bool = True,
        num_quadrature_nodes: int = 48,
        **kwargs: Any,
    ) -> None:
        _check_base_kernel(base_kernel, normalize)
        _check_measure(measure, base_kernel)
        checks.integer("num_quadrature_nodes", num_quadrature_nodes, least=1)
        checks.flag("normalize", normalize)
        if base_kernel.active_dims is not None:
            if kwargs.get("active_dims") is not None:
                raise ValueError(
                    "active_dims is given both to ANOVAKernel and to base_kernel; give it to ANOVAKernel only"
                )
            kwargs["active_dims"] = base_kernel.active_dims
        super().__init__(**keywords_of_kernels("ANOVAKernel", kwargs))
        if self.active_dims is not None and self.active_dims.numel() != 1:
            raise ValueError(
                f"active_dims must name one column, got {self.active_dims.tolist()}; multiply kernels of one column"
            )
        self.base_kernel = base_kernel
        self.measure = measure
        self.normalize = normalize
        self.num_quadrature_nodes = num_quadrature_nodes

    def _part_shapes(self) -> tuple[torch.Size, ...]:
        return self.base_kernel.batch_shape, self.measure.batch_shape

    def _with_batch(self, batch_shape: torch.Size, index: tuple[Any, ...]) -> Any:
        new_kernel = super()._with_batch(batch_shape, index)
        new_kernel.measure = self.measure.expand(batch_shape)[index]
        return new_kernel

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel of inputs ``(*batch, n, d)`` and ``(*batch, m, d)``; see :class:`gpytorch.kernels.Kernel`."""
        kernel, outputscale = _unwrap_scale(self.base_kernel)
        dtype = result_dtype(x1, x2, self.base_kernel)
        column1 = one_column(self, x1, params)
        # Equal inputs become the same object, by which the methods below recognise them.
        is_same = x2 is x1 or (diag and _hold_the_same(x1, x2))
        column2 = column1 if is_same else one_column(self, x2, params)
        arguments = (column1, column2, outputscale, dtype, diag)
        if _is_plain_rbf(kernel):
            return self._rbf_covariance(kernel.lengthscale.double().squeeze(-1), *arguments)
        return self._general_covariance(kernel, *arguments)

    def _rbf_covariance(
        self, lengthscale: Tensor, x1: Tensor, x2: Tensor, outputscale: Tensor | None, dtype: torch.dtype, diag: bool
    ) -> Tensor:
        if diag:
            factors1, factors2, mean_variance = self._rbf_parts(
                lengthscale, x1, x2, largest_scaled_offset(torch.float64)
            )
            squared_distance = (x1.double() - x2.double()).square() / (2 * lengthscale.square())
            local = rbf_without_factor(squared_distance, factors1.offset * factors2.offset)
            unscaled = local + factors1.plus * factors2.plus - factors1.minus * factors2.minus
            return (_log_scale(mean_variance, outputscale, like=lengthscale).exp() * unscaled).to(dtype)

        parts = self._centred_rbf(lengthscale, x1, x2, outputscale, dtype)
        assert parts.offset1 is not None and parts.offset2 is not None
        inputs = (
            x1.unsqueeze(-1),
            x2.unsqueeze(-2),
            (-0.5 / lengthscale.square()).unsqueeze(-1),
            parts.log_scale.unsqueeze(-1),
            parts.offset1.unsqueeze(-1),
            parts.offset2.unsqueeze(-2),
            parts.left,
            parts.right,
        )
        function = rbf_anova_matrix if trace_mode.on() else _RBFANOVAMatrix.apply
        return function(*(tensor.to(dtype) for tensor in inputs))

    def centred_parts(self, x1: Tensor, x2: Tensor, dtype: torch.dtype) -> CentredParts:
        """
        The kernel of inputs ``(*batch, n)`` and ``(*batch, m)`` as a local part, which will be evaluated in ``dtype``,
        and products of functions of one input, in float64.
        """
        kernel, outputscale = _unwrap_scale(self.base_kernel)
        if _is_plain_rbf(kernel):
            return self._centred_rbf(kernel.lengthscale.double().squeeze(-1), x1, x2, outputscale, dtype)
        return self._centred_by_quadrature(kernel, x1, x2, outputscale)

    def _centred_rbf(
        self, lengthscale: Tensor, x1: Tensor, x2: Tensor, outputscale: Tensor | None, dtype: torch.dtype
    ) -> CentredParts:
        factors1, factors2, mean_variance = self._rbf_parts(lengthscale, x1, x2, largest_scaled_offset(dtype))
        log_scale = _log_scale(mean_variance, outputscale, like=lengthscale)
        scale = log_scale.exp()
        root_scale = scale.sqrt()
        right = torch.stack([factors2.plus * root_scale, factors2.minus * root_scale], -2)  # (*batch, 2, m)
        return CentredParts(
            log_scale=log_scale,
            offset1=factors1.offset,
            offset2=factors2.offset,
            left=torch.stack([factors1.plus * root_scale, -factors1.minus * root_scale], -1),  # (*batch, n, 2)
            right=right,
            variance2=right[..., 0, :].square()
            - right[..., 1, :].square()
            - scale * torch.expm1(-factors2.offset.square()),
        )

    def _rbf_parts(
        self, lengthscale: Tensor, x1: Tensor, x2: Tensor, limit: float
    ) -> tuple[_RBFFactors, _RBFFactors, Tensor | None]:
        """
        The factors at both inputs, and the mean of the RBF diagonal under the measure ``(*batch, 1)`` if normalized.
        One evaluation serves all points: the number of its hundred operations on short vectors determines the cost.
        """
        points = [x1.double()] if x2 is x1 else [x1.double(), x2.double()]
        if self.normalize:
            nodes, weights = self.measure.quadrature(self.num_quadrature_nodes)
            points.append(nodes)
        batch_shape = torch.broadcast_shapes(*(part.shape[:-1] for part in points))
        together = torch.cat([part.expand(*batch_shape, part.shape[-1]) for part in points], -1)
        factors = _rbf_factors(self.measure, together, lengthscale, limit)
        split = zip(*(tensor.split([part.shape[-1] for part in points], -1) for tensor in factors), strict=True)
        parts = [_RBFFactors(*part) for part in split]
        if not self.normalize:
            return parts[0], parts[-1], None
        at_nodes = parts.pop()
        # A sum of positive terms
        diagonal = -torch.expm1(-at_nodes.offset.square()) + at_nodes.plus.square() - at_nodes.minus.square()
        return parts[0], parts[-1], (weights * diagonal).sum(-1, keepdim=True)

    def _general_covariance(
        self, kernel: Kernel, x1: Tensor, x2: Tensor, outputscale: Tensor | None, dtype: torch.dtype, diag: bool
    ) -> Tensor:
        parts = self._centred_by_quadrature(kernel, x1, x2, outputscale)
        local_scale = parts.log_scale.exp()
        x1, x2 = x1.double(), x2.double()
        if diag:
            deviation = _deviation(kernel, x1 - x2, num_data_dims=1)
            return (local_scale * deviation + (parts.left * parts.right.mT).sum(-1)).to(dtype)
        deviation = _deviation(kernel, x1.unsqueeze(-1) - x2.unsqueeze(-2), num_data_dims=2)
        return (local_scale.unsqueeze(-1) * deviation + parts.left @ parts.right).to(dtype)

    def _centred_by_quadrature(
        self, kernel: Kernel, x1: Tensor, x2: Tensor, outputscale: Tensor | None
    ) -> CentredParts:
        if debug.on():
            _check_nodes_per_period(kernel, self.measure, self.num_quadrature_nodes)
        # With e = k / k(0) - 1, its embedding mu and double mean nu:
        # k0 / k(0) = e + [ nu - mu(x) - (1 + mu(x)) mu(y) ] / (1 + nu)
        nodes, weights = self.measure.quadrature(self.num_quadrature_nodes)
        points = [nodes, x1.double()] if x2 is x1 else [nodes, x1.double(), x2.double()]
        # One call serves all points, as closed forms have work that does not depend on their number.
        batch_shape = torch.broadcast_shapes(*(part.shape[:-1] for part in points))
        embedding = self._embedding(kernel, torch.cat([part.expand(*batch_shape, -1) for part in points], -1))
        node_embedding, mu1, *others = embedding.split([part.shape[-1] for part in points], -1)
        mu2 = others[0] if others else mu1
        double_mean = (weights * node_embedding).sum(-1, keepdim=True)  # (*batch, 1)
        if self.normalize:
            mean_variance = (-double_mean - (weights * node_embedding.square()).sum(-1, keepdim=True)) / (
                1 + double_mean
            )
        else:
            mean_variance = 1 / _variance(kernel)  # puts back k(0), by which e was divided
        log_scale = _log_scale(mean_variance, outputscale, like=double_mean)
        scale = log_scale.exp() / (1 + double_mean)
        left = torch.stack(torch.broadcast_tensors(scale * (double_mean - mu1), -scale * (1 + mu1)), -1)
        right = torch.stack([torch.ones_like(mu2), mu2], -2)
        return CentredParts(log_scale, None, None, left, right, scale * (double_mean - mu2 * (2 + mu2)))

    def _embedding(self, kernel: Kernel, x: Tensor) -> Tensor:
        """The mean over s of k(x, s) / k(0) - 1, of shape ``(*batch, n)``."""
        if type(kernel) in MATERN_KERNELS:
            rate = math.sqrt(2 * kernel.nu) / kernel.lengthscale.double().squeeze(-1)
            embedding = self.measure.matern_deviation(x, rate, kernel.nu)
            if embedding is not None:
                return embedding
        nodes, weights = self.measure.split_quadrature(x, self.num_quadrature_nodes)
        return (_deviation(kernel, x.unsqueeze(-1) - nodes, num_data_dims=2) * weights).sum(-1)


class CentredParts(NamedTuple):
    r"""
    A centred kernel as :math:`\mathrm{local}(x, y) + a(x)^\top b(y)`, in float64. The local part of an RBF kernel is
    :math:`-s e^{-(x - y)^2 / 2 \ell^2} (e^{-o(x) o(y)} - 1)`, that of any other :math:`s (k(x - y) / k(0) - 1)`.
    """

    log_scale: Tensor  # log s, (*batch, 1)
    offset1: Tensor | None  # o at the first inputs, (*batch, n); None for kernels other than RBF
    offset2: Tensor | None  # o at the second inputs, (*batch, m); None for kernels other than RBF
    left: Tensor  # a at the first inputs, (*batch, n, 2)
    right: Tensor  # b at the second inputs, (*batch, 2, m)
    variance2: Tensor  # the diagonal at the second inputs, (*batch, m)


class _RBFFactors(NamedTuple):
    """The parts ``(*batch, n)`` of ``k0(x, y) = local + plus(x) plus(y) - minus(x) minus(y)``, in float64."""

    offset: Tensor
    plus: Tensor
    minus: Tensor


def _hold_the_same(x1: Tensor, x2: Tensor) -> bool:
    """Whether inputs are equal, as the copies of a column are that product kernels select. A GPU is not waited for."""
    may_look = x1.device.type == "cpu" and not (x1.requires_grad or x2.requires_grad) and not is_transformed()
    return may_look and not torch.compiler.is_compiling() and torch.equal(x1, x2)


def _rbf_factors(
    measure: Measure,
    x: Tensor,  # (*batch, n)
    lengthscale: Tensor,  # (*batch, 1)
    limit: float,
) -> _RBFFactors:
    r"""
    Split the ANOVA kernel of an RBF kernel into a local part and two products.

    At short lengthscales, :math:`k_0 = k - (\mu / \sqrt\nu)(\mu' / \sqrt\nu)`. At long ones, in the notation of
    :mod:`~gpytorch_gam.kernels.measures.measure` and with :math:`m = \mu - G \alpha`, the square is completed in

    .. math::

        k_0 = \alpha \alpha' h + [P \alpha \alpha' - G m \alpha' - G \alpha m' - m m'] / \nu
            = \alpha \alpha' h + \frac{P}{\nu} \beta \beta' - \frac{m m'}{P}, \qquad \beta = \alpha - \frac{G}{P} m,

    where at the measure's mean only :math:`P \beta \beta' / \nu > 0` remains. The local part is
    :func:`~gpytorch_gam.kernels.measures.measure.rbf_without_factor` of the returned offsets, which are cut off at a
    limit. At short lengthscales they are constant, and so large that the local part is the kernel itself.

    The factors plus and minus of many points, whose cost grows with the atoms of a measure, come from a table.
    """
    is_long = measure.is_long(lengthscale)
    batch_shape = torch.broadcast_shapes(x.shape[:-1], lengthscale.shape[:-1], measure.batch_shape)
    x = x.expand(*batch_shape, x.shape[-1])

    def products(points: Tensor) -> tuple[Tensor, Tensor]:
        constants, embedding, remainder = measure.rbf_integrals(points, lengthscale)
        factor = torch.exp(-0.5 * _scaled_offset(measure, points, lengthscale).square())
        # Where the lengthscale is short, the long form is computed with harmless constants: its gradient would be NaN
        # otherwise.
        safe_remainder = torch.where(is_long, constants.remainder, torch.ones_like(constants.remainder))
        rest = factor - constants.factor_mean / safe_remainder * remainder
        plus = torch.where(is_long, (safe_remainder / constants.double_mean).sqrt() * rest, torch.zeros_like(rest))
        short = embedding * constants.double_mean.rsqrt()
        return plus, torch.where(is_long, remainder * safe_remainder.rsqrt(), short)

    plus, minus = by_table(products, x, lengthscale)
    scaled = _scaled_offset(measure, x, lengthscale)
    return _RBFFactors(torch.where(is_long, scaled.clamp(-limit, limit), torch.full_like(scaled, limit)), plus, minus)


def _scaled_offset(measure: Measure, x: Tensor, lengthscale: Tensor) -> Tensor:
    return (x - measure.mean.unsqueeze(-1)) / lengthscale


def rbf_anova_matrix(
    x1: Tensor,  # (*batch, n, 1)
    x2: Tensor,  # (*batch, 1, m)
    rate: Tensor,  # (*batch, 1, 1), -1 / 2 l^2
    log_scale: Tensor,  # (*batch, 1, 1)
    offset1: Tensor,  # (*batch, n, 1)
    offset2: Tensor,  # (*batch, 1, m)
    left: Tensor,  # (*batch, n, 2)
    right: Tensor,  # (*batch, 2, m)
) -> Tensor:
    r"""The matrix :math:`-e^{\mathrm{scale} + \mathrm{rate} (x_1 - x_2)^2} (e^{-o_1 o_2} - 1) + L R`."""
    difference = x1 - x2
    local = -torch.exp(log_scale + difference * (difference * rate)) * torch.expm1(-offset1 * offset2)
    return local + left @ right


class _RBFANOVAMatrix(torch.autograd.Function):
    """
    :func:`rbf_anova_matrix` with a backward pass by hand. Autograd would keep seven matrices and sweep about thirty
    times over them; this keeps two and sweeps about ten times. Gradients of gradients go through the plain function.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        x1, x2, rate, log_scale, offset1, offset2, left, right = inputs
        difference = x1 - x2
        kernel = difference * rate
        # Parameters may have batch dimensions that the inputs lack, so the shape grows step by step.
        kernel = torch.addcmul(log_scale, kernel, difference).exp_()
        local = (-offset1 * offset2).expm1_()
        local = local.mul_(kernel) if local.shape == kernel.shape else local * kernel
        local = local.neg_()
        ctx.save_for_backward(*inputs, kernel, local)
        result = torch.addcmul(local, left[..., :1], right[..., :1, :])
        return result.addcmul_(left[..., 1:], right[..., 1:, :])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, kernel, local = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True
            return _differentiable_backward(inputs, needed, grad)
        x1, x2, rate, _, offset1, offset2, left, right = inputs
        grads: list[Tensor | None] = [None] * 8
        weighted = grad * local
        if any(needed[:3]):
            difference = x1 - x2
            weighted_difference = weighted * difference
            if needed[0]:
                grads[0] = 2 * rate * weighted_difference.sum(-1, keepdim=True)
            if needed[1]:
                grads[1] = -2 * rate * weighted_difference.sum(-2, keepdim=True)
            if needed[2]:
                grads[2] = weighted_difference.mul_(difference).sum((-2, -1), keepdim=True)
        if needed[3]:
            grads[3] = weighted.sum((-2, -1), keepdim=True)
        if needed[4] or needed[5]:
            # The derivative of -exp(-z) + 1 is exp(-z), and kernel * exp(-z) = kernel - local.
            product = torch.addcmul(weighted.neg_(), grad, kernel)
            grads[4] = product @ offset2.mT
            grads[5] = offset1.mT @ product
        if needed[6]:
            grads[6] = grad @ right.mT
        if needed[7]:
            grads[7] = left.mT @ grad
        return tuple(None if g is None else g.sum_to_size(i.shape) for g, i in zip(grads, inputs, strict=True))


def _differentiable_backward(inputs: list[Tensor], needed: tuple[bool, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
    result = rbf_anova_matrix(*inputs)
    wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
    grads = iter(torch.autograd.grad(result, wanted, grad, create_graph=True))
    return tuple(next(grads) if is_needed else None for is_needed in needed)


def _deviation(kernel: Kernel, difference: Tensor, num_data_dims: int) -> Tensor:
    """k(r) / k(0) - 1 for differences r, float64, whose last ``num_data_dims`` dimensions are not those of a batch."""
    shape = difference.shape
    flat = difference.flatten(-num_data_dims)  # (*batch, J)
    if isinstance(kernel, MaternKernel):
        deviation = _matern_deviation(kernel, flat)
    elif isinstance(kernel, RQKernel):
        alpha = kernel.alpha.double()
        squared = (flat / kernel.lengthscale.double().squeeze(-1)).square()
        deviation = torch.expm1(-alpha * torch.log1p(squared / (2 * alpha)))
    elif isinstance(kernel, PeriodicKernel) and type(kernel).forward is PeriodicKernel.forward:
        phase = math.pi * flat / kernel.period_length.double().squeeze(-1)
        deviation = torch.expm1(-2 * phase.sin().square() / kernel.lengthscale.double().squeeze(-1))
    else:
        # The diagonal of pairs with the origin: a matrix would come from an expanded square, with errors of 1e-8.
        pairs = flat.unsqueeze(-1)
        deviation = kernel.forward(pairs, torch.zeros_like(pairs), diag=True) / _variance(kernel) - 1
    return deviation.unflatten(-1, shape[len(shape) - num_data_dims :])


def _matern_deviation(kernel: MaternKernel, difference: Tensor) -> Tensor:
    scale = math.sqrt(2 * kernel.nu) / kernel.lengthscale.double().squeeze(-1)
    scaled = (difference * scale).abs().clamp(max=_LARGEST_MATERN_DISTANCE)
    exponential = torch.expm1(-scaled)
    if kernel.nu == 0.5:
        return exponential
    polynomial = scaled if kernel.nu == 1.5 else torch.addcmul(scaled, scaled, scaled, value=1 / 3)
    # (1 + polynomial) (1 + exponential) - 1
    return torch.addcmul(polynomial, exponential, 1 + polynomial)


def _variance(kernel: Kernel) -> Tensor:
    """k(0), of shape ``(*batch, 1)``, float64."""
    origin = torch.zeros(1, 1, dtype=torch.float64, device=kernel.device)
    return kernel.forward(origin, origin, diag=True)


def _log_scale(mean_variance: Tensor | None, outputscale: Tensor | None, like: Tensor) -> Tensor:
    """log(outputscale / mean_variance), of shape ``(*batch, 1)``; None stands for one in either place."""
    log_scale = torch.zeros_like(like)
    if mean_variance is not None:
        log_scale = log_scale - mean_variance.log()
    if outputscale is not None:
        log_scale = log_scale + outputscale.double().log().unsqueeze(-1)
    return log_scale


def _check_nodes_per_period(kernel: Kernel, measure: Measure, num_nodes: int) -> None:
    """
    Refuse a periodic kernel that quadrature would alias, because its result would not be a covariance. The comparison
    reads values back from the device, so it is made for these kernels only, and only with ``gpytorch.settings.debug``.
    """
    for part in [kernel, *kernel.sub_kernels()]:
        if not isinstance(part, (CosineKernel, PeriodicKernel)):
            continue
        period_length = part.period_length.double()[..., 0, 0]
        if isinstance(part, PeriodicKernel):
            harmonics = (_SMOOTH_PERIODIC_LENGTHSCALE / part.lengthscale.double()[..., 0, 0]).sqrt().clamp(min=1.0)
            period_length = period_length / harmonics
        needed = (_NODES_PER_PERIOD * measure.panel_width / period_length).amax()
        if bool(needed > num_nodes):
            raise ValueError(
                f"num_quadrature_nodes={num_nodes} is too few for a {type(part).__name__} with period_length "
                f"{part.period_length.min().item():.3g} under this measure; give at least {math.ceil(needed.item())}, "
                "keep the period longer by a period_length_constraint, or use an Empirical measure"
            )


def _is_plain_rbf(kernel: Kernel) -> bool:
    return isinstance(kernel, RBFKernel) and type(kernel).forward is RBFKernel.forward


def _unwrap_scale(kernel: Kernel) -> tuple[Kernel, Tensor | None]:
    """The kernel inside any number of ScaleKernels, and the product of their scales."""
    outputscale = None
    while isinstance(kernel, ScaleKernel):
        outputscale = kernel.outputscale if outputscale is None else outputscale * kernel.outputscale
        kernel = kernel.base_kernel
    return kernel, outputscale


def _check_base_kernel(kernel: Any, normalize: bool) -> None:
    is_cancelled = isinstance(kernel, ScaleKernel) and normalize
    check_base_kernel("ANOVAKernel", kernel, torch.zeros(1, 1), is_cancelled)
    name = type(kernel).__name__
    if not kernel.is_stationary:
        raise ValueError(
            f"base_kernel must be stationary, but {name} is not; use RBFKernel, MaternKernel, PeriodicKernel, .., or "
            "CentredKernel with some points, which takes any kernel"
        )
    for part in [kernel, *kernel.sub_kernels()]:
        if part.ard_num_dims is not None and part.ard_num_dims > 1:
            raise ValueError(
                f"base_kernel must have one input, but {type(part).__name__} has ard_num_dims={part.ard_num_dims}; "
                "multiply one ANOVAKernel a column instead"
            )
    if any(part.active_dims is not None for part in _unwrap_scale(kernel)[0].sub_kernels()):
        raise ValueError(f"base_kernel {name} has parts with active_dims of their own; give active_dims to ANOVAKernel")


def _check_measure(measure: Any, kernel: Kernel) -> None:
    if not isinstance(measure, Measure):
        raise TypeError(f"measure must be a Measure (Uniform, Normal, Empirical), got {type(measure).__name__}")
    try:
        torch.broadcast_shapes(measure.batch_shape, kernel.batch_shape)
    except RuntimeError:
        raise ValueError(
            f"measure {type(measure).__name__} has batch shape {tuple(measure.batch_shape)}, which does not cover "
            f"base_kernel's batch shape {tuple(kernel.batch_shape)}; give it one value a component, or one for all"
        ) from None
