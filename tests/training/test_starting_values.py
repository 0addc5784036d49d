"""Where fits start: in the units of the responses, but for what somebody has chosen."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam import likelihoods as ours
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.likelihoods.null_model import Responses, null_model
from gpytorch_gam.terms import constant, factor, linear, smooth
from gpytorch_gam.training import fit, null_predictor, start_from_responses
from gpytorch_gam.warnings import TrainingLoopWarning
from tests.problems import fit_by_bins


def make_rows(num_rows: int = 300) -> tuple[Tensor, Tensor]:
    x = torch.rand(num_rows, 1).double()
    return x, torch.sin(6 * x[:, 0]) + 0.5 * torch.randn(num_rows).double()


def make_model(x: Tensor, *groups: ComponentGroup, **options: object) -> AdditiveGP:
    groups = groups or (smooth(0, x, num_inducing=6, kernel="rbf"), constant())
    return AdditiveGP(AdditivePredictor(*groups, **options), rank=4).double()


def fitted(x: Tensor, y: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of new responses."""
    torch.manual_seed(1)
    model, likelihood = make_model(x), GaussianLikelihood().double()
    if kind == "minibatches":
        fit(model, likelihood, [(x, y)], num_data=len(y), num_epochs=4)
    else:
        fit_by_bins(model, likelihood, [(x, y)], tolerance=0.001)
    with torch.no_grad():
        predicted = likelihood(model(x))
    return predicted.mean, predicted.variance.sqrt()


@functools.cache
def fitted_in_small_units(kind: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return fitted(*make_rows(120), kind)


@pytest.mark.parametrize(
    ("kind", "shift", "scale"),
    [
        ("minibatches", 0.0, 1e-3),
        ("minibatches", 1e5, 40.0),
        ("bins", 0.0, 1e4),
        ("bins", 1e5, 40.0),
    ],
)
def test_a_fit_is_that_of_the_responses_in_other_units(kind: str, shift: float, scale: float) -> None:
    mean, deviation = fitted_in_small_units(kind)
    torch.manual_seed(0)
    x, y = make_rows(120)
    shifted_mean, shifted_deviation = fitted(x, shift + scale * y, kind)
    # The constant's prior narrows where zero is near, by less than the standard error of the mean.
    tolerance = 1e-4 if shift == 0 else 0.05
    torch.testing.assert_close((shifted_mean - shift) / scale, mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(shifted_deviation / scale, deviation, rtol=tolerance, atol=0)


def test_starting_values_are_moments_of_the_responses() -> None:
    x, y = make_rows()
    y = 100 + 40 * y
    levels = torch.randint(3, (300, 1)).double()
    groups = smooth(0, x, num_inducing=8, kernel="rbf"), factor(1, 3), constant()
    model, likelihood = make_model(x, *groups), GaussianLikelihood().double()
    start_from_responses(model, likelihood, [(torch.cat([x, levels], -1), y)])
    variance = y.var(unbiased=False).item()
    found = [groups[0].kernel.outputscale.item(), groups[1].kernel.outputscale.item(), groups[2].kernel.constant.item()]
    assert found == pytest.approx([variance, 25 * variance, variance + y.mean().item() ** 2])
    assert 0.1 * variance < likelihood.noise.item() < variance
    with torch.no_grad():
        torch.testing.assert_close(model(torch.cat([x, levels], -1)).mean, y.mean().expand(300), rtol=1e-3, atol=0)


def test_what_was_chosen_stays() -> None:
    x, y = make_rows()
    x, y = torch.cat([x, torch.randint(3, (300, 1)).double()], -1), 1000 * y
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale = 2.0
    own = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 4).double(), names=["own"])
    groups = smooth(0, x, num_inducing=4, kernel="rbf", variance=1.0), factor(1, 3, variance=25.0), own, constant(1.0)
    model, likelihood = make_model(x, *groups, mean=ConstantMean()), GaussianLikelihood().double()
    likelihood.noise = 0.5
    model.predictor.means[0].constant = torch.tensor(3.0)
    before = copy.deepcopy({**model.state_dict(), **likelihood.state_dict()})
    start_from_responses(model, likelihood, [(x, y)])
    after = {**model.state_dict(), **likelihood.state_dict()}
    changed = [name for name in before if not torch.equal(before[name], after[name]) and "variational" not in name]
    assert not [name for name in changed if "whitening" not in name]


