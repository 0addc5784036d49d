"""What a fitted model says of itself: the terms one by one, and the fit as a whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel, PeriodicKernel
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.diagnostics import concurvity, score_test
from gpytorch_gam.diagnostics.evidence_of_components import whitened_posterior
from gpytorch_gam.training import FitResult

from .fitted import Fitted, alone
from .freedom import degrees_of_freedom
from .parts import INTERCEPT, Part
from .response_scale import name_of_predictor
from .terms import PERIODS, Factor, Place, RandomCurves, RandomEffect, Smooth
from .terms import Tensor as TensorTerm

# Rows over which variances are taken, and draws for their intervals.
_NUM_ROWS, _NUM_DRAWS = 400, 400

# Terms of which one could take this much of another's part are named.
_HIGH_CONCURVITY = 0.8

# Degrees of freedom of all effects for each row, beyond which noise is hardly told from them.
_MOST_FREEDOM = 0.75

# Sums of the shares of a predictor that are about one.
_LEAST_SUM, _LARGEST_SUM = 0.8, 1.2

# Days from which lengthscales are shown in years.
_LONG = 1000.0

# What the root of the parameter "noise" is: that of Student's t is no standard deviation.
_DEVIATIONS = {"gaussian": "noise sd", "student_t": "scale"}

# What noise at the lower end of its range means.
_NO_NOISE = (
    " (at its lower bound: effects reach all responses, as of runs of a simulator without noise; bands hold what is "
    "unknown of the effects alone)"
)

# Effective degrees of freedom below which nothing is left of a term.
_NO_FREEDOM = 0.01


@dataclass(frozen=True)
class Summary:
    r"""
    A summary; printed, it is a table.

    Columns of ``terms``, in data units:

    - ``edf``: effective degrees of freedom, the number of directions of the effect that the data determine:
      :math:`\mathrm{tr}(I - S)` for the posterior covariance S of its whitened variables.
    - ``prior_sd``: the standard deviation of the effect under its prior, as the fit has chosen it; ``lengthscale``: the
      distance over which it changes, in units of the column (that of a periodic effect, too: longer than the period,
      it is a sine wave); both of its smooth part. That of the levels of ``f`` is fixed.
    - ``share``: the variance of the effect over the data as a share of that of the predictor. It is the posterior
      median at the estimates of the hyperparameters, where ``edf`` and ``p`` are taken, too: a term that the fit has
      switched off has 0. Draws of the effect are taken whole, so that its own uncertainty counts as variance. Shares of
      correlated effects need not add up to one. First-order indices of ``sobol_indices`` are those of columns, over all
      combinations of their values, with uncertain hyperparameters.
    - ``share_lower``, ``share_upper``: its 95% interval, in which hyperparameters are uncertain where they are in
      predictions, extended to the ``share`` if that is outside.
    - ``p``: a tail probability for the question whether there is any effect: that of the score test of a variance of
      zero, see :func:`~gpytorch_gam.diagnostics.score_test`. It is given the other hyperparameters, and says nothing of
      the size of an effect, which ``share`` does. A term that the fit has switched off has 1.

    The line of curves by levels, ``s(x, by=g)``, has the sum of ``edf`` over the levels, the root of the mean of their
    prior variances, the ``lengthscale`` of the first level, and ``p`` for any effect in any level: a difference between
    levels is what :func:`~gpytorch_gam.gam.compare` and ``plot_difference`` are for.

    Deviances of different families are on different scales, and so is the share that is explained: compare families by
    their bounds.

    :ivar terms: One row a term.
    :ivar intercepts: Posterior ``mean`` and standard deviation ``std`` of the intercept of each predictor that has one.
    :ivar random_effects: The standard deviation ``sd`` of each random effect (``re``, ``fs``, ``sz``), in units of the
        predictor, and of the noise, with the ends ``lower`` and ``upper`` of 95% intervals from the curvature of the
        bound in their logarithms. Ends are missing where hyperparameters count as known (``hyperparameters="point"``),
        or the fit has switched the effect off.
    :ivar likelihood: The parameters of the distribution of the response that have no predictor, in units of the
        response: ``estimate`` and the ends ``lower`` and ``upper`` of 95% intervals, as for random effects. They are
        the ``noise sd`` of normal responses; ``scale`` and degrees of freedom ``deg_free`` of Student's t; the
        ``shape`` of the gamma distribution, one over the squared coefficient of variation; the ``dispersion`` a of
        negative binomial counts, whose variance is :math:`\mu + a \mu^2` (mgcv's ``theta`` is 1 / a): far from 0,
        counts vary more than Poisson counts; and the ``inflation``, the probability of an additional zero. ``at_bound``
        says which ended at a bound of their constraint: noise at its lower bound is that of a simulator without any.
    :ivar facts: The fit as a whole.
    :ivar warnings: What to look at.
    :ivar in_days: The terms of dates, whose lengthscales are in days.
    """

    terms: pd.DataFrame
    intercepts: pd.DataFrame
    random_effects: pd.DataFrame
    likelihood: pd.DataFrame
    facts: dict[str, Any]
    warnings: tuple[str, ...]
    in_days: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The facts, the tables and the warnings."""
        lines = [f"{name}: {_shown(value)}{self._shown_interval(name)}" for name, value in self.facts.items()]
        for name, row in self.intercepts.iterrows():
            of = f" of {name}" if len(self.intercepts) > 1 or str(name).startswith("log_") else ""
            lines.append(f"intercept{of}: {_shown(row['mean'])} (standard error {row['std']:.3g})")
        if len(self.terms):
            lines += ["", _shown_table(self._with_units())]
        if len(self.random_effects):
            lines += ["", _shown_table(self.random_effects)]
        return "\n".join([*lines, *(f"warning: {each}" for each in self.warnings)])

    def __repr__(self) -> str:
        return str(self)

    def _shown_interval(self, name: str) -> str:
        """The interval of a parameter of the likelihood, where there is one, or that noise is at its lower bound."""
        if name not in self.likelihood.index:
            return ""
        row = self.likelihood.loc[name]
        if row["at_bound"] and name == _DEVIATIONS["gaussian"]:
            return _NO_NOISE
        return "" if row.isna().any() else f" (95% interval {row['lower']:.3g} to {row['upper']:.3g})"

    def _with_units(self) -> pd.DataFrame:
        """The terms with the units of times."""
        scales = [
            _shown_days(value) if label in self.in_days and isinstance(value, float) and value == value else value
            for label, value in self.terms["lengthscale"].items()
        ]
        return self.terms.assign(lengthscale=pd.Series(scales, self.terms.index, dtype=object))


def _shown_days(days: float) -> str:
    return f"{days / PERIODS['year']:.3g} years" if days >= _LONG else f"{days:.3g} days"


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 1000 else f"{value:.4g}"  # differences of bounds count, not their size


def _shown_table(table: pd.DataFrame) -> str:
    shown = pd.DataFrame(
        {name: [_SHOWN.get(name, _shown_cell)(value) for value in table[name]] for name in table},
        index=list(table.index),
    )
    with pd.option_context("display.width", 200, "display.max_columns", 20):
        return shown.to_string()


def _shown_cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    return value if isinstance(value, str) else f"{value:.3g}"


def _shown_size(value: float) -> str:
    return "<1e-4" if 0 < value < 1e-4 else _shown_cell(value)


def _shown_probability(value: float) -> str:
    return "<1e-6" if value < 1e-6 else f"{value:.3g}"


# How the cells of some columns are shown.
_SHOWN = {
    "p": _shown_probability,
    **dict.fromkeys(("edf", "share", "share_lower", "share_upper"), _shown_size),
}


def summarise(
    fitted: Fitted,
    result: FitResult | None,
    num_rows: int,
    deviance_explained: float,
    bound: float,
    response: str,
) -> Summary:
    """
    Summarise a fitted model.

    :param fitted: The fitted model.
    :param result: What the fit has found; None if it was interrupted.
    :param num_rows: The number of rows of the fit.
    :param deviance_explained: The share of the deviance that is explained.
    :param bound: The evidence lower bound of responses in their units.
    :param response: What the response is called.
    """
    with torch.no_grad():
        rows = _complete(fitted.reference)
        rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _NUM_ROWS)).round().long()]
        evidence = _evidence(fitted)
        effects = _effects_at_estimates(fitted, rows, evidence["edf"])
        shares = _shares(fitted, rows, effects)
        tables: list[dict[str, Any]] = [evidence, shares, _scales(fitted)]
        terms = pd.DataFrame({name: values for table in tables for name, values in table.items()})
        terms.index = pd.Index([part.label for part in fitted.parts], name="term")
        order = ["edf", "prior_sd", "lengthscale", "share", "share_lower", "share_upper", "p"]
        messages = () if result is None else result.messages
        warnings = (
            *messages,
            *_warnings_of_freedom(float(terms["edf"].sum()), num_rows),
            *_concurvity_warnings(fitted, rows),
            *_warnings_of_overlap(fitted, effects, shares["share"]),
        )
        intercepts, random, likelihood = (
            intercept_table(fitted),
            _random_effects(fitted),
            _likelihood_table(fitted, result),
        )
    facts = _facts(fitted, likelihood, result, num_rows, deviance_explained, bound, response)
    in_days = tuple(part.label for part in fitted.parts if _is_in_days(fitted, part))
    return Summary(terms[order], intercepts, random, likelihood, facts, warnings, in_days)


