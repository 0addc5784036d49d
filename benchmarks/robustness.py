"""
Claim: training with natural gradients gives no NaN and does not diverge, whatever likelihood, data and dtype.

Small models, 300 rows of four columns, 33 inducing variables, in 60 minibatch steps of 100 rows: the posterior with
natural gradients, the hyperparameters with Adam, held back for 12 steps. The grid is likelihood x data x family x dtype
x seeds. In the runs of odd seeds the hyperparameters are fixed, so that a drop of the ELBO can be the posterior's only.
Every third seed has ANOVA kernels, the others plain RBF kernels.

A run fails if it raises; if a loss on the way, a parameter at the end or an ELBO of all rows is not finite; if
the last ELBO is not above that of the prior, or far below the best of those taken every ten steps (at fixed
hyperparameters) or the last one before the hyperparameters moved, whose first lurch may cost something for a while
(see `Checkpoint`); if a variance of predictor or components is negative or not finite, at the training rows or far
outside; or if it warns of numerical trouble more than once. Printed are the numbers of failures, and then each of them.

GPyTorch's PoissonLikelihood has the rate softplus(f): counts of 1e5 need an f of 1e5, and at an f below -103 in float32
(-745 in float64) the rate is 0, whose gradient is NaN. A run that gets there fails for that reason, with an error.

    python benchmarks/robustness.py [--seeds 20] [--families ...] [--json FILE]
"""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import gpytorch
import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant
from gpytorch_gam.warnings import RankWarning

NUM_ROWS, BATCH, STEPS, HELD_BACK, CHECK_EVERY = 300, 100, 60, 12, 10
NUM_INDUCING = 8
LARGEST_COUNT = 1e5

# Nats that the last ELBO may lie below the best, and how many times the cost of minibatch noise beyond that. Along one
# direction that cost varies like chi squared with a degree of freedom: ten times its mean once in a thousand.
DROP, NOISE_FACTOR = 10.0, 10.0

GAUSSIAN, BERNOULLI, STUDENT = "Gaussian", "Bernoulli", "Student-t"
POISSON, LOG_POISSON = "Poisson", "Poisson, log link"
LIKELIHOODS = (GAUSSIAN, BERNOULLI, POISSON, LOG_POISSON, STUDENT)
DUPLICATED, CONSTANT, REPEATED, EXTREME = "duplicated columns", "constant column", "repeated rows", "extreme responses"
DATA = (DUPLICATED, CONSTANT, REPEATED, EXTREME)
FAMILIES = {"block_low_rank": 8, "low_rank": 16, "mean_field": None}  # family: rank
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Case(NamedTuple):
    likelihood: str
    data: str
    family: str
    dtype: str
    seed: int

    @property
    def learns_hyperparameters(self) -> bool:
        return self.seed % 2 == 0

    @property
    def is_anova(self) -> bool:
        """Whether components are orthogonal to constants, or else have the plain base kernel."""
        return self.seed % 3 == 2

    @property
    def has_outliers(self) -> bool:
        """Whether extreme responses have gross errors, or else none at all."""
        return self.seed // 2 % 2 == 1


class Checkpoint(NamedTuple):
    r"""
    The ELBO of all rows, and what the noise of minibatches may cost at the step size :math:`r` that the optimiser has.

    A step of size r leaves the mean scattered around its optimum, at :math:`\tfrac r4 (N/b - 1) \sum_n g_n^2 v_n` nats
    on average, with :math:`g_n` the derivative of a row's expected log-likelihood by the mean and :math:`v_n` the
    variance there: for a likelihood that is right, the effective dimension takes the place of the sum.
    """

    elbo: float
    noise: float


class Outcome(NamedTuple):
    reasons: list[str]
    checkpoints: list[Checkpoint]


