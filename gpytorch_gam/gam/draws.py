"""Draws of whole functions from the posterior: callables that give the same value for the same row whenever asked."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam._checks import choice
from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.triangular import solve_in_blocks

from .design import INTERCEPT, Part
from .fitted import Fitted
from .terms import RandomCurves, RandomEffect, Smooth

# The number of points of a component, or of a level, among which functions are interpolated.
_MOST_POINTS = 600

_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class _GroupDraws:
    """Draws of the components of a group, as weights of its kernel at inducing points and points between."""

    group: ComponentGroup
    weights: Tensor  # (S, C, M)

    @torch.no_grad()
    def at(self, x: Tensor) -> Tensor:
        """Values ``(S, C, n)`` in float64."""
        return torch.einsum("cmn,scm->scn", self.group.cross_covariance(x), self.weights)

    def chosen(self, index: Any) -> _GroupDraws:
        """Some of the draws."""
        return replace(self, weights=self.weights[index])


class _Origin(NamedTuple):
    """Where draws come from: a model of the mixture each, and a place among the draws of that model."""

    model: Tensor  # (S,)
    place: Tensor  # (S,)

    @classmethod
    def of(cls, model: Tensor) -> _Origin:
        """That of draws from these models, which are numbered in turn."""
        is_own = model.unsqueeze(0) == model.unique().unsqueeze(1)
        return cls(model, (is_own.cumsum(1) * is_own).sum(0) - 1)

    def chosen(self, index: Any) -> _Origin:
        """Some of the draws."""
        return _Origin(self.model[index], self.place[index])


class FunctionDraws:
    """
    Functions drawn from the posterior, made by ``draw_functions``. Calling it gives their values in the rows of a
    table; the same draw has the same value in the same row, whatever else the table holds, so that maxima, crossings of
    thresholds and contrasts can be looked for in as many calls as it takes.

    If hyperparameters are integrated out, each function is one of a model with other values of them. It is drawn at
    inducing points, which the posterior describes, at further points between and around them from the prior given
    these, and interpolated beyond. Levels that the fit has not seen get an effect by their name. Far outside the range
    of the data, functions return to what these points make likely, and vary less than the bands of ``predict`` say.

    Example:
        >>> draws = gam.draw_functions(1000, random_state=0)
        >>> (draws(X) > 100).mean(0)     # the probability that the function exceeds 100, for each row
        >>> draws[3](X)                  # one of them
    """

    def __init__(
        self,
        fitted: Fitted,
        read: Callable[[Any], pd.DataFrame],
        groups: Mapping[int, Sequence[_GroupDraws]],
        origin: _Origin,
        seeds: np.ndarray,
    ) -> None:
        self._fitted, self._read, self._groups, self._origin, self._seeds = fitted, read, groups, origin, seeds
        self._is_single = False

    def __len__(self) -> int:
        """The number of functions."""
        return len(self._seeds)

    def __getitem__(self, index: int | slice) -> FunctionDraws:
        """One function, whose values have no dimension for draws, or several."""
        chosen = slice(index, index + 1 or None) if isinstance(index, int) else index
        if isinstance(index, int) and not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} functions, got index {index}")
        origin = self._origin.chosen(chosen)
        found = FunctionDraws(self._fitted, self._read, self._groups, origin, self._seeds[chosen])
        found._is_single = isinstance(index, int)
        return found

    def __call__(self, X: Any, parameter: str | None = None) -> np.ndarray:
        """
        Values of a predictor, ``(S, n)``, on the scale of its link; in units of the response if that is the identity.

        :param X: A table of the columns of the fit.
        :param parameter: The name of the predictor; default the first.
        """
        index = self._index_of(parameter)
        total = sum(self._terms(X, index).values(), self._intercept(index))
        return self._given(np.broadcast_to(total, (len(self), len(self._frame(X)))).copy())

    def terms(self, X: Any, parameter: str | None = None) -> dict[str, np.ndarray]:
        """
        Values of each term, ``(S, n)``, which with the intercept add up to the function.

        :param X: A table of the columns of the fit.
        :param parameter: The name of the predictor; default the first.
        """
        return {label: self._given(values) for label, values in self._terms(X, self._index_of(parameter)).items()}

    def intercept(self, parameter: str | None = None) -> Any:
        """
        The intercept of each draw, ``(S,)``.

        :param parameter: The name of the predictor; default the first.
        """
        values = self._intercept(self._index_of(parameter))[:, 0]
        return values[0] if self._is_single else values

    def mean(self, X: Any) -> np.ndarray:
        """
        The mean of the response under each draw, ``(S, n)``: the function seen through the link.

        :param X: A table of the columns of the fit.
        """
        fitted = self._fitted
        values = torch.from_numpy(self(X))
        if fitted.family.link == "identity":
            return values.numpy()
        inner = values - fitted.centre_of(0)
        found = fitted.family.mean(inner, {}, fitted.likelihood).detach().numpy()
        return found * fitted.units.scale + fitted.units.centre

    def _given(self, values: np.ndarray) -> np.ndarray:
        return values[0] if self._is_single else values

    def _index_of(self, parameter: str | None) -> int:
        names = self._fitted.design.parameters
        return 0 if parameter is None else names.index(choice("parameter", parameter, names))

    def _frame(self, X: Any) -> pd.DataFrame:
        return self._read(X)

    def _intercept(self, index: int) -> np.ndarray:
        """Values ``(S, 1)``."""
        label = self._fitted.design.labelled(INTERCEPT, index)
        found = np.full((len(self), 1), self._fitted.centre_of(index))
        if label in self._fitted.model.predictor.names:
            values = self._components(self._fitted.reference[:1], {label})[label]
            found = found + self._fitted.scale_of(index) * values
        return found

    @torch.no_grad()
    def _terms(self, X: Any, index: int) -> dict[str, np.ndarray]:
        frame = self._frame(X)
        x = self._fitted.design.inputs(frame)
        parts = [part for part in self._fitted.parts if part.predictor == index]
        _refuse_missing(x, parts, self._fitted)
        components = self._components(x, {name for part in parts for name in part.components})
        scale = self._fitted.scale_of(index)
        found = {}
        for part in parts:
            total = np.zeros((len(self), len(frame)))
            for name in part.components:
                total += scale * components[name]
            if isinstance(part.term, RandomEffect | RandomCurves) and part.components:
                total = self._with_unseen(part, frame, total, scale)
            found[part.label] = total
        return found

    def _components(self, x: Tensor, names: set[str]) -> dict[str, np.ndarray]:
        found = {name: np.empty((len(self), len(x))) for name in names}
        for draws, group in self._own_groups():
            wanted = [name for name in group.group.names if name in names]
            for start in range(0, len(x) if wanted else 0, _ROWS_AT_A_TIME):
                rows = slice(start, start + _ROWS_AT_A_TIME)
                values = group.at(x[rows])
                for name in wanted:
                    found[name][draws, rows] = values[:, group.group.names.index(name)].numpy()
        return found

    def _own_groups(self) -> Iterator[tuple[np.ndarray, _GroupDraws]]:
        """The groups of each model, for the draws that are its own."""
        for number in self._origin.model.unique().tolist():
            is_own = self._origin.model == number
            for group in self._groups[number]:
                yield is_own.numpy(), group.chosen(self._origin.place[is_own])

    def _with_unseen(self, part: Part, frame: pd.DataFrame, total: np.ndarray, scale: float) -> np.ndarray:
        """Effects of levels that the fit has not seen: from the prior, by the name of the level and the draw."""
        design, column = self._fitted.design, part.term.arguments[-1]
        encoding = design.encoding(column, "levels")
        unseen = encoding.unseen(frame[column])
        if len(unseen) == 0:
            return total
        if isinstance(part.term, RandomCurves):
            raise ValueError(f"{part.label} has no curves for levels that the fit has not seen: {list(unseen)[:10]}")
        deviation = scale * self._prior_deviations(part.components[0])
        multiplier = self._fitted.model.predictor.group_of(part.components[0]).multiplier(design.inputs(frame))
        by = 1.0 if multiplier is None else multiplier[0].numpy()
        for level in unseen:
            name = zlib.crc32(f"{part.label} {level}".encode())
            values = np.array([np.random.default_rng([int(seed), name]).standard_normal() for seed in self._seeds])
            is_level = (frame[column] == level).to_numpy()
            total[:, is_level] = ((deviation * values)[:, None] * by * np.ones((1, len(frame))))[:, is_level]
        return total

    def _prior_deviations(self, component: str) -> np.ndarray:
        """The prior standard deviation of a component's first level under the model of each draw, ``(S,)``."""
        groups = [model.predictor.group_of(component) for model in self._fitted.mixture.models]
        found = [group.mean_prior_variance().sqrt().flatten()[0].item() for group in groups]
        return np.array(found)[self._origin.model.numpy()]


