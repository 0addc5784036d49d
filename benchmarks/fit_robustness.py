"""
Claim: whatever the data, `fit` ends at a maximum of the bound, warns of why it does not, or says what to do instead.

A grid of likelihoods x troubles x methods. Models are a constant and three smooth terms of 8 points a predictor, data
are 200 rows of three columns unless the trouble is their number. A case has one of these outcomes:

    converged  the fit says so
    warned     the fit says that it is not done, and why
    refused    an error of the arguments' kind (TypeError, ValueError, NotImplementedError), which says what to do
    FAILED     another error; a number that is not finite; a bound that is not that of the model; silence about a fit
               that is not done; or a bound that another start betters by more than a nat although the fit converged

Bounds of all methods are compared at the best posterior of the model's family for the hyperparameters that they found,
their priors included; the family can hold any precision but for Chicago. The other starts are `--starts` fits of rows
from hyperparameters moved at random, and the best of all methods counts as well. Seconds are those of the processor.

With `--data`, two fits of Chicago's deaths join the grid: particles up to 320 with few of that size, centred under an
`Empirical` measure, counts with a log link, wide priors, and minibatches with a posterior of rank 24 and 32.

    python benchmarks/fit_robustness.py [--likelihoods ...] [--troubles ...] [--methods ...] [--data DIR] [--json FILE]
"""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.likelihoods import BernoulliLikelihood, BetaLikelihood, GaussianLikelihood, LaplaceLikelihood, Likelihood
from torch import Tensor
from torch.distributions import Beta, Gamma, NegativeBinomial, StudentT

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    NegativeBinomialMeanDispersionLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    StudentTLocationScaleLikelihood,
    ZeroInflatedPoissonLikelihood,
)
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import FitResult, polish
from gpytorch_gam.warnings import ConvergenceWarning

NUM_ROWS, NUM_INDUCING, BATCH = 200, 8, 50
METHODS = ("rows", "bins", "minibatches")

# Nats by which another start may be better, and by which the bound in the result may differ from the model's.
WORSE, MISSTATED = 1.0, 0.5

# Words of the warning of responses so small that GPyTorch rounds variances up, which GPyTorch warns of each time.
SMALL_UNITS = "rounds variances"

CONVERGED, WARNED, REFUSED, FAILED = "converged", "warned", "refused", "FAILED"


class Kind(NamedTuple):
    """A likelihood, and how responses are drawn from predictors that vary by one."""

    make: Callable[[], Likelihood]
    draw: Callable[[Tensor], Tensor]
    num_predictors: int = 1


def sharp(eta: Tensor) -> Tensor:
    """Two classes that hardly overlap."""
    return (eta + 0.05 * torch.randn_like(eta) > 0).to(eta)


def classes(eta: Tensor) -> Tensor:
    return (eta + torch.randn_like(eta) > -0.7).long() + (eta + torch.randn_like(eta) > 0.7).long()


def noisy(eta: Tensor) -> Tensor:
    return eta + 0.5 * torch.randn_like(eta)


def counts(eta: Tensor) -> Tensor:
    return torch.poisson((1.0 + 0.7 * eta).exp())


def overdispersed(eta: Tensor) -> Tensor:
    mean = (1.0 + 0.7 * eta).exp()
    return NegativeBinomial(torch.full_like(mean, 2.0), mean / (mean + 2.0)).sample()


def excess_zeros(eta: Tensor) -> Tensor:
    return counts(eta) * (torch.rand_like(eta) < 0.7)


def heavy_tails(eta: Tensor) -> Tensor:
    return eta + 0.4 * StudentT(3.0).sample(eta.shape).to(eta)


def shares(eta: Tensor) -> Tensor:
    mean = torch.sigmoid(eta)
    return Beta(8.0 * mean, 8.0 * (1.0 - mean)).sample().clamp(1e-6, 1.0 - 1e-6)


