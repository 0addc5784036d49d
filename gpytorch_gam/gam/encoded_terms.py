"""Terms with the encodings of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .columns import CycleEncoding, Encoding, LevelEncoding, NumberEncoding
from .terms import Term

# A column of the data frame, and how it is read.
Key = tuple[str, str]


@dataclass
class EncodedTerms:
    """
    The terms of a model with the encodings of the columns that they read.

    :ivar terms: The terms of each predictor.
    :ivar parameters: The names of the predictors.
    :ivar encodings: How each column is read, in the order of the columns of the inputs.
    :ivar aliases: Further ways of reading that are the same as another.
    :ivar kernel: The kernel of terms that name none.
    :ivar k: The number of inducing points of terms that name none.
    :ivar missing: What is done with missing values in the columns of terms that do not say it.
    """

    terms: list[list[Term]]
    parameters: tuple[str, ...]
    kernel: str
    k: int | None
    missing: str
    has_intercepts: tuple[bool, ...]
    encodings: dict[Key, Encoding] = field(default_factory=dict)
    aliases: dict[Key, Key] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The names of all columns that terms read."""
        return list(dict.fromkeys(name for term in self.all_terms for name in term.columns))

    @property
    def all_terms(self) -> list[Term]:
        """The terms of all predictors."""
        return [term for terms in self.terms for term in terms]

    def reads_kernel(self) -> bool:
        """Whether any term has the kernel of those that name none."""
        return any(
            getattr(term, "kernel", "none") is None and getattr(term, "period", None) is None for term in self.all_terms
        )

    def missing_of(self, term: Term) -> str:
        """
        What is done with missing values in the columns of a term.

        :param term: The term.
        """
        return self.missing if term.missing is None else term.missing

    def keys_of(self, term: Term) -> list[Key]:
        """
        The columns that a term reads, once they are encoded, and how.

        :param term: The term.
        """
        every = [*self.encodings, *self.aliases]
        roles = {name: [role for column, role in every if column == name] for name in term.columns}
        wanted = {
            name: ("levels", "multiplier") if name == term.multiplier else term.roles(name) for name in term.columns
        }
        return [(name, role) for name in term.columns for role in roles[name] if role in wanted[name]]

    def columns_that_drop(self) -> list[str]:
        """The columns whose missing values leave rows out of the fit."""
        terms = [term for term in self.all_terms if self.missing_of(term) == "drop"]
        return list(dict.fromkeys(name for term in terms for name in term.columns))

    def position(self, name: str, role: str) -> int:
        """
        The column of the inputs that holds a column of the data frame.

        :param name: Of the column of the data frame.
        :param role: How it is read.
        """
        key = self.aliases.get((name, role), (name, role))
        return list(self.encodings).index(key)

    def encoding(self, name: str, role: str) -> Any:
        """
        How a column is read.

        :param name: Of the column of the data frame.
        :param role: The way of reading.
        """
        return self.encodings[self.aliases.get((name, role), (name, role))]


def described_encodings(encodings: Mapping[Key, Encoding]) -> list[dict[str, Any]]:
    """
    Encodings as plain values, which JSON can hold.

    :param encodings: The encodings.
    """
    return [
        {"name": name, "role": role, "kind_of_encoding": type(encoding).__name__, **vars(encoding)}
        for (name, role), encoding in encodings.items()
    ]


_ENCODINGS: dict[str, Any] = {kind.__name__: kind for kind in (NumberEncoding, CycleEncoding, LevelEncoding)}


def encodings_of_description(description: Sequence[Mapping[str, Any]]) -> dict[Key, Encoding]:
    """
    The encodings with a description by :func:`described_encodings`.

    :param description: The plain values.
    """
    found: dict[Key, Encoding] = {}
    for each in description:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in each.items()
        }
        key = values.pop("name"), values.pop("role")
        found[key] = _ENCODINGS[values.pop("kind_of_encoding")](**values)
    return found
