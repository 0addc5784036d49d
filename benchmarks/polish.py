"""
Claim: a few passes over all of the data at fixed hyperparameters bring a trained posterior to within a nat or so of the
best one, for any likelihood, in time and memory linear in the number of components.

`gpytorch_gam.training.polish`, one thread, float64, hyperparameters fixed, in four sections:

- factors: the data and the model of `rank.py`, 50 components with five latent factors, 20000 rows, Gaussian noise, with
  inputs that have more of their own (0.7 for 0.3). Each family takes 100 natural-gradient steps on batches of 500 rows
  and is polished twice from there: streamed (`dense_limit=0`), up to ten passes, and with a dense matrix. Gaps are
  nats below the optimum in closed form. A reading is one evaluation of the features of all rows.
- components: the same data with 25 to 200 components. Time (medians of three) and memory of two streamed passes of
  block + low-rank, R = 32, and the exponent p of a fit a + b C^p. User time is that of the computation; elapsed time
  has the rest of the machine in it, and the system, from which the C library gets large blocks anew each time.
- labels: six effects and a constant under labels (Bernoulli with probit link, GPyTorch's) and counts (Poisson with log
  link, its expected log-likelihood in closed form), 5000 rows, inputs independent or with a Gaussian copula of
  correlation .9. Gaps after 200 steps on batches of 500 rows and after three passes, dense and streamed, to the optimum
  of a full covariance: polished to convergence, and compared on 400 rows with the bound that
  `TiedAdditiveVariationalStrategy.fit_sites` finds.
- memory: 10^5 and 10^6 rows that are made while they are read, ten components of 20 inducing points: memory and seconds
  of the Gaussian optimum of batches and of one pass under labels.

Memory is the growth of the resident set to its peak (`VmHWM` of Linux, reset before), in a new process for each size
that gives freed memory back at once. Seconds are of one run where no median is named.

    python benchmarks/polish.py [--sections factors components labels memory] [--json FILE]
"""

from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gpytorch
import numpy as np
import scipy.optimize
import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from gpytorch.models import ApproximateGP
from rank import NOISE, Setting, draw, make_predictor
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant
from gpytorch_gam.training import polish
from gpytorch_gam.variational import TiedAdditiveVariationalStrategy
from gpytorch_gam.warnings import RankWarning

T = TypeVar("T")

SECTIONS = ("factors", "components", "labels", "memory")
OWN_SHARE = 0.7
FAMILIES: dict[str, tuple[str, int | str | None]] = {  # label: family, rank
    "block + low-rank, R = 16": ("block_low_rank", 16),
    "block + low-rank, R = 32": ("block_low_rank", 32),
    "block + low-rank, auto": ("block_low_rank", "auto"),
    "low-rank, auto": ("low_rank", "auto"),
    "mean-field": ("mean_field", None),
}
MIB = 2.0**20


class Sizes(NamedTuple):
    """What `--quick` makes small."""

    factors: Setting
    factor_steps: int
    batch: int
    max_passes: int
    components: tuple[int, ...]
    repeats: int
    label_rows: int
    label_inducing: int
    label_steps: int
    subset: int
    memory_rows: tuple[int, ...]
    chunk: int
    memory_components: int
    memory_inducing: int


FULL = Sizes(
    Setting(50, 20000, 5, 16), 100, 500, 10, (25, 50, 100, 200), 3, 5000, 12, 200, 400, (10**5, 10**6), 10000, 10, 20
)
QUICK = Sizes(Setting(5, 400, 2, 8), 10, 100, 3, (5, 10), 1, 400, 6, 20, 100, (1000, 2000), 500, 5, 8)


class CountedReadings:
    """All rows as one batch, and how often it was read."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.batch = x, y
        self.count = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.count += 1
        yield self.batch


def minibatches(x: Tensor, y: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end; each epoch in a new order."""
    generator = torch.Generator().manual_seed(0)
    while True:
        for rows in torch.randperm(len(y), generator=generator).split(batch):
            yield x[rows], y[rows]