LIKELIHOODS = {
    "Gaussian": Kind(GaussianLikelihood, noisy),
    "Student-t": Kind(StudentTLikelihood, heavy_tails),
    "Laplace": Kind(LaplaceLikelihood, heavy_tails),
    "quantile": Kind(lambda: QuantileLikelihood(0.8), noisy),
    "Poisson": Kind(PoissonLikelihood, counts),
    "negative binomial": Kind(NegativeBinomialLikelihood, overdispersed),
    "zero-inflated Poisson": Kind(ZeroInflatedPoissonLikelihood, excess_zeros),
    "gamma": Kind(GammaLikelihood, lambda eta: Gamma(2.0, 2.0 / (0.7 * eta).exp()).sample()),
    "beta": Kind(BetaLikelihood, shares),
    "binomial, logit": Kind(BinomialLikelihood, lambda eta: torch.bernoulli(torch.sigmoid(2.0 * eta))),
    "binomial, probit": Kind(lambda: BinomialLikelihood("probit"), lambda eta: torch.bernoulli(torch.sigmoid(2 * eta))),
    "Bernoulli of GPyTorch": Kind(BernoulliLikelihood, lambda eta: torch.bernoulli(torch.sigmoid(2.0 * eta))),
    "ordinal": Kind(lambda: OrdinalLikelihood(3), classes),
    "softmax": Kind(lambda: SoftmaxLikelihood(3), classes, 3),
    "Gaussian location-scale": Kind(GaussianLocationScaleLikelihood, noisy, 2),
    "Student-t location-scale": Kind(StudentTLocationScaleLikelihood, heavy_tails, 2),
    "negative binomial mean-dispersion": Kind(NegativeBinomialMeanDispersionLikelihood, overdispersed, 2),
}
REAL = ("Gaussian", "Student-t", "Laplace", "quantile", "Gaussian location-scale", "Student-t location-scale")
COUNTS = ("Poisson", "negative binomial", "zero-inflated Poisson", "negative binomial mean-dispersion")
BINARY = ("binomial, logit", "binomial, probit", "Bernoulli of GPyTorch")
CLASSES = (*BINARY, "ordinal", "softmax")
POSITIVE = (*COUNTS, "gamma")

# Responses of a simpler likelihood, to which some of these run at an end of a parameter's range.
SIMPLER = {
    "Student-t": noisy,
    "Student-t location-scale": noisy,
    "Gaussian location-scale": noisy,
    "negative binomial": counts,
    "negative binomial mean-dispersion": counts,
    "zero-inflated Poisson": counts,
}

# Trouble: the likelihoods that can have it.
TROUBLES: dict[str, tuple[str, ...]] = {
    "none": tuple(LIKELIHOODS),
    "responses + 1e4": REAL,
    "responses x 1e6": (*REAL, "gamma"),
    "responses x 1e-4": (*REAL, "gamma"),
    "gross errors": REAL,
    "exact responses": (*REAL, "gamma", "beta"),
    "constant responses": tuple(LIKELIHOODS),
    "wide prior": tuple(LIKELIHOODS),
    "counts of 1e5": POSITIVE,
    "near separation": CLASSES,
    "empty class": ("ordinal", "softmax"),
    "simpler truth": tuple(SIMPLER),
    "duplicate columns": tuple(LIKELIHOODS),
    "constant column": tuple(LIKELIHOODS),
    "long-tailed column": tuple(LIKELIHOODS),
    "five rows": tuple(LIKELIHOODS),
    "float32": tuple(LIKELIHOODS),
}


class Case(NamedTuple):
    likelihood: str
    trouble: str
    method: str


class Problem(NamedTuple):
    model: AdditiveGP
    likelihood: Likelihood
    x: Tensor
    y: Tensor


class Outcome(NamedTuple):
    kind: str
    reason: str
    bound: float  # at the best posterior, priors of hyperparameters included
    still_open: float
    seconds: float


# ----------------------------------------------------------------------------------------------------- the problems


