"""From terms of data frames to groups of components."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gpytorch_gam import terms as factories
from gpytorch_gam.components import ComponentGroup, Levels
from gpytorch_gam.kernels import Empirical

from .columns import LevelEncoding
from .encoded_terms import EncodedTerms
from .priors import register_priors, set_level_variance
from .terms import DeviatingCurves, Factor, Linear, Place, RandomCurves, RandomEffect, Smooth, Term
from .terms import Tensor as TensorTerm

# Atoms of the distribution over which smooth effects have mean zero.
_NUM_ATOMS = 64

# The number of inducing points with which fits begin, and the most along each column of a tensor term where the
# estimator gives their number.
_DEFAULT_POINTS, _MOST_POINTS_EACH = 16, 10


class TermGroups:
    """
    Makes the groups of components of terms, in the default dtype.

    :param encoded: The terms, whose columns are learned.
    :param x: The inputs ``(n, D)``.
    """

    def __init__(self, encoded: EncodedTerms, x: Tensor) -> None:
        self._encoded, self._x = encoded, x

    def of(self, term: Term, label: str, predictor: int) -> list[ComponentGroup]:
        """
        The groups of components of a term, with their priors.

        :param term: One of the terms.
        :param label: The name of its components, or the first part of it.
        :param predictor: The number of its predictor.
        """
        options: dict[str, Any] = {"predictor": predictor}
        if self._encoded.missing_of(term) in ("drop", "marginal"):
            options["missing"] = "marginal"
        makers = {
            Smooth: self._smooth,
            Linear: self._linear,
            TensorTerm: self._tensor,
            Place: self._place,
            Factor: self._factor,
            RandomEffect: self._random_effect,
            RandomCurves: self._random_curves,
            DeviatingCurves: self._random_curves,
        }
        made: list[ComponentGroup] = makers[type(term)](term, label, options)  # type: ignore[operator]
        for group in made:
            register_priors(group)
        return made

    def _smooth(self, term: Smooth, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        multiplier = self._by(term, label)
        if term.period is not None:
            column = self._encoded.position(term.column, term.cycle)
            more: dict[str, Any] = {} if term.k is None else {"num_inducing": term.k}
            return [factories.cyclic(column, 1.0, **more, **multiplier, **options)]
        parts = [self._curve(term.column, term, multiplier, options)]
        if term.has_line:
            parts.append(self._line(term.column, f"{label}.line", options))
        return parts

    def _curve(
        self, name: str, term: Smooth | TensorTerm, multiplier: dict[str, Any], options: dict[str, Any]
    ) -> ComponentGroup:
        column = self._encoded.position(name, "number")
        by_number = "by" in multiplier and "levels" not in multiplier
        measure = None if by_number else self._measure(column)
        return factories.smooth(
            column,
            self._x,
            kernel=self._kernel(term),
            measure=measure,
            **self._points(term, name),
            **multiplier,
            **options,
        )

    def _line(self, name: str, label: str, options: dict[str, Any]) -> ComponentGroup:
        return factories.linear(self._encoded.position(name, "line"), self._x, names=label, **options)

    def _linear(self, term: Linear, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        (role,) = term.roles(term.column)
        units: dict[str, Any] = {"centre": 0.0, "scale": 1.0} if term.is_through_zero else {"x": self._x}
        column = self._encoded.position(term.column, role)
        return [factories.linear(column, **units, **self._by(term, label), **options)]

    def _tensor(self, term: TensorTerm, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        columns = [self._encoded.position(name, "number") for name in term.names]
        points: dict[str, Any] = (
            {} if (term.k or self._encoded.k) is None else {"num_inducing": term.k or min(self._encoded.k or 7, 10)}
        )
        joint = factories.tensor(
            columns,
            self._x,
            kernel=self._kernel(term),
            measure=[self._measure(column) for column in columns],
            names=label,
            **points,
            **options,
        )
        if not term.has_main_effects:
            return [joint]
        mains = []
        for name in term.names:
            mains.append(self._curve(name, term, {"names": f"{label}.{name}"}, options))
            mains.append(self._line(name, f"{label}.{name}.line", options))
        return [*mains, joint]

    def _place(self, term: Place, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        columns = [self._encoded.position(name, "coordinate") for name in term.names]
        points: dict[str, Any] = (
            {} if (term.k or self._encoded.k) is None else {"num_inducing": term.k or self._encoded.k}
        )
        parts = [factories.spatial(columns, self._x, kernel=self._kernel(term), name=label, **points, **options)]
        if term.linear:
            names = [f"{label}.{name}.line" for name in term.names]
            parts.append(factories.linear(columns, self._x, names=names, **options))
        return parts

    def _factor(self, term: Factor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        encoding = self._encoded.encoding(term.column, "levels")
        is_ordered = encoding.is_ordered if term.ordered is None else term.ordered
        make = factories.ordinal if is_ordered else factories.factor
        group = make(self._encoded.position(term.column, "levels"), _levels(encoding), name=label, **options)
        if not is_ordered:
            set_level_variance(group)
        return [group]

    def _random_effect(self, term: RandomEffect, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        by = None if term.by is None else self._encoded.position(term.by, "multiplier")
        levels = _levels(self._encoded.encoding(term.column, "levels"))
        return [
            factories.random_effect(self._encoded.position(term.column, "levels"), levels, by=by, name=label, **options)
        ]

    def _random_curves(self, term: RandomCurves, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        column, by = self._encoded.position(term.column, "number"), self._encoded.position(term.levels, "levels")
        levels = _levels(self._encoded.encoding(term.levels, "levels"))
        k = term.k or self._encoded.k
        if k is not None:
            options["num_inducing"] = k
        if isinstance(term, DeviatingCurves):
            options["measure"] = self._measure(column)
        make = factories.interaction if isinstance(term, DeviatingCurves) else factories.factor_smooth
        return [make(column, by, levels, self._x, kernel=self._kernel(term), name=label, **options)]

    def _by(self, term: Smooth | Linear, label: str) -> dict[str, Any]:
        """The arguments of a factory for the multiplier of a term, and the names of its components."""
        if term.by is None:
            return {"names": label}
        if (term.by, "multiplier") in self._encoded.encodings:
            return {"by": self._encoded.position(term.by, "multiplier"), "names": label}
        levels = _levels(self._encoded.encoding(term.by, "levels"))
        names = [f"{label}={level}" for level in levels.labels]
        return {"by": self._encoded.position(term.by, "levels"), "levels": levels, "names": names}

    def _kernel(self, term: Any) -> Any:
        return self._encoded.kernel if term.kernel is None else term.kernel

    def _points(self, term: Any, name: str) -> dict[str, Any]:
        """The number of inducing points, where it is given or the column has fewer values than that."""
        num_values = self._encoded.encoding(name, "number").num_values
        wanted = self._encoded.k if term.k is None or isinstance(term, TensorTerm) else term.k
        if wanted is None:
            return {"num_inducing": max(2, num_values)} if num_values < _DEFAULT_POINTS else {}
        return {"num_inducing": max(2, min(wanted, num_values))}

    def _measure(self, column: int) -> Empirical:
        """The distribution of a column of the inputs, over which an effect of it has mean zero."""
        values = self._x[:, column]
        return Empirical.from_data(values[values.isfinite()], num_atoms=_NUM_ATOMS)


def _levels(encoding: LevelEncoding) -> Levels:
    return Levels(tuple(map(float, range(len(encoding.labels)))), encoding.labels)
