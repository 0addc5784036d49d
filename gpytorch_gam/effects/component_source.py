"""What a posterior has to know of its components, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import Reading

from .group_posterior import GroupPosterior


class ComponentProjections(NamedTuple):
    """
    Projections of all components.

    :ivar groups: one a group.
    :ivar sign: of the squares of the coupled directions in the covariance, -1 or 1.
    """

    groups: Sequence[GroupPosterior]
    sign: int


class ComponentSource(Protocol):
    """A posterior of all components of a predictor, at any rows: what :class:`ComponentPosterior` is made from."""

    @property
    def predictor(self) -> AdditivePredictor:
        """The components."""

    def read(self, x: Tensor) -> Reading:
        """Inputs of the predictor at inputs ``(*batch, n, D)`` of the model, and its prior mean, checked."""

    def component_projections(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""

    def draw_components(self, inputs: Tensor, batch_shape: torch.Size, sample_shape: torch.Size) -> list[Tensor]:
        """
        Joint draws of all components.

        :param inputs: Inputs of the predictor, ``(*batch, n, D)``.
        :param batch_shape: Batch shape of the posterior of the components there.
        :param sample_shape: Shape of independent draws.
        :return: For each group ``(*sample_shape, *batch, C_g, n)``.
        """