def make_problem(name: str, trouble: str, seed: int = 0) -> Problem:
    torch.manual_seed(seed)
    kind = LIKELIHOODS[name]
    x = draw_inputs(trouble)
    y = draw_responses(name, trouble, effect(x))
    dtype = torch.float32 if trouble == "float32" else torch.float64
    variance = 100.0 if trouble == "wide prior" else None
    terms = [
        term
        for predictor in range(kind.num_predictors)
        for term in (
            constant(variance, predictor=predictor),
            smooth([0, 1, 2], x, num_inducing=NUM_INDUCING, variance=variance, predictor=predictor),
        )
    ]
    predictor = AdditivePredictor(*terms)
    model = AdditiveGP(predictor, rank=predictor.num_inducing_total).to(dtype)
    return Problem(model, kind.make().to(dtype), x.to(dtype), y.to(dtype) if y.is_floating_point() else y)


def draw_inputs(trouble: str) -> Tensor:
    x = torch.rand(5 if trouble == "five rows" else NUM_ROWS, 3).double()
    if trouble == "duplicate columns":
        x[:, 1] = x[:, 0]
    elif trouble == "constant column":
        x[:, 2] = 0.5
    elif trouble == "long-tailed column":
        x[:, 2] = torch.special.ndtri(x[:, 2].clamp(1e-9, 1 - 1e-9)).mul(2.0).exp()
    return x


def effect(x: Tensor) -> Tensor:
    """A predictor that varies by about one."""
    scaled = (x - x.mean(0)) / x.std(0).clamp_min(1e-3)
    return torch.sin(6.0 * x[:, 0]) + 0.5 * scaled[:, 1].clamp(-3, 3) - 0.3 * scaled[:, 2].clamp(-3, 3)


def draw_responses(name: str, trouble: str, eta: Tensor) -> Tensor:
    if trouble == "near separation":
        return sharp(eta) if name in BINARY else sharp(eta).long() + sharp(eta - 1.0).long()
    if trouble == "empty class":
        return 2 * sharp(noisy(eta)).long()
    if trouble == "counts of 1e5":
        rate = 10.0 ** (2.0 + 1.5 * eta).clamp(0.0, 5.0)
        return torch.poisson(rate) + (0.1 if name == "gamma" else 0.0)
    if trouble == "exact responses":
        return {"gamma": eta.exp(), "beta": torch.sigmoid(eta)}.get(name, eta)
    y = SIMPLER[name](eta) if trouble == "simpler truth" else LIKELIHOODS[name].draw(eta)
    if trouble == "constant responses":
        return y.clamp_min(0.5 if name in ("gamma", "beta") else 0.0)[:1].expand(len(y)).clone()
    if trouble == "gross errors":
        y[:5] += 1e3 * torch.randn(5).sign()
    shift, scale = {"responses + 1e4": (1e4, 1.0), "responses x 1e6": (0.0, 1e6), "responses x 1e-4": (0.0, 1e-4)}.get(
        trouble, (0.0, 1.0)
    )
    return shift + scale * y if y.is_floating_point() else y


def chicago(path: Path, rank: int) -> Problem:
    """Deaths a day by time, particles, ozone and temperature, with wide priors."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    places = [rows[0].index(name) for name in ("death", "time", "pm10median", "o3median", "tmpd")]
    chosen = [[row[place] for place in places] for row in rows[1:]]
    table = torch.tensor([[float(value) for value in row] for row in chosen if "" not in row and "NA" not in row])
    y, x = table[:, 0].double(), table[:, 1:].double()
    terms = [
        constant(100.0),
        smooth(0, x, num_inducing=40, variance=10.0),
        smooth([1, 2, 3], x, measure=Empirical.from_data(x[:, 1:].mT, num_atoms=64), variance=10.0),
    ]
    return Problem(AdditiveGP(AdditivePredictor(*terms), rank=rank).double(), PoissonLikelihood().double(), x, y)


# -------------------------------------------------------------------------------------------------------- the fits


def data_of(problem: Problem, method: str) -> Any:
    """All rows, or batches of them."""
    if method != "minibatches" or len(problem.y) <= BATCH:
        return problem.x, problem.y
    rows = torch.utils.data.TensorDataset(problem.x, problem.y)
    return torch.utils.data.DataLoader(rows, BATCH if len(problem.y) <= 1000 else 500, shuffle=True)


def bound_of(problem: Problem) -> float:
    """The bound in nats at the best posterior of the model's family, and the log density of the hyperparameters."""
    modules = model, likelihood = copy.deepcopy(problem.model).double(), copy.deepcopy(problem.likelihood).double()
    y = problem.y.double() if problem.y.is_floating_point() else problem.y
    bound = polish(model, likelihood, [(problem.x.double(), y)], max_passes=60, tolerance=1e-3)[-1]
    priors = (found for module in modules for found in module.named_priors())
    return bound + sum(prior.log_prob(closure(owner)).sum().item() for _, owner, prior, closure, _ in priors)


