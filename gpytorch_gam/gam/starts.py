"""Hyperparameters from which a fit starts, and fits that go on from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpytorch.likelihoods import Likelihood

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.training import FitResult

from .design import Design
from .fitted import Fitted


class Start(NamedTuple):
    """Groups of components and a likelihood from whose hyperparameters a fit starts."""

    groups: Sequence[ComponentGroup]
    likelihood: Likelihood

    @classmethod
    def of(cls, fitted: Fitted) -> Start:
        """
        Those of a fitted model.

        :param fitted: The model.
        """
        return cls(fitted.model.predictor.groups, fitted.likelihood)

    def copy_to(self, predictor: AdditivePredictor, likelihood: Likelihood) -> None:
        """
        Give the groups of the same components, whose kernels may be of another smoothness, and another likelihood the
        same hyperparameters.

        :param predictor: The components.
        :param likelihood: The likelihood.
        """
        known = {group.names: group for group in self.groups}
        for group in predictor.groups:
            source = known[group.names]
            if source.num_inducing != group.num_inducing:
                group.replace_inducing_points(source.inducing_points.to(group.inducing_points))
            group.load_state_dict({**source.state_dict(), "_extra_state": group.get_extra_state()})
        likelihood.load_state_dict(self.likelihood.state_dict())


class Refit(Protocol):
    """Fits another design from some hyperparameters, to a tolerance, see :func:`~gpytorch_gam.fit`."""

    def __call__(
        self, other: Design, start: Start, tolerance: float = 0.0, explore: bool = True
    ) -> tuple[Fitted, FitResult]:
        """The fitted model, and what the fit has found; a KeyboardInterrupt if it was interrupted."""
        ...
