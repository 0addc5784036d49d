"""Whether a likelihood and a model have the same number of predictors."""

from __future__ import annotations

from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
    _OneDimensionalLikelihood,
)

from gpytorch_gam.variational import AdditiveVariationalStrategy

# Of GPyTorch's likelihoods, which do not say how many predictors they take, those that take one.
_SINGLE = (GaussianLikelihood, FixedNoiseGaussianLikelihood, _OneDimensionalLikelihood)


def check_number_of_predictors(strategy: AdditiveVariationalStrategy, likelihood: Likelihood) -> None:
    """
    Raise an error where a likelihood is known to take another number of predictors than the model has.

    :param strategy: Of the model.
    :param likelihood: Of the data.
    :raises ValueError: If they differ.
    """
    taken = getattr(likelihood, "num_predictors", 1 if isinstance(likelihood, _SINGLE) else None)
    found = strategy.predictor.num_predictors
    if taken is None or taken == found:
        return
    wanted = "one predictor" if taken == 1 else f"{taken} predictors"
    hint = "leave out predictor=" if taken == 1 else f"give the component groups predictor=0 to predictor={taken - 1}"
    raise ValueError(f"{type(likelihood).__name__} takes {wanted}, but the model has {found}: {hint}")
