"""Draws of whole functions from the posterior: callables that give the same value for the same row whenever asked."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam._checks import choice
from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.effects.prior_functions import PriorFeatures
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.triangular import solve_in_blocks

from .fitted import KERNELS, Fitted
from .parts import INTERCEPT, Part
from .terms import RandomCurves, RandomEffect

_ROWS_AT_A_TIME = 1024

# What reads tables and row-wise arguments.
Read = Callable[[Any, Mapping[str, Any]], tuple[Fitted, pd.DataFrame, Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class _PriorDraws:
    """
    Functions from the prior of a group. Those of independent levels are drawn by the names of these, and so the same
    for each level whenever it is asked for.
    """

    features: PriorFeatures
    seed: tuple[int, ...]
    number: int  # of draws S

    def at(self, inputs: Tensor, level: str = "") -> Tensor:
        """Values ``(S, C, n)`` at inputs of the components ``(C, n, d)``, all of one level."""
        features = self.features.at(inputs)
        random = np.random.default_rng([*self.seed, zlib.crc32(level.encode())])
        amplitudes = random.standard_normal((self.number, len(features), self.features.number))
        return torch.einsum("cnf,scf->scn", features, torch.from_numpy(amplitudes).to(features))

    def at_levels(self, inputs: Tensor, names: Sequence[str]) -> Tensor:
        """Values ``(S, C, n)`` at inputs whose column of levels holds places of names, if there is such a column."""
        column = self.features.level_column
        if column is None:
            return self.at(inputs)
        found = inputs.new_empty(self.number, *inputs.shape[:-1])
        codes = inputs[0, :, column]
        for code in codes.unique().tolist():
            rows = (codes == code).nonzero().flatten()
            found[..., rows] = self.at(inputs[:, rows], names[int(code)])
        return found


@dataclass(frozen=True)
class _GroupDraws:
    """
    Draws of the components of a group by Matheron's rule: functions from the prior, and what brings these at the
    inducing points to draws from the posterior.
    """

    group: ComponentGroup
    weights: Tensor  # of the kernel at inducing points, (S, C, M)
    prior: _PriorDraws | None  # None where inducing variables determine all

    @torch.no_grad()
    def at(self, x: Tensor, names: Sequence[str], place: Tensor) -> Tensor:
        """
        Values ``(S, C, n)`` in float64 of some of the draws.

        :param x: Inputs ``(n, D)``.
        :param names: Those of levels, if the group has independent ones; levels of the fit come first.
        :param place: Which draws, ``(S,)``.
        """
        x = x.to(self.group.inducing_points.device)
        with KERNELS:
            covariance = self.group.cross_covariance(x)
        values = torch.einsum("cmn,scm->scn", covariance, self.weights[place])
        if self.prior is None:
            return values.cpu()
        inputs, multiplier = self.group.select(x), self.group.multiplier(x)
        if not self.group.exact:
            free = torch.ones(len(x), dtype=torch.bool, device=x.device)
        else:  # levels of the fit are determined
            free = inputs[0, :, 0] >= self.group.num_inducing
        if free.any():
            prior = self.prior.at_levels(inputs[:, free], names)[place]
            values[..., free] += prior if multiplier is None else prior * multiplier[:, free]
        return values.cpu()


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

    A function is one from the prior, a sum of waves, plus what brings it at the inducing points to a draw of the values
    that the posterior has there (Matheron's rule). So it varies as bands of ``predict`` say, between these points and
    outside of the data, too. Many ranges of the data apart, functions repeat themselves; surfaces with the kernel
    ``"matern12"`` are rougher than waves can be. If hyperparameters are integrated out, each function is one of a model
    with other values of them. Levels that the fit has not seen get effects by their names, other ones in each function.

    Example:
        >>> draws = gam.draw_functions(1000, random_state=0)
        >>> (draws.mean(X) > 100).mean(0)  # the probability that the mean response exceeds 100, for each row
        >>> draws[3](X)                  # one of them
    """

    def __init__(
        self,
        fitted: Fitted,
        read: Read,
        groups: Mapping[int, Sequence[_GroupDraws]],
        origin: _Origin,
    ) -> None:
        self._fitted, self._read, self._groups, self._origin = fitted, read, groups, origin
        self._is_single = False

    def __len__(self) -> int:
        """The number of functions."""
        return len(self._origin.model)

    def __repr__(self) -> str:
        """Their number and their scale."""
        link = self._fitted.family.link
        scale = "in units of the response" if link == "identity" else f"on the scale of the link ({link})"
        return f"<{type(self).__name__}: {len(self)} functions, called {scale}, mean(X) in that of the mean response>"

    def __getitem__(self, index: int | slice) -> FunctionDraws:
        """One function, whose values have no dimension for draws, or several."""
        if not isinstance(index, slice):
            index = operator.index(index)  # integers of numpy, too
            if not -len(self) <= index < len(self):
                raise IndexError(f"there are {len(self)} functions, got index {index}")
        chosen = index if isinstance(index, slice) else slice(index, index + 1 or None)
        found = FunctionDraws(self._fitted, self._read, self._groups, self._origin.chosen(chosen))
        found._is_single = not isinstance(index, slice)
        return found

    def __call__(self, X: Any, parameter: str | None = None, *, offset: Any = None) -> np.ndarray:
        """
        Values of a predictor, ``(S, n)``, on the scale of its link; in units of the response if that is the identity.
        One function, such as ``draws[3]``, has values ``(n,)``. An exposure is no part of the predictor.

        :param X: A table of the columns of the fit.
        :param parameter: The name of the predictor; default the first.
        :param offset: A number for each row that is added to the first predictor, see :meth:`mean`.
        """
        return self._given(self._values(X, self._index_of(parameter), {"offset": offset})[0])

    def _values(self, X: Any, index: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, Tensor]]:
        """Values ``(S, n)`` of a predictor, and row-wise arguments in units of the fit."""
        _, frame, x, rows = self._read(X, arguments)
        total = np.repeat(self._intercept(index), len(frame), axis=1)
        for place, parts in self._terms(frame, x, index):
            for values in parts.values():
                total[:, place] += values
        if index == 0 and "offset" in rows:
            total += self._fitted.scale_of(0) * rows["offset"].numpy()
        return total, rows

    def terms(self, X: Any, parameter: str | None = None) -> dict[str, np.ndarray]:
        """
        A dictionary from the label of each term to its values, ``(S, n)``, which with the intercept (and an offset) add
        up to the function. Of one function, such as ``draws[3]``, they are ``(n,)``.

        :param X: A table of the columns of the fit.
        :param parameter: The name of the predictor; default the first.
        """
        index, (_, frame, x, _) = self._index_of(parameter), self._read(X, {})
        found = {part.label: np.zeros((len(self), len(frame))) for part in self._parts(index)}
        for rows, parts in self._terms(frame, x, index):
            for label, values in parts.items():
                found[label][:, rows] = values
        return {label: self._given(values) for label, values in found.items()}

    def intercept(self, parameter: str | None = None) -> Any:
        """
        The intercept of each draw, ``(S,)``.

        :param parameter: The name of the predictor; default the first.
        """
        values = self._intercept(self._index_of(parameter))[:, 0]
        return values[0] if self._is_single else values

    def mean(self, X: Any, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> np.ndarray:
        """
        The mean of the response under each draw, ``(S, n)``: the function seen through the link. Without an exposure it
        is that of one unit, such as a rate, and without trials that of one, a probability.

        A row-wise argument that is not given is the column that it was in the fit, if X has this column, as in
        ``predict``.

        :param X: A table of the columns of the fit.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        """
        fitted = self._fitted
        values, rows = self._values(X, 0, {"offset": offset, "exposure": exposure, "trials": trials})
        if fitted.family.link == "identity":
            return self._given(values)
        inner = torch.from_numpy(values) - fitted.centre_of(0)
        found = fitted.family.mean(inner, rows, fitted.likelihood).detach().numpy()
        return self._given(found * fitted.units.scale + fitted.units.centre)

    def _given(self, values: np.ndarray) -> np.ndarray:
        return values[0] if self._is_single else values

    def _index_of(self, parameter: str | None) -> int:
        names = self._fitted.design.parameters
        return 0 if parameter is None else names.index(choice("parameter", parameter, names))

    def _parts(self, index: int) -> list[Part]:
        """The terms of a predictor."""
        return [part for part in self._fitted.parts if part.predictor == index]

    def _intercept(self, index: int) -> np.ndarray:
        """Values ``(S, 1)``."""
        label = self._fitted.design.labelled(INTERCEPT, index)
        found = np.full((len(self), 1), self._fitted.centre_of(index))
        if label in self._fitted.model.predictor.names:
            values = self._components(self._fitted.reference[:1], {label: ()})[label]
            found = found + self._fitted.scale_of(index) * values
        return found

    def _terms(self, frame: pd.DataFrame, x: Tensor, index: int) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Values ``(S, rows)`` of the terms of a predictor, for some rows after the other."""
        parts = self._parts(index)
        _refuse_missing(x, parts, self._fitted)
        scale = self._fitted.scale_of(index)
        names = {name: self._names_of_levels(part, frame) for part in parts for name in part.components}
        for start in range(0, len(x), _ROWS_AT_A_TIME):
            rows = slice(start, min(start + _ROWS_AT_A_TIME, len(x)))
            components = self._components(x[rows], names)
            yield rows, {part.label: scale * _sum_of(components, part, (len(self), len(x[rows]))) for part in parts}

    def _names_of_levels(self, part: Part, frame: pd.DataFrame) -> tuple[str, ...]:
        """The names of the levels of a random term in a table, in the order of their codes."""
        if not isinstance(part.term, RandomEffect | RandomCurves):
            return ()
        column = part.term.arguments[-1]
        found: tuple[str, ...] = self._fitted.design.encoding(column, "levels").names(frame[column])
        return found

    def _components(self, x: Tensor, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        """Values ``(S, n)`` of some components, each with the names of its levels."""
        found = {name: np.empty((len(self), len(x))) for name in names}
        for number in self._origin.model.unique().tolist():
            is_own = self._origin.model == number
            for draws in self._groups[number]:
                wanted = [name for name in draws.group.names if name in names]
                if not wanted:
                    continue
                values = draws.at(x, names[wanted[0]], self._origin.place[is_own])
                for name in wanted:
                    found[name][is_own.numpy()] = values[:, draws.group.names.index(name)].numpy()
        return found


def _sum_of(components: Mapping[str, np.ndarray], part: Part, shape: tuple[int, int]) -> np.ndarray:
    """The sum of the components of a term."""
    return sum((components[name] for name in part.components), np.zeros(shape))


def draw_functions(fitted: Fitted, read: Read, num: int, seed: int) -> FunctionDraws:
    """
    Draw functions from the posterior.

    :param fitted: The fitted model.
    :param read: Makes of a table and row-wise arguments the fitted model, a data frame, inputs of the model, and the
        arguments in units of the fit.
    :param num: Their number S.
    :param seed: The seed.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = torch.multinomial(fitted.mixture.weights, num, replacement=True)
        counts = torch.bincount(models, minlength=len(fitted.mixture)).tolist()
        groups = {
            number: _drawn_groups(fitted.mixture.models[number].variational_strategy, count, (seed, number))
            for number, count in enumerate(counts)
            if count
        }
    return FunctionDraws(fitted, read, groups, _Origin.of(models))


def _drawn_groups(strategy: Any, num: int, seed: tuple[int, ...]) -> list[_GroupDraws]:
    """Draws of all components from the posterior of one model."""
    whitened = strategy.variational_distribution.sample(torch.Size([num])).double()
    columns = split_groups(whitened.unsqueeze(-1), strategy.predictor.group_shapes)
    return [
        _conditioned(strategy, group, values.movedim(0, -1).squeeze(-2), (*seed, number))
        for number, (group, values) in enumerate(zip(strategy.predictor.groups, columns, strict=True))
    ]


def _conditioned(strategy: Any, group: ComponentGroup, whitened: Tensor, seed: tuple[int, ...]) -> _GroupDraws:
    """Draws of a group from whitened inducing variables ``(blocks, size, S)``."""
    num = whitened.shape[-1]
    cholesky = strategy.inducing_cholesky(group)
    prior = None
    if not group.exact or any(levels.allows_unseen for levels in group.levels.values()):
        prior = _PriorDraws(PriorFeatures(group), seed, num)
    if prior is not None and not group.exact:
        points = group.inducing_points.detach().double()
        at_points = prior.at_levels(points, _labels(group)).movedim(0, -1)  # (C, M, S)
        whitened = whitened - solve_in_blocks(cholesky, at_points).reshape(whitened.shape)
    weights = solve_in_blocks(cholesky, whitened, transpose=True)
    return _GroupDraws(group, weights.reshape(group.num_components, -1, num).movedim(-1, 0), prior)


def _labels(group: ComponentGroup) -> tuple[str, ...]:
    """The names of the levels of a group that has one column of them; codes of estimators are their places."""
    return next((levels.labels for levels in group.levels.values()), ())


def _refuse_missing(x: Tensor, parts: Sequence[Part], fitted: Fitted) -> None:
    read = {index for part in parts for name in part.components for index in _columns_of(fitted, name)}
    missing = int(x[:, sorted(read)].isnan().any(-1).sum()) if read else 0
    if missing:
        raise ValueError(f"functions have no value in {missing} of {len(x)} rows in which columns are missing")


def _columns_of(fitted: Fitted, component: str) -> list[int]:
    group = fitted.model.predictor.group_of(component)
    return group.columns[group.names.index(component)].tolist()
