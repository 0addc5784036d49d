"""Terms that can stand for each other at the rows of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from torch import Tensor

from gpytorch_gam.diagnostics import Concurvity, concurvity

from .fitted import Fitted

# Terms of which one could take this much of another's part are named.
_HIGH_CONCURVITY = 0.8


def concurvity_of_terms(fitted: Fitted, rows: Tensor) -> Concurvity:
    """
    The concurvity of terms, whose components count as one, and of the intercepts.

    :param fitted: The fitted model.
    :param rows: Rows of the data ``(n, D)``.
    """
    return concurvity(
        fitted.model, rows, sums={part.label: part.components for part in fitted.parts if part.components}
    )


def warnings_of_concurvity(fitted: Fitted, rows: Tensor) -> list[str]:
    """
    A sentence for each pair of terms of which one could stand for the other, or for all pairs of a term.

    :param fitted: The fitted model.
    :param rows: Rows of the data ``(n, D)``.
    """
    labels = [part.label for part in fitted.parts if part.components]
    if len(labels) < 2:
        return []
    found = concurvity_of_terms(fitted, rows)
    place = {name: index for index, name in enumerate(found.names)}
    named = {}
    for first, second in combinations(sorted(labels), 2):
        one, other = place[first], place[second]
        value = max(found.pairwise_estimate[one, other].item(), found.pairwise_estimate[other, one].item())
        if value > _HIGH_CONCURVITY:
            named[first, second] = value
    return _named_pairs(named)


def _named_pairs(values: Mapping[tuple[str, str], float]) -> list[str]:
    """A sentence for each pair of terms, or for all pairs of a term that is in several."""
    left, found = dict(sorted(values.items())), []
    while left:
        most = Counter(label for pair in left for label in pair)
        label = max(most, key=lambda each: (most[each], each))
        own = {pair: left.pop(pair) for pair in list(left) if label in pair}
        if len(own) == 1:
            ((first, second),), (value,) = own, own.values()
            found.append(f"{first} and {second} can stand for each other in these data (concurvity {value:.2f})")
        else:
            others = ", ".join(second if first == label else first for first, second in own)
            low, high = min(own.values()), max(own.values())
            found.append(
                f"{label} and each of {others} can stand for each other in these data (concurvity {low:.2f} to "
                f"{high:.2f})"
            )
    return [f"{each}: read their sum" for each in found]
