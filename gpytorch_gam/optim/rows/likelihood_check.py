"""Checks that a likelihood, a model and its data go together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
    MultitaskGaussianLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    SoftmaxLikelihood,
    _GaussianLikelihoodBase,
    _OneDimensionalLikelihood,
)
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam._checks import did_you_mean
from gpytorch_gam.data import RowDataset
from gpytorch_gam.data.streamed_batches import StreamedBatches
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.likelihoods.response_checks import refuse_non_counts, refuse_rows
from gpytorch_gam.likelihoods.row_arguments import RowArguments
from gpytorch_gam.variational import AdditiveVariationalStrategy

# GPyTorch's likelihoods do not say how many predictors they take; these take one.
_SINGLE = (GaussianLikelihood, FixedNoiseGaussianLikelihood, _OneDimensionalLikelihood)


def unwrapped(likelihood: Likelihood) -> Likelihood:
    """The likelihood inside a :class:`~gpytorch_gam.likelihoods.RowwiseLikelihood`."""
    return likelihood.likelihood if isinstance(likelihood, RowwiseLikelihood) else likelihood


def is_gaussian(likelihood: Likelihood) -> bool:
    """Whether the log-likelihood has the same curvature everywhere, so that one step leads to the optimum."""
    return isinstance(unwrapped(likelihood), _GaussianLikelihoodBase)


def responses_in_a_row(likelihood: Likelihood) -> tuple[int, ...] | None:
    """Shape of a row's responses: ``()``, ``(T,)`` for T tasks, None for an unknown likelihood, which may take any."""
    inner = unwrapped(likelihood)
    if isinstance(inner, MultitaskGaussianLikelihood):
        return (inner.num_tasks,)
    is_known = hasattr(inner, "num_predictors") or type(inner).__module__.startswith("gpytorch.")
    return () if is_known or isinstance(inner, _SINGLE) else None


def check_number_of_predictors(strategy: AdditiveVariationalStrategy, likelihood: Likelihood) -> None:
    """
    Raise a ValueError if the likelihood takes another number of predictors, or has correlated noises, which its
    expectations ignore; a TypeError if it is no likelihood.
    """
    inner = unwrapped(checks.likelihood(likelihood))
    if isinstance(inner, MultitaskGaussianLikelihood) and inner.rank > 0:
        raise ValueError(
            f"MultitaskGaussianLikelihood(rank={inner.rank}): the expected log-probability of GPyTorch knows the "
            "variances of the tasks' noises alone, so that their covariances would not be learnt: take rank=0"
        )
    if isinstance(inner, SoftmaxLikelihood):
        raise TypeError(
            "the expectations of GPyTorch's SoftmaxLikelihood are random samples of independent tasks: take "
            "gpytorch_gam.likelihoods.SoftmaxLikelihood(num_classes), with one predictor a class"
        )
    taken = getattr(inner, "num_predictors", 1 if isinstance(inner, _SINGLE) else None)
    taken = inner.num_tasks if isinstance(inner, MultitaskGaussianLikelihood) else taken
    found = strategy.predictor.num_predictors
    if taken is None or taken == found:
        return
    wanted = "one predictor" if taken == 1 else f"{taken} predictors"
    hint = "leave out predictor=" if taken == 1 else f"give the component groups predictor=0 to predictor={taken - 1}"
    if isinstance(inner, GaussianLikelihood):
        hint += f", or for {found} responses in a row take MultitaskGaussianLikelihood(num_tasks={found})"
    raise ValueError(f"{type(inner).__name__} takes {wanted}, but the model has {found}: {hint}")


def with_noise_by_row(likelihood: Likelihood, batches: Iterable[Any]) -> Iterable[Any]:
    """
    The batches of a :class:`~gpytorch.likelihoods.FixedNoiseGaussianLikelihood` with the noise of each row. A batch
    that holds all rows in memory is in the order of the likelihood's noises; others must bring theirs, as the order is
    not known.
    """
    check_named_arguments(likelihood, batches)
    noise = _stored_noise(likelihood)
    if noise is None or not isinstance(batches, list | tuple) or len(batches) != 1:
        return batches
    (batch,) = batches
    if not isinstance(batch, list | tuple) or len(batch) not in (2, 3) or not torch.is_tensor(batch[1]):
        return batches  # reading them reports the error
    given = batch[2] if len(batch) == 3 and isinstance(batch[2], Mapping) else {}
    return [(*batch[:2], {**arguments_with_noise(likelihood, len(batch[1]), given)})]