def train(
    model: AdditiveGP, likelihood: Likelihood, batches: Iterator[tuple[Tensor, Tensor]], steps: int, num_data: int
) -> None:
    """Natural-gradient steps of the posterior alone."""
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)
    natural = NaturalGradient(model, num_data=num_data)
    model.train()
    for _ in range(steps):
        x, y = next(batches)
        (-mll(model(x), y)).backward()
        natural.step()
    natural.remove()


def make_model(predictor: AdditivePredictor, family: str, rank: int | str | None = None) -> AdditiveGP:
    torch.manual_seed(0)
    return AdditiveGP(predictor, family, rank)


def gaussian(noise: float = NOISE) -> GaussianLikelihood:
    likelihood = GaussianLikelihood()
    likelihood.noise = noise
    return likelihood


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


class Usage(NamedTuple):
    seconds: float
    user_seconds: float
    mib: float | None  # None where the system does not say


def usage(action: Callable[[], object]) -> Usage:
    """Elapsed and user time of the action, and by how much the process is larger at its peak than before."""
    gc.collect()
    before = _start_of_peak()
    start, user = time.perf_counter(), os.times().user
    action()
    seconds, user = time.perf_counter() - start, os.times().user - user
    return Usage(seconds, user, None if before is None else (_resident("VmHWM") - before) / MIB)


def _start_of_peak() -> float | None:
    """Reset the peak. The present size."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _resident("VmRSS")


def return_freed_memory() -> None:
    """
    Have the C library of Linux give every freed block above 1 MiB back at once: otherwise it keeps some for later, more
    or less by chance, and the size of the process is not that of its tensors. Costs time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 2**20)  # M_MMAP_THRESHOLD


