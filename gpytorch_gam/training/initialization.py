"""A posterior that has seen a batch of data, for training by any optimiser."""

from __future__ import annotations

from typing import Any

import gpytorch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.natural_gradient import NaturalGradient
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution, modes_kept, validated_strategy
from gpytorch_gam.optim.rows.likelihood_check import arguments_with_noise, check_number_of_predictors
from gpytorch_gam.optim.rows.stream import checked_data


def initialize_posterior(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    num_data: int | None = None,
    **row_arguments: Any,
) -> None:
    """
    Set the posterior to a natural-gradient step on a batch at the present hyperparameters, and settle an automatic
    rank. Those who train with Adam alone save the many steps that the precision factors take to grow to their size.
    Make the optimiser after that: the rank may have changed.

    Hyperparameters, gradients and modes of the modules are left as they were: call :func:`start_from_responses` before,
    if the responses are not of variance one and mean zero.

    :param model: A model that :class:`NaturalGradient` takes.
    :param likelihood: Any likelihood of as many predictors.
    :param x: Inputs of a batch ``(b, D)``; the more rows the better.
    :param y: Responses ``(b)``, or ``(b, T)`` as for :func:`fit`.
    :param num_data: Number N of rows of all the data; default b.
    :param row_arguments: Further arguments of the likelihood, such as offsets and weights.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If the data cannot be read, or ``num_data`` is smaller than the batch.

    Example:
        >>> initialize_posterior(model, likelihood, train_x[:1000], train_y[:1000], num_data=len(train_y))
        >>> adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.1, betas=(0.9, 0.95))
    """
    strategy = validated_strategy(model, StructuredDistribution, several_predictors=True)
    check_number_of_predictors(strategy, likelihood)
    given = arguments_with_noise(likelihood, len(checks.tensor("y", y)), row_arguments)
    x, y, row_arguments = checked_data(strategy, likelihood, x, y, given)
    num_data = len(y) if num_data is None else checks.integer("num_data", num_data)
    if num_data < len(y):
        raise ValueError(
            f"num_data is {num_data}, but the batch has {len(y)} rows: num_data is the number of rows of all the data"
        )
    gradients = [(parameter, parameter.grad) for module in (model, likelihood) for parameter in module.parameters()]
    natural = NaturalGradient(model, num_data=num_data)
    with gradients_on(), modes_kept(model, likelihood):
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data).train()
            loss = -mll(model(x), y, **row_arguments)
            loss.backward()
            natural.step()
        finally:
            natural.remove()
            for parameter, gradient in gradients:
                parameter.grad = gradient
