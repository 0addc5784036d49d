"""The constant component."""

from __future__ import annotations

import torch
from gpytorch.kernels import ConstantKernel

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.parameters.initial_values import note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

from ._arguments import single_name


def constant(
    variance: float | None = None,
    *,
    name: str | None = None,
    predictor: int = 0,
    batch_shape: torch.Size | tuple[int, ...] = (),
) -> ComponentGroup:
    r"""
    The constant component :math:`f(\mathbf x) = \beta` with :math:`\beta \sim N(0, \sigma^2)`.

    It has one inducing variable, :math:`\beta` itself, so nothing is approximated. With ANOVA kernels, whose
    components have mean zero under their measure, it is the overall mean. With kernels that contain constants
    (a plain RBF kernel), the constant and those components share one constant and only their sum is identified.

    :param variance: Initial prior variance :math:`\sigma^2`, a trainable hyperparameter. Default: one, until a fit puts
        in its place what leaves the mean of the responses free, see
        :func:`~gpytorch_gam.training.start_from_responses`. The prior mean is zero: where zero is a thousand standard
        deviations of the responses away, shift these, or give :class:`AdditivePredictor` a mean module.
    :param name: Name of the component. Default: ``constant``, and ``constant.1`` for predictor 1.
    :param predictor: Which additive predictor of a multi-parameter likelihood it belongs to.
    :param batch_shape: Batch shape of independent models.
    :return: A group of one component without columns.
    """
    if variance is not None:
        checks.number("variance of the constant component", variance, above=0)
    kernel = ConstantKernel(batch_shape=torch.Size([*batch_shape, 1]), constant_constraint=positive())
    kernel.constant = torch.full((*batch_shape, 1, 1), 1.0 if variance is None else float(variance))
    if variance is None:
        note_initial_value(kernel, "raw_constant")
    points = torch.zeros(*batch_shape, 1, 1, 0)
    return ComponentGroup(
        kernel,
        columns=[[]],
        inducing_points=points,
        names=single_name("constant", name),
        predictor=predictor,
        exact=True,
    )