@torch.no_grad()
def intercept_table(fitted: Fitted) -> pd.DataFrame:
    """
    Posterior ``mean`` and standard deviation ``std`` of the intercept of each predictor that has one, in its units.

    :param fitted: The fitted model.
    """
    posterior = fitted.components(fitted.reference[:1])
    found = {}
    for index, name in enumerate(fitted.design.parameters):
        label = fitted.design.labelled(INTERCEPT, index)
        if label not in posterior.names:
            continue
        mean, deviation = posterior[label].mean.item(), posterior[label].stddev.item()
        scale = fitted.scale_of(index)
        found[name] = {"mean": scale * mean + fitted.centre_of(index), "std": scale * deviation}
    return pd.DataFrame.from_dict(found, orient="index", columns=["mean", "std"])


def _complete(x: Tensor) -> Tensor:
    """Rows without missing values; all rows, with zeros for missing values, if there is none."""
    is_complete = x.isfinite().all(-1)
    return x[is_complete] if int(is_complete.sum()) > 1 else x.nan_to_num()


def _facts(
    fitted: Fitted,
    likelihood: pd.DataFrame,
    result: FitResult | None,
    num_rows: int,
    deviance_explained: float,
    bound: float,
    response: str,
) -> dict[str, Any]:
    facts: dict[str, Any] = {"family": fitted.family.name, "link": fitted.family.link}
    if fitted.family.name == "binomial":
        facts["predictor"] = name_of_predictor(fitted, response)
    facts["rows"] = num_rows
    facts |= likelihood["estimate"].to_dict()
    if fitted.design.reads_kernel():
        facts["kernel"] = fitted.design.kernel
    facts["hyperparameters"] = fitted.hyperparameters
    facts["deviance explained"] = deviance_explained
    if result is None:
        return {**facts, "converged": "no, interrupted"}
    converged = "yes" if result.converged else f"NO: {result.stopped}"
    return {
        **facts,
        "bound": bound,
        "nats open": result.open,
        "converged": converged,
        "method": result.method,
        "seconds": result.seconds,
    }


