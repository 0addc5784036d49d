"""
The terms of a generalized additive model, as functions that make groups of components.

A term that takes several columns makes a component of each, and has ``names=``: one a component (the name of a single
one may stand alone). A term that makes one component has ``name=``. Where an effect may have mean zero or not, the
switch is ``centred=``, and the distribution of its input ``measure=``.
"""

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
