"""The work of a fit, and up to which more is done than was asked for."""

from __future__ import annotations

from gpytorch_gam.models import AdditiveGP

#: The work for one step of a fit by rows up to which others are made unasked to compare them: with more, that takes
#: many seconds.
MOST_OF_COMPARED_FITS = 3e8

#: The work for one step above which the uncertainty of hyperparameters takes longer than the fit unasked.
MOST_OF_INTEGRATED_FITS = 1e9


def work_of_step(model: AdditiveGP, num_rows: int) -> float:
    """
    The work for one step of a fit by rows: their number times the square of that of inducing variables.

    :param model: The model.
    :param num_rows: The number of rows of the fit.
    """
    return float(num_rows) * model.predictor.num_inducing_total**2


def is_quick(model: AdditiveGP, num_rows: int) -> bool:
    """
    Whether fits of models alike take so little that some are made unasked.

    :param model: The model.
    :param num_rows: The number of rows of the fit.
    """
    return work_of_step(model, num_rows) <= MOST_OF_COMPARED_FITS