def test_fixed_loaded_and_trained_values_stay() -> None:
    x, y = make_rows()
    model, likelihood = make_model(x), GaussianLikelihood().double()
    model.predictor.groups[0].kernel.raw_outputscale.requires_grad_(False)
    start_from_responses(model, likelihood, [(x, 10 * y)])
    assert model.predictor.groups[0].kernel.outputscale.item() == 1.0
    other = make_model(x)
    other.load_state_dict(model.state_dict())
    start_from_responses(other, likelihood, [(x, 1000 * y)])
    assert other.predictor.groups[1].kernel.constant.item() == model.predictor.groups[1].kernel.constant.item()
    moved = copy.deepcopy(model)
    start_from_responses(moved, likelihood, [(x, 1000 * y)])
    assert moved.predictor.groups[1].kernel.constant.item() == model.predictor.groups[1].kernel.constant.item()


def test_a_copy_in_another_dtype_still_knows_what_nobody_has_chosen() -> None:
    x, y = make_rows()
    model = copy.deepcopy(make_model(x).float()).double()
    start_from_responses(model, GaussianLikelihood().double(), [(x, 10 * y)])
    assert model.predictor.groups[0].kernel.outputscale.item() == pytest.approx(100 * y.var(unbiased=False).item())


def test_a_constant_mean_starts_at_the_mean() -> None:
    x, y = make_rows()
    model = make_model(x, smooth(0, x, num_inducing=4, kernel="rbf"), mean=ConstantMean())
    start_from_responses(model, GaussianLikelihood().double(), [(x, y + 70)])
    assert model.predictor.means[0].constant.item() == pytest.approx(70 + y.mean().item())


@pytest.mark.parametrize("has_generator", [False, True])
def test_a_loader_gives_the_same_rows_afterwards(has_generator: bool) -> None:
    x, y = make_rows()
    orders = []
    for starts in (False, True):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0) if has_generator else None
        loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True, generator=generator)
        model = make_model(x)
        model(x[:1])
        if starts:
            start_from_responses(model, GaussianLikelihood().double(), loader)
        orders.append(torch.cat([rows for _, rows in loader]))
    torch.testing.assert_close(orders[0], orders[1])


def test_float32_says_that_zero_is_too_far_away() -> None:
    x, y = make_rows()
    with pytest.warns(TrainingLoopWarning, match="far from zero .* float32: subtract"):
        start_from_responses(make_model(x).float(), GaussianLikelihood(), [(x.float(), y.float() + 1e4)])


def test_units_in_which_variances_are_rounded_up_are_warned_of() -> None:
    x, y = make_rows()
    with pytest.warns(TrainingLoopWarning, match="responses vary by about 0.0009, and GPyTorch rounds variances"):
        start_from_responses(make_model(x).float(), GaussianLikelihood(), [(x.float(), 1e-3 * y.float())])
    start_from_responses(make_model(x), GaussianLikelihood().double(), [(x, 1e-3 * y)])


def test_a_generator_is_refused() -> None:
    x, y = make_rows()
    with pytest.raises(ValueError, match="not a generator"):
        start_from_responses(make_model(x), GaussianLikelihood().double(), iter([(x, y)]))


def draw(kind: str, predictor: Tensor) -> Tensor:
    torch.manual_seed(0)
    draws = {
        "counts": lambda: torch.poisson(predictor.exp()),
        "softplus": lambda: torch.poisson(torch.nn.functional.softplus(predictor)),
        "labels": lambda: torch.bernoulli(torch.special.ndtr(predictor)),
        "logit": lambda: torch.binomial(torch.full_like(predictor, 5.0), predictor.sigmoid()),
        "positive": lambda: torch.distributions.Gamma(4.0, 4.0 * (-predictor).exp()).sample(),
        "real": lambda: predictor + 0.3 * torch.randn_like(predictor),
    }
    return draws[kind]().double()


@pytest.mark.parametrize(
    ("likelihood", "kind", "level"),
    [
        (GaussianLikelihood(), "real", 30.0),
        (gpytorch.likelihoods.StudentTLikelihood(), "real", 30.0),
        (gpytorch.likelihoods.LaplaceLikelihood(), "real", -30.0),
        (gpytorch.likelihoods.BernoulliLikelihood(), "labels", -1.0),
        (gpytorch.likelihoods.PoissonLikelihood(), "softplus", 8.0),
        (gpytorch.likelihoods.PoissonLikelihood(), "softplus", -2.0),
        (ours.RowwiseLikelihood(GaussianLikelihood()), "real", 30.0),
        (ours.PoissonLikelihood(), "counts", 9.0),
        (ours.NegativeBinomialLikelihood(), "counts", 9.0),
        (ours.ZeroInflatedPoissonLikelihood(), "counts", 5.0),
        (ours.GammaLikelihood(), "positive", 9.0),
        (ours.StudentTLikelihood(), "real", 30.0),
        (ours.QuantileLikelihood(), "real", 30.0),
    ],
)
def test_null_predictors_go_through_the_link(likelihood: object, kind: str, level: float) -> None:
    y = draw(kind, torch.full((4000,), level).double())
    (found,) = null_predictor(likelihood, y)
    assert found.item() == pytest.approx(level, abs=0.1)


