"""The labels of terms, however they are spelled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gpytorch_gam._checks import did_you_mean

from .formula import FormulaError, parse
from .terms import Term

# The name of a predictor behind the label of a term.
_PREDICTOR = re.compile(r"\[[^\[\]]*\]$")


def known_label(argument: str, label: Any, known: Sequence[str], terms: Sequence[Term]) -> str:
    """
    The label by which a term is known: what was given, or that of the term that it is in a formula.

    :param argument: The name of the argument.
    :param label: What was given, such as ``"s(hour, period=24, by=workday)"``.
    :param known: The labels that there are.
    :param terms: All terms.
    :raises ValueError: If there is no such term.
    """
    if label in known:
        return label
    text = str(label)
    end = _PREDICTOR.search(text)
    predictor = "" if end is None else end.group()
    part = _parsed(text.removesuffix(predictor))
    spelled = [part.label] if isinstance(part, Term) else [f"linear({part})", f"f({part})"]
    found = [name + predictor for name in spelled if name + predictor in known]
    if part is not None and len(found) == 1:
        return found[0]
    alike = list(dict.fromkeys(term.label for term in terms if _is_alike(part, term)))
    meant = f" (did you mean {alike[0]}?)" if len(alike) == 1 else did_you_mean(text, known)
    raise ValueError(f"{argument} names {label!r}, which is no term{meant}: {list(known)}")


def _parsed(text: str) -> Term | str | None:
    try:
        parts = parse(text).parts
    except FormulaError:
        return None
    return parts[0] if len(parts) == 1 else None


def _is_alike(given: Term | str | None, term: Term) -> bool:
    """Whether a term has the columns that were given, and the same call if there is one."""
    if isinstance(given, Term):
        return (given.call, set(given.arguments)) == (term.call, set(term.arguments))
    return term.arguments == (given,)
