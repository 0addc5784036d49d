"""
The terms of a generalized additive model, as functions that make groups of components.

A term that takes several columns makes a component of each, and has ``names=``; a term that makes one component has
``name=``. Where an effect may have mean zero or not, the switch is ``centred=``, and the distribution of its input
``measure=``. These parameters mean the same everywhere:

* ``x``: training inputs ``(n, D)``, from whose finite values ranges are taken; not kept. Not needed with ``low`` and
  ``high``, the ends of the range of all columns, or one a column.
* ``kernel``: radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
* ``num_inducing``: number of inducing points of each component, or ``"auto"``, the default: a first number (16 of
  ``smooth``, 12 of ``cyclic``, 7 along each column of ``tensor``, 64 of ``spatial``, 10 a level of ``factor_smooth``
  and ``interaction``), which :func:`~gpytorch_gam.fit` by rows or bins doubles while that promises the components of
  the call, which grow together, more than a nat, up to sixteen times as many (eight times of ``tensor`` and
  ``spatial``), no more than a column has distinct values, and 1,024 of all components together, or 640 if any has more
  than four times its first number; see :func:`~gpytorch_gam.training.inducing_shortfall`. Elsewhere the first number
  stays, unless you call :meth:`~gpytorch_gam.AdditiveVariationalStrategy.add_inducing_points`. A state with more points
  is loaded into a model whose numbers are ``"auto"``. ``learn_inducing_locations``: whether their places are trained.
* ``measure``: the :class:`~gpytorch_gam.kernels.Measure` under which centred effects have mean zero. Default: uniform
  on the range, or on its bulk where the column has a long tail.
* ``by``: the column of a multiplier, or, with ``levels``, that of a category.
* ``levels``: the levels of a category: :class:`~gpytorch_gam.components.Levels`, or anything that their ``of`` takes.
* ``variance``: initial prior variance, which is trained. Default: one, which a fit replaces by the variance of the
  responses, see :func:`~gpytorch_gam.training.start_from_responses`.
* ``names``: one name for each component; a single component may have a plain string. ``name``: the name of the only
  component.
* ``predictor``: the number of the additive predictor, in a likelihood of several parameters, to which the components
  belong.
* ``missing``: whether NaN in a column is an error, or means that the effect is unknown in its row: then predictions
  have its variance over all rows there, and training its mean of zero, which is right for a small share of rows, whose
  values are missing at random and hardly related to other columns; see
  :class:`~gpytorch_gam.components.ComponentGroup`.
* ``batch_shape``: batch shape of independent models, each with hyperparameters of its own, which torch's optimisers
  train. Without it, the models of a batch share the hyperparameters of the term.

All terms raise TypeError or ValueError if an argument is not as described, or a column has no range.
"""

from .categorical import factor, factor_smooth, interaction, ordinal, random_effect
from .constants import constant
from .continuous import cyclic, linear, smooth, spatial, tensor

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
