"""The names of components for which their user gives none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .levels import Levels


def default_names(
    columns: Sequence[Sequence[int]],
    by: Sequence[int | None],
    by_levels: Sequence[float | None],
    levels: Mapping[int, Levels],
    predictor: int,
    term: str | None = None,
) -> tuple[str, ...]:
    """
    Names of components with these columns, multiplier columns and levels, see :class:`ComponentGroup`. A ``term`` is
    named by its kind, as in ``linear(x0)``, where a smooth one of the same columns has the plain name.
    """
    return tuple(
        default_name(_name_of(row, column, level, levels, term), predictor)
        for row, column, level in zip(columns, by, by_levels, strict=True)
    )


def default_name(name: str, predictor: int) -> str:
    """The name of a component in its predictor, where in predictor 0 it is called ``name``."""
    return name if predictor == 0 else f"{name}.{predictor}"


def _name_of(
    row: Sequence[int], by: int | None, by_level: float | None, levels: Mapping[int, Levels], term: str | None
) -> str:
    name = ":".join(f"x{column}" for column in row) or "constant"
    name = name if term is None else f"{term}({name})"
    if by is None:
        return name
    if by_level is None:
        return f"{name}*x{by}"
    return f"{name}|x{by}={(levels.get(by) or Levels((by_level,))).label(by_level)}"
