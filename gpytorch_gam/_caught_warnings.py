"""Warnings of a long call, collected and given to whoever made it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import gpytorch
import linear_operator
import torch

# Where the packages are between a user's line and what is called by it.
_PACKAGES = tuple(
    str(Path(path).parent) + os.sep
    for path in (__file__, torch.__file__, gpytorch.__file__, linear_operator.__file__)
    if path is not None
)


@contextmanager
def warnings_at_caller(depth: int = 1) -> Iterator[list[str]]:
    """
    Collect the warnings that are given inside, and give each once as one of the line that made the call.

    :param depth: The number of calls from there to the function that this surrounds a part of.
    :return: A list that holds the texts of this package's own warnings at the end.
    """
    texts: list[str] = []
    caught: list[warnings.WarningMessage] = []
    # Beside those calls: giving them, this function, and contextlib's, below the one that uses it.
    stacklevel = 4 + depth
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield texts
    except BaseException:
        with suppress(Warning):  # where warnings are errors, they must not take the place of this one
            _give(caught, stacklevel)
        raise
    texts += _give(caught, stacklevel)


def warn_user(message: str, category: type[Warning]) -> None:
    """
    Give a warning as one of the line that called this package, or GPyTorch or torch, through whatever else.

    :param message: The text.
    :param category: The category.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _give(caught: Sequence[warnings.WarningMessage], stacklevel: int) -> list[str]:
    """Give each warning once; returns the texts of this package's own."""
    different = {(warning.category, str(warning.message)): warning for warning in caught}
    for warning in different.values():
        warnings.warn(warning.message, warning.category, stacklevel=stacklevel)
    return [text for category, text in different if category.__module__.startswith("gpytorch_gam")]
