"""Sobol indices: shares of components and of columns in the variance of the predictor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.effects import ComponentMixture, ComponentPosterior, WeightedModels
from gpytorch_gam.variational.additive_strategy import AdditiveStrategy
from gpytorch_gam.variational.model_check import additive_strategy
from gpytorch_gam.warnings import ConvergenceWarning

from ._dependence import signs_of_dependent_columns
from ._functional_anova import Variances, variances_of_effects
from ._product_rows import MOST_COLUMNS, Column, product_rows
from ._sobol_tables import names_of_columns, shown_names, signs_of_dependence, table_lines


@dataclass(frozen=True)
class SobolIndices:
    """
    Sobol indices of a predictor with posterior intervals, of its components and of the columns of its inputs, as
    returned and explained by :func:`sobol_indices`. Those of columns have a dimension for the P predictors,
    ``(*batch, P, J)``, if there are several.

    :ivar names: The names of the K components, in order.
    :ivar probability: The probability of the central posterior intervals.
    :ivar share: The posterior mean of each component's variance relative to the predictor's, ``(*batch, K)``.
    :ivar lower: The lower end of the share's interval, ``(*batch, K)``.
    :ivar upper: The upper end of the share's interval, ``(*batch, K)``.
    :ivar covariance_share: The posterior mean of each component's covariance with the predictor, relative to the
        predictor's variance, ``(*batch, K)``; over all components (and the mean module) these sum to one.
    :ivar covariance_lower: The lower end of the covariance share's interval, ``(*batch, K)``.
    :ivar covariance_upper: The upper end of the covariance share's interval, ``(*batch, K)``.
    :ivar columns: The J columns that any component reads, in order; of columns with one name the first.
    :ivar column_names: Their names.
    :ivar first_order: The posterior mean of the first-order index of each column, ``(*batch, J)``.
    :ivar first_order_lower: The lower end of its interval, ``(*batch, J)``.
    :ivar first_order_upper: The upper end of its interval, ``(*batch, J)``.
    :ivar total: The posterior mean of the total index of each column, ``(*batch, J)``.
    :ivar total_lower: The lower end of its interval, ``(*batch, J)``.
    :ivar total_upper: The upper end of its interval, ``(*batch, J)``.
    :ivar interactions: The T sets of columns that components read together, as ``x0:x2``; none unless ``independent``.
    :ivar interaction: The posterior mean of the index of the interaction of each set, ``(*batch, T)``.
    :ivar interaction_lower: The lower end of its interval, ``(*batch, T)``.
    :ivar interaction_upper: The upper end of its interval, ``(*batch, T)``.
    :ivar independent: Whether the columns count as independent of each other.
    :ivar caveat: Which columns depend on each other in the rows, or why they do not count as independent, in words;
        empty if there is nothing to say.
    :ivar shown_names: The names of the components as tables have them.
    :ivar converged: Whether the last fit of the model had converged; None if the model was not trained by
        :func:`~gpytorch_gam.fit`.
    """

    names: tuple[str, ...]
    probability: float
    share: Tensor
    lower: Tensor
    upper: Tensor
    covariance_share: Tensor
    covariance_lower: Tensor
    covariance_upper: Tensor
    columns: tuple[int, ...]
    column_names: tuple[str, ...]
    first_order: Tensor
    first_order_lower: Tensor
    first_order_upper: Tensor
    total: Tensor
    total_lower: Tensor
    total_upper: Tensor
    interactions: tuple[str, ...]
    interaction: Tensor
    interaction_lower: Tensor
    interaction_upper: Tensor
    independent: bool
    caveat: str
    shown_names: tuple[str, ...]
    converged: bool | None

    def __str__(self) -> str:
        """
        Tables of the components, of the columns and of their interactions, with a line that says so where columns
        depend on each other; for a batch of models only the shapes. Components without a name of their own are shown by
        the names of their columns.
        """
        if self.share.dim() > 1:
            return f"SobolIndices(names={list(self.names)}, share={tuple(self.share.shape)})"
        lines = [] if self.converged is not False else ["NOT converged: these are indices of a fit on its way"]
        lines += [*self._lines_of_components(), *self._lines_of_columns()]
        return "\n".join(lines)

    def _lines_of_components(self) -> list[str]:
        indices = {
            "share": (self.share, self.lower, self.upper),
            "covariance share": (self.covariance_share, self.covariance_lower, self.covariance_upper),
        }
        return table_lines("component", self.shown_names, indices, self.probability)

    def _lines_of_columns(self) -> list[str]:
        if not self.columns:
            return []
        first = self.first_order, self.first_order_lower, self.first_order_upper
        total = self.total, self.total_lower, self.total_upper
        interaction = self.interaction, self.interaction_lower, self.interaction_upper
        lines = ["", *self._table("column", self.column_names, {"first": first, "total": total})]
        if self.interactions:
            lines += ["", *self._table("interaction", self.interactions, {"index": interaction})]
        return lines + [f"{signs}: {self._meaning}" for signs in dict.fromkeys(self.signs_of_dependence) if signs]

    def _table(self, head: str, names: Sequence[str], indices: dict[str, tuple[Tensor, Tensor, Tensor]]) -> list[str]:
        """A table with a line for each name in each predictor."""
        mean = next(iter(indices.values()))[0]
        suffixes = [""] if mean.dim() == 1 else [f".{place}" for place in range(len(mean))]
        flat = {
            kind: (mean.flatten(), lower.flatten(), upper.flatten()) for kind, (mean, lower, upper) in indices.items()
        }
        return table_lines(head, [f"{name}{suffix}" for suffix in suffixes for name in names], flat, self.probability)

    @property
    def _meaning(self) -> str:
        """What indices are where columns depend on each other."""
        if self.independent:
            return "these are indices as if each column took its values by itself"
        return (
            "these are no Sobol indices, and first is no Var E(f | column), but the variance of the components that "
            "read the column alone (see covariance shares)"
        )

    @property
    def signs_of_dependence(self) -> tuple[str, ...]:
        """
        What shows that columns depend on each other: ``caveat``, and where they do not count as independent,
        first-order indices that sum to more than one, total ones that sum to less, or that are below first-order ones.
        One text for each predictor, empty if nothing does; none for a batch of models.
        """
        if self.share.dim() > 1:
            return ()
        pairs = [(self.first_order, self.total)]
        if self.total.dim() > 1:
            pairs = list(zip(self.first_order, self.total, strict=True))
        sums = [signs_of_dependence(self.column_names, *pair) for pair in pairs]
        return tuple(", ".join(each for each in (self.caveat, sign) if each) for sign in sums)


@torch.no_grad()
def sobol_indices(
    model: gpytorch.models.ApproximateGP,
    x: Tensor,
    num_samples: int = 200,
    names: Sequence[str] | str | None = None,
    probability: float = 0.95,
    hyperparameters: WeightedModels | None = None,
    column_names: Sequence[str] | None = None,
    independent: bool | None = None,
    seed: int | None = None,
) -> SobolIndices:
    r"""
    Sobol indices of a predictor for inputs with the distribution of the rows of ``x``, with their posterior
    distributions from joint draws of all components:

    - of each component its share in the variance, :math:`\mathrm{Var}_x(f_c) / \mathrm{Var}_x(\rho)`, and its
      covariance share :math:`\mathrm{Cov}_x(f_c, \rho) / \mathrm{Var}_x(\rho)`, which over all components (and the mean
      module) add up to one;
    - of each column j its first-order index :math:`S_j = \mathrm{Var}\, \mathrm E(\rho \mid x_j) / \mathrm{Var}\,
      \rho`, and its total index :math:`S_{Tj} = 1 - \mathrm{Var}\, \mathrm E(\rho \mid \mathbf x_{-j}) /
      \mathrm{Var}\, \rho`;
    - of each set of columns that components read together the index of their interaction.

    With independent columns each has the distribution that it has in the rows of ``x``, in all combinations, whether
    these are in ``x`` or not. Means over columns are sums over nodes: 31 of each column if components read at most two,
    11 if they read three, 7 if four; those of numbers have the moments of their values in ``x``. So indices do not
    depend on the measures of kernels: what components of two columns have in common with effects of one goes to these.
    Where measures are those of the rows there is nothing to move, and shares of interactions are their indices.

    Otherwise variances are those over the rows as they are, and the indices of a column are the shares of the sums of
    the components that read it alone, or at all. Correlated inputs have no Sobol indices, these can exceed one, and
    covariance shares can be negative.

    The interval is that of the function, given the rows and, without ``hyperparameters``, the hyperparameters. Where
    ``x`` is a sample of n random rows, its moments have a relative error of about :math:`n^{-1/2}` on top: if the
    distribution is known, give rows of a Sobol sequence that is mapped to it, such as 2048. Draws factorise a matrix of
    about 1500 rows (of those of ``x``, where variances are over the rows as they are) for each component. After a fit
    that had not converged there is a :class:`~gpytorch_gam.warnings.ConvergenceWarning`.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy`. Columns are those
        of the inputs of its predictor.
    :param x: Inputs ``(*batch, n, D)``, at least two rows.
    :param num_samples: Number of joint draws from the posterior.
    :param names: Components to report; default all. The predictor, and the indices of columns, always include all.
    :param probability: Probability of the posterior intervals.
    :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
        uncertainty the intervals then include; by default they are taken as known.
    :param column_names: A name for each of the columns of the inputs of the predictor; columns of the same name count
        as one. Default those of the model of an estimator; or that of the component that reads the column alone, if it
        was given one, and x0, x1, ...
    :param independent: Whether columns count as independent of each other. None: unless the rows show that they are
        not, by correlations of ranks, of their squares, and of levels, or effects are not those of at most four columns
        of ``x``: of a mean module, a ``forward`` that changes inputs, or batches of ``x``.
    :param seed: Of the draws; default the state of torch's generator.
    :return: The indices; a predictor without variance gives 0.
    :raises TypeError: If the model's strategy is of another kind, or ``num_samples`` not an integer.
    :raises ValueError: If a name is unknown, an argument out of range, or columns cannot count as independent.

    Example:
        >>> x = low + (high - low) * torch.quasirandom.SobolEngine(3).draw(2048)
        >>> print(sobol_indices(model, x))
    """
    strategy = additive_strategy(model)
    _validate_arguments(x, num_samples, probability)
    predictor = strategy.predictor
    indices = predictor.component_indices(names)
    if x.isnan().any():
        missing = int(x.isnan().any(-1).sum())
        raise ValueError(
            f"x has NaN in {missing} of {x.shape[:-1].numel()} rows, where components vary for want of inputs and not "
            "with them: leave these rows out"
        )
    if strategy.has_arrived is False:
        _warn_of_open_fit()
    columns = _columns_of(predictor, column_names)
    caveat, is_independent = _judged(strategy, x, columns, independent)
    with _seeded(seed, predictor.device):
        variances = (_of_product if is_independent else _of_rows)(strategy, x, num_samples, hyperparameters, columns)
    total = variances.predictors.clamp_min(torch.finfo(torch.float64).tiny)  # (S, *batch, P)
    own_total = total[..., [predictor.predictor_of[index] for index in indices]]
    shown = shown_names(predictor, columns.of_places)
    return SobolIndices(
        tuple(predictor.names[index] for index in indices),
        probability,
        *_summary(variances.components[..., indices] / own_total, probability),
        *_summary(variances.covariances[..., indices] / own_total, probability),
        tuple(column.places[0] for column in columns.own),
        columns.names,
        *_of_predictors(variances.first, total, probability),
        *_of_predictors(variances.total, total, probability),
        tuple(":".join(columns.names[each] for each in members) for members in variances.sets),
        *_of_predictors(variances.interactions, total, probability),
        is_independent,
        caveat,
        tuple(shown[index] for index in indices),
        strategy.has_arrived,
    )


class _Columns(NamedTuple):
    """The J columns that components read; of those of one name all together."""

    own: list[Column]
    names: tuple[str, ...]
    of_places: dict[int, str]  # the name of each place in the inputs
    reads: list[tuple[int, ...]]  # the columns that each component reads, in order

    @property
    def together(self) -> set[frozenset[int]]:
        """The sets of columns that components read."""
        return {frozenset(each) for each in self.reads if each}


def _columns_of(predictor: AdditivePredictor, column_names: Sequence[str] | None) -> _Columns:
    """The columns that components read."""
    reads = [
        {*columns, *([] if multiplier is None else [multiplier])}
        for group in predictor.groups
        for columns, multiplier in zip(group.columns.tolist(), group.multiplier_columns, strict=True)
    ]
    names = names_of_columns(predictor, reads) if column_names is None else _given_names(column_names, reads)
    different = list(dict.fromkeys(names[place] for place in sorted(names)))
    of_levels = {column for group in predictor.groups for column in group.levels}
    places = [tuple(place for place in sorted(names) if names[place] == name) for name in different]
    own = [Column(each, len(each) == 1 and each[0] not in of_levels) for each in places]
    numbers = [tuple(sorted({different.index(names[place]) for place in each})) for each in reads]
    return _Columns(own, tuple(different), names, numbers)


def _judged(strategy: AdditiveStrategy, x: Tensor, columns: _Columns, independent: bool | None) -> tuple[str, bool]:
    """What there is to say of the columns, and whether they count as independent."""
    obstacle = _obstacle(strategy, x, columns)
    if independent is None:
        caveat = obstacle or signs_of_dependent_columns(x, columns.own, columns.names)
        return caveat, not caveat
    if checks.flag("independent", independent) and obstacle:
        raise ValueError(
            f"independent=True is not possible, as {obstacle}: leave it out, for shares over the rows of x"
        )
    return "" if obstacle else signs_of_dependent_columns(x, columns.own, columns.names), independent


def _obstacle(strategy: AdditiveStrategy, x: Tensor, columns: _Columns) -> str:
    """Why effects are not those of few columns of x, in words; empty if they are."""
    most = max((len(each) for each in columns.reads), default=0)
    if most > MOST_COLUMNS:
        return f"a component reads {most} columns, and means over more than {MOST_COLUMNS} are not computed"
    if x.dim() > 2:
        return "x has batches"
    reading = strategy.read(x)
    if not torch.equal(reading.inputs, x):
        return "the model's forward changes its inputs"
    return "the mean module is no constant" if bool(_deviations(reading.means).any()) else ""


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """A state of torch's generator for draws, which it does not have afterwards; None for the present one."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(checks.integer("seed", seed))
        yield


def _of_product(
    strategy: AdditiveStrategy, x: Tensor, num_samples: int, hyperparameters: WeightedModels | None, columns: _Columns
) -> Variances:
    """Variances over inputs whose columns are independent of each other, of each draw."""
    predictor, rows = strategy.predictor, product_rows(x, columns.own, columns.together)
    components, _ = _draws(strategy.components(rows.rows, hyperparameters=hyperparameters), predictor, num_samples)
    return variances_of_effects(components, rows, columns.reads, predictor.predictor_of)


def _of_rows(
    strategy: AdditiveStrategy, x: Tensor, num_samples: int, hyperparameters: WeightedModels | None, columns: _Columns
) -> Variances:
    """Variances over the rows as they are, of each draw."""
    predictor = strategy.predictor
    components, total = _draws(strategy.components(x, hyperparameters=hyperparameters), predictor, num_samples)
    owners = list(predictor.predictor_of)
    shape = predictor.num_predictors, len(columns.own), len(owners)
    among = torch.zeros(shape, dtype=components.dtype, device=components.device)
    alone = torch.zeros_like(among)
    for index, (owner, read) in enumerate(zip(owners, columns.reads, strict=True)):
        among[owner, list(read), index] = 1.0
        if len(read) == 1:
            alone[owner, read[0], index] = 1.0
    first, every = (_variance_of_sums(components, members) for members in (alone, among))
    return Variances(
        total.square().mean(-1),
        components.square().mean(-1),
        (components * total[..., owners, :]).mean(-1),
        first,
        every,
        (),
        first[..., :0],
    )


def _variance_of_sums(components: Tensor, members: Tensor) -> Tensor:
    """Variances ``(S, *batch, P, J)`` of sums of components ``(S, *batch, C, n)``, given by members ``(P, J, C)``."""
    return torch.einsum("pjc,...cn->...pjn", members, components).square().mean(-1)


def _draws(posterior: ComponentPosterior, predictor: AdditivePredictor, num_samples: int) -> tuple[Tensor, Tensor]:
    """Deviations over the rows of draws of components ``(S, *batch, C, n)`` and predictors ``(S, *batch, P, n)``."""
    if isinstance(posterior, ComponentMixture):
        chosen = torch.multinomial(posterior.weights, num_samples, replacement=True)
        counts = chosen.bincount(minlength=len(posterior.parts)).tolist()
        draws = [_draws(part, predictor, count) for part, count in zip(posterior.parts, counts, strict=True) if count]
        components, totals = zip(*draws, strict=True)
        return torch.cat(components), torch.cat(totals)
    drawn = posterior.sample(torch.Size([num_samples]))
    total = drawn.total if predictor.num_predictors > 1 else drawn.total.unsqueeze(-2)
    return _deviations(drawn.components.double()), _deviations(total.double() + posterior.prior_means.double())


def _given_names(column_names: Sequence[str], reads: Sequence[set[int]]) -> dict[int, str]:
    """The names of the columns that components read, from those of all columns."""
    is_list = isinstance(column_names, Sequence) and not isinstance(column_names, str)
    if not is_list or not all(isinstance(name, str) for name in column_names):
        raise TypeError(f"column_names must be a list of strings, got {checks.shown(column_names)}")
    read = sorted(set().union(*reads))
    if read and len(column_names) <= read[-1]:
        raise ValueError(
            f"column_names has {len(column_names)} names, but components read column {read[-1]}: give one for each "
            "column of x"
        )
    return {column: column_names[column] for column in read}


def _of_predictors(variances: Tensor, total: Tensor, probability: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and interval ``(*batch, P, J)`` of shares in the variances of predictors; a single P is dropped."""
    shares = variances / total.unsqueeze(-1)
    return _summary(shares.squeeze(-2) if total.shape[-1] == 1 else shares, probability)


def _summary(draws: Tensor, probability: float) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of draws along the first dimension, and the ends of their central interval."""
    return draws.mean(0), *_interval(draws, probability)


def _warn_of_open_fit() -> None:
    warnings.warn(
        "the last fit of this model had not converged, so indices and their intervals are those of a fit on its way: "
        "go on with fit(model, likelihood, data, warm_start=True) before",
        ConvergenceWarning,
        stacklevel=4,  # the caller of sobol_indices, which torch wraps in a function
    )


def _interval(draws: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """The central interval of draws along the first dimension."""
    if not draws.numel():  # of no column
        return draws[0], draws[0]
    tails = torch.tensor([0.5 * (1 - probability), 0.5 * (1 + probability)], dtype=draws.dtype, device=draws.device)
    lower, upper = draws.quantile(tails, dim=0)
    return lower, upper


def _validate_arguments(x: Tensor, num_samples: int, probability: float) -> None:
    checks.integer("num_samples", num_samples, least=2)
    checks.number("probability", probability, above=0, below=1)
    checks.tensor("x", x)
    if x.dim() >= 2 and x.shape[-2] < 2:
        raise ValueError(f"x has {x.shape[-2]} rows, but a variance over the rows needs at least two")


def _deviations(values: Tensor) -> Tensor:
    """The deviations from the mean over the rows, the last dimension."""
    deviations = values - values[..., :1]  # constants become exactly zero
    return deviations - deviations.mean(-1, keepdim=True)
