"""Full-data steps at fixed hyperparameters: against closed forms, dense optima and sites; what they leave alone."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    Likelihood,
    StudentTLikelihood,
)
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant
from gpytorch_gam.training import polish
from gpytorch_gam.training.polishing import polish_below
from gpytorch_gam.variational import BlockLowRankPrecisionVariationalDistribution, TiedAdditiveVariationalStrategy
from tests.problems import (
    SiteModel,
    backward,
    dense_optimum,
    effect,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_inputs,
    make_model,
    moderate_problem,
    precision_and_mean,
    set_to_optimum,
    train,
    varying_predictor,
)

Rows = tuple[torch.Tensor, torch.Tensor]
KINDS = ("log counts", "student", "separable")
families = pytest.mark.parametrize(
    ("family", "rank"), [("block_low_rank", 6), ("low_rank", 20), ("mean_field", None), ("coupled", None)]
)
modes = pytest.mark.parametrize("dense_limit", [1024, 0], ids=["dense", "streamed"])
WAYS = [
    (family, rank, limit)
    for family, rank in (("block_low_rank", 6), ("low_rank", 20), ("mean_field", None), ("coupled", None))
    for limit in (1024, 0)
    if (family, limit) != ("coupled", 0)
]
# Float32 changes how far rounding reaches, in every family alike.
ways_and_dtypes = pytest.mark.parametrize(
    ("family", "rank", "dense_limit", "dtype"),
    [*((*way, torch.float64) for way in WAYS), *((*way, torch.float32) for way in WAYS if way[0] == "block_low_rank")],
)
# Every way meets two kinds of problems, the first of them always: it is the hardest.
ways_and_kinds = pytest.mark.parametrize(
    ("family", "rank", "dense_limit", "dtype", "kind"),
    [(*way, kind) for number, way in enumerate(ways_and_dtypes.args[1]) for kind in (KINDS[0], KINDS[1 + number % 2])],
)


def distribution(model: AdditiveGP) -> torch.nn.Module:
    return model.variational_strategy._variational_distribution


def exact_elbo(model: AdditiveGP, likelihood: Likelihood, x: torch.Tensor, y: torch.Tensor) -> float:
    return elbo(model.train(), likelihood, x, y)


def collapsed_bound(model: AdditiveGP, likelihood: GaussianLikelihood, x: torch.Tensor, y: torch.Tensor) -> float:
    return CollapsedELBO(likelihood, model).optimum(x, y).bound.item()


def hard_problem(kind: str, dtype: torch.dtype, num_rows: int = 200) -> tuple[torch.Tensor, torch.Tensor, Likelihood]:
    torch.manual_seed(0)
    x = make_inputs(num_rows, 0.5, dtype)
    if kind == "log counts":
        y = torch.poisson((effect(x) * 3 + 8).exp())
        assert y.max() > 1e5
        return x, y, PoissonLikelihood()
    if kind == "separable":
        return x, (effect(x) > 0).to(x), BernoulliLikelihood().to(dtype)
    likelihood = StudentTLikelihood().to(dtype)
    likelihood.noise, likelihood.deg_free = 0.01, 3.0
    return x, effect(x) + 0.1 * torch.distributions.StudentT(1.0).sample((num_rows,)).to(dtype), likelihood


# ------------------------------------------------------------------------------------------------ Gaussian: closed form


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_one_pass_of_the_coupled_family_is_the_closed_form(correlation: float) -> None:
    x, y = gaussian_problem(correlation=correlation)
    model, likelihood = make_model("coupled"), gaussian_likelihood()
    history = polish(model, likelihood, [(x, y)])
    bound = collapsed_bound(model, likelihood, x, y)
    assert len(history) == 2
    assert history[-1] == pytest.approx(bound, rel=1e-8)
    assert exact_elbo(model, likelihood, x, y) == pytest.approx(bound, rel=1e-8)


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize(
    ("family", "rank", "block_rank"),
    [
        ("block_low_rank", 6, None),
        ("block_low_rank", 20, None),
        ("block_low_rank", 4, 2),
        ("low_rank", 6, None),
        ("low_rank", 20, None),
        ("mean_field", None, None),
    ],
)
def test_structured_families_take_the_fit_of_the_closed_form(
    family: str, rank: int | None, block_rank: int | None
) -> None:
    x, y = gaussian_problem(correlation=0.9)
    likelihood, model = gaussian_likelihood(), make_model(family, rank)
    if block_rank is not None:
        q = BlockLowRankPrecisionVariationalDistribution(model.predictor.group_shapes, rank, block_rank=block_rank)
        model.variational_strategy._variational_distribution = q.double()
    other = copy.deepcopy(model)
    history = polish(model, likelihood, [(x, y)])
    set_to_optimum(other, likelihood, x, y)
    assert len(history) == 2
    for actual, expected in zip(precision_and_mean(model), precision_and_mean(other), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert history[-1] == pytest.approx(exact_elbo(other, likelihood, x, y), rel=1e-8)


def test_a_mean_module_and_multipliers_are_respected() -> None:
    predictor = varying_predictor().double()
    with torch.no_grad():
        predictor.means[0].raw_constant.fill_(100.0)
    x = torch.rand(200, 3).double()
    y = 100 + torch.sin(6 * x[:, 0]) + x[:, 2] * x[:, 1] + 0.3 * torch.randn(200).double()
    likelihood = gaussian_likelihood()
    for family, rank in (("coupled", None), ("low_rank", 19), ("block_low_rank", 19)):
        model = AdditiveGP(predictor, family, rank).double()
        history = polish(model, likelihood, [(x, y)])
        assert history[-1] == pytest.approx(collapsed_bound(model, likelihood, x, y), rel=1e-8)
    assert model(x).mean.mean().item() == pytest.approx(y.mean().item(), abs=0.1)


# --------------------------------------------------------------------------------------------------- other likelihoods


@functools.cache
def best_bounds(kind: str) -> list[float]:
    """Of sites, and of dense algebra but for heavy tails: there sites do not follow curvatures of the wrong sign."""
    x, y, likelihood = moderate_problem(kind)
    model = make_model("coupled")
    sites = SiteModel(TiedAdditiveVariationalStrategy, model.predictor, x)
    best = [sites.variational_strategy.fit_sites(likelihood, y, tolerance=1e-4)[-1]]
    return best if kind == "student" else [*best, dense_optimum(model, likelihood, x, y)]


@pytest.mark.parametrize("kind", ["labels", "counts", "student"])
@pytest.mark.parametrize(("family", "rank"), [("coupled", None), ("low_rank", 20), ("block_low_rank", 20)])
def test_dense_passes_reach_the_optimum_of_other_likelihoods(kind: str, family: str, rank: int | None) -> None:
    x, y, likelihood = moderate_problem(kind)
    history = polish(make_model(family, rank), likelihood, [(x, y)], max_passes=100, tolerance=1e-5)
    # All have the same stationary point, which they approach linearly: some multiples of the tolerance are left.
    for best in best_bounds(kind):
        assert history[-1] == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize(
    ("family", "rank", "kind"),
    [
        *(("block_low_rank", 6, kind) for kind in ("gaussian", "labels", "counts")),
        ("low_rank", 20, "labels"),
        ("mean_field", None, "counts"),
    ],
)
def test_streamed_passes_end_near_the_dense_ones_after_a_warm_up(family: str, rank: int | None, kind: str) -> None:
    x, y, likelihood = (
        (*gaussian_problem(300, 0.5), gaussian_likelihood()) if kind == "gaussian" else moderate_problem(kind)
    )
    streamed, dense = make_model(family, rank), make_model(family, rank)
    train(streamed, likelihood, x, y, steps=20, batch_size=100).remove()
    before = exact_elbo(streamed, likelihood, x, y)
    history = polish(streamed, likelihood, [(x, y)], dense_limit=0, max_passes=60)
    assert history[0] == pytest.approx(before, rel=1e-8)
    best = polish(dense, likelihood, [(x, y)], max_passes=60)[-1]
    # Blocks alone precondition the mean poorly, so that mean-field gives up early under correlated inputs.
    assert abs(history[-1] - best) < (1.0 if family == "mean_field" else 0.1)


# ------------------------------------------------------------------------------------------------------- the history


@ways_and_kinds
def test_the_bound_never_falls_and_is_that_of_the_posterior(
    family: str, rank: int | None, dense_limit: int, kind: str, dtype: torch.dtype
) -> None:
    x, y, likelihood = hard_problem(kind, dtype)
    model = make_model(family, rank, dtype=dtype)
    model(x[:1])
    start = exact_elbo(model, likelihood, x, y)
    history = polish(model, likelihood, [(x, y)], dense_limit=dense_limit)
    # Terms of the size of the largest are summed: in float32 that is what rounding is relative to.
    size = {"log counts": (y * y.clamp_min(1).log()).sum().item()}.get(kind, abs(history[0]))
    precision = 1e-8 if dtype == torch.float64 else 1e-5
    assert all(after >= before - 1e-8 * size for before, after in itertools.pairwise(history))
    assert history[0] == pytest.approx(start, abs=precision * size)
    assert history[-1] == pytest.approx(exact_elbo(model, likelihood, x, y), abs=precision * size)
    # Near the optimum: the mean has to travel over many prior standard deviations for counts.
    assert history[-1] > {"log counts": -4000.0, "student": -250.0, "separable": -150.0}[kind]


@pytest.mark.parametrize(
    ("family", "dense_limit"), [("coupled", 1024), ("block_low_rank", 1024), ("mean_field", 1024), ("mean_field", 0)]
)
def test_batches_and_chunks_do_not_matter(family: str, dense_limit: int) -> None:
    x, y, likelihood = moderate_problem("labels", 20)
    rank = 6 if family == "block_low_rank" else None

    def run(batches: object, **options: int) -> list[float]:
        model = make_model(family, rank)
        model(x[:1])
        return polish(model, likelihood, batches, dense_limit=dense_limit, max_passes=3, **options)

    expected = run([(x, y)])
    assert run([(x, y)], chunk_size=7) == pytest.approx(expected, rel=1e-9)
    for size in (1, 7, 1000):
        loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
        assert run(loader) == pytest.approx(expected, rel=1e-9)


@families
def test_a_posterior_that_is_better_than_the_fit_stays(family: str, rank: int | None) -> None:
    """The optimum of the family, found by L-BFGS, is above what a truncated factor analysis finds."""
    x, y = gaussian_problem(200, 0.9)
    model, likelihood = make_model(family, 2 if family == "block_low_rank" else rank), gaussian_likelihood()
    polish(model, likelihood, [(x, y)])
    parameters = list(model.variational_parameters())
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(y))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -len(y) * mll(model(x), y)
        loss.backward(inputs=parameters)
        return loss

    optimizer.step(closure)
    before = exact_elbo(model, likelihood, x, y)
    history = polish(model, likelihood, [(x, y)])
    after = exact_elbo(model, likelihood, x, y)
    assert after >= before - 1e-6
    assert history[-1] == pytest.approx(after, rel=1e-8)


@ways_and_dtypes
def test_a_second_polish_keeps_what_the_first_found(
    family: str, rank: int | None, dense_limit: int, dtype: torch.dtype
) -> None:
    x, y = (tensor.to(dtype) for tensor in gaussian_problem(300, 0.9))
    model, likelihood = make_model(family, rank, dtype=dtype), gaussian_likelihood(1e-3).to(dtype)
    first = polish(model, likelihood, [(x, y)], dense_limit=dense_limit, max_passes=40)[-1]
    second = polish(model, likelihood, [(x, y)], dense_limit=dense_limit, max_passes=2)
    # In float32 the marginals are rounded, which counts at a noise variance of a thousandth.
    tolerance = 1e-6 if dtype == torch.float64 else 5e-5 * abs(first)
    assert second[0] == pytest.approx(first, abs=tolerance)
    assert second[-1] >= first - tolerance
    assert exact_elbo(model, likelihood, x, y) == pytest.approx(second[-1], abs=tolerance)


def test_passes_end_below_a_bound_that_no_posterior_exceeds() -> None:
    x, y = gaussian_problem(200, 0.9)
    model, likelihood = make_model("block_low_rank", 6), gaussian_likelihood()
    highest = collapsed_bound(model, likelihood, x, y)
    found = polish_below(model, likelihood, [(x, y)], highest, max_passes=2)
    assert found[-1] > found[0] + 1.0
    again = polish_below(model, likelihood, [(x, y)], highest, max_passes=2, tolerance=highest - found[-1] + 1e-6)
    assert again == pytest.approx(found[-1:], abs=1e-7)


# ------------------------------------------------------------------------------------------------- what stays as it is


class Failing:
    """Batches that fail while they are gone through for the n-th time."""

    def __init__(self, rows: Rows, number: int, error: type[BaseException]) -> None:
        self.rows, self.number, self.error, self.count = rows, number, error, 0

    def __iter__(self) -> Iterator[Rows]:
        self.count += 1
        if self.count == self.number:
            raise self.error("on purpose")
        yield self.rows


@pytest.mark.parametrize("fails", [False, True])
@modes
def test_all_but_the_posterior_stays(dense_limit: int, fails: bool) -> None:
    x, y, likelihood = moderate_problem("student")
    model = make_model("block_low_rank", 6)
    backward(model, likelihood, x, y, len(y))
    likelihood.raw_noise.requires_grad_(False)
    model.eval()
    model.predictor.groups[0].kernel.train()
    likelihood.train()

    def state() -> list[object]:
        named = [*model.named_parameters(), *likelihood.named_parameters()]
        modules = [*model.named_modules(), *likelihood.named_modules()]
        return [
            {name: p.detach().clone() for name, p in named if "_variational_distribution" not in name},
            {name: (p.requires_grad, None if p.grad is None else p.grad.clone()) for name, p in named},
            {name: module.training for name, module in modules},
            torch.is_grad_enabled(),
        ]

    before, mean = state(), distribution(model).variational_mean.detach().clone()
    if fails:
        with pytest.raises(OSError, match="on purpose"):
            polish(model, likelihood, Failing((x, y), 2, OSError), dense_limit=dense_limit)
    else:
        polish(model, likelihood, [(x, y)], dense_limit=dense_limit)
        assert not torch.equal(mean, distribution(model).variational_mean)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert distribution(model).variational_mean.requires_grad


class Counting:
    """A batch that can be read several times, and how often it was."""

    def __init__(self, batch: Rows) -> None:
        self.batch, self.number = batch, 0

    def __iter__(self) -> Iterator[Rows]:
        self.number += 1
        return iter([self.batch])


@pytest.mark.parametrize(("kind", "most"), [("gaussian", 3), ("student", 6)])
def test_at_the_optimum_no_step_is_halved_down_to_rounding(kind: str, most: int) -> None:
    x, y = (part.float() for part in gaussian_problem())
    likelihood = GaussianLikelihood() if kind == "gaussian" else StudentTLikelihood()
    likelihood.noise = 0.01
    model = make_model("block_low_rank", 6, dtype=torch.float32)
    bound = polish(model, likelihood, [(x, y)])[-1]
    for _ in range(3):
        batches = Counting((x, y))
        history = polish(model, likelihood, batches)
        assert batches.number <= most  # one reading looks at the rows before
        assert history[-1] == pytest.approx(bound, abs=1e-3)


@pytest.mark.parametrize(
    ("error", "number"), [(KeyboardInterrupt, number) for number in (1, 2, 3, 5, 9)] + [(OSError, 4)]
)
@modes
def test_an_interruption_leaves_the_last_accepted_posterior(
    dense_limit: int, error: type[BaseException], number: int
) -> None:
    x, y, likelihood = hard_problem("log counts", torch.float64)
    model = make_model("block_low_rank", 6)
    model(x[:1])
    start = exact_elbo(model, likelihood, x, y)
    with pytest.raises(error, match="on purpose"):
        polish(model, likelihood, Failing((x, y), number, error), dense_limit=dense_limit)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    left = exact_elbo(model, likelihood, x, y)
    assert start - 1e-6 <= left < 0
    if dense_limit and number >= 5:  # two readings a pass, and the first step is halved
        assert left > start + 1000


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank"])
@modes
def test_an_attached_natural_gradient_goes_on_from_there(family: str, dense_limit: int) -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model(family, "auto"), gaussian_likelihood(1.0)
    natural = train(model, likelihood, x, y, steps=4, batch_size=100)
    likelihood.noise = 0.09  # data become more informative: polishing needs more columns
    polish(model, likelihood, [(x, y)], dense_limit=dense_limit)
    polished = exact_elbo(model, likelihood, x, y)
    natural.param_groups[0]["lr"] = 0.01
    backward(model, likelihood, x[:100], y[:100], len(y))
    natural.step()
    # A hundredth of a step by a quarter of the data costs little.
    assert polished - 0.1 < exact_elbo(model, likelihood, x, y) <= collapsed_bound(model, likelihood, x, y) + 1e-6


def test_two_models_share_a_predictor() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 20), gaussian_likelihood()
    other = AdditiveGP(model.predictor, "coupled").double()
    polish(model, likelihood, [(x, y)])
    before = exact_elbo(model, likelihood, x, y)
    history = polish(other, likelihood, [(x, -y)])
    assert exact_elbo(model, likelihood, x, y) == before
    assert history[-1] == pytest.approx(collapsed_bound(other, likelihood, x, -y), rel=1e-8)


def test_missing_responses_where_the_settings_allow_them() -> None:
    x, y = gaussian_problem()
    likelihood, missing = gaussian_likelihood(), torch.arange(len(y)) % 7 == 0
    model = make_model("coupled")
    y[missing] = float("nan")
    with gpytorch.settings.observation_nan_policy("fill"):
        history = polish(model, likelihood, [(x, y)])
    bound = collapsed_bound(model, likelihood, x[~missing], y[~missing])
    assert history[-1] == pytest.approx(bound, rel=1e-8)


# ----------------------------------------------------------------------------------------------------- degenerate data


def smooth(lengthscale: float = 0.3) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = lengthscale
    return kernel


PREDICTORS: dict[str, Callable[[], AdditivePredictor]] = {
    "constant only": lambda: AdditivePredictor(constant()),
    "one component": lambda: AdditivePredictor(ComponentGroup(smooth(), [[0]], regular_grid(0.0, 1.0, 6))),
    "one inducing point": lambda: AdditivePredictor(
        ComponentGroup(smooth(), [[0]], torch.tensor([[0.5]])), constant(variance=2.0)
    ),
    "duplicates": lambda: AdditivePredictor(
        ComponentGroup(smooth(), [[0], [0]], regular_grid(0.0, 1.0, 6), names=["a", "b"])
    ),
}


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize(
    ("family", "rank", "dense_limit"),
    [
        ("block_low_rank", "auto", 1024),
        ("block_low_rank", "auto", 0),
        ("low_rank", "auto", 1024),
        ("low_rank", "auto", 0),
        ("coupled", None, 1024),
    ],
)
def test_degenerate_models_and_data(family: str, rank: str | None, name: str, dense_limit: int) -> None:
    x, y = gaussian_problem(60)
    x[:3] = torch.tensor([-30.0, 20.0, 1e6]).to(x)[:, None]  # outside the grid: features are zero
    likelihood = gaussian_likelihood()
    for inputs, responses in ((x, y), (x[:1], y[:1]), (x[2:4], y[2:4]), (x, torch.full_like(y, 3.0)), (x, 0 * y)):
        model = AdditiveGP(PREDICTORS[name](), family, rank).double()
        history = polish(model, likelihood, [(inputs, responses)], dense_limit=dense_limit, max_passes=60)
        bound = collapsed_bound(model, likelihood, inputs, responses)
        assert exact_elbo(model, likelihood, inputs, responses) == pytest.approx(history[-1], rel=1e-8)
        assert bound - 1.0 < history[-1] <= bound + 1e-6  # an automatic rank loses a nat at most


# A predictor that is zero without doubt where by = 0 has no variance.
@pytest.mark.filterwarnings("ignore:Negative variance values:linear_operator.utils.warnings.NumericalWarning")
@pytest.mark.parametrize("by", [False, True], ids=["outside the grid", "by = 0"])
def test_rows_without_features_do_not_hold_the_mean(by: bool) -> None:
    x = torch.rand(200, 2).double()
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(200).double()
    if by:
        x[:, 1] = (x[:, 1] > 0.5).double()
        y = y * x[:, 1]
    else:
        x[7, 0] = 50.0
    predictor = AdditivePredictor(ComponentGroup(smooth(0.2), [[0]], regular_grid(0.0, 1.0, 8), by=1 if by else None))
    model, likelihood = AdditiveGP(predictor, "block_low_rank", 2).double().train(), gaussian_likelihood(0.01)
    other = copy.deepcopy(model)
    bound = collapsed_bound(model, likelihood, x, y)
    train(model, likelihood, x, y, steps=1, batch_size=200).remove()
    assert exact_elbo(model, likelihood, x, y) == pytest.approx(bound, abs=1e-6)
    assert polish(other, likelihood, [(x, y)], dense_limit=0)[-1] == pytest.approx(bound, abs=0.1)


# --------------------------------------------------------------------------------------------------------------- errors


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[3] = value
    return changed


@modes
def test_errors_of_the_data_are_clear_and_change_nothing(dense_limit: int) -> None:
    x, y = gaussian_problem(60)
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    model(x)
    before = copy.deepcopy(distribution(model).state_dict())
    nan, inf = float("nan"), float("inf")
    for batches, message in (
        ([(x, with_value(y, nan))], "NaN or infinit.* in 1 of 60"),
        ([(x, with_value(y, inf))], "NaN or infinit.* in 1 of 60"),
        ([(with_value(x, nan), y)], "x has NaN or infinity in 1 of 60 rows"),
        ([(x, y), (x, with_value(y, nan))], "NaN or infinit.* in 1 of 60"),
        ([], "batches is empty"),
        (((x, y) for _ in range(1)), "can be gone through only once"),
        ([(x, y[:, None])], r"responses of shape \(60,\) beside 60 rows of x, got \(60, 1\)"),
        ([(x, y[:5])], r"responses of shape \(60,\) beside 60 rows of x, got \(5,\)"),
        ([(x.expand(2, -1, -1), y.expand(2, -1))], r"inputs of shape \(b, D\), got \(2, 60, 3\)"),
        ([(x[:, :2], y)], "x has 2 columns"),
        ([(x.float(), y.float())], r"x has dtype torch\.float32"),
        ([(x[:0], y[:0])], "x is empty"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            polish(model, likelihood, batches, dense_limit=dense_limit)
        torch.testing.assert_close(dict(distribution(model).state_dict()), dict(before), rtol=0, atol=0)


class Steep(gpytorch.likelihoods._OneDimensionalLikelihood):
    """Of an infinite curvature."""

    def forward(self, function_samples: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(function_samples, 1.0)

    def expected_log_prob(self, observations: torch.Tensor, function_dist: object, **kwargs: object) -> torch.Tensor:
        return function_dist.mean - (function_dist.variance - function_dist.variance.detach()).sqrt()


def test_curvatures_that_are_not_finite_are_errors() -> None:
    x, y = gaussian_problem(60)
    with pytest.raises(RuntimeError, match="NaN or infinite in 60 of 60"):
        polish(make_model("block_low_rank", 4), Steep(), [(x, y)])


@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_nan_among_labels_and_counts(kind: str) -> None:
    x, y, likelihood = moderate_problem(kind, 60)
    with pytest.raises((ValueError, RuntimeError), match=r"NaN or infinit.* in 1 of 60"):
        polish(make_model("block_low_rank", 4), likelihood, [(x, with_value(y, float("nan")))])


def test_errors_of_arguments_and_models_name_what_is_wrong() -> None:
    x, y = gaussian_problem(60)
    model, likelihood, batches = make_model("block_low_rank", 4), gaussian_likelihood(), [(x, y)]
    for options, message in (
        ({"max_passes": 0}, "max_passes must be at least 1, got 0"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must not be negative, got -1.0"),
        ({"tolerance": float("nan")}, "tolerance must not be negative, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            polish(model, likelihood, batches, **options)
    with pytest.raises(TypeError, match="got DeltaVariationalDistribution"):
        polish(make_model("delta"), likelihood, batches)
    with pytest.raises(TypeError, match="raise dense_limit, or use BlockLowRank"):
        polish(make_model("coupled"), likelihood, batches, dense_limit=0)
    with pytest.raises(TypeError, match=r"model must be an ApproximateGP .* got Linear"):
        polish(torch.nn.Linear(1, 1), likelihood, batches)
    group = ComponentGroup(smooth(), [[0]], regular_grid(0.0, 1.0, 4))
    second = ComponentGroup(smooth(), [[1]], regular_grid(0.0, 1.0, 4), predictor=1)
    with pytest.raises(ValueError, match="GaussianLikelihood takes one predictor, but the model has 2"):
        polish(AdditiveGP(AdditivePredictor(group, second), rank=2).double(), likelihood, batches)
    with pytest.raises(NotImplementedError, match=r"batch shape \(2,\)"):
        polish(AdditiveGP(AdditivePredictor(group), rank=2, batch_shape=torch.Size([2])), likelihood, batches)
    natural = NaturalGradient(model, num_data=len(y))
    assert len(polish(model, likelihood, batches)) == 2  # attached optimisers are no obstacle
    natural.remove()


def test_rows_that_a_loader_drops_are_read() -> None:
    x, y = gaussian_problem(50)
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    loader = DataLoader(TensorDataset(x, y), batch_size=40, drop_last=True)
    assert polish(model, likelihood, loader)[-1] == pytest.approx(exact_elbo(model, likelihood, x, y))