class LogPoissonLikelihood(PoissonLikelihood):
    """Counts with a log link. That of GPyTorch's class is softplus: its predictor is as large as the counts."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(function_samples.exp(), validate_args=False)


def draw(case: Case) -> tuple[Tensor, Tensor]:
    torch.manual_seed(case.seed)
    shared, own = torch.randn(NUM_ROWS, 1), torch.randn(NUM_ROWS, 4)
    x = torch.special.ndtr(0.5**0.5 * (shared + own)).double()
    if case.data == DUPLICATED:
        x[:, 1], x[:, 3] = x[:, 0], x[:, 2]
    elif case.data == CONSTANT:
        x[:, 3] = 0.5
    elif case.data == REPEATED:
        x[NUM_ROWS // 2 :] = x[: NUM_ROWS // 2]
    y = draw_responses(case, effect(x))
    if case.data == REPEATED:
        y[NUM_ROWS // 2 :] = y[: NUM_ROWS // 2]
    return x, y


def effect(x: Tensor) -> Tensor:
    return torch.sin(6 * x[:, 0]) + 2 * (x[:, 1] - 0.5).square() - x[:, 2] + torch.cos(4 * x[:, 3])


def draw_responses(case: Case, truth: Tensor) -> Tensor:
    extreme = case.data == EXTREME
    if case.likelihood == BERNOULLI:
        centred = truth - truth.median()
        labels = centred > 0 if extreme else torch.rand_like(truth) < torch.special.ndtr(2 * centred)
        return labels.to(truth)
    if case.likelihood in (POISSON, LOG_POISSON):
        if extreme:
            few = torch.rand_like(truth) < 0.02
            few[0] = True
            return torch.poisson(torch.where(few, LARGEST_COUNT, 0.02).to(truth))
        share = (truth - truth.amin()) / (truth.amax() - truth.amin())
        rate = LARGEST_COUNT * (0.3 + 0.7 * share) if case.likelihood == POISSON else LARGEST_COUNT**share
        return torch.poisson(rate)
    noise = 0.2 * torch.randn_like(truth)
    if case.likelihood == STUDENT:
        noise = 0.2 * torch.distributions.StudentT(3.0).sample(truth.shape).to(truth)
    if extreme:
        noise = torch.zeros_like(noise)
        if case.has_outliers:
            noise[:6] = 200.0 * torch.randn(6).sign()  # 1e3 standard deviations of the noise elsewhere
    return truth + noise


def make_model(case: Case, y: Tensor) -> AdditiveGP:
    size = torch.Size([4])
    base = RBFKernel(batch_shape=size)
    base.lengthscale = 0.4
    kernel = ScaleKernel(ANOVAKernel(base, Uniform(0.0, 1.0)) if case.is_anova else base, batch_shape=size)
    variance, mean = 1.0, gpytorch.means.ZeroMean()
    if case.likelihood == POISSON and case.data != EXTREME:
        # Rates underflow where GPyTorch's quadrature reaches far below zero: a prior at the level of the counts.
        variance, mean = (0.015 * LARGEST_COUNT) ** 2, gpytorch.means.ConstantMean()
        mean.constant = y.mean().item()
    kernel.outputscale = variance
    smooth = ComponentGroup(kernel, [[0], [1], [2], [3]], regular_grid(0.0, 1.0, NUM_INDUCING))
    predictor = AdditivePredictor(smooth, constant(variance), mean=mean)
    return AdditiveGP(predictor, case.family, FAMILIES[case.family]).to(DTYPES[case.dtype])


def make_likelihood(case: Case) -> Likelihood:
    classes = {
        GAUSSIAN: GaussianLikelihood,
        BERNOULLI: BernoulliLikelihood,
        POISSON: PoissonLikelihood,
        LOG_POISSON: LogPoissonLikelihood,
        STUDENT: StudentTLikelihood,
    }
    likelihood = classes[case.likelihood]()
    if case.likelihood in (GAUSSIAN, STUDENT) and not case.learns_hyperparameters:
        likelihood.noise = 2e-4 if case.data == EXTREME and not case.has_outliers else 0.04
    return likelihood.to(DTYPES[case.dtype])


def batches(size: int) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(NUM_ROWS).split(size)


def take_checkpoint(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, noise_share: float) -> Checkpoint:
    """In float64: the terms of 1e6 that make up a count's log-probability cancel."""
    model, likelihood = copy.deepcopy(model).double().train(), copy.deepcopy(likelihood).double()
    output = model(x)
    expected = likelihood.expected_log_prob(y, output).sum()
    (gradient,) = torch.autograd.grad(expected, output.mean, retain_graph=True)
    elbo = expected - model.variational_strategy.kl_divergence()
    noise = noise_share * (gradient.square() * output.variance).sum()
    return Checkpoint(elbo.item(), noise.item())