def arguments_with_noise(likelihood: Likelihood, num_rows: int, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """
    Row-wise arguments with the likelihood's own noises, if it holds any and none are given. Errors: ValueError if their
    number is not ``num_rows``, NotImplementedError if the likelihood learns additional noise.
    """
    noise = _stored_noise(likelihood)
    if noise is None or "noise" in given:
        return given
    if noise.shape != (num_rows,):
        raise ValueError(
            f"{type(unwrapped(likelihood)).__name__} holds noises of shape {tuple(noise.shape)}, but there are "
            f"{num_rows} rows: pass the noise of these rows as their row-wise argument noise"
        )
    return {**given, "noise": noise}


def _stored_noise(likelihood: Likelihood) -> Tensor | None:
    inner = unwrapped(likelihood)
    noise = getattr(getattr(inner, "noise_covar", None), "noise", None)
    if not isinstance(inner, FixedNoiseGaussianLikelihood) or noise is None:
        return None
    if inner.second_noise_covar is not None:
        raise NotImplementedError(
            f"{type(inner).__name__} with learn_additional_noise=True: GPyTorch counts the noise of single rows twice "
            "then, and not what is learnt. Leave it out, or write a loop in which each step sees all rows, in their "
            "order"
        )
    return noise


def check_named_arguments(likelihood: Likelihood, batches: Iterable[Any]) -> None:
    """Apply :func:`check_row_arguments` before anything is read, for batches that name their arguments in advance."""
    source = getattr(batches, "dataset", batches)
    if isinstance(source, StreamedBatches | RowDataset):
        check_row_arguments(likelihood, tuple(source.row_arguments))


def check_row_arguments(likelihood: Likelihood, names: Collection[str]) -> None:
    """
    Raise a TypeError for row-wise arguments that the likelihood would ignore, a ValueError for missing noises, in place
    of which it would take those of other rows.
    """
    if "noise" not in names and _stored_noise(likelihood) is not None:
        raise ValueError(
            f"{type(unwrapped(likelihood)).__name__} holds the noises of all rows in their order, and does not know "
            "which rows a batch has: pass the noise of each row with it, as in batches = DataLoader(RowDataset(x, y, "
            'noise=noise), ...) or row_columns={"noise": ...} of batches from files, or all rows as the one batch of a '
            "list, [(x, y)]"
        )
    if not names:
        return
    read, own = RowArguments.read_by(likelihood), ("offset", "weights")
    try:
        read.refuse_others(names)
    except TypeError as error:
        wrappable = [name for name in names if name not in read.names and (name in own or did_you_mean(name, own))]
        if "weights" not in read.names and wrappable:
            raise TypeError(
                f"{read.owner} does not read {', '.join(name + did_you_mean(name, own) for name in wrappable)}: wrap "
                f"it, RowwiseLikelihood({read.owner}(...)), which reads offset and weights"
            ) from error
        raise


def check_response_values(likelihood: Likelihood, y: Tensor) -> None:
    """
    Raise a ValueError for impossible responses of GPyTorch's likelihoods, some of which compute a number all the same
    (this package's own check theirs). Values are compared on the CPU and in debug mode only.
    """
    inner = unwrapped(likelihood)
    owner = type(inner).__name__
    if not type(inner).__module__.startswith("gpytorch."):
        return
    if isinstance(inner, BernoulliLikelihood):
        # GPyTorch takes a batch that has a -1 for labels -1 and 1, in which a 0 is neither.
        _refuse_present(
            owner,
            y,
            lambda values: (values != 1) & (values != (-1 if (values == -1).any() else 0)),
            "values that are no labels",
            "labels are 0 and 1 (or -1 and 1, without 0); subtract 1 from labels 1 and 2",
        )
    elif isinstance(inner, BetaLikelihood):
        _refuse_present(
            owner,
            y,
            lambda values: (values <= 0) | (values >= 1),
            "values outside of (0, 1)",
            "it takes proportions strictly between 0 and 1: move those at the ends inwards, or model counts",
        )
    elif isinstance(inner, PoissonLikelihood | NegativeBinomialLikelihood):
        refuse_non_counts(owner, y)
    elif isinstance(inner, SoftmaxLikelihood):
        _refuse_present(
            owner,
            y,
            lambda values: (values < 0) | (values >= inner.num_classes) | (values != values.round()),
            "values that are no classes",
            f"classes are the integers 0 to {inner.num_classes - 1}",
        )


def _refuse_present(owner: str, y: Tensor, is_bad: Callable[[Tensor], Tensor], what: str, remedy: str) -> None:
    """Refuse bad responses that are not missing: the readers of the rows report missing ones."""
    refuse_rows(owner, y, lambda values: is_bad(values) & (values == values), what, remedy)
