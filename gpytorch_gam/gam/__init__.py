"""
Generalized additive models of data frames, by the conventions of scikit-learn: a thin layer on the rest of the package.

:class:`GAMRegressor` and :class:`GAMClassifier` take terms as a list, ``[s("age"), f("station")]``, as a formula, or
``"auto"``. ``terms`` are plain values that name columns, ``columns`` says how each column becomes numbers, ``design``
makes a model of both, ``families`` has the distributions of the response, and ``fitted`` is the model with all of
these, which ``prediction``, ``draws``, ``summary``, ``pictures``, ``scores`` and ``files`` read. :func:`compare` weighs
fitted models against each other.

They need further packages: ``pip install gpytorch-gam[gam]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .terms import f, fs, linear, re, s, sz, te, ti

if TYPE_CHECKING:
    from .comparison import compare
    from .estimators import GAMClassifier, GAMRegressor

_NEEDS_EXTRA = {"GAMRegressor": ".estimators", "GAMClassifier": ".estimators", "compare": ".comparison"}

__all__ = ["GAMClassifier", "GAMRegressor", "compare", "f", "fs", "linear", "re", "s", "sz", "te", "ti"]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_EXTRA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_NEEDS_EXTRA[name], __name__), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs {error.name}, which is not installed: pip install gpytorch-gam[gam]"
        ) from error


def __dir__() -> list[str]:
    return __all__
