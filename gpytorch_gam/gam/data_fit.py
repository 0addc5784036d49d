"""One fit of the terms of a design to rows in units of the fit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import CholeskyVariationalDistribution

from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.training import FitResult, fit
from gpytorch_gam.training.fitting import method_of_fit
from gpytorch_gam.warnings import ConvergenceWarning

from .design import Design
from .families import Family, Units
from .fitted import Fitted, alone, reference_rows
from .model_making import as_in_fits, make
from .options import Options, device_of, on_device
from .starts import Start


def fit_to_data(
    design: Design, family: Family, units: Units, x: torch.Tensor, data: Any, options: Options
) -> tuple[Fitted, FitResult | None]:
    """
    Fit the terms of a design, whose columns are learned, to rows in units of the fit.

    :param design: Terms and encodings.
    :param family: The distribution of the response.
    :param units: The units of the responses.
    :param x: Inputs with the range of all rows, from which places are taken and summaries are made.
    :param data: The rows, as :func:`~gpytorch_gam.fit` takes them.
    :param options: How.
    :return: The fitted model, and the result of the fit; None if that was interrupted.
    """
    fitted = prepared(design, family, units, x, data, options)
    try:
        return fitted, climb(fitted, data, options)
    except KeyboardInterrupt:
        fitted.model.eval()
        fitted.likelihood.eval()
        warnings.warn(
            "the fit was interrupted: the model is the best so far, and its bands are not those of a finished fit",
            ConvergenceWarning,
            stacklevel=2,
        )
        return fitted, None


def prepared(
    design: Design,
    family: Family,
    units: Units,
    x: torch.Tensor,
    data: Any,
    options: Options,
    start: Start | None = None,
) -> Fitted:
    """
    A model that is yet to be fitted, on its device.

    :param design: Terms and encodings.
    :param family: The distribution of the response.
    :param units: The units of the responses.
    :param x: Inputs with the range of all rows.
    :param data: The rows.
    :param options: How it will be fitted.
    :param start: Its hyperparameters, which are new ones by default.
    """
    device = device_of(options.device)
    with as_in_fits(options):
        model, likelihood = make(design, family, x, options, start)
        if options.posterior == "auto" and options.method == "auto" and _needs_minibatches(model, likelihood, data):
            model, likelihood = make(design, family, x, replace(options, posterior="block_low_rank"), start)
        model.to(device)
        likelihood.to(device)
    mixture, note = alone(model, likelihood), "point estimates"
    return Fitted(model, likelihood, design, family, units, reference_rows(x), mixture, note)


def climb(fitted: Fitted, data: Any, options: Options, *, is_warm: bool = False, explore: bool = True) -> FitResult:
    """
    Fit a model in place; a KeyboardInterrupt leaves it at the best so far.

    :param fitted: The model.
    :param data: The rows.
    :param options: How.
    :param is_warm: Whether it goes on from the hyperparameters that it has.
    :param explore: Whether it looks for other maxima.
    """
    with as_in_fits(options):
        return fit(
            fitted.model,
            fitted.likelihood,
            on_device(data, device_of(options.device)),
            method=options.method,
            tolerance=options.tolerance,
            warm_start=is_warm,
            explore=explore,
            progress=options.progress,
        )


def _needs_minibatches(model: AdditiveGP, likelihood: Likelihood, data: Any) -> bool:
    """Whether the posterior is one that minibatches cannot train, although neither rows nor bins serve."""
    is_coupled = isinstance(model.variational_strategy._variational_distribution, CholeskyVariationalDistribution)
    return is_coupled and method_of_fit(model, likelihood, data) == "minibatches"
