"""Ready-made models, and the methods of additive models for classes of your own."""

from .additive_gp import AdditiveGP
from .additive_model_mixin import AdditiveModelMixin

__all__ = ["AdditiveGP", "AdditiveModelMixin"]
