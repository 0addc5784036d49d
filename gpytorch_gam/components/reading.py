"""The prior that a model's ``forward`` gives to the rows of its data: inputs of the predictor, and the mean there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.transforms import is_vmapped

from ._captured_calls import PredictorCall, captured_calls
from .additive_predictor import AdditivePredictor

# How many columns of two covariances that are different objects are compared, and up to how many rows.
_NUM_COMPARED, _MOST_COMPARED = 4, 2048

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Methods `forward` that add nothing to the predictor, and those that stand for no method.
_PLAIN: set[Any] = {gpytorch.models.ApproximateGP.forward, gpytorch.Module.forward, torch.nn.Module.forward}


class Reading(NamedTuple):
    """The prior that a model has at some rows, without its covariance, which is that of the predictor at ``inputs``."""

    inputs: Tensor  # the inputs that forward gives to its predictor, (*batch, n, D)
    means: Tensor  # those of the mean modules there, plus what forward adds, (*batch, P, n)
    is_plain: bool  # whether forward gives the predictor the rows as they are, and adds nothing

    def split(self, size: int) -> Iterator[Reading]:
        """Chunks of ``size`` rows, of which the last one may be shorter."""
        for inputs, means in zip(self.inputs.split(size, dim=-2), self.means.split(size, dim=-1), strict=True):
            yield Reading(inputs, means, self.is_plain)


def predictor_alone(forward: _Function) -> _Function:
    """Declare a method ``forward`` to be ``return self.predictor(x)``: it need not be called to know the prior."""
    _PLAIN.add(forward)
    return forward


def has_own_forward(model: gpytorch.Module) -> bool:
    """Whether the prior of a model is known only by calling its ``forward``."""
    forward = getattr(model, "forward", gpytorch.Module.forward)
    return getattr(forward, "__func__", forward) not in _PLAIN


def check_keywords(model: gpytorch.Module, keywords: Mapping[str, Any]) -> None:
    """Raise a TypeError for arguments of a call that are read by nothing; ``forward`` may have arguments of its own."""
    if not keywords:
        return
    known = inspect.signature(model.forward).parameters.values() if has_own_forward(model) else ()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known):
        return
    unknown = sorted(set(keywords) - {parameter.name for parameter in known})
    if unknown:
        raise TypeError(
            f"a call of the model takes no argument {', '.join(map(repr, unknown))}. Row-wise arguments of the "
            f"likelihood, such as offset and weights, belong to objective and likelihood: mll(model(x), y, offset=...) "
            "and likelihood(model(x), offset=...). Others have to be arguments of the model's forward"
        )


def read_rows(
    model: gpytorch.Module,
    predictor: AdditivePredictor,
    x: Tensor,
    batch_shape: torch.Size,
    check_finite: bool,
    keywords: Mapping[str, Any],
) -> Reading:
    """
    Inputs of the predictor and prior means at rows ``x``, ``(*batch, n, D)``, by the model's ``forward``, which gets
    the ``keywords``. ``batch_shape`` is that of predictor and posterior; ``check_finite`` also looks for NaN and
    infinity, which waits for the device. A ValueError if the predictor cannot read its inputs, or ``forward`` returns
    anything but the predictor's prior with another mean; a TypeError if it refuses an argument or returns no
    multivariate normal.
    """
    check_keywords(model, keywords)
    if not has_own_forward(model):
        predictor.check_inputs(x, check_finite=check_finite)
        return Reading(x, predictor.prior_means(x), is_plain=True)
    check_rows(x)
    name = f"{type(model).__name__}.forward"
    with captured_calls(predictor, check_finite) as calls, _explained(predictor, x, name):
        returned = model.forward(x, **keywords)
    if not isinstance(returned, MultivariateNormal):
        raise TypeError(f"{name} must return a gpytorch MultivariateNormal, got {type(returned).__name__}")
    call = _call_behind(returned, calls, name)
    if returned is call.prior:
        _check_number_of_rows(returned, x, name)
        return Reading(call.inputs, call.means, is_plain=call.inputs is x)
    means = _means_of(returned, call, x, batch_shape, name)
    if check_finite and not is_vmapped(means):
        _check_finite(means.detach(), name)
    return Reading(call.inputs, means, is_plain=False)


@contextmanager
def _explained(predictor: AdditivePredictor, x: Tensor, name: str) -> Iterator[None]:
    """Say so where a ``forward`` fails on rows of another dtype or device than the model's."""
    try:
        yield
    except RuntimeError as error:
        if x.dtype == predictor.dtype and x.device == predictor.device:
            raise
        raise ValueError(
            f"{name} fails: {error}. The rows are {x.dtype} on {x.device}, but the model is {predictor.dtype} on "
            f"{predictor.device}: convert one of them, x.to(...) or model.to(...)"
        ) from error


