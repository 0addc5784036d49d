"""The constant component."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import ConstantKernel

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.parameters.initial_values import note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

from ._arguments import Arguments


def constant(
    variance: float | None = None, *, name: str | None = None, predictor: int = 0, batch_shape: Sequence[int] = ()
) -> ComponentGroup:
    r"""
    The constant component :math:`f(\mathbf x) = \beta` with :math:`\beta \sim N(0, \sigma^2)`.

    It has one inducing variable, :math:`\beta` itself, so nothing is approximated. With ANOVA kernels, whose components
    have mean zero under their measure, it is the overall mean. With kernels that contain constants (a plain RBF
    kernel), the constant and those components share one constant and only their sum is identified.

    Other parameters are described in :mod:`gpytorch_gam.terms`.

    :param variance: Initial prior variance :math:`\sigma^2`, a trainable hyperparameter. Default: one, which a fit
        replaces by a variance that leaves the mean of the responses free, see
        :func:`~gpytorch_gam.training.start_from_responses`. The prior mean is zero: if the responses lie a thousand of
        their standard deviations away from zero, shift them, or give :class:`AdditivePredictor` a mean module.
    :param name: Name of the component. Default: ``constant``, and ``constant.1`` for predictor 1.
    :return: A group of one component without columns.
    """
    arguments = Arguments("constant", variance, predictor, "error", batch_shape, name=name)
    with_components = torch.Size([*arguments.batch_shape, 1])
    kernel = ConstantKernel(batch_shape=with_components, constant_constraint=positive())
    kernel.constant = torch.full((*with_components, 1), 1.0 if variance is None else float(variance))
    if variance is None:
        note_initial_value(kernel, "raw_constant")
    points = torch.zeros(*with_components, 1, 0)
    return ComponentGroup(kernel, [[]], points, names=arguments.names, predictor=predictor, exact=True)
