"""Row-wise keyword arguments of likelihoods, such as offsets and weights, and checks of responses."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import (
    DirichletClassificationLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
    MultitaskGaussianLikelihood,
    _GaussianLikelihoodBase,
)
from gpytorch.likelihoods.noise_models import FixedGaussianNoise, HomoskedasticNoise
from torch import Tensor

from gpytorch_gam._checks import did_you_mean


def row_vector(
    name: str, value: Tensor | float | None, like: Tensor, *, positive: bool = False, nonnegative: bool = False
) -> Tensor | None:
    """
    A row-wise argument as a tensor that broadcasts to the predictor. Values are looked at on the CPU alone, and only
    while :class:`gpytorch.settings.debug` is on, which it is by default.

    :param name: Name of the argument, for messages.
    :param value: A number, or a tensor of numbers that broadcasts to ``(*batch, n)``; None for no argument.
    :param like: Whose shape ``(*batch, n)``, dtype and device the argument has to have.
    :param positive: Values must be above zero.
    :param nonnegative: Values must not be below zero.
    :return: A tensor of ``like``'s dtype, of the shape in which it was given; None if the argument is None.
    :raises TypeError: If the argument is neither a number nor a tensor of numbers.
    :raises ValueError: If its shape, device or values do not fit.
    """
    if value is None:
        return None
    if not torch.is_tensor(value):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number or a tensor of one number a row, got {type(value).__name__}")
        number = float(value)
        if not math.isfinite(number) or (positive and number <= 0) or (nonnegative and number < 0):
            raise ValueError(f"{name} must be {_range(positive, nonnegative)}, got {number}")
        return like.new_full((), number)
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(f"{name} must hold floating-point numbers or integers, got {value.dtype}: pass {name}.float()")
    if value.device != like.device:
        raise ValueError(f"{name} is on {value.device}, but the predictor on {like.device}: pass {name}.to(x.device)")
    if not _broadcasts(value, like):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, but the predictor has {tuple(like.shape)}: pass one value a row, "
            "or one for all"
        )
    converted = value.to(like.dtype)
    if _looked_at(converted):
        detached = converted.detach()
        bad = ~torch.isfinite(detached)
        if positive:
            bad |= detached <= 0
        elif nonnegative:
            bad |= detached < 0
        if bad.any():
            raise ValueError(
                f"{name} must be {_range(positive, nonnegative)}, but is not in {int(bad.sum())} of {bad.numel()} "
                f"entries, the first of them {value.detach()[bad][0].item()}"
            )
    return converted


class RowArguments(NamedTuple):
    """
    Names of the row-wise arguments that a likelihood reads.

    :ivar names: those that are known.
    :ivar are_all: False if it may read others, because a method of somebody's own takes ``**kwargs``.
    """

    names: tuple[str, ...]
    are_all: bool = True

    def and_also(self, *names: str) -> RowArguments:
        """
        Those of a likelihood around this one, and these.

        :param names: That it reads itself.
        """
        return RowArguments((*names, *(name for name in self.names if name not in names)), self.are_all)

    def refuse_others(self, owner: str, given: Iterable[str]) -> None:
        """
        Row-wise arguments must be ones that the likelihood reads: otherwise they would have no effect, and nobody would
        know.

        :param owner: Name of the likelihood's class.
        :param given: Names of what was passed.
        :raises TypeError: If one is not read, or is a misspelling of one that is.
        """
        unknown = [name for name in given if name not in self.names]
        if not self.are_all:
            unknown = [name for name in unknown if did_you_mean(name, self.names)]
        if unknown:
            known = (
                f"takes the row-wise arguments {', '.join(self.names)}" if self.names else "takes no row-wise argument"
            )
            raise TypeError(
                f"{owner} {known}, but got {', '.join(name + did_you_mean(name, self.names) for name in unknown)}"
            )


def row_arguments(likelihood: Likelihood) -> RowArguments:
    """
    The row-wise arguments that a likelihood reads: one of this package, which says so; one of GPyTorch's, whose methods
    take any and ignore them; or somebody's own, which names them in the signatures of its methods.

    :param likelihood: Any.
    """
    own = getattr(likelihood, "row_arguments", None)
    if own is not None:
        return RowArguments(tuple(own))
    names = dict.fromkeys(_read_by_gpytorch(likelihood))
    are_all = True
    for method in _methods_of_others(type(likelihood)):
        parameters = list(inspect.signature(method).parameters.values())
        are_all &= not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        # The first are self, the responses and the predictor, or self and the predictor.
        first = 3 if method.__name__ in ("expected_log_prob", "log_marginal") else 2
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= dict.fromkeys(parameter.name for parameter in parameters[first:] if parameter.kind in named)
    return RowArguments(tuple(names), are_all)


def refuse_positional(owner: str, given: Sequence[Any]) -> None:
    """
    Row-wise arguments have names.

    :param owner: Name of the likelihood's class.
    :param given: Arguments by position after those that every likelihood takes.
    :raises TypeError: If there is one.
    """
    if given:
        raise TypeError(
            f"{owner} reads no further argument by position, but got {len(given)}: pass row-wise arguments by name, "
            "such as weights=..., and no inputs"
        )


def takes_positional_arguments(likelihood: Likelihood) -> bool:
    """
    Whether further arguments by position may mean something to a likelihood: inputs to a model of the noise, task
    indices, or whatever somebody's own takes.

    :param likelihood: Any.
    """
    noise = getattr(likelihood, "noise_covar", None)
    return (
        any(_methods_of_others(type(likelihood)))
        or isinstance(likelihood, HadamardGaussianLikelihood)
        or not isinstance(noise, HomoskedasticNoise | FixedGaussianNoise | None)
    )


def _read_by_gpytorch(likelihood: Likelihood) -> tuple[str, ...]:
    if isinstance(likelihood, DirichletClassificationLikelihood):
        return ("noise", "targets")
    is_gaussian = isinstance(likelihood, _GaussianLikelihoodBase)
    return ("noise",) if is_gaussian and not isinstance(likelihood, MultitaskGaussianLikelihood) else ()


def _methods_of_others(kind: type) -> list[Callable[..., Any]]:
    """The methods that see row-wise arguments, where somebody's class defines them and not GPyTorch's."""
    names = ("expected_log_prob", "log_marginal", "marginal", "forward")
    methods = [getattr(kind, name) for name in names]
    return [method for method in methods if not method.__module__.startswith("gpytorch.")]


def check_responses(owner: str, y: Tensor, like: Tensor) -> None:
    """
    Responses must be a tensor of one entry a row; on the CPU and in debug mode also without NaN and infinities.

    :param owner: Name of the likelihood's class.
    :param y: Responses, ``(*batch, n)``.
    :param like: Mean of the predictor, ``(*batch, n)``.
    :raises TypeError: If y is not a tensor.
    :raises ValueError: If shape, device or values do not fit.
    """
    if not torch.is_tensor(y):
        raise TypeError(f"the responses of {owner} must be a tensor, got {type(y).__name__}")
    if y.device != like.device:
        raise ValueError(f"y is on {y.device}, but the predictor on {like.device}: pass y.to(x.device)")
    fits = y.dim() > 0 and y.shape[-1] == like.shape[-1]
    if fits:
        try:
            torch.broadcast_shapes(y.shape, like.shape)
        except RuntimeError:
            fits = False
    if not fits:
        raise ValueError(f"y has shape {tuple(y.shape)}, but the predictor has {tuple(like.shape)}: one response a row")
    if y.is_floating_point():
        refuse_rows(owner, y, torch.isnan, "NaN", "drop such rows with gpytorch_gam.data.missing_responses")
        refuse_rows(owner, y, torch.isinf, "infinity", "look for an overflow in the data")


def refuse_rows(owner: str, y: Tensor, is_bad: Callable[[Tensor], Tensor], what: str, remedy: str) -> None:
    """
    Count responses that a likelihood cannot have, on the CPU and in debug mode alone.

    :param owner: Name of the likelihood's class.
    :param y: Responses.
    :param is_bad: From responses to booleans of the same shape.
    :param what: What the bad ones are, for "y has ... in 3 of 10 rows".
    :param remedy: What to do, or what the likelihood takes.
    :raises ValueError: If there is one.
    """
    if not _looked_at(y):
        return
    values = y.detach()
    bad = is_bad(values.to(torch.uint8) if values.dtype == torch.bool else values)  # booleans cannot be rounded
    if bad.any():
        raise ValueError(f"y has {what} in {int(bad.sum())} of {bad.numel()} rows ({owner}): {remedy}")


def weighted(value: Tensor, weights: Tensor | None) -> Tensor:
    """
    Log-probabilities times the weights of their rows.

    :param value: ``(*batch, n)``.
    :param weights: Broadcasts to that; None for ones.
    """
    return value if weights is None else value * weights


def _broadcasts(value: Tensor, like: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, like.shape) == like.shape
    except RuntimeError:
        return False


def _looked_at(value: Tensor) -> bool:
    return value.device.type == "cpu" and gpytorch.settings.debug.on()


def _range(positive: bool, nonnegative: bool) -> str:
    return "finite and positive" if positive else "finite and not negative" if nonnegative else "finite"