def test_null_predictors_read_offsets_exposures_trials_and_weights() -> None:
    truth = torch.full((4000,), 2.0).double()
    offset, exposure = torch.randn(4000).double(), 1 + torch.rand(4000).double()
    y = torch.poisson(exposure * (truth + offset).exp())
    assert null_predictor(
        ours.PoissonLikelihood(), y, {"offset": offset, "exposure": exposure}
    ).item() == pytest.approx(2.0, abs=0.02)
    y = draw("logit", torch.full((4000,), 1.0).double())
    trials = torch.full_like(y, 5.0)
    assert null_predictor(ours.BinomialLikelihood(), y, {"trials": trials}).item() == pytest.approx(1.0, abs=0.05)
    weights = torch.tensor([1.0, 0.0, 3.0]).double()
    y = torch.tensor([1.0, 50.0, 5.0]).double()
    found = null_predictor(ours.RowwiseLikelihood(GaussianLikelihood()), y, {"weights": weights})
    assert found.item() == pytest.approx(4.0)


@pytest.mark.parametrize(("level", "expected"), [(0.5, 3.0), (0.95, 9.0)])
def test_the_null_model_of_a_quantile_is_that_of_the_weighted_responses(level: float, expected: float) -> None:
    y, weights = torch.tensor([9.0, 1.0, 5.0, 3.0]).double(), torch.tensor([1.0, 1.0, 1.0, 7.0]).double()
    assert null_predictor(ours.QuantileLikelihood(level), y, {"weights": weights}).item() == expected


def test_several_predictors_have_a_null_model_each() -> None:
    y = 50 + 3 * torch.randn(2000).double()
    location, log_scale = null_predictor(ours.GaussianLocationScaleLikelihood(), y).tolist()
    assert location == pytest.approx(50, abs=0.3)
    assert log_scale == pytest.approx(math.log(3), abs=0.5)
    labels = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(100).double()
    logits = null_predictor(ours.SoftmaxLikelihood(3), labels)
    torch.testing.assert_close(logits.softmax(-1), torch.tensor([3, 2, 1]).double() / 6, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "kind", [ours.GaussianLocationScaleLikelihood, ours.StudentTLocationScaleLikelihood, ours.GammaLikelihood]
)
def test_a_scale_or_shape_of_responses_that_are_all_the_same_is_refused(kind: type) -> None:
    y = torch.full((30,), 2.5).double()
    with pytest.raises(ValueError, match=r"all 30 responses are 2\.5, so that the s.* has no best value"):
        null_model(kind(), Responses(y, {}))
    null_model(kind(), Responses(y, {"offset": torch.arange(30).double()}))


def test_likelihoods_that_are_not_known_have_none() -> None:
    class Own(gpytorch.likelihoods.PoissonLikelihood):
        """With another link, perhaps."""

    assert null_predictor(Own(), torch.ones(5)) is None


def test_counts_of_thousands_are_fitted_from_the_null_model() -> None:
    x = torch.rand(400, 1).double()
    y = torch.poisson((9 + torch.sin(6 * x[:, 0])).exp())
    model = make_model(x)
    fit_by_bins(model, ours.PoissonLikelihood(), [(x, y)])
    with torch.no_grad():
        torch.testing.assert_close(model(x).mean, 9 + torch.sin(6 * x[:, 0]), rtol=0, atol=0.02)


