"""Whether the columns of a sample depend on each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ._product_rows import Column

# The probability that independent columns are taken for dependent ones, the correlation below which dependence does not
# matter, and the levels of a column that are looked at, those with the most rows.
_LEVEL, _LEAST, _MOST_LEVELS = 1e-3, 0.05, 10

# The length of a function that counts as constant.
_CONSTANT = 1e-9


def signs_of_dependent_columns(x: Tensor, columns: Sequence[Column], names: Sequence[str]) -> str:
    """
    Which two columns depend most on each other in a sample, by the correlations of their ranks, of squares of these,
    and of indicators of levels; empty if independent ones could look the same.

    :param x: The sample ``(n, D)``.
    :param columns: The columns.
    :param names: Their names.
    """
    from scipy.stats import norm  # here, because it takes as long to import as all of this package

    values = x.detach().double().cpu().numpy()
    features = [_features(values[:, list(column.places)], column.is_number) for column in columns]
    if len(x) < 4 or sum(1 for each in features if each.shape[1]) < 2:
        return ""
    largest = {
        (first, second): float(np.abs(features[first].T @ features[second]).max())
        for first, second in itertools.combinations(range(len(columns)), 2)
        if features[first].shape[1] and features[second].shape[1]
    }
    tests = sum(features[first].shape[1] * features[second].shape[1] for first, second in largest)
    (first, second), correlation = max(largest.items(), key=lambda each: each[1])
    score = np.arctanh(min(correlation, 1 - 1e-12)) * np.sqrt(len(x) - 3)
    if correlation < _LEAST or 2 * norm.sf(score) * tests > _LEVEL:
        return ""
    return f"{names[first]} and {names[second]} depend on each other in these rows (correlation {correlation:.2f})"


def _features(values: np.ndarray, is_number: bool) -> np.ndarray:
    """Standardised functions ``(n, F)`` of the columns ``(n, d)``, none of those that are constant."""
    from scipy.stats import rankdata  # see above

    found = []
    for column in values.T:
        rank = rankdata(column) / len(column) - 0.5
        found += [rank, (rank - rank.mean()) ** 2]
        if not is_number:
            levels, counts = np.unique(column, return_counts=True)
            found += [column == level for level in levels[np.argsort(-counts)][:_MOST_LEVELS]]
    centred = [each - each.mean() for each in found]
    sizes = [float(np.linalg.norm(each)) for each in centred]
    varying = [each / size for each, size in zip(centred, sizes, strict=True) if size > _CONSTANT]
    return np.stack(varying, 1) if varying else np.zeros((len(values), 0))
