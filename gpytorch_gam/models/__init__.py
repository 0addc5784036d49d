"""Ready-made models."""

from .additive_gp import AdditiveGP

__all__ = ["AdditiveGP"]
