"""Whether a likelihood, a model and its data go together."""

from __future__ import annotations

from collections.abc import Collection

from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
    _OneDimensionalLikelihood,
)

from gpytorch_gam._checks import did_you_mean
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.likelihoods._row_arguments import row_arguments
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Of GPyTorch's likelihoods, which do not say how many predictors they take, those that take one.
_SINGLE = (GaussianLikelihood, FixedNoiseGaussianLikelihood, _OneDimensionalLikelihood)


def unwrapped(likelihood: Likelihood) -> Likelihood:
    """
    The likelihood inside a :class:`~gpytorch_gam.likelihoods.RowwiseLikelihood`.

    :param likelihood: Any.
    """
    return likelihood.likelihood if isinstance(likelihood, RowwiseLikelihood) else likelihood


def check_number_of_predictors(strategy: AdditiveVariationalStrategy, likelihood: Likelihood) -> None:
    """
    Raise an error where a likelihood is known to take another number of predictors than the model has.

    :param strategy: Of the model.
    :param likelihood: Of the data.
    :raises ValueError: If they differ.
    """
    inner = unwrapped(likelihood)
    taken = getattr(inner, "num_predictors", 1 if isinstance(inner, _SINGLE) else None)
    found = strategy.predictor.num_predictors
    if taken is None or taken == found:
        return
    wanted = "one predictor" if taken == 1 else f"{taken} predictors"
    hint = "leave out predictor=" if taken == 1 else f"give the component groups predictor=0 to predictor={taken - 1}"
    raise ValueError(f"{type(inner).__name__} takes {wanted}, but the model has {found}: {hint}")


def check_row_parameters(likelihood: Likelihood, names: Collection[str]) -> None:
    """
    Raise an error for row-wise arguments that the likelihood would swallow without reading them.

    :param likelihood: Of the data.
    :param names: Of the arguments.
    :raises TypeError: If there are such.
    """
    if not names:
        return
    inner, own = unwrapped(likelihood), ("offset", "weights")
    read, owner = row_arguments(inner), type(inner).__name__
    if inner is not likelihood:
        read, owner = read.and_also(*own), f"{type(likelihood).__name__} of {owner}"
    try:
        read.refuse_others(owner, names)
    except TypeError as error:
        wrappable = [name for name in names if name not in read.names and (name in own or did_you_mean(name, own))]
        if inner is likelihood and "weights" not in read.names and wrappable:
            raise TypeError(
                f"{owner} does not read {', '.join(name + did_you_mean(name, own) for name in wrappable)}: wrap it, "
                f"RowwiseLikelihood({owner}(...)), which reads offset and weights"
            ) from error
        raise