def _resident(field: str) -> float:
    """A field of the status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return 1024.0 * float(kib)


def measure_factors(sizes: Sizes) -> dict[str, dict[str, Any]]:
    predictor, likelihood = make_predictor(sizes.factors), gaussian()
    x, y = draw(sizes.factors, OWN_SHARE)
    best = CollapsedELBO(likelihood, make_model(predictor, "mean_field")).optimum(x, y).bound.item()
    found = {}
    for label, choice in FAMILIES.items():
        model = make_model(predictor, *choice)
        train(model, likelihood, minibatches(x, y, sizes.batch), sizes.factor_steps, len(y))
        streamed = polished(model, likelihood, x, y, best, max_passes=sizes.max_passes, dense_limit=0)
        dense = polished(model, likelihood, x, y, best)
        found[label] = {"trained_gap": streamed.pop("start_gap"), "streamed": streamed, "dense": dense}
    rows = [
        [
            label,
            f"{record['trained_gap']:.2f}",
            *(
                f"{record[way][key]:{form}}"
                for way in ("streamed", "dense")
                for key, form in (("gap", ".2f"), ("passes", "d"), ("readings", "d"), ("seconds", ".1f"), ("rank", "d"))
            ),
        ]
        for label, record in found.items()
    ]
    columns = ["passes", "readings", "s", "rank"]
    setting = sizes.factors
    print(
        f"\nC = {setting.num_components}, N = {setting.num_rows}, {setting.num_factors} latent factors, Gaussian "
        f"noise: gap in nats after {sizes.factor_steps} minibatch steps and after polishing"
    )
    print_table(["family", "trained", "streamed", *columns, "dense", *columns], rows)
    return found


def polished(
    model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, best: float, **options: Any
) -> dict[str, Any]:
    """Polish a copy of the model."""
    model, readings = deepcopy(model), CountedReadings(x, y)
    start = time.perf_counter()
    history = polish(model, likelihood, readings, **options)
    seconds = time.perf_counter() - start
    return {
        "start_gap": best - history[0],
        "gap": best - history[-1],
        "passes": len(history) - 1,
        "readings": readings.count,
        "seconds": seconds,
        "rank": model.variational_strategy._variational_distribution.rank,
    }


def measure_components(sizes: Sizes) -> dict[str, Any]:
    records = [in_new_process(two_passes, sizes, count) for count in sizes.components]
    exponents = {
        key: growth_exponent(sizes.components, [record[key] for record in records])
        for key in ("user_seconds", "seconds", "mib")
    }
    rows = [
        [
            str(record["num_components"]),
            f"{record['user_seconds']:.2f}",
            f"{record['seconds']:.2f}",
            shown(record["mib"], ".0f"),
            str(record["passes"]),
            str(record["readings"]),
        ]
        for record in records
    ]
    rows.append(["exponent", *(shown(exponent, ".2f") for exponent in exponents.values()), "", ""])
    print(
        f"\nN = {sizes.factors.num_rows}, {sizes.factors.num_factors} latent factors, block + low-rank, R = 32: two "
        "streamed passes"
    )
    print_table(["components", "s (user)", "s (elapsed)", "MiB", "passes", "readings"], rows)
    return {"records": records, "exponents": exponents}


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def two_passes(sizes: Sizes, num_components: int) -> dict[str, Any]:
    """Runs in a process of its own."""
    torch.set_num_threads(1)
    setting = sizes.factors._replace(num_components=num_components)
    with default_dtype(torch.float64):
        model, likelihood = make_model(make_predictor(setting), "block_low_rank", 32), gaussian()
        x, y = draw(setting, OWN_SHARE)
        train_quietly(model, likelihood, minibatches(x, y, sizes.batch), 2, len(y))
        readings, history = CountedReadings(x, y), []

        def run() -> Usage:
            copy = deepcopy(model)
            return usage(
                lambda: history.append(polish(copy, likelihood, readings, max_passes=2, tolerance=0.0, dense_limit=0))
            )

        timed = [run() for _ in range(sizes.repeats)]
        return_freed_memory()
        mib = run().mib
    return {
        "num_components": num_components,
        "seconds": statistics.median(usage.seconds for usage in timed),
        "user_seconds": statistics.median(usage.user_seconds for usage in timed),
        "mib": mib,
        "passes": len(history[-1]) - 1,
        "readings": readings.count // len(history),
    }


def train_quietly(*arguments: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are chosen here to see what they lose
        train(*arguments)


def growth_exponent(sizes: Sequence[int], values: Sequence[float | None]) -> float | None:
    """
    The exponent p of a + b C^p, with a and b not negative and the smallest relative errors. None where a value is
    missing, or too small to be measured.
    """
    if not all(values):
        return None
    targets = np.ones(len(values))

    def error(exponent: float) -> float:
        grown = (np.asarray(sizes) / sizes[-1]) ** exponent
        design = np.stack([np.ones(len(sizes)), grown], axis=-1) / np.asarray(values)[:, None]
        return float(scipy.optimize.nnls(design, targets)[1])

    return float(min(np.arange(0.2, 3.0, 0.01), key=error))


class LogPoissonLikelihood(Likelihood):
    """Counts whose rate is the exponential of the predictor."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(function_samples.exp())

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        mean, variance = function_dist.mean, function_dist.variance
        return observations * mean - (mean + 0.5 * variance).exp() - torch.lgamma(observations + 1.0)


class TiedGAM(ApproximateGP):
    """The optimal sparse form, tied to its rows."""

    def __init__(self, predictor: AdditivePredictor, x: Tensor) -> None:
        super().__init__(TiedAdditiveVariationalStrategy(self, predictor, x))

    def forward(self, x: Tensor) -> MultivariateNormal:
        return self.variational_strategy.predictor(x)


LABEL_FAMILIES = {label: choice for label, choice in FAMILIES.items() if label != "block + low-rank, auto"}
LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {"labels": BernoulliLikelihood, "counts": LogPoissonLikelihood}
CORRELATIONS = {"independent": 0.0, "correlated": 0.9}
NUM_EFFECTS = 6

# likelihood, inputs, family: nats that may be missing after three passes
GOALS = {
    ("labels", "independent", "block + low-rank, R = 16"): 1.0,
    ("labels", "independent", "block + low-rank, R = 32"): 1.0,
    ("labels", "correlated", "block + low-rank, R = 16"): 3.0,
    ("labels", "correlated", "block + low-rank, R = 32"): 3.0,
    ("counts", "independent", "block + low-rank, R = 32"): 3.0,
    ("counts", "correlated", "block + low-rank, R = 32"): 3.0,
}


