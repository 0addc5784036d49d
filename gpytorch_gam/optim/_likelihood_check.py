"""Whether a likelihood, a model and its data go together."""

from __future__ import annotations

from collections.abc import Collection

from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
    _OneDimensionalLikelihood,
)

from gpytorch_gam.likelihoods import RowwiseLikelihood
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
    Raise an error for row-wise arguments that a likelihood of GPyTorch's would swallow without reading them. (Those of
    this package know theirs, and somebody's own may read anything.)

    :param likelihood: Of the data.
    :param names: Of the arguments.
    :raises TypeError: If there are such.
    """
    inner = unwrapped(likelihood)
    if not type(inner).__module__.startswith("gpytorch."):
        return
    read = {"noise"} if inner is likelihood else {"noise", "offset", "weights"}
    ignored = sorted(set(names) - read)
    if ignored:
        wrapped = "" if inner is not likelihood else f": wrap it, RowwiseLikelihood({type(inner).__name__}(...))"
        raise TypeError(
            f"{type(likelihood).__name__} does not read {', '.join(ignored)}"
            + (wrapped or f", it takes {', '.join(sorted(read))}")
        )