def draw_functions(fitted: Fitted, read: Callable[[Any], pd.DataFrame], num: int, seed: int) -> FunctionDraws:
    """
    Draw functions from the posterior.

    :param fitted: The fitted model.
    :param read: Makes a data frame of a table.
    :param num: Their number S.
    :param seed: The seed.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = torch.multinomial(fitted.mixture.weights, num, replacement=True)
        counts = torch.bincount(models, minlength=len(fitted.mixture)).tolist()
        groups = {
            number: _drawn_groups(fitted, fitted.mixture.models[number].variational_strategy, count)
            for number, count in enumerate(counts)
            if count
        }
    seeds = np.random.default_rng(seed).integers(2**31, size=num)
    return FunctionDraws(fitted, read, groups, _Origin.of(models), seeds)


def _drawn_groups(fitted: Fitted, strategy: Any, num: int) -> list[_GroupDraws]:
    """Draws of all components from the posterior of one model."""
    whitened = strategy.variational_distribution.sample(torch.Size([num])).double()
    columns = split_groups(whitened.unsqueeze(-1), strategy.predictor.group_shapes)
    cyclic = {name for part in fitted.parts if _is_cyclic(part) for name in part.components}
    return [
        _extended(strategy, group, values, is_cyclic=bool(cyclic & set(group.names)))
        for group, values in zip(strategy.predictor.groups, columns, strict=True)
    ]


def _is_cyclic(part: Part) -> bool:
    return isinstance(part.term, Smooth) and part.term.period is not None


def _extended(strategy: Any, group: ComponentGroup, whitened: Tensor, is_cyclic: bool) -> _GroupDraws:
    """
    Draws of a group from whitened variables ``(S, blocks, size, 1)``. If these leave something to draw, further
    points follow those of each block, and their whitened variables have the prior: the Cholesky factor of all points
    begins with that of the inducing points.
    """
    blocks, size = group.block_shape
    points = group.inducing_points.double().reshape(blocks, size, -1)
    between = None if group.exact else _points_between(points, is_cyclic)
    if between is not None:
        every = torch.cat([points, between], dim=-2).reshape(group.num_components, -1, points.shape[-1])
        group = _with_points(group, every)
        more = torch.randn(*whitened.shape[:-2], between.shape[-2], 1, dtype=torch.float64)
        whitened = torch.cat([whitened, more], dim=-2)
    weights = solve_in_blocks(strategy.inducing_cholesky(group), whitened.movedim(0, -1).squeeze(-2), transpose=True)
    return _GroupDraws(group, weights.reshape(group.num_components, -1, len(whitened)).movedim(-1, 0))


def _with_points(group: ComponentGroup, points: Tensor) -> ComponentGroup:
    """The components of a group with other inducing points."""
    return ComponentGroup(
        group.kernel,
        columns=group.columns.tolist(),
        inducing_points=points,
        names=group.names,
        by=group.multiplier_columns,
        by_levels=group.multiplier_levels if any(each is not None for each in group.multiplier_levels) else None,
        levels=group.levels,
        missing=group.missing,  # type: ignore[arg-type]
        predictor=group.predictor_index,
    )


def _points_between(points: Tensor, is_cyclic: bool) -> Tensor | None:
    """Points between and around those of each block ``(B, M, d)``, equally many; None if there cannot be any."""
    found = [_between_of_one(each, is_cyclic) for each in points]
    return None if any(each is None for each in found) else torch.stack([each for each in found if each is not None])


def _between_of_one(points: Tensor, is_cyclic: bool) -> Tensor | None:
    axes = [column.unique() for column in points.mT]
    if math.prod(len(axis) for axis in axes) != len(points):
        return None  # no grid
    num_varying = sum(len(axis) > 1 for axis in axes)
    parts = max(1, int((_MOST_POINTS / len(points)) ** (1 / num_varying)))
    if parts == 1:
        return None
    finer = [axis if len(axis) == 1 else _finer(axis, parts, is_cyclic, num_varying) for axis in axes]
    grid = torch.cartesian_prod(*finer).reshape(-1, len(axes))
    is_new = (torch.cdist(grid, points) > 1e-9 * (points.amax() - points.amin())).all(-1)
    return grid[is_new]


def _finer(axis: Tensor, parts: int, is_cyclic: bool, num_varying: int) -> Tensor:
    """An axis with its gaps divided; that of a single column goes on at half gaps for its length on both sides."""
    ends = torch.cat([axis, axis[:1] + 1.0]) if is_cyclic else axis
    steps = torch.linspace(0, 1, parts + 1, dtype=axis.dtype)[:-1]
    inside = (ends[:-1, None] + (ends[1:] - ends[:-1])[:, None] * steps).flatten()
    if is_cyclic:
        return inside
    inside = torch.cat([inside, axis[-1:]])
    if num_varying > 1:
        return inside
    width, num = axis[-1] - axis[0], 2 * (len(axis) - 1)
    away = width * torch.linspace(0, 1, num + 1, dtype=axis.dtype)[1:]
    return torch.cat([axis[0] - away.flip(0), inside, axis[-1] + away])


def _refuse_missing(x: Tensor, parts: Sequence[Part], fitted: Fitted) -> None:
    read = {index for part in parts for name in part.components for index in _columns_of(fitted, name)}
    missing = int(x[:, sorted(read)].isnan().any(-1).sum()) if read else 0
    if missing:
        raise ValueError(f"functions have no value in {missing} of {len(x)} rows in which columns are missing")


def _columns_of(fitted: Fitted, component: str) -> list[int]:
    group = fitted.model.predictor.group_of(component)
    return group.columns[group.names.index(component)].tolist()