def check_rows(x: Tensor) -> None:
    """Raise an error unless x is a tensor of rows, whatever ``forward`` does with them."""
    if checks.tensor("x", x).dim() < 2 or x.shape[-2] == 0:
        raise ValueError(f"x must have shape (*batch, n, D) with at least one row, got {tuple(x.shape)}")


def _call_behind(returned: MultivariateNormal, calls: list[PredictorCall], name: str) -> PredictorCall:
    """The call of the predictor that has produced the covariance which ``forward`` returned."""
    if not calls:
        raise ValueError(
            f"{name} does not call the predictor of its variational strategy, so the posterior would have nothing to do"
            " with it: return self.variational_strategy.predictor(x), to which a mean may be added, as in "
            "self.mean_module(x) + self.variational_strategy.predictor(x)"
        )
    same = [call for call in calls if returned.lazy_covariance_matrix is call.prior.lazy_covariance_matrix]
    if len(same) == 1:
        return same[0]
    if len(calls) > 1:
        raise ValueError(
            f"{name} calls the predictor {len(calls)} times, and returns the prior of none of these calls: put all "
            "components into one AdditivePredictor, and call it once"
        )
    if not _is_same_covariance(returned, calls[0].prior):
        raise ValueError(
            f"{name} returns another covariance than that of the predictor, which the posterior is made for: change "
            "the mean alone, self.mean_module(x) + prior or MultivariateNormal(mean, prior.lazy_covariance_matrix), "
            "and the covariance in the kernels of the components"
        )
    return calls[0]


@torch.no_grad()
def _is_same_covariance(returned: MultivariateNormal, prior: MultivariateNormal) -> bool:
    """Whether two covariances agree in their diagonals, and in a few columns where these are cheap."""
    found, expected = returned.lazy_covariance_matrix, prior.lazy_covariance_matrix
    if found.shape[-2:] != expected.shape[-2:]:
        return False
    variance = expected.diagonal(dim1=-1, dim2=-2)
    tolerance = torch.finfo(variance.dtype).eps ** 0.5 * variance.amax()
    pairs = [(found.diagonal(dim1=-1, dim2=-2), variance)]
    if variance.shape[-1] <= _MOST_COMPARED:
        columns = torch.eye(variance.shape[-1], _NUM_COMPARED, dtype=variance.dtype, device=variance.device)
        pairs.append((found.matmul(columns), expected.matmul(columns)))
    return all(bool(((left - right).abs() <= tolerance).all()) for left, right in pairs)


def _means_of(
    returned: MultivariateNormal, call: PredictorCall, x: Tensor, batch_shape: torch.Size, name: str
) -> Tensor:
    _check_number_of_rows(returned, x, name)
    if returned.event_shape != call.prior.event_shape:
        raise ValueError(
            f"{name} returns a distribution of shape {tuple(returned.event_shape)}, but its predictor has "
            f"{tuple(call.prior.event_shape)}"
        )
    known = torch.broadcast_shapes(x.shape[:-2], call.inputs.shape[:-2], batch_shape)
    if _enlarges(returned.batch_shape, known):
        raise ValueError(
            f"{name} returns a distribution of batch shape {tuple(returned.batch_shape)} for a model and inputs of "
            f"batch shape {tuple(known)}: give the mean one value a row, shape (*batch, n); for a column (n, 1), such "
            "as a torch.nn.Linear returns, take .squeeze(-1)"
        )
    if not isinstance(returned, MultitaskMultivariateNormal):
        return returned.mean.unsqueeze(-2)
    if returned._interleaved:
        raise ValueError(
            f"{name} returns a MultitaskMultivariateNormal with interleaved=True, but the rows of the predictor's "
            "covariance run over (predictor, row of x): pass interleaved=False, or add the mean to its prior"
        )
    return returned.mean.mT


def _check_number_of_rows(returned: MultivariateNormal, x: Tensor, name: str) -> None:
    if returned.event_shape[0] != x.shape[-2]:
        raise ValueError(f"{name} returns a distribution over {returned.event_shape[0]} rows for {x.shape[-2]} of x")


def _enlarges(shape: torch.Size, known: torch.Size) -> bool:
    """Whether a batch shape does not broadcast into a known one."""
    try:
        return torch.broadcast_shapes(shape, known) != known
    except RuntimeError:
        return True


def _check_finite(means: Tensor, name: str) -> None:
    if not torch.isfinite(means.sum()):
        bad = ~torch.isfinite(means).all(-2)
        if bad.any():
            raise ValueError(
                f"the mean that {name} returns is NaN or infinite in {int(bad.sum())} of {bad.numel()} rows"
            )
