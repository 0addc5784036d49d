"""The terms of a model as its components have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .terms import Term

#: The name of the constant in each predictor.
INTERCEPT = "intercept"


@dataclass(frozen=True)
class Part:
    """A term of one predictor and the components that it consists of."""

    label: str  # unique among all terms
    term: Term
    predictor: int
    components: tuple[str, ...]  # none if the term has no effect, its columns being constant


def columns_of_parts(parts: Iterable[Part]) -> set[str]:
    """
    The columns that some terms read.

    :param parts: The terms.
    """
    return {name for part in parts for name in part.term.columns}