def _likelihood_table(fitted: Fitted, result: FitResult | None) -> pd.DataFrame:
    """Noise and the like, in units of the response, with intervals, and which are at a bound."""
    bounds = () if result is None else result.at_bounds
    likelihood = getattr(fitted.likelihood, "likelihood", fitted.likelihood)
    names = {name.rpartition("raw_")[2]: name for name, _ in fitted.likelihood.named_parameters()}
    found = {}
    for name, power in (("noise", 2), ("scale", 1), ("deg_free", 0), ("shape", 0), ("dispersion", 0), ("inflation", 0)):
        value = getattr(likelihood, name, None)
        if torch.is_tensor(value):
            ends = fitted.intervals.get(f"likelihood.{names.get(name)}[0]", (math.nan, math.nan))
            row = np.array([value.item(), *ends]) * fitted.units.scale**power
            shown = _DEVIATIONS[fitted.family.name] if name == "noise" else name
            found[shown] = [*(row**0.5 if name == "noise" else row), f"likelihood.{name}" in bounds]
    return pd.DataFrame.from_dict(found, orient="index", columns=["estimate", "lower", "upper", "at_bound"])


# ------------------------------------------------------------------ random effects


def _random_effects(fitted: Fitted) -> pd.DataFrame:
    """The standard deviations of random effects and of the noise, with intervals."""
    groups = list(fitted.model.predictor.groups)
    found = {}
    for part in fitted.parts:
        if isinstance(part.term, RandomEffect | RandomCurves) and part.components:
            group = fitted.model.predictor.group_of(part.components[0])
            entry = group.names.index(part.components[0])
            name = f"model.variational_strategy.predictor.groups.{groups.index(group)}.kernel.raw_outputscale[{entry}]"
            variance, scale = _variance(group, part.components[0]), fitted.scale_of(part.predictor)
            found[part.label] = _deviation(fitted, name, variance, scale)
    noise = _noise(fitted)
    if found and noise is not None:
        found["noise"] = _deviation(fitted, *noise, fitted.units.scale)
    return pd.DataFrame.from_dict(found, orient="index", columns=["sd", "lower", "upper"])