def draw_responses(likelihood: str, correlation: float, num_rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    normal = correlation**0.5 * torch.randn(num_rows, 1) + (1 - correlation) ** 0.5 * torch.randn(num_rows, NUM_EFFECTS)
    x = torch.special.ndtr(normal)
    rho = 0.3 + 0.4 * torch.sin(6 * x + torch.linspace(0.0, 2.0, NUM_EFFECTS)).sum(-1)
    y = torch.bernoulli(torch.special.ndtr(rho)) if likelihood == "labels" else torch.poisson(rho.exp())
    return x, y


def smooth_predictor(num_components: int, num_inducing: int) -> AdditivePredictor:
    size = torch.Size([num_components])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale = 0.3
    kernel.outputscale = torch.full(size, 0.25)
    columns = [[index] for index in range(num_components)]
    return AdditivePredictor(ComponentGroup(kernel, columns, regular_grid(0.0, 1.0, num_inducing)), constant())


def measure_labels(sizes: Sizes) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, make_likelihood in LIKELIHOODS.items():
        for inputs, correlation in CORRELATIONS.items():
            x, y = draw_responses(name, correlation, sizes.label_rows)
            found[f"{name}, {inputs}"] = three_passes(make_likelihood(), x, y, sizes)
    for setting, record in found.items():
        print(
            f"\n{setting}, N = {sizes.label_rows}: gap in nats after {sizes.label_steps} minibatch steps and after "
            f"three passes (on {sizes.subset} rows, the optimum differs from that of the tied form by "
            f"{record['difference_to_tied']:.1e} nats)"
        )
        rows = [
            [label, *(f"{gaps[key]:.3f}" for key in ("trained", "dense", "streamed")), str(gaps["rank"])]
            for label, gaps in record["gaps"].items()
        ]
        print_table(["family", "trained", "dense", "streamed", "rank"], rows)
    return found


def three_passes(likelihood: Likelihood, x: Tensor, y: Tensor, sizes: Sizes) -> dict[str, Any]:
    predictor = smooth_predictor(NUM_EFFECTS, sizes.label_inducing)
    best = optimum(predictor, likelihood, x, y)
    few = x[: sizes.subset], y[: sizes.subset]
    tied = TiedGAM(predictor, few[0]).variational_strategy.fit_sites(likelihood, few[1])[-1]
    gaps = {}
    for label, choice in LABEL_FAMILIES.items():
        model = make_model(predictor, *choice)
        train(model, likelihood, minibatches(x, y, sizes.batch), sizes.label_steps, len(y))
        dense = polished(model, likelihood, x, y, best, max_passes=3, tolerance=0.0)
        streamed = polished(model, likelihood, x, y, best, max_passes=3, tolerance=0.0, dense_limit=0)
        gaps[label] = {
            "trained": dense["start_gap"],
            "dense": dense["gap"],
            "streamed": streamed["gap"],
            "rank": dense["rank"],
        }
    return {"optimum": best, "difference_to_tied": optimum(predictor, likelihood, *few) - tied, "gaps": gaps}


def optimum(predictor: AdditivePredictor, likelihood: Likelihood, x: Tensor, y: Tensor) -> float:
    """The best bound of all Gaussian posteriors."""
    model = make_model(predictor, "coupled")
    return polish(model, likelihood, [(x, y)], max_passes=100, tolerance=1e-6)[-1]


class GeneratedRows:
    """
    Batches that are made when they are read, alike each time.

    :param responses: ``"labels"`` or ``"real"``.
    """

    def __init__(self, num_rows: int, responses: str, sizes: Sizes) -> None:
        self.num_rows, self.responses, self.sizes = num_rows, responses, sizes

    def first_chunk(self) -> GeneratedRows:
        return GeneratedRows(self.sizes.chunk, self.responses, self.sizes)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(self.num_rows // self.sizes.chunk):
            generator = torch.Generator().manual_seed(index)
            x = torch.rand(self.sizes.chunk, self.sizes.memory_components, generator=generator)
            rho = 0.5 * torch.sin(6 * x).sum(-1)
            noise = torch.randn(self.sizes.chunk, generator=generator)
            yield x, ((rho + noise > 0).to(x) if self.responses == "labels" else rho + noise)


METHODS = ("optimum_of_batches", "polish, dense", "polish, streamed")


def measure_memory(sizes: Sizes) -> list[dict[str, Any]]:
    used = {num_rows: in_new_process(read_all, num_rows, sizes) for num_rows in sizes.memory_rows}
    records = [
        {"method": method, "num_rows": num_rows, **found[method]._asdict()}
        for method in METHODS
        for num_rows, found in used.items()
    ]
    total = sizes.memory_components * sizes.memory_inducing
    print(f"\nRows made while they are read, {total} inducing variables and a constant: memory added")
    rows = [[r["method"], f"{r['num_rows']:.0e}", shown(r["mib"], ".1f"), f"{r['seconds']:.1f}"] for r in records]
    print_table(["method", "rows", "MiB", "s"], rows)
    return records


def read_all(num_rows: int, sizes: Sizes) -> dict[str, Usage]:
    """Runs in a process of its own. First calls on few rows load what a process loads once."""
    return_freed_memory()
    torch.set_num_threads(1)
    labels, real = (GeneratedRows(num_rows, responses, sizes) for responses in ("labels", "real"))
    with default_dtype(torch.float64):
        model = make_model(smooth_predictor(sizes.memory_components, sizes.memory_inducing), "block_low_rank", 32)
        objective, likelihood = CollapsedELBO(gaussian(1.0), model), BernoulliLikelihood()
        train_quietly(model, likelihood, iter(labels), 2, num_rows)

        def pass_over(rows: GeneratedRows, dense_limit: int) -> None:
            polish(deepcopy(model), likelihood, rows, max_passes=1, tolerance=0.0, dense_limit=dense_limit)

        actions: dict[str, tuple[GeneratedRows, Callable[[GeneratedRows], object]]] = {
            "optimum_of_batches": (real, objective.optimum_of_batches),
            "polish, dense": (labels, lambda rows: pass_over(rows, 1024)),
            "polish, streamed": (labels, lambda rows: pass_over(rows, 0)),
        }
        found = {}
        for method, (rows, action) in actions.items():
            action(rows.first_chunk())
            found[method] = usage(functools.partial(action, rows))
    return found


def check_goals(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and whether it holds. Gaps are those of dense steps."""
    goals = []
    if "labels" in results:
        for (likelihood, inputs, family), limit in GOALS.items():
            gap = results["labels"][f"{likelihood}, {inputs}"]["gaps"][family]["dense"]
            goals.append({"goal": f"{likelihood}, {inputs}, {family}: nats", "value": gap, "limit": limit})
    for method in METHODS if "memory" in results else ():
        added = [record["mib"] for record in results["memory"] if record["method"] == method]
        if None not in added:
            goals.append({"goal": f"{method}: MiB", "value": max(added), "limit": 1024.0})
            goals.append({"goal": f"{method}: growth of MiB", "value": added[-1] / max(added[0], 1.0), "limit": 1.25})
    for goal in goals:
        goal["holds"] = goal["value"] <= goal["limit"]
    return goals


MEASUREMENTS: dict[str, Callable[[Sizes], Any]] = {
    "factors": measure_factors,
    "components": measure_components,
    "labels": measure_labels,
    "memory": measure_memory,
}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="which to run (default: all)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    with default_dtype(torch.float64), warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are chosen here to see what they lose
        results = {
            name: MEASUREMENTS[name](QUICK if options.quick else FULL) for name in SECTIONS if name in options.sections
        }
    goals = check_goals(results)
    if goals:
        print()
        rows = [[g["goal"], f"{g['value']:.3f}", f"{g['limit']:g}", "yes" if g["holds"] else "NO"] for g in goals]
        print_table(["goal", "value", "limit", "holds"], rows)
    result = {"environment": environment, "results": results, "goals": goals}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
