"""The evidence for components: by how much the bound is higher with them than without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.variational.model_check import inducing_strategy


@torch.no_grad()
def component_evidence(model: Any, names: Sequence[str] | str) -> float:
    r"""
    The nats by which some components together raise the bound: the logarithm of the Bayes factor of the model against
    the one without them, at the same hyperparameters.

    It is the ratio of prior and posterior density at zero of the components' whitened inducing variables, Savage and
    Dickey's ratio (:doc:`/theory/diagnostics`), and needs no data. With a Gaussian likelihood it is the difference of
    the bounds, but for the price of what inducing variables leave open, which is small where there are enough of them.
    It is about zero for components that the fit has switched off, and negative for those with a wide prior and no
    effect. A variance that was estimated makes it too large by the nats of a parameter, roughly one half.

    :param model: A trained model whose ``variational_strategy`` is an
        :class:`~gpytorch_gam.variational.AdditiveVariationalStrategy` without a batch shape.
    :param names: The name of a component, or of several that are judged together.
    :raises TypeError: If the model is of another kind, or names are not strings.
    :raises ValueError: If a name is none of the model's components.

    Example:
        >>> component_evidence(model, "x0")                # 31.2
        >>> component_evidence(model, ["x0", "linear(x0)"])
    """
    mean, covariance = whitened_posterior(model, names)
    if not len(mean):
        return 0.0
    cholesky = torch.linalg.cholesky(covariance)
    whitened = torch.linalg.solve_triangular(cholesky, mean.unsqueeze(-1), upper=False)
    return (0.5 * whitened.square().sum() + cholesky.diagonal().log().sum()).item()


def whitened_posterior(model: Any, names: Sequence[str] | str) -> tuple[Tensor, Tensor]:
    """
    Mean ``(K,)`` and covariance ``(K, K)`` of the whitened inducing variables of some components, in float64.

    :param model: A trained model.
    :param names: The name of a component, or of several.
    """
    strategy = inducing_strategy(model)
    names = [names] if isinstance(names, str) else list(names)
    slices = strategy.predictor.inducing_slices
    for name in names:
        checks.choice("names", name, tuple(slices))
    distribution = strategy.variational_distribution
    indices = torch.arange(strategy.predictor.num_inducing_total)
    own = torch.cat([indices[slices[name]] for name in names]) if names else indices[:0]
    mean = distribution.mean.double()
    covariance = distribution.lazy_covariance_matrix.to_dense().double()
    return mean[own], covariance[own][:, own]