def test_each_task_starts_in_its_own_units() -> None:
    x = torch.rand(300, 1).double()
    y = torch.stack([torch.sin(6 * x[:, 0]), 50 + 1e3 * torch.cos(6 * x[:, 0])], -1) + torch.randn(300, 2).double()
    groups = [
        part
        for p in (0, 1)
        for part in (smooth(0, x, num_inducing=4, kernel="rbf", predictor=p), constant(predictor=p))
    ]
    model, likelihood = make_model(x, *groups), gpytorch.likelihoods.MultitaskGaussianLikelihood(2).double()
    start_from_responses(model, likelihood, [(x, y)])
    variances = y.var(0, unbiased=False).tolist()
    assert [groups[0].kernel.outputscale.item(), groups[2].kernel.outputscale.item()] == pytest.approx(variances)
    noises = (likelihood.noise + likelihood.task_noises).tolist()
    assert all(0.1 * variance < noise < variance for noise, variance in zip(noises, variances, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(model(x).mean[0], y.mean(0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("family", "rank"), [("block_low_rank", 3), ("mean_field", None), ("coupled", None), ("low_rank", 14)]
)
def test_under_wide_priors_the_predictor_starts_as_narrow_as_that_of_the_null_model(
    family: str, rank: int | None
) -> None:
    x = torch.rand(200, 2).double()
    y = torch.poisson(torch.full((200,), 100.0).double())
    groups = smooth([0, 1], x, num_inducing=7, kernel="rbf", variance=50.0), constant()
    model = AdditiveGP(AdditivePredictor(*groups), family, **({} if rank is None else {"rank": rank})).double()
    start_from_responses(model, ours.PoissonLikelihood(), [(x, y)])
    inside = x[(x > 0.1).all(-1) & (x < 0.9).all(-1)]
    with torch.no_grad():
        found = model(inside)
    torch.testing.assert_close(found.mean, torch.full_like(found.mean, math.log(100)), rtol=0.01, atol=0)
    assert found.variance.max() <= 0.1 < 50.0  # the null model's is at its lower limit, 0.05


@pytest.mark.parametrize(
    ("family", "rank", "likelihood"),
    [("block_low_rank", 8, ours.PoissonLikelihood), ("low_rank", 21, ours.NegativeBinomialLikelihood)],
)
def test_minibatches_under_a_log_link_and_wide_priors_stay_near_the_data(
    family: str, rank: int, likelihood: Callable[[], gpytorch.likelihoods.Likelihood]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 2).double()
    x[:, 1] = (
        30 * (0.5 * torch.randn(600).double()).exp()
    )  # a tail, where the prior is wide under a measure of the bulk
    y = torch.poisson((8 + 1.5 * torch.sin(3 * x[:, 0])).exp())
    options = {"num_inducing": 12, "variance": 10.0, "measure": Empirical.from_data(x[:, 1])}
    groups = (
        smooth(0, x, num_inducing=8, kernel="rbf", variance=10.0),
        smooth(1, x, kernel="rbf", **options),
        constant(),
    )
    model = AdditiveGP(AdditivePredictor(*groups), family, rank=rank).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    history = fit(model, likelihood(), loader, num_epochs=3, num_held_back=18).history
    # A block + low-rank posterior of Poisson counts came to -1e15 nats from the prior with steps that know no link.
    assert history[-1].elbo > -1e6
    assert history[-1].elbo > history[0].elbo


@pytest.mark.parametrize("start", [start_from_responses, fit_by_bins])
def test_a_level_that_no_term_holds_is_warned_of(start: Callable[..., object]) -> None:
    x, y = make_rows(60)
    model, likelihood = (
        make_model(x, smooth(0, x, num_inducing=6, kernel="rbf"), linear(0, x)),
        GaussianLikelihood().double(),
    )
    with pytest.warns(TrainingLoopWarning, match=r"can hold the mean of the responses, 1\d\d .* add constant\(\)"):
        start(model, likelihood, [(x, 100 + y)])


def test_the_predictor_that_misses_its_constant_is_named() -> None:
    x, y = make_rows(60)
    location = smooth(0, x, num_inducing=6, kernel="rbf", names="location"), constant()
    model = make_model(x, *location, smooth(0, x, num_inducing=6, kernel="rbf", names="scale", predictor=1))
    with pytest.warns(TrainingLoopWarning, match=r"add constant\(predictor=1\)"):
        start_from_responses(model, ours.GaussianLocationScaleLikelihood().double(), [(x, 100 + 40 * y)])


@pytest.mark.parametrize("case", ["plain kernel", "line through the origin", "mean", "offset", "level of zero"])
def test_a_level_that_something_holds_is_not_warned_of(case: str) -> None:
    x, y = make_rows(60)
    y = 3 + y - y.mean()
    groups, options = [smooth(0, x, num_inducing=6, kernel="rbf")], {}
    likelihood, row_arguments = GaussianLikelihood().double(), {}
    if case == "plain kernel":
        groups = [smooth(0, x, num_inducing=6, kernel="rbf", centred=False)]
    elif case == "line through the origin":
        groups.append(linear(0))
    elif case == "mean":
        options = {"mean": ConstantMean()}
    elif case == "offset":
        likelihood = ours.RowwiseLikelihood(likelihood)
        row_arguments = {"offset": torch.full_like(y, 3.0)}
    else:
        y = y - 3
    start_from_responses(make_model(x, *groups, **options), likelihood, [(x, y, row_arguments)])
