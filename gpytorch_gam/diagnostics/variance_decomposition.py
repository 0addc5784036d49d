"""Sobol indices: shares of components and of columns in the variance of the predictor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.effects import ComponentMixture, ComponentPosterior, WeightedModels
from gpytorch_gam.variational.model_check import additive_strategy
from gpytorch_gam.warnings import ConvergenceWarning

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
    converged: bool | None

    def __str__(self) -> str:
        """
        Tables of the components and of the columns, with a line that says so where columns depend on each other; for a
        batch of models only the shapes. Components without a name of their own are shown by the names of their columns.
        """
        if self.share.dim() > 1:
            return f"SobolIndices(names={list(self.names)}, share={tuple(self.share.shape)})"
        lines = [] if self.converged is not False else ["NOT converged: these are indices of a fit on its way"]
        lines += [*self._lines_of_components(), *self._lines_of_columns()]
        return "\n".join(lines)

    def _lines_of_components(self) -> list[str]:
        of_columns = dict(zip(self.columns, self.column_names, strict=True))
        indices = {
            "share": (self.share, self.lower, self.upper),
            "covariance share": (self.covariance_share, self.covariance_lower, self.covariance_upper),
        }
        return table_lines("component", shown_names(self.names, of_columns), indices, self.probability)

    def _lines_of_columns(self) -> list[str]:
        if not self.columns:
            return []
        first = self.first_order, self.first_order_lower, self.first_order_upper
        total = self.total, self.total_lower, self.total_upper
        is_single = self.total.dim() == 1
        suffixes = [""] if is_single else [f".{place}" for place in range(len(self.total))]
        names = [f"{name}{suffix}" for suffix in suffixes for name in self.column_names]
        indices = {
            kind: (mean.flatten(), lower.flatten(), upper.flatten())
            for kind, (mean, lower, upper) in (("first", first), ("total", total))
        }
        notes = [
            f"no Sobol indices: {signs}, so that columns depend on each other in these rows, or components are not "
            "orthogonal (see covariance shares)"
            for signs in dict.fromkeys(self.signs_of_dependence)
            if signs
        ]
        return ["", *table_lines("column", names, indices, self.probability), *notes]

    @property
    def signs_of_dependence(self) -> tuple[str, ...]:
        """
        What shows that the indices of columns are no shares of the variance: first-order ones that sum to more than
        one, total ones that sum to less, or that are below first-order ones. One text for each predictor, empty if
        nothing does; none for a batch of models.
        """
        if self.share.dim() > 1:
            return ()
        pairs = [(self.first_order, self.total)]
        if self.total.dim() > 1:
            pairs = list(zip(self.first_order, self.total, strict=True))
        return tuple(signs_of_dependence(self.column_names, *pair) for pair in pairs)


@torch.no_grad()
def sobol_indices(
    model: gpytorch.models.ApproximateGP,
    x: Tensor,
    num_samples: int = 200,
    names: Sequence[str] | str | None = None,
    probability: float = 0.95,
    hyperparameters: WeightedModels | None = None,
    column_names: Sequence[str] | None = None,
) -> SobolIndices:
    r"""
    Sobol indices of a predictor over the rows of ``x``, with their posterior distributions from joint draws of all
    components at these rows:

    - of each component its share in the variance, :math:`\mathrm{Var}_x(f_c) / \mathrm{Var}_x(\rho)`: for an
      interaction the index of the interaction itself, without its main effects;
    - of each column j its first-order index :math:`S_j`, the share of the sum of all components that read column j
      alone, and its total index :math:`S_{Tj}`, the share of the sum of all components that read it, be it with others
      or as a multiplier (``by``).

    These are Sobol indices if (1) the columns of ``x`` are independent and its rows a sample of the distribution meant,
    (2) components have ANOVA kernels under that distribution, interactions products of them on different columns, and
    (3) there is no mean beside the components but a constant. Then components of different columns are uncorrelated
    over the inputs, and the indices of all sets of columns sum to one but for the finite sample. If inputs are
    correlated or kernels contain constants and main effects of interactions, they need not; the covariance share
    :math:`\mathrm{Cov}_x(f_c, \rho) / \mathrm{Var}_x(\rho)` always adds up to one over all components (and the mean
    module), and can be negative.

    The interval is that of the function, given the rows and, without ``hyperparameters``, the hyperparameters. Moments
    over n random rows have an error of about :math:`n^{-1/2}` on top, which quasi-random rows avoid. Draws factorise an
    n x n matrix a component: use at most about 2000 rows. After a fit that had not converged there is a
    :class:`~gpytorch_gam.warnings.ConvergenceWarning`.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy`. Columns are those
        of the inputs of its predictor.
    :param x: Inputs ``(*batch, n, D)``, at least two rows.
    :param num_samples: Number of joint draws from the posterior.
    :param names: Components to report; default all. The predictor, and the indices of columns, always include all.
    :param probability: Probability of the posterior intervals.
    :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
        uncertainty the intervals then include; by default they are taken as known.
    :param column_names: A name for each of the columns of the inputs of the predictor; columns of the same name count
        as one. Default that of the component that reads the column alone, if it was given one, and x0, x1, ...
    :return: The indices; a predictor without variance gives 0.
    :raises TypeError: If the model's strategy is of another kind, or ``num_samples`` not an integer.
    :raises ValueError: If a name is unknown, or an argument out of range.

    Example:
        >>> x = low + (high - low) * torch.quasirandom.SobolEngine(3).draw(1024)
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
    components, total = _draws(strategy.components(x, hyperparameters=hyperparameters), predictor, num_samples)
    variance = total.square().sum(-1)  # (S, *batch, P)
    variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
    owners = [predictor.predictor_of[index] for index in indices]
    chosen, own_variance = components[..., indices, :], variance[..., owners]
    columns, named, alone, among_others = _columns_of(predictor, column_names)
    return SobolIndices(
        tuple(predictor.names[index] for index in indices),
        probability,
        *_summary(chosen.square().sum(-1) / own_variance, probability),
        *_summary((chosen * total[..., owners, :]).sum(-1) / own_variance, probability),
        columns,
        named,
        *_of_columns(components, variance, alone, probability),
        *_of_columns(components, variance, among_others, probability),
        strategy.has_arrived,
    )


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


def _columns_of(
    predictor: AdditivePredictor, column_names: Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...], Tensor, Tensor]:
    """
    The J columns that components read and their names; for each predictor and column which components read it alone,
    ``(P, J, C)``, and which read it at all.
    """
    reads = [
        {*columns, *([] if multiplier is None else [multiplier])}
        for group in predictor.groups
        for columns, multiplier in zip(group.columns.tolist(), group.multiplier_columns, strict=True)
    ]
    names = names_of_columns(predictor, reads) if column_names is None else _given_names(column_names, reads)
    columns = {name: column for column, name in reversed(names.items())}
    shape = predictor.num_predictors, len(columns), len(reads)
    among = torch.zeros(shape, dtype=torch.float64, device=predictor.device)
    alone = torch.zeros_like(among)
    ordered = sorted(columns.items(), key=itemgetter(1))
    for index, (owner, own) in enumerate(zip(predictor.predictor_of, reads, strict=True)):
        read = {names[column] for column in own}
        for place, (name, _) in enumerate(ordered):
            among[owner, place, index] = name in read
            alone[owner, place, index] = read == {name}
    return tuple(column for _, column in ordered), tuple(name for name, _ in ordered), alone, among


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


def _of_columns(
    components: Tensor, variance: Tensor, members: Tensor, probability: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and interval ``(*batch, P, J)`` of the shares of sums of components; a single P is dropped."""
    shares = torch.einsum("pjc,...cn->...pjn", members, components).square().sum(-1) / variance.unsqueeze(-1)
    return _summary(shares.squeeze(-2) if len(members) == 1 else shares, probability)


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