def run(problem: Problem, method: str) -> Outcome:
    """Fit a problem, and look at what the fit says and leaves."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = fit(problem.model, problem.likelihood, data_of(problem, method), method=method)
        except (TypeError, ValueError, NotImplementedError) as error:
            return Outcome(REFUSED, f"{type(error).__name__}: {error}", math.nan, math.nan, time.process_time() - start)
        except Exception as error:
            return Outcome(FAILED, f"{type(error).__name__}: {error}", math.nan, math.nan, time.process_time() - start)
    seconds = time.process_time() - start
    try:
        bound = bound_of(problem)
    except Exception as error:
        return Outcome(FAILED, f"no bound of the fitted model: {error}", math.nan, result.open, seconds)
    own, foreign = [], []
    for each in caught:
        (own if each.category.__module__.startswith("gpytorch_gam") else foreign).append(str(each.message))
    small_units = [text for text in own if SMALL_UNITS in text]
    if small_units:
        foreign = [text for text in foreign if "Negative variance" not in text]
    is_told = any(each.category is ConvergenceWarning for each in caught)
    failures = [*wrong_numbers(problem), *misstatements(problem, result), *(f"warning: {text}" for text in foreign)]
    if not (result.converged or is_told):
        failures.append(f"silent about {result.open:.3g} nats")
    if failures:
        return Outcome(FAILED, "; ".join(failures), bound, result.open, seconds)
    if small_units:
        return Outcome(WARNED, small_units[0], bound, result.open, seconds)
    if result.converged:
        return Outcome(CONVERGED, "", bound, result.open, seconds)
    return Outcome(WARNED, result.stopped, bound, result.open, seconds)


def wrong_numbers(problem: Problem) -> Iterator[str]:
    """What is not finite in the model, or in its predictions."""
    for name, parameter in (*problem.model.named_parameters(), *problem.likelihood.named_parameters()):
        if not torch.isfinite(parameter).all():
            yield f"{name} is not finite"
    with torch.no_grad():
        moments = problem.model(problem.x)
        if not torch.isfinite(moments.mean.sum() + moments.variance.sum()) or (moments.variance < 0).any():
            yield "the predictor's moments are not finite"


def misstatements(problem: Problem, result: FitResult) -> Iterator[str]:
    """Where the bound of the result is not that of the model."""
    if not math.isfinite(result.bound):
        yield f"the bound is {result.bound}"
    elif result.method != "bins":
        own = polish(copy.deepcopy(problem.model), problem.likelihood, [(problem.x, problem.y)], max_passes=1)[0]
        if abs(own - result.bound) > MISSTATED + 1e-6 * abs(own):
            yield f"the bound is said to be {result.bound:.6g} and is {own:.6g}"


def best_of_others(problem: Problem, num_starts: int) -> float:
    """The best bound of fits of rows from hyperparameters that were moved at random."""
    found = [-math.inf]
    for seed in range(num_starts):
        torch.manual_seed(seed)
        other = Problem(copy.deepcopy(problem.model), copy.deepcopy(problem.likelihood), problem.x, problem.y)
        with torch.no_grad():
            for parameter in (*other.model.hyperparameters(), *other.likelihood.parameters()):
                parameter += torch.randn_like(parameter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fit(other.model, other.likelihood, (other.x, other.y), method="rows", warm_start=True)
                found.append(bound_of(other))
            except (RuntimeError, ValueError, NotImplementedError):
                continue
    return max(found)


def compared(outcomes: dict[str, Outcome], others: float) -> dict[str, Outcome]:
    """The methods' outcomes, of which those that ended lower than another without a word have failed."""
    best = max([others, *(each.bound for each in outcomes.values() if math.isfinite(each.bound))])
    found = {}
    for method, each in outcomes.items():
        if each.kind == CONVERGED and best - each.bound > WORSE + 1e-7 * abs(best):
            each = each._replace(kind=FAILED, reason=f"{best - each.bound:.3g} nats below another maximum")
        found[method] = each
    return found