def _noise(fitted: Fitted) -> tuple[str, float] | None:
    """Name and value of the noise variance of a normal response, in units of the fit; None for other families."""
    for name, _ in fitted.likelihood.named_parameters():
        if name.endswith("raw_noise"):
            return f"likelihood.{name}[0]", getattr(fitted.likelihood, "likelihood", fitted.likelihood).noise.item()
    return None


def _deviation(fitted: Fitted, name: str, variance: float, scale: float) -> tuple[float, float, float]:
    """A standard deviation and the ends of its interval, from those of the variance."""
    ends = fitted.intervals.get(name, (math.nan, math.nan))
    return scale * math.sqrt(variance), scale * math.sqrt(ends[0]), scale * math.sqrt(ends[1])


# ------------------------------------------------------------------ degrees of freedom and evidence


def _evidence(fitted: Fitted) -> dict[str, list[float]]:
    """Effective degrees of freedom and tail probabilities of all terms."""
    found = [whitened_posterior(fitted.model, part.components) for part in fitted.parts]
    freedoms = [degrees_of_freedom(covariance) for _, covariance in found]
    probabilities = [
        score_test(mean, covariance) if freedom >= _NO_FREEDOM else 1.0
        for (mean, covariance), freedom in zip(found, freedoms, strict=True)
    ]
    return {"edf": freedoms, "p": probabilities}


def _warnings_of_freedom(freedom: float, num_rows: int) -> list[str]:
    """A sentence if effects leave hardly anything of the rows to the noise."""
    if freedom <= _MOST_FREEDOM * num_rows:
        return []
    return [
        f"effects have {freedom:.0f} degrees of freedom for {num_rows} rows, so that they take noise for effects: "
        "bands are too narrow and p too small; give fewer terms, or more rows"
    ]


# ------------------------------------------------------------------ shares of the variance


