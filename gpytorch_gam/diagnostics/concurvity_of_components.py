"""Concurvity: how well the components of an additive model can replace each other at given inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.variational.additive_variational_strategy import AdditiveVariationalStrategy
from gpytorch_gam.variational.model_check import inducing_strategy
from gpytorch_gam.warnings import DependentColumnsWarning

# Largest number of entries in the features of a chunk of rows (Q a row), and smallest number of rows in a chunk.
_FEATURE_NUMBERS, _LEAST_ROWS = 2**22, 256

# Directions of the other components that agree up to this share of their squares count as one.
_DEGENERATE = 1e-9


@dataclass(frozen=True)
class Concurvity:
    """
    Concurvity of the components of a model, with values in [0, 1], as returned and explained by :func:`concurvity`.

    In the pairwise matrices the component of row i explains that of column j, as in mgcv; the diagonal is 1, and
    components of different predictors have 0. A sum of components counts as one.

    :ivar names: The names of the C components and sums, in order.
    :ivar worst: The worst case for each component against all others of its predictor, ``(C)``, float64.
    :ivar observed: The value for each component's posterior mean, ``(C)``.
    :ivar estimate: The average over each component's functions, ``(C)``.
    :ivar pairwise_worst: The worst case for pairs, ``(C, C)``, float64.
    :ivar pairwise_observed: The value for posterior means in pairs, ``(C, C)``.
    :ivar pairwise_estimate: The average over functions in pairs, ``(C, C)``.
    """

    names: tuple[str, ...]
    worst: Tensor
    observed: Tensor
    estimate: Tensor
    pairwise_worst: Tensor
    pairwise_observed: Tensor
    pairwise_estimate: Tensor

    def __str__(self) -> str:
        """A table with each component against all others, and the component that explains most of it alone."""
        width = max(len(name) for name in (*self.names, "component"))
        lines = [f"{'component':<{width}}  worst  observed  estimate  most by (estimate)"]
        others = self.pairwise_estimate - torch.eye(len(self.names)).to(self.pairwise_estimate)
        for index, name in enumerate(self.names):
            share, closest = others[:, index].max(0)
            by = f"{self.names[int(closest)]} ({share:.2f})" if share > 0 else "-"
            values = f"{self.worst[index]:5.2f}  {self.observed[index]:8.2f}  {self.estimate[index]:8.2f}"
            lines.append(f"{name:<{width}}  {values}  {by}")
        return "\n".join(lines)


class _Functions(NamedTuple):
    """Functions of all components at the rows; those of each component are orthonormal over the rows."""

    owner: Tensor  # index of the component of each of the K functions, (K)
    products: Tensor  # their inner products over the rows, (K, K)
    variances: Tensor  # prior variance along each function, summed over the rows, (K)
    means: Tensor  # inner products with the posterior mean of each component, (K, C)
    mean_squares: Tensor  # squares of the posterior means, summed over the rows, (C)


@torch.no_grad()
def concurvity(
    model: gpytorch.models.ApproximateGP,
    x: Tensor,
    chunk_size: int | None = None,
    tolerance: float = 1e-3,
    sums: Mapping[str, Sequence[str]] | None = None,
) -> Concurvity:
    r"""
    Concurvity of each component with all others of its predictor, and of all pairs: the share of its squares over the
    rows of ``x`` that functions of the others can reproduce. 0 is none; at 1 the data cannot tell the components apart,
    and only the prior does. As in mgcv's function of this name,

    - ``worst`` is the value for that function of the component which the others explain best (the square of the largest
      canonical correlation, not centred). It is pessimistic: one such function is enough.
    - ``observed`` is the value for the component's posterior mean.
    - ``estimate`` is the average over the component's functions: the share of the prior variance over the rows that
      lies in the span of the others.

    **What to do about it.** A coupled posterior counts concurvity in its bands already, and
    :meth:`ComponentPosterior.cross_covariance` says how the components trade off; mean-field bands are too narrow from
    values of about .5 on. If a component has a high value against the constant, its kernel contains constants: give it
    an :class:`~gpytorch_gam.kernels.ANOVAKernel`, or look at centred effects (:meth:`ComponentPosterior.centred`). If
    two columns say nearly the same, leave one out, or report the sum of their components, whose band is narrow. If an
    interaction has it with its main effects, make it a product of ANOVA kernels.

    The functions of a component are spanned by its features :math:`\phi_c`, in which the prior is standard normal.
    Of these, directions that have less than ``tolerance`` of the component's prior variance over the rows are left
    out: every two smooth functions agree somewhere in directions that neither of them ever takes. The mean module is
    not counted among the components. Rows should be many beside the directions that are left (about ten a component of
    one column): few rows can be reproduced by anything. Where ``forward`` gives the components other inputs than ``x``,
    as by a network, these are what is compared, and a :class:`~gpytorch_gam.warnings.DependentColumnsWarning` says that
    what the network can do with its columns does not count. Everything comes from the features' Gram matrix, summed in
    float64 over chunks of rows: :math:`O(n Q^2 + C Q^3)`, and memory that does not grow with the rows.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy` (with inducing
        variables), without batch shape.
    :param x: Inputs ``(n, D)``, the rows of the data.
    :param chunk_size: Number of rows whose features are in memory at a time; by default they take some megabytes.
    :param tolerance: Smallest share of a component's prior variance for which a direction counts, in [1e-6, 1).
    :param sums: Components of one predictor that count as one, by the name of their sum, such as the line and the curve
        of an effect, of which it does not matter that they can stand for each other. Components in none of the sums
        count by themselves.
    :return: All measures. A component that is zero at all rows has zero concurvity.
    :raises TypeError: If the model's strategy is of another kind, or ``chunk_size`` not an integer.
    :raises NotImplementedError: For batches of models, and strategies without inducing variables.
    :raises ValueError: If ``x`` cannot be read by the components, an argument is out of range, or a component is in two
        sums, or of another predictor than the others of its sum.

    Example:
        >>> print(concurvity(model, train_x))
        >>> print(concurvity(model, train_x, sums={"s(x0)": ["x0", "linear(x0)"]}))
    """
    strategy = _validated_strategy(model)
    _validate_arguments(strategy, x, chunk_size, tolerance)
    predictor = strategy.predictor
    effects = _effects(predictor, {} if sums is None else sums)
    places = torch.arange(predictor.num_inducing_total, device=x.device)
    functions = _functions(
        _feature_gram(strategy, x, chunk_size),
        strategy.covariance_factors().mean,
        [torch.cat([places[predictor.inducing_slices[name]] for name in names]) for names in effects.values()],
        tolerance,
    )
    of_components = dict(zip(predictor.names, predictor.predictor_of, strict=True))
    predictor_of = torch.tensor([of_components[names[0]] for names in effects.values()], device=x.device)
    overall = torch.zeros(3, len(effects), dtype=torch.float64, device=x.device)
    in_pairs = torch.eye(len(effects), dtype=torch.float64, device=x.device).repeat(3, 1, 1)
    for index in range(len(effects)):
        is_other = predictor_of == predictor_of[index]
        is_other[index] = False
        explains = is_other[functions.owner]
        basis = _inverse_root(functions.products[explains][:, explains])
        overall[:, index] = _measures(functions, index, explains, basis)
        for other in is_other.nonzero().flatten().tolist():
            in_pairs[:, other, index] = _measures(functions, index, functions.owner == other)
    return Concurvity(tuple(effects), *overall, *in_pairs)


def _effects(predictor: AdditivePredictor, sums: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The components of each effect, in the order of the first of them."""
    predictor_of = dict(zip(predictor.names, predictor.predictor_of, strict=True))
    owners: dict[str, str] = {}
    for label, names in sums.items():
        if isinstance(names, str) or not len(names):
            raise TypeError(f"sums must hold lists of names of components, got {checks.shown(names)} for {label!r}")
        for name in names:
            checks.choice(f"sums[{label!r}]", name, predictor.names)
            if owners.setdefault(name, label) != label:
                raise ValueError(f"sums has component {name!r} in {owners[name]!r} and in {label!r}")
        if len({predictor_of[name] for name in names}) > 1:
            raise ValueError(f"sums[{label!r}] has components of several predictors: {list(names)}")
    found: dict[str, list[str]] = {}
    for name in predictor.names:
        found.setdefault(owners.get(name, name), []).append(name)
    return found


def _validated_strategy(model: gpytorch.models.ApproximateGP) -> AdditiveVariationalStrategy:
    strategy = inducing_strategy(model)
    batch_shape = strategy._variational_distribution.batch_shape or strategy.predictor.batch_shape
    if batch_shape:
        raise NotImplementedError(
            f"model has batch shape {tuple(batch_shape)}, but the directions that count differ in number between "
            "models: make one model each"
        )
    return strategy


def _validate_arguments(
    strategy: AdditiveVariationalStrategy, x: Tensor, chunk_size: int | None, tolerance: float
) -> None:
    if chunk_size is not None:
        checks.integer("chunk_size", chunk_size, least=1)
    checks.number("tolerance", tolerance, least=1e-6, below=1)  # smaller ones are close to rounding
    if checks.tensor("x", x).dim() != 2 or x.shape[0] == 0:
        raise ValueError(f"x must be rows (n, D) with n >= 1, got shape {tuple(x.shape)}")
    strategy._prepare()
    strategy.check_inputs(x[:1])  # report errors that concern all rows before any work
    _warn_of_computed_inputs(strategy, x[:1])


def _warn_of_computed_inputs(strategy: AdditiveVariationalStrategy, row: Tensor) -> None:
    """Warn if a ``forward`` computes what the components read."""
    if strategy.read(row).inputs is not row:
        warnings.warn(
            "forward gives the components other inputs than x, and concurvity compares them at these alone: it does "
            "not see that a network which reads the column of another component can take that component's effect. "
            "Keep columns with a component of their own out of the network",
            DependentColumnsWarning,
            stacklevel=5,  # the caller of concurvity, which torch wraps in a function
        )


def _feature_gram(strategy: AdditiveVariationalStrategy, x: Tensor, chunk_size: int | None) -> Tensor:
    size = strategy.predictor.num_inducing_total
    chunk_size = int(chunk_size or max(_LEAST_ROWS, _FEATURE_NUMBERS // size))
    gram = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    for rows in x.split(chunk_size):
        features = strategy.features(rows).double()
        gram += features @ features.mT
    return gram


def _functions(gram: Tensor, mean: Tensor, indices: Sequence[Tensor], tolerance: float) -> _Functions:
    """
    Reduce the features of each effect, which are in some rows of ``gram`` ``(Q, Q)``, to the directions that count, see
    :func:`concurvity`.
    """
    order = torch.cat(list(indices))
    gram, mean = gram[order][:, order], mean[order]
    ends = list(accumulate(map(len, indices), initial=0))
    slices = [slice(*each) for each in pairwise(ends)]
    coordinates, variances, means = [], [], []
    for rows in slices:
        own, directions = torch.linalg.eigh(gram[rows, rows])
        keep = (own >= tolerance * own.sum()) & (own > 0)
        coordinates.append(directions[:, keep] * own[keep].rsqrt())
        variances.append(own[keep])
        means.append(mean[rows].unsqueeze(-1))
    counts = torch.tensor([len(own) for own in variances], device=gram.device)
    basis, stacked_means = torch.block_diag(*coordinates), torch.block_diag(*means)  # (Q, K) and (Q, C)
    onto_means = gram @ stacked_means
    return _Functions(
        owner=torch.arange(len(slices), device=gram.device).repeat_interleave(counts),
        products=basis.mT @ gram @ basis,
        variances=torch.cat(variances),
        means=basis.mT @ onto_means,
        mean_squares=(stacked_means * onto_means).sum(0),
    )


def _measures(functions: _Functions, index: int, explains: Tensor, basis: Tensor | None = None) -> Tensor:
    """
    Worst, observed and estimate ``(3)`` of one component, explained by the marked functions ``(K)``, or by combinations
    of them that are orthonormal over the rows, ``basis`` ``(J, k)``.
    """
    is_own = functions.owner == index
    if not is_own.any() or not explains.any():
        return functions.products.new_zeros(3)
    explained, mean = functions.products[explains][:, is_own], functions.means[explains, index]
    if basis is not None:
        explained, mean = basis.mT @ explained, basis.mT @ mean
    variances, square = functions.variances[is_own], functions.mean_squares[index]
    return torch.stack(
        [
            torch.linalg.matrix_norm(explained, ord=2).square(),
            mean.square().sum() / square.clamp_min(torch.finfo(square.dtype).tiny),
            (explained.square().sum(0) * variances).sum() / variances.sum(),
        ]
    ).clamp(0.0, 1.0)


def _inverse_root(products: Tensor) -> Tensor:
    """A matrix T such that T T' is the inverse of a positive semidefinite matrix on its range."""
    values, vectors = torch.linalg.eigh(products)
    keep = values > _DEGENERATE * values[-1:]
    return vectors[:, keep] * values[keep].rsqrt()
