"""The interface of posteriors from which components are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import Reading

from .group_posterior import GroupPosterior


class ComponentProjections(NamedTuple):
    """Projections of all components."""

    groups: Sequence[GroupPosterior]
    sign: int  # -1 or 1, with which squares of coupled directions enter the covariance


class ComponentSource(Protocol):
    """A posterior of all components of a predictor at any rows, from which :class:`ComponentPosterior` is made."""

    @property
    def predictor(self) -> AdditivePredictor:
        """The components and their prior."""

    def read(self, x: Tensor) -> Reading:
        """The predictor's inputs and prior mean at inputs ``(*batch, n, D)`` of the model, after checks."""

    def component_projections(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""

    def draw_components(
        self,
        inputs: Tensor,
        batch_shape: torch.Size,
        sample_shape: torch.Size,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """
        Joint draws of all components at the predictor's inputs, ``(*sample_shape, *batch, C_g, n)`` a group; or of
        those of the groups at some places.
        """