def _effects_at_estimates(fitted: Fitted, rows: Tensor, freedoms: Sequence[float]) -> list[Tensor]:
    """Draws ``(S, n)`` of each term's effect at rows, hyperparameters at the estimates; zero if it is switched off."""
    drawn = _drawn_effects(replace(fitted, mixture=alone(fitted.model, fitted.likelihood)), rows)
    return [
        effect if freedom >= _NO_FREEDOM else torch.zeros_like(effect)
        for effect, freedom in zip(drawn, freedoms, strict=True)
    ]


def _drawn_effects(fitted: Fitted, rows: Tensor) -> list[Tensor]:
    """Draws ``(S, n)`` of each term's effect at rows, from the mixture over hyperparameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        posterior = fitted.components(rows)
        draws = posterior.sample(torch.Size([_NUM_DRAWS])).components.double()  # (S, C, n)
    index = {name: position for position, name in enumerate(posterior.names)}
    return [draws[:, [index[name] for name in part.components]].sum(1) for part in fitted.parts]


def _shares(fitted: Fitted, rows: Tensor, effects: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """
    The terms' shares in the variance of their predictor over rows: medians of draws at the estimates, and intervals
    under the mixture over hyperparameters that hold these.
    """
    lower, share, upper = _quantiles_of_shares(fitted, effects)
    if len(fitted.mixture) > 1:
        lower, _, upper = _quantiles_of_shares(fitted, _drawn_effects(fitted, rows))
    return {"share": share, "share_lower": np.minimum(lower, share), "share_upper": np.maximum(share, upper)}


def _quantiles_of_shares(fitted: Fitted, effects: Sequence[Tensor]) -> np.ndarray:
    """Ends of 95% intervals and, between them, the medians, over draws of all effects; ``(3, number of terms)``."""
    found = np.zeros((3, len(fitted.parts)))
    for predictor in range(len(fitted.design.parameters)):
        own = [position for position, part in enumerate(fitted.parts) if part.predictor == predictor]
        if own:
            total = torch.stack([effects[position] for position in own]).sum(0).var(-1)
            for position in own:
                share = (effects[position].var(-1) / total.clamp_min(torch.finfo(total.dtype).tiny)).numpy()
                found[:, position] = np.quantile(share, [0.025, 0.5, 0.975])
    return found


def _warnings_of_overlap(fitted: Fitted, effects: Sequence[Tensor], shares: np.ndarray) -> list[str]:
    """A sentence for each predictor whose shares do not add up to about one, which names the pair of terms to blame."""
    found = []
    for predictor in range(len(fitted.design.parameters)):
        own = [position for position, part in enumerate(fitted.parts) if part.predictor == predictor]
        total = shares[own].sum()
        if len(own) < 2 or total == 0.0 or _LEAST_SUM <= total <= _LARGEST_SUM:
            continue
        covariance = torch.stack([effects[position].mean(0) for position in own]).cov()
        blamed = (-covariance if total > 1 else covariance).fill_diagonal_(-torch.inf)
        first, second = (fitted.parts[own[each]].label for each in sorted(divmod(int(blamed.argmax()), len(own))))
        found.append(
            f"shares sum to {total:.2f} instead of about 1, as effects of columns that are correlated "
            f"{'cancel in part' if total > 1 else 'go together'}, those of {first} and {second} most of all: a share "
            "is the size of an effect, not a part of the whole"
        )
    return found


# ------------------------------------------------------------------ hyperparameters in units of the data


def _scales(fitted: Fitted) -> dict[str, list[Any]]:
    deviations: list[float] = []
    lengthscales: list[Any] = []
    for part in fitted.parts:
        if not part.components or isinstance(part.term, Factor):
            deviations.append(math.nan if part.components else 0.0)
            lengthscales.append(None)
            continue
        groups = [(fitted.model.predictor.group_of(name), name) for name in part.components]
        variances = [_variance(group, name) for group, name in groups]
        deviations.append(fitted.scale_of(part.predictor) * math.sqrt(sum(variances) / _num_parts(part)))
        lengthscales.append(_lengthscale(fitted, part, groups))
    return {"prior_sd": deviations, "lengthscale": lengthscales}


def _num_parts(part: Part) -> int:
    """Components of a by-term stand for different rows."""
    names = [name for name in part.components if name.startswith(f"{part.label}=")]
    return len(names) or 1


def _variance(group: ComponentGroup, name: str) -> float:
    return group.mean_prior_variance().expand(group.num_components)[group.names.index(name)].item()


def _lengthscale(fitted: Fitted, part: Part, groups: Sequence[tuple[ComponentGroup, str]]) -> Any:
    """The lengthscale of a term of one smooth component, in units of its column; that of dates in days."""
    if not isinstance(part.term, Smooth | RandomCurves | TensorTerm):
        return None
    own = groups if isinstance(part.term, TensorTerm) else [groups[0]]
    found = []
    for group, name in own:
        for kernel in _smooth_kernels(group.kernel):
            value = kernel.lengthscale.detach().flatten()[group.names.index(name)].item()
            if isinstance(kernel, PeriodicKernel):
                found.append(math.sqrt(value) / (2 * math.pi) * _period(part.term))
            else:
                found.append(value)
    if isinstance(part.term, Place):
        return found[0]
    if isinstance(part.term, TensorTerm):
        units = [fitted.design.encoding(name, "number") for name in part.term.names]
        last = found[-len(units) :]
        values = [value * unit.scale for value, unit in zip(last, units, strict=True)]
        return ", ".join(
            _shown_days(value) if unit.kind == "date" else f"{value:.3g}"
            for value, unit in zip(values, units, strict=True)
        )
    if isinstance(part.term, Smooth) and part.term.period is not None:
        return found[0]
    return found[0] * fitted.design.encoding(part.term.column, "number").scale


def _is_in_days(fitted: Fitted, part: Part) -> bool:
    """Whether the argument of a smooth effect is a date."""
    if not isinstance(part.term, Smooth | RandomCurves):
        return False
    kinds = (encoding.kind for (name, _), encoding in fitted.design.encodings.items() if name == part.term.column)
    return "date" in kinds


def _smooth_kernels(kernel: Kernel) -> list[Kernel]:
    return [each for each in kernel.modules() if getattr(each, "has_lengthscale", False)]


def _period(term: Any) -> float:
    return PERIODS[term.period] if isinstance(term.period, str) else float(term.period)


def _concurvity_warnings(fitted: Fitted, rows: Tensor) -> list[str]:
    """Pairs of terms of which one could stand for the other."""
    owners = {name: part.label for part in fitted.parts for name in part.components}
    if len(set(owners.values())) < 2:
        return []
    found = concurvity(fitted.model, rows)
    named: dict[tuple[str, str], float] = {}
    for row, first in enumerate(found.names):
        for column, second in enumerate(found.names):
            labels = owners.get(first), owners.get(second)
            value = found.pairwise_estimate[row, column].item()
            if None not in labels and labels[0] != labels[1] and value > _HIGH_CONCURVITY:
                pair = tuple(sorted(map(str, labels)))
                named[pair[0], pair[1]] = max(value, named.get((pair[0], pair[1]), 0.0))
    return _named_pairs(named)


def _named_pairs(values: Mapping[tuple[str, str], float]) -> list[str]:
    """A sentence for each pair of terms, or for all pairs of a term that is in several."""
    left, found = dict(sorted(values.items())), []
    while left:
        most = Counter(label for pair in left for label in pair)
        label = max(most, key=lambda each: (most[each], each))
        own = {pair: left.pop(pair) for pair in list(left) if label in pair}
        if len(own) == 1:
            ((first, second),), (value,) = own, own.values()
            found.append(f"{first} and {second} can stand for each other in these data (concurvity {value:.2f})")
        else:
            others = ", ".join(second if first == label else first for first, second in own)
            low, high = min(own.values()), max(own.values())
            found.append(
                f"{label} and each of {others} can stand for each other in these data (concurvity {low:.2f} to "
                f"{high:.2f})"
            )
    return [f"{each}: read their sum" for each in found]
