"""Groups of equal shape, evaluated together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from gpytorch.settings import trace_mode
from torch import Tensor

from gpytorch_gam.numerics.transforms import is_transformed

from .component_group import ComponentGroup


class JoinedGroup(NamedTuple):
    """A group that stands for one or several of the groups of a predictor."""

    group: ComponentGroup
    places: tuple[int, ...]  # of the groups that it stands for
    counts: tuple[int, ...]  # the numbers of their components

    def split(self, values: Tensor, dim: int) -> Sequence[Tensor]:
        """Values of all components, which run along a dimension, as those of each of the groups."""
        return (values,) if len(self.counts) == 1 else values.split(self.counts, dim)

    def joined(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """The inverse of :meth:`split`, given the values of all groups of the predictor."""
        own = [values[place] for place in self.places]
        return own[0] if len(own) == 1 else torch.cat(own, dim)


def joined_groups(groups: Sequence[ComponentGroup], within_predictors: bool = False) -> list[JoinedGroup]:
    """
    Groups that stand for all ``groups``, as few as possible, or as few as possible ``within_predictors``. They are made
    anew for each evaluation, in which they save far more operations than that takes: parameters may change at any time.
    """
    if len(groups) > 1 and not (trace_mode.on() or is_transformed() or torch.compiler.is_compiling()):
        return [_joined(groups, places) for places in _equal_groups(groups, within_predictors)]
    return [_joined(groups, [place]) for place in range(len(groups))]


def _equal_groups(groups: Sequence[ComponentGroup], within_predictors: bool) -> list[list[int]]:
    """The places of groups that can be joined."""
    similar: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        owner = group.predictor_index if within_predictors else None
        similar[type(group.kernel), group.inducing_points.shape[-2:], owner].append(place)
    found: dict[Hashable, list[int]] = defaultdict(list)
    for kind, places in similar.items():
        for place in places:
            key = groups[place].joining_key() if len(places) > 1 else None
            found[place if key is None else (kind, key)].append(place)
    return sorted(found.values())


def _joined(groups: Sequence[ComponentGroup], places: Sequence[int]) -> JoinedGroup:
    own = [groups[place] for place in places]
    group = own[0] if len(own) == 1 else ComponentGroup.joined(own)
    return JoinedGroup(group, tuple(places), tuple(each.num_components for each in own))


def by_group(joined: Sequence[JoinedGroup], values: Sequence[Tensor], dim: int) -> list[Tensor]:
    """Values of each of the groups of a predictor, from those of the groups that stand for them."""
    found: dict[int, Tensor] = {}
    for each, value in zip(joined, values, strict=True):
        found.update(zip(each.places, each.split(value, dim), strict=True))
    return [found[place] for place in range(len(found))]
