"""
Mild priors of the hyperparameters of terms, which penalise complexity (`Simpson et al., 2017
<https://doi.org/10.1214/16-STS576>`_; of lengthscales `Fuglstad et al., 2019
<https://doi.org/10.1080/01621459.2017.1415907>`_): exponential in the standard deviation of an effect, and in the root
of the number of lengthscales on the range of its column. Their modes are no effect, and the smoothest one. Predictors
are in standard deviations of the response or in units of their link, so that the same rates suit all. Levels of
categories have a normal prior whose variance is fixed.

Estimates are at the mode of these densities, so that effects which the data do not call for are none. That is no place
around which hyperparameters can be integrated out: by their logarithms, such an estimate is on a plateau. The density
of the logarithm, the exponential one times the value, has its mode at the mean of the latter, see
:func:`take_logarithms`; of variances `Chung et al., 2013 <https://doi.org/10.1007/s11336-013-9328-2>`_ have the same.
The standard deviation of the noise has it at the estimates, too: where columns are about as many as rows, effects can
take all of the noise, and the bound alone hardly tells such a fit from others.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.kernels import CentredLinearKernel
from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.parameters.initial_values import note_initial_value

# Rates of the exponential densities: of the standard deviations of curves, and of lines and levels; and of the root of
# the number of lengthscales on a range. A tenth of a range costs two nats, a fiftieth five. Rates of the number itself
# cost .015 nats a row on a table with steep effects (`benchmarks/real_data.py`, concrete).
_CURVE_RATE, _LINE_RATE, _LENGTHSCALE_RATE = 2.0, 1.0, 0.7

# The rate of the density of the noise's standard deviation, in those of the response. A hundredth of these costs 3.6
# nats more than one of them, whatever the number of rows.
_NOISE_RATE = 1.0

# The prior variance of the levels of a category, relative to that of the predictor: they differ by half a standard
# deviation. It is not estimated: few levels say little about it, and where a rare level differs most, it would be drawn
# to the others.
_LEVEL_VARIANCE = 0.25

# The lower bound of lengthscales, in ranges of their columns.
_SHORTEST = 0.01


def register_priors(group: ComponentGroup) -> None:
    """
    Give the trained variances and lengthscales of components their priors.

    :param group: Components of a term.
    """
    scaled = group.kernel
    if not isinstance(scaled, ScaleKernel) or not scaled.raw_outputscale.requires_grad:
        return
    smooth = [part for part in scaled.base_kernel.modules() if isinstance(part, MaternKernel | RBFKernel)]
    rate = _CURVE_RATE if smooth else _LINE_RATE
    scaled.register_prior("deviation_prior", _exponential(rate), _deviation)
    for part in smooth:
        part.register_prior("lengthscale_prior", _exponential(_LENGTHSCALE_RATE), _root_of_number)


def with_noise_prior(likelihood: Likelihood) -> Likelihood:
    """
    The same likelihood, the standard deviation of whose noise has a prior.

    :param likelihood: With a ``noise`` in units of the variance of the responses.
    """
    likelihood.register_prior("noise_deviation_prior", GammaPrior(2.0, _NOISE_RATE), _noise_deviation)
    return likelihood


@torch.no_grad()
def take_logarithms(model: AdditiveGP) -> None:
    """
    Let the priors of curves and random effects be densities of the logarithms of deviations and lengthscales, up to a
    factor: gamma densities of shape two. Lines keep theirs. They have one coefficient, so that the bound falls by the
    logarithm of a deviation that is too large, which the density of the logarithm would undo.

    :param model: The model of an estimator.
    """
    for _, kernel, prior, read, _ in model.named_priors():
        is_line = read is _deviation and _is_line(kernel)
        if read in (_deviation, _root_of_number) and not is_line:
            prior.concentration.fill_(2.0)


def has_curves(group: ComponentGroup) -> bool:
    """
    Whether a group has components with a variance that are no lines, whose priors :func:`take_logarithms` changes.

    :param group: Components of a term.
    """
    return isinstance(group.kernel, ScaleKernel) and not _is_line(group.kernel)


def _is_line(kernel: ScaleKernel) -> bool:
    return isinstance(kernel.base_kernel, CentredLinearKernel)


def set_level_variance(group: ComponentGroup) -> None:
    """
    Give the levels of a category the variance of their prior, which a fit multiplies by that of the responses.

    :param group: The component of a category.
    """
    group.kernel.outputscale = _LEVEL_VARIANCE
    note_initial_value(group.kernel, "raw_outputscale")


def _exponential(rate: float) -> GammaPrior:
    return GammaPrior(1.0, rate)


def _deviation(kernel: ScaleKernel) -> Tensor:
    return kernel.outputscale.sqrt()


def _noise_deviation(likelihood: Likelihood) -> Tensor:
    return likelihood.noise.sqrt()


def _root_of_number(kernel: Kernel) -> Tensor:
    """The square root of the number of lengthscales on the range of each column."""
    shortest = kernel.raw_lengthscale_constraint.lower_bound.expand_as(kernel.lengthscale)
    return (shortest / _SHORTEST / kernel.lengthscale).sqrt()