def run(case: Case, steps: int = STEPS, batch: int = BATCH) -> Outcome:
    x, y = draw(case)
    model, likelihood = make_model(case, y), make_likelihood(case)
    outcome = Outcome([], [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        warnings.simplefilter("ignore", RankWarning)  # ranks are small on purpose
        try:
            train(model, likelihood, x, y, case, steps, batch, outcome)
            check_checkpoints(outcome, case.learns_hyperparameters)
            check_model(model, x.to(DTYPES[case.dtype]), outcome)
        except (RuntimeError, ValueError, NotPSDError) as error:
            outcome.reasons.append(f"{type(error).__name__}: {error}")
    numerical = [str(warning.message) for warning in caught if issubclass(warning.category, NumericalWarning)]
    if len(numerical) > 1:
        outcome.reasons.append(f"{len(numerical)} warnings: {numerical[-1]}")
    return outcome


def train(
    model: AdditiveGP,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    case: Case,
    steps: int,
    batch: int,
    outcome: Outcome,
) -> None:
    outcome.checkpoints.append(take_checkpoint(model, likelihood, x, y, 0.0))
    own_x, own_y = x.to(DTYPES[case.dtype]), y.to(DTYPES[case.dtype])
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=NUM_ROWS)
    natural = NaturalGradient(model, num_data=NUM_ROWS)
    hyperparameters = [*model.hyperparameters(), *likelihood.parameters()]
    for parameter in hyperparameters:
        parameter.requires_grad_(case.learns_hyperparameters)
    adam = torch.optim.Adam(hyperparameters, lr=0.03)
    for step, rows in zip(range(steps), batches(batch), strict=False):
        adam.zero_grad()
        loss = -mll(model(own_x[rows]), own_y[rows])
        if not math.isfinite(loss.item()):
            outcome.reasons.append(f"loss {loss.item()} in step {step}")
        loss.backward()
        natural.step()
        if case.learns_hyperparameters and step >= HELD_BACK:
            adam.step()
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == steps:
            step_size = 1 / (1 + step / 10)  # the default schedule
            noise_share = 0.25 * step_size * (NUM_ROWS / batch - 1)
            outcome.checkpoints.append(take_checkpoint(model, likelihood, x, y, noise_share))


def check_checkpoints(outcome: Outcome, learns_hyperparameters: bool) -> None:
    first, *later = outcome.checkpoints
    last, best = later[-1], later[0] if learns_hyperparameters else max(later)
    if not all(math.isfinite(checkpoint.elbo) for checkpoint in outcome.checkpoints):
        outcome.reasons.append(f"ELBOs {[checkpoint.elbo for checkpoint in outcome.checkpoints]}")
    elif last.elbo <= first.elbo:
        outcome.reasons.append(f"ELBO {last.elbo:.6g} at the end, {first.elbo:.6g} at the start")
    elif best.elbo - last.elbo > DROP + NOISE_FACTOR * best.noise:
        outcome.reasons.append(f"ELBO {last.elbo:.6g} at the end, {best.elbo:.6g} before (noise {best.noise:.3g})")


def check_model(model: AdditiveGP, x: Tensor, outcome: Outcome) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            outcome.reasons.append(f"{name} is not finite")
    model.eval()
    far = torch.tensor([-1e4, -10.0, -1.0, 2.0, 10.0, 1e4], dtype=x.dtype)
    rows = torch.cat([x, far.unsqueeze(-1).expand(-1, x.shape[-1])])
    with torch.no_grad():
        for name, moments in (("predictor", model(rows)), ("components", model.components(rows))):
            if not torch.isfinite(moments.mean).all():
                outcome.reasons.append(f"a mean of the {name} is not finite")
            if not (torch.isfinite(moments.variance) & (moments.variance >= 0)).all():
                outcome.reasons.append(f"a variance of the {name} is {moments.variance.min().item():.3g} or not finite")


def record(case: Case, outcome: Outcome) -> dict[str, Any]:
    checkpoints = [checkpoint._asdict() for checkpoint in outcome.checkpoints]
    return {**case._asdict(), "reasons": outcome.reasons, "checkpoints": checkpoints}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="runs of each kind (default: 20)")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), help="default: all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    seeds, steps, kinds = (1, 4, DATA[-1:]) if options.quick else (options.seeds, STEPS, DATA)
    start = time.perf_counter()
    variants = list(itertools.product(options.families, DTYPES))
    records, rows = [], []
    for likelihood, data in itertools.product(LIKELIHOODS, kinds):
        counts = []
        for family, dtype in variants:
            cases = [Case(likelihood, data, family, dtype, seed) for seed in range(seeds)]
            found = [record(case, run(case, steps)) for case in cases]
            records += found
            counts.append(sum(bool(one["reasons"]) for one in found))
        rows.append([f"{likelihood}, {data}", *map(str, counts)])
    seconds = time.perf_counter() - start
    failures = [one for one in records if one["reasons"]]
    print(f"\n{len(failures)} of {len(records)} runs failed, {seconds:.0f} s\n")
    print_table([f"failures of {seeds}", *(f"{family} {dtype}" for family, dtype in variants)], rows)
    for failure in failures:
        labels = [str(failure[key]) for key in ("likelihood", "data", "family", "dtype")]
        print(f"{', '.join(labels)}, seed {failure['seed']}: {'; '.join(failure['reasons'])}")
    result = {"environment": environment, "seconds": seconds, "runs": records}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
