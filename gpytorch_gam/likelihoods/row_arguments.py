"""The names of the row-wise keyword arguments that a likelihood reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpytorch.likelihoods import (
    DirichletClassificationLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
    MultitaskGaussianLikelihood,
    _GaussianLikelihoodBase,
)
from gpytorch.likelihoods.noise_models import FixedGaussianNoise, HomoskedasticNoise

from gpytorch_gam._checks import did_you_mean


class RowArguments(NamedTuple):
    """The names of the row-wise arguments that a likelihood reads."""

    owner: str  # the likelihood, for messages
    names: tuple[str, ...]  # the known names
    are_all: bool = True  # False if others may be read, because a method of a user's own takes **kwargs

    @classmethod
    def read_by(cls, likelihood: Likelihood) -> RowArguments:
        """
        The arguments that a likelihood reads. One of this package declares them; those of GPyTorch accept any and
        ignore them; a user's own names them in the signatures of its methods.
        """
        own = getattr(likelihood, "readable_arguments", None)
        if isinstance(own, cls):
            return own
        names = dict.fromkeys(_read_by_gpytorch(likelihood))
        are_all = True
        for method in _methods_of_others(type(likelihood)):
            parameters = list(inspect.signature(method).parameters.values())
            are_all &= not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
            # The first parameters are self, the responses and the predictor, or self and the predictor.
            first = 3 if method.__name__ in ("expected_log_prob", "log_marginal") else 2
            named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            names |= dict.fromkeys(parameter.name for parameter in parameters[first:] if parameter.kind in named)
        return cls(type(likelihood).__name__, tuple(names), are_all)

    def refuse_others(self, given: Iterable[str]) -> None:
        """Raise a TypeError for a name that the likelihood does not read: such an argument would have no effect."""
        unknown = [name for name in given if name not in self.names]
        if not self.are_all:
            unknown = [name for name in unknown if did_you_mean(name, self.names)]
        if unknown:
            known = (
                f"takes the row-wise arguments {', '.join(self.names)}" if self.names else "takes no row-wise argument"
            )
            raise TypeError(
                f"{self.owner} {known}, but got {', '.join(name + did_you_mean(name, self.names) for name in unknown)}"
            )


def takes_positional_arguments(likelihood: Likelihood) -> bool:
    """Whether a likelihood may read further arguments by position, such as task indices or a noise model's inputs."""
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
    """The methods that get row-wise arguments, where they are defined by a user's class and not by GPyTorch's."""
    names = ("expected_log_prob", "log_marginal", "marginal", "forward")
    methods = [getattr(kind, name) for name in names]
    return [method for method in methods if not method.__module__.startswith("gpytorch.")]
