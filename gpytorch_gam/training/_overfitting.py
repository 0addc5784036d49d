"""Parameters that the bound does not integrate over, and that are too many for the rows."""

from __future__ import annotations

import warnings

import gpytorch

from gpytorch_gam.warnings import OverfittingWarning

# Trained to the end, a parameter fits half a nat of noise, and loses as much on new rows (Akaike, 1974). With one for
# this many rows that is a tenth of a nat a row.
_ROWS_FOR_A_PARAMETER = 10

# Numbers of parameters up to which they are those of a mean, as in any regression.
_A_FEW = 20


def warn_of_overfitting(model: gpytorch.models.ApproximateGP, num_rows: int) -> None:
    """
    Warn if parameters beside those of the terms, such as the weights of a network in front, are many for the rows.
    Hyperparameters of terms do not count: the bound integrates over what they are the prior of.

    :param model: The model.
    :param num_rows: The number of rows of the data.
    """
    of_terms = {id(parameter) for parameter in model.variational_strategy.predictor.groups.parameters()}
    number = sum(
        parameter.numel()
        for parameter in model.hyperparameters()
        if parameter.requires_grad and id(parameter) not in of_terms
    )
    if number <= _A_FEW or number * _ROWS_FOR_A_PARAMETER <= num_rows:
        return
    warnings.warn(
        f"the model trains {number} parameters beside those of its terms, as of a network in front, on {num_rows} "
        "rows: the bound does not integrate over them, so that a fit to its end can lose about "
        f"{number / num_rows:.2g} nats a row on new rows against what it seems to gain. Hold rows back and stop a loop "
        "of your own when their log density falls, give these parameters a weight decay, or train fewer",
        OverfittingWarning,
        stacklevel=3,
    )
