"""New models and likelihoods for the terms of a design."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.numerics.dtypes import default_dtype

from .design import Design
from .families import Family
from .options import Options
from .starts import Start

# Inducing variables up to which the posterior has a full covariance at the start, and with interactions after growth:
# larger ones cannot be polished with dense matrices.
_MOST_COUPLED, _MOST_COUPLED_LATER = 500, 1024

#: The share of the prior variance that is left where data determine everything: bands of millions of rows are narrow.
JITTER = 1e-8


def make(
    design: Design, family: Family, x: torch.Tensor, options: Options, start: Start | None = None
) -> tuple[AdditiveGP, Likelihood]:
    """
    A new model and likelihood in float64.

    :param design: Terms and encodings.
    :param family: The distribution of the response.
    :param x: Inputs, from which ranges are taken.
    :param options: How the model will be fitted.
    :param start: Hyperparameters to take.
    """
    with default_dtype(torch.float64):
        predictor, likelihood = design.predictor(x), family.likelihood()
        if start is not None:
            start.copy_to(predictor, likelihood)
        return _model(predictor, options, _MOST_COUPLED if start is None else _MOST_COUPLED_LATER), likelihood


def _model(predictor: AdditivePredictor, options: Options, most_coupled: int) -> AdditiveGP:
    if options.posterior != "auto":
        rank = "auto" if options.posterior in ("block_low_rank", "low_rank") else None
        return AdditiveGP(predictor, family=options.posterior, rank=rank)
    if predictor.num_inducing_total <= most_coupled and options.method != "minibatches":
        return AdditiveGP(predictor, family="coupled")
    return AdditiveGP(predictor, family="block_low_rank", rank="auto")


@contextmanager
def as_in_fits(options: Options) -> Iterator[None]:
    """
    The random numbers and the jitter of fits, with those of the caller afterwards.

    :param options: How models are fitted.
    """
    with torch.random.fork_rng(devices=[]), gpytorch.settings.variational_cholesky_jitter(double_value=JITTER):
        torch.manual_seed(options.seed)
        yield
