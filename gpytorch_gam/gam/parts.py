"""The terms of a model as its components have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .terms import Tensor, Term

#: The name of the constant in each predictor.
INTERCEPT = "intercept"


@dataclass(frozen=True)
class Part:
    """A term of one predictor and the components that it consists of."""

    label: str  # unique among all terms
    term: Term
    predictor: int
    components: tuple[str, ...]  # none if the term has no effect, its columns being constant

    @property
    def levels(self) -> dict[str, str]:
        """The level of each component, where levels have one each; else empty."""
        start = f"{self.label}="
        return {name: name.removeprefix(start) for name in self.components if name.startswith(start)}

    @property
    def leading_components(self) -> tuple[str, ...]:
        """The curves of levels, the interaction of ``te``, or the curve beside a line."""
        return tuple(self.levels) or (self.components and (self.label,))

    def component(self, name: str) -> str:
        """
        What a component is within the term: the name of a level or of a column, a line, a curve or an interaction.

        :param name: Its name.
        """
        own = name.removeprefix(self.label)[1:]
        return own or ("interaction" if type(self.term) is Tensor else "curve")


def columns_of_parts(parts: Iterable[Part]) -> set[str]:
    """
    The columns that some terms read.

    :param parts: The terms.
    """
    return {name for part in parts for name in part.term.columns}
