"""The terms of a generalized additive model, as functions that make groups of components."""

from .constant_term import constant
from .cyclic_term import cyclic
from .factor_smooth_term import factor_smooth
from .factor_term import factor
from .interaction_term import interaction
from .linear_term import linear
from .ordinal_term import ordinal
from .random_effect_term import random_effect
from .smooth_term import smooth
from .spatial_term import spatial
from .tensor_term import tensor

__all__ = [
    "constant",
    "cyclic",
    "factor",
    "factor_smooth",
    "interaction",
    "linear",
    "ordinal",
    "random_effect",
    "smooth",
    "spatial",
    "tensor",
]