# ---------------------------------------------------------------------------------------------------------- the grid


def run_grid(
    likelihoods: list[str], troubles: list[str], methods: list[str], num_starts: int
) -> Iterator[tuple[Case, Outcome]]:
    for likelihood, trouble in itertools.product(likelihoods, troubles):
        if likelihood not in TROUBLES[trouble]:
            continue
        try:
            problems = {method: make_problem(likelihood, trouble) for method in methods}
        except (TypeError, ValueError) as error:
            yield Case(likelihood, trouble, "terms"), Outcome(REFUSED, str(error), math.nan, math.nan, 0.0)
            continue
        outcomes = {method: run(problem, method) for method, problem in problems.items()}
        others = best_of_others(problems[methods[0]], num_starts)
        for method, outcome in compared(outcomes, others).items():
            yield Case(likelihood, trouble, method), outcome


def run_chicago(path: Path) -> Iterator[tuple[Case, Outcome]]:
    for rank in (24, 32):
        problems = {method: chicago(path, rank) for method in ("rows", "minibatches")}
        outcomes = {method: run(problem, method) for method, problem in problems.items()}
        for method, outcome in compared(outcomes, -math.inf).items():
            yield Case("Poisson", f"Chicago's deaths, rank {rank}", method), outcome


def show(case: Case, outcome: Outcome) -> None:
    numbers = f"bound {outcome.bound:.2f}, open {outcome.still_open:.2g}, {outcome.seconds:.1f} s"
    reason = f": {outcome.reason}" if outcome.reason else ""
    print(f"{case.likelihood} | {case.trouble} | {case.method} | {outcome.kind} | {numbers}{reason}", flush=True)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--likelihoods", nargs="+", choices=list(LIKELIHOODS), default=list(LIKELIHOODS))
    parser.add_argument("--troubles", nargs="+", choices=list(TROUBLES), default=list(TROUBLES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--starts", type=int, default=2, help="other starts of each problem (default: 2)")
    parser.add_argument("--data", type=Path, help="directory with chicago.csv")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    likelihoods, methods, starts = options.likelihoods, options.methods, options.starts
    if options.quick:
        likelihoods, methods, starts = likelihoods[:1], methods[:1], 0
    start, found = time.process_time(), []
    cases = run_grid(likelihoods, options.troubles, methods, starts)
    if options.data is not None:
        cases = itertools.chain(cases, run_chicago(options.data / "chicago.csv"))
    for case, outcome in cases:
        show(case, outcome)
        found.append((case, outcome))
    seconds = time.process_time() - start
    kinds = (CONVERGED, WARNED, REFUSED, FAILED)
    rows = []
    for method in dict.fromkeys(case.method for case, _ in found):
        own = [outcome.kind for case, outcome in found if case.method == method]
        rows.append([method, *(str(own.count(kind)) for kind in kinds)])
    print(f"\n{len(found)} fits, {seconds:.0f} s\n")
    print_table(["method", *kinds], rows)
    result = {
        "environment": environment,
        "seconds": seconds,
        "fits": [{**case._asdict(), **outcome._asdict()} for case, outcome in found],
    }
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
