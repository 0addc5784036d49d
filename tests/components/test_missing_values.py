"""Components in rows that miss their columns, against dense computations."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel, Uniform
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.settings import fused_projection
from gpytorch_gam.terms import constant
from gpytorch_gam.training import polish
from tests.problems import unknown_factors

pytestmark = pytest.mark.projection

NAN = float("nan")
FAMILIES = ("block_low_rank", "low_rank", "mean_field", "coupled")
NUM_ROWS = 9


def scaled(kernel: Callable[[torch.Size], Kernel], size: int) -> ScaleKernel:
    shape = torch.Size([size])
    made = ScaleKernel(kernel(shape), batch_shape=shape)
    made.outputscale = torch.linspace(0.6, 1.7, size)
    return made


def rbf(shape: torch.Size) -> RBFKernel:
    kernel = RBFKernel(batch_shape=shape)
    kernel.lengthscale = torch.linspace(0.3, 0.6, shape.numel()).reshape(*shape, 1, 1)
    return kernel


def make_predictor(missing: str, **kwargs: object) -> AdditivePredictor:
    """Two components that may miss columns (one with a multiplier), one that must not, a constant."""
    points = regular_grid(0.0, 1.0, 5)
    return AdditivePredictor(
        ComponentGroup(scaled(rbf, 2), [[0], [1]], points, by=[None, 3], missing=missing, **kwargs),
        ComponentGroup(scaled(rbf, 1), [[2]], points),
        constant(0.7),
    )


def make_inputs() -> tuple[Tensor, Tensor]:
    """Complete inputs, and the same with holes: both columns in one row, one of them in others."""
    x = torch.rand(NUM_ROWS, 4, dtype=torch.float64)
    holes = x.clone()
    holes[[1, 4], 0] = NAN
    holes[[4, 6, 7], 1] = NAN
    return x, holes


def make_model(family: str = "block_low_rank", missing: str = "marginal", **kwargs: object) -> AdditiveGP:
    torch.manual_seed(3)
    model = AdditiveGP(make_predictor(missing, **kwargs), family, 4 if "low_rank" in family else None).double()
    model.variational_strategy._initialize_once()
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def rbf_covariance(group: ComponentGroup, index: int, left: Tensor, right: Tensor) -> Tensor:
    squared = (left[:, None] - right[None, :]).square()
    lengthscale = group.kernel.base_kernel.lengthscale[index, 0, 0]
    return group.kernel.outputscale[index] * torch.exp(-0.5 * squared / lengthscale.square())


def dense_components(model: AdditiveGP, x: Tensor, holes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(C, n)`` and covariance ``(C, n, C, n)`` of the components, from kernels written out."""
    n, features, prior, factor = len(x), [], [], unknown_factors(model)
    for group, choleskys in zip(model.predictor.groups, model.variational_strategy.inducing_choleskys(), strict=True):
        for index in range(group.num_components):
            if group.input_dim == 0:
                cross, covariance = torch.full((1, n), 0.7).to(x), torch.full((n, n), 0.7).to(x)
            else:
                column = int(group.columns[index, 0])
                points, scale = group.inducing_points[index, :, 0], torch.ones(n).to(x)
                if group.multiplier_columns[index] is not None:
                    scale = x[:, 3]
                observed = (~holes[:, column].isnan()).to(x) * scale
                cross = rbf_covariance(group, index, points, x[:, column]) * observed
                covariance = rbf_covariance(group, index, x[:, column], x[:, column]) * torch.outer(observed, observed)
                missing = group.kernel.outputscale[index] * scale.square() * holes[:, column].isnan()
                missing = missing * factor[len(features)]
                covariance = covariance + torch.diag(missing)
            features.append(torch.linalg.solve_triangular(choleskys[index], cross, upper=False))
            prior.append(covariance)
    posterior = model.variational_strategy.variational_distribution
    sizes = [len(part) for part in features]
    means = posterior.mean.split(sizes)
    blocks = [rows.split(sizes, dim=-1) for rows in posterior.covariance_matrix.split(sizes)]
    mean = torch.stack([part.mT @ m for part, m in zip(features, means, strict=True)])
    covariance = x.new_zeros(len(features), n, len(features), n)
    for i, left in enumerate(features):
        for j, right in enumerate(features):
            covariance[i, :, j] = left.mT @ blocks[i][j] @ right
        covariance[i, :, i] += prior[i] - left.mT @ left
    return mean.detach(), covariance.detach()


@pytest.mark.parametrize("fused", ["blockwise", "off"])
@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_a_dense_computation(family: str, fused: str) -> None:
    model = make_model(family)
    x, holes = make_inputs()
    component_mean, component_covariance = dense_components(model, x, holes)
    mean, covariance = component_mean.sum(0), component_covariance.sum((0, 2))
    own = torch.einsum("iaia->ia", component_covariance)
    with fused_projection(fused), torch.no_grad():
        joint, marginal = model(holes), model.train()(holes)
        model.eval()
        parts, prediction = model.components(holes), model.predict(holes)
    # Solves with condition numbers of up to 1e6; the root of a full covariance takes a jitter of 1e-8.
    tolerance = 1e-7 if family == "coupled" else 1e-8
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(joint.mean, mean, **close)
    torch.testing.assert_close(joint.covariance_matrix, covariance, **close)
    torch.testing.assert_close(joint.variance, covariance.diagonal(), **close)
    torch.testing.assert_close(marginal.mean, mean, **close)
    unknown = model.predictor.groups[0].missing_variance(holes, torch.stack(unknown_factors(model)[:2])).sum(-2)
    assert (unknown > 0).nonzero().flatten().tolist() == [1, 4, 6, 7]
    # In training, an unknown effect is at its mean.
    torch.testing.assert_close(marginal.variance, covariance.diagonal() - unknown, **close)
    torch.testing.assert_close(parts.mean, component_mean, **close)
    torch.testing.assert_close(parts.variance, own, **close)
    torch.testing.assert_close(parts.full_cross_covariance(), component_covariance, **close)
    torch.testing.assert_close(parts.covariance(), torch.einsum("iaib->iab", component_covariance), **close)
    torch.testing.assert_close(parts.total()[1], covariance.diagonal(), **close)
    torch.testing.assert_close(prediction.mean, mean, **close)
    torch.testing.assert_close(prediction.variance, covariance.diagonal(), **close)


def test_a_row_without_a_column_has_the_other_components_and_their_variance() -> None:
    model = make_model()
    expected = model.predictor.groups[0].kernel.outputscale[0] * unknown_factors(model)[0]
    x, holes = make_inputs()
    parts = model.components(holes)
    others = parts[["x1*x3", "x2", "constant"]].total()
    assert torch.equal(parts["x0"].mean[[1, 4]], torch.zeros(2).double())
    torch.testing.assert_close(parts["x0"].variance[[1, 4]], expected.expand(2))
    distribution = model(holes)
    torch.testing.assert_close(distribution.mean[1], others[0][1])
    torch.testing.assert_close(distribution.variance[1], others[1][1] + expected)
    complete = [0, 2, 3, 5, 8]
    torch.testing.assert_close(distribution.mean[complete], model(x).mean[complete], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_missing_values_nothing_changes(family: str) -> None:
    allowed, refused = make_model(family), make_model(family, "error")
    x, _ = make_inputs()
    with torch.no_grad():
        for first, second in ((allowed, refused), (allowed.train(), refused.train())):
            torch.testing.assert_close(first(x).mean, second(x).mean, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(first(x).variance, second(x).variance, rtol=1e-12, atol=1e-14)


def test_samples_have_the_posterior_moments() -> None:
    model = make_model()
    x, holes = make_inputs()
    mean, covariance = dense_components(model, x, holes)
    draws = model.components(holes).sample(torch.Size([20000])).components
    flat = draws.flatten(1)
    # Of 20000 draws with variances up to 2: standard errors of .01 for means and .02 for covariances; five of them.
    torch.testing.assert_close(flat.mean(0), mean.flatten(), rtol=0, atol=0.05)
    torch.testing.assert_close(torch.cov(flat.mT), covariance.flatten(0, 1).flatten(1, 2), rtol=0, atol=0.1)
    scale = model.predictor.groups[0].kernel.outputscale[0] * unknown_factors(model)[0]
    assert abs(draws[:, 0, 1].var() / scale - 1) < 0.06  # standard error .01
    assert abs(torch.corrcoef(draws[:, 0, [1, 4]].mT)[0, 1]) < 0.04  # independent of each other
    joint = model(holes).rsample(torch.Size([20000]))
    torch.testing.assert_close(torch.cov(joint.mT), covariance.sum((0, 2)), rtol=0, atol=0.12)


def test_draws_have_finite_gradients() -> None:
    model = make_model()
    model.components(make_inputs()[1]).rsample(torch.Size([3])).total.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 4
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_the_bound_are_finite_and_those_of_the_dense_bound(dtype: torch.dtype) -> None:
    gradients = {}
    for fused in ("blockwise", "off"):
        model = make_model(learn_inducing_locations=True).to(dtype).train()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
        holes = make_inputs()[1].to(dtype)
        y = torch.linspace(-1.0, 1.0, NUM_ROWS, dtype=dtype)
        with fused_projection(fused):
            loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS)(model(holes), y)
            loss.backward()
        gradients[fused] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
        assert all(torch.isfinite(gradient).all() for gradient in gradients[fused])
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9  # float32: of solves with a jitter of 1e-4
    torch.testing.assert_close(gradients["blockwise"], gradients["off"], rtol=tolerance, atol=tolerance)


def test_rows_that_miss_a_column_say_nothing_of_its_effect_in_training() -> None:
    model, only = make_model(), make_inputs()[1][[4]]
    scale = model.predictor.groups[0].kernel.raw_outputscale
    training, prediction = model.train()(only).variance.sum(), model.eval()(only).variance.sum()
    (gradient,) = torch.autograd.grad(training, scale, materialize_grads=True)
    torch.testing.assert_close(gradient, torch.zeros(2).double(), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(prediction, scale)  # v = s b^2, times a factor without s
    by_scale = torch.stack([torch.ones(()).double(), only[0, 3].square()]) * torch.stack(unknown_factors(model)[:2])
    torch.testing.assert_close(gradient, by_scale * torch.sigmoid(scale))  # of the softplus


def test_natural_gradients_and_polish_reach_the_closed_form() -> None:
    model, likelihood = make_model("coupled"), gpytorch.likelihoods.GaussianLikelihood().double()
    x, holes = make_inputs()
    y = torch.sin(6 * x[:, 0]) + x[:, 1]
    optimum = CollapsedELBO(likelihood, model).optimum(holes, y)
    polish(model, likelihood, [(holes, y)])
    objective = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=NUM_ROWS)
    with torch.no_grad():
        torch.testing.assert_close(NUM_ROWS * objective(model(holes), y), optimum.bound, rtol=1e-7, atol=1e-7)
    natural = make_model()
    step = NaturalGradient(natural.train(), num_data=NUM_ROWS)
    objective = gpytorch.mlls.VariationalELBO(likelihood, natural, num_data=NUM_ROWS)
    for _ in range(30):
        loss = -objective(natural(holes), y)
        loss.backward()
        step.step()
    with torch.no_grad():
        assert abs(NUM_ROWS * objective(natural(holes), y) - optimum.bound) < 0.1  # of rank 4


def test_several_predictors_and_batches_of_models() -> None:
    size = torch.Size([2, 1])  # two models of one component
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.outputscale = torch.tensor([[0.5], [2.0]])
    group = ComponentGroup(kernel, [[0]], torch.rand(2, 1, 4, 1), missing="marginal")
    second = ComponentGroup(scaled(rbf, 1), [[0]], regular_grid(0.0, 1.0, 4), missing="marginal", predictor=1)
    batched = AdditiveGP(AdditivePredictor(group)).double().eval()
    x = torch.tensor([[0.2], [NAN], [0.7], [NAN]], dtype=torch.float64)
    initial = {"rtol": 1e-2, "atol": 1e-6}  # means of whitened variables start with a standard deviation of 1e-3
    torch.testing.assert_close(batched(x).variance[:, 1], torch.tensor([0.5, 2.0]).double(), **initial)
    torch.testing.assert_close(batched(x).covariance_matrix[:, 1, 3], torch.zeros(2).double())
    torch.testing.assert_close(batched(x.expand(3, 1, 4, 1)).mean[..., 1], torch.zeros(3, 2).double())
    first = ComponentGroup(scaled(rbf, 1), [[0]], regular_grid(0.0, 1.0, 4))
    model = AdditiveGP(
        AdditivePredictor(ComponentGroup(scaled(rbf, 1), [[0]], first.inducing_points, missing="marginal"), second)
    )
    model = model.double()
    for mode in (model.train(), model.eval()):
        covariance = mode(x).covariance_matrix
        dense = covariance if mode(x)._interleaved else covariance.reshape(2, 4, 2, 4).permute(1, 0, 3, 2).reshape(8, 8)
        torch.testing.assert_close(dense[2:4, 2:4], torch.diag(torch.tensor([0.6, 0.6]).double()), **initial)
        torch.testing.assert_close(mode(x).mean[1], torch.zeros(2).double())


MEAN_VARIANCES: dict[str, tuple[Callable[[], Kernel], int]] = {
    "scale of a normalised ANOVA kernel": (lambda: ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0))), 1),
    "product of them": (
        lambda: ScaleKernel(
            ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), active_dims=[0])
            * ANOVAKernel(MaternKernel(1.5), Uniform(0.0, 1.0), active_dims=[1])
        ),
        2,
    ),
    "centred levels": (lambda: ScaleKernel(CentredKernel(LevelKernel(), torch.arange(3.0))), 1),
    "ANOVA times levels": (
        lambda: ScaleKernel(
            ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), active_dims=[0]) * LevelKernel(active_dims=(1,))
        ),
        2,
    ),
    "stationary": (lambda: ScaleKernel(RBFKernel() * MaternKernel(2.5)), 1),
}


@pytest.mark.parametrize("name", MEAN_VARIANCES)
def test_the_prior_variance_of_a_missing_row_is_the_output_scale(name: str) -> None:
    make, num_columns = MEAN_VARIANCES[name]
    kernel = make()
    kernel.outputscale = 1.3
    group = ComponentGroup(kernel, [list(range(num_columns))], torch.rand(4, num_columns), missing="marginal")
    row = torch.full((1, num_columns), 0.5)
    row[0, -1] = NAN
    torch.testing.assert_close(group.prior_variance(row), torch.tensor([[1.3]]))
    torch.testing.assert_close(group.prior_covariance(row).to_dense(), torch.tensor([[[1.3]]]))


def test_the_prior_variance_of_other_kernels_is_the_mean_over_the_inducing_points() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0]])
    linear = LinearKernel()
    linear.variance = 2.0
    group = ComponentGroup(linear, [[0]], points[1:], missing="marginal", exact=False)
    torch.testing.assert_close(group.prior_variance(torch.tensor([[NAN]])), torch.tensor([[5.0]]))  # 2 (1 + 4) / 2
    unnormalised = ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), normalize=False))
    group = ComponentGroup(unnormalised, [[0]], points, missing="marginal")
    expected = unnormalised(points, diag=True).mean().reshape(1, 1)
    torch.testing.assert_close(group.prior_variance(torch.tensor([[NAN]])), expected)
    same_column = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0)) * ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0))
    group = ComponentGroup(same_column, [[0]], points, missing="marginal")
    torch.testing.assert_close(
        group.prior_variance(torch.tensor([[NAN]])), same_column(points, diag=True).mean().reshape(1, 1)
    )


def test_exact_groups_may_miss_their_column() -> None:
    group = ComponentGroup(
        ScaleKernel(LevelKernel()), [[0]], torch.arange(3.0)[:, None], exact=True, missing="marginal"
    )
    group.kernel.outputscale = 1.5
    x = torch.tensor([[0.0], [NAN], [1.0], [NAN], [0.0]])
    expected = 1.5 * torch.eye(5)
    expected[0, 4] = expected[4, 0] = 1.5
    torch.testing.assert_close(group.prior_covariance(x).to_dense()[0], expected)
    model = AdditiveGP(AdditivePredictor(group)).eval()
    draws = model.components(x).sample(torch.Size([4000])).components[:, 0]
    assert torch.isfinite(draws).all()
    assert abs(draws[:, 1].var() / 1.5 - 1) < 0.12  # standard error .022
    assert torch.equal(draws[:, 0], draws[:, 4])


def test_all_rows_and_single_rows_may_be_missing() -> None:
    model = make_model()
    row = torch.full((1, 4), 0.5, dtype=torch.float64)
    row[0, :2] = NAN
    for mode in (model.train(), model.eval()):
        assert torch.isfinite(mode(row).variance).all()
        assert torch.isfinite(mode(row.expand(3, 4)).covariance_matrix).all()


MISSING_ERRORS = {
    r"x has NaN or infinity in 7 of 100 rows: column 0 \(5 rows\), column 3 \(2 rows\); drop or impute them, or "
    r"declare the components missing=\"marginal\"$": ("error", {0: range(5), 3: range(5, 7)}, NAN),
    r"x has NaN or infinity in 2 of 100 rows: column 3 \(2 rows\); drop or impute them$": (
        "marginal",
        {3: (8, 9)},
        NAN,
    ),
    r"x has NaN or infinity in 1 of 100 rows: column 0 \(1 row\); drop or impute them$": (
        "marginal",
        {0: (8,)},
        math.inf,
    ),
    r"x has NaN or infinity in 1 of 100 rows: column 2 \(1 row\).*missing=\"marginal\"": ("marginal", {2: (8,)}, NAN),
}


@pytest.mark.parametrize("message", MISSING_ERRORS)
def test_errors_name_columns_and_counts(message: str) -> None:
    missing, holes, value = MISSING_ERRORS[message]
    x = torch.rand(100, 4)
    for column, rows in holes.items():
        x[list(rows), column] = value
    with pytest.raises(ValueError, match=message):
        make_predictor(missing).check_inputs(x)


def test_a_column_may_be_missing_only_if_all_of_its_components_allow_it() -> None:
    points = regular_grid(0.0, 1.0, 4)
    allowed = ComponentGroup(scaled(rbf, 1), [[0]], points, missing="marginal", names=["a"])
    refused = ComponentGroup(scaled(rbf, 1), [[0]], points, names=["b"])
    x = torch.tensor([[NAN], [0.5]])
    AdditivePredictor(allowed).check_inputs(x)
    with pytest.raises(ValueError, match=r"in 1 of 2 rows: column 0 \(1 row\)"):
        AdditivePredictor(allowed, refused).check_inputs(x)


def test_a_mean_module_does_not_read_missing_values() -> None:
    group = ComponentGroup(scaled(rbf, 1), [[0]], regular_grid(0.0, 1.0, 4), missing="marginal")
    x = torch.tensor([[NAN, 1.0], [0.5, 1.0], [NAN, 2.0]])
    AdditivePredictor(group, mean=gpytorch.means.ConstantMean()).check_inputs(x)
    predictor = AdditivePredictor(group, mean=gpytorch.means.LinearMean(2))
    with pytest.raises(ValueError, match=r"the mean module is NaN or infinite in 2 of 3 rows, where it reads missing"):
        predictor(x)


def test_a_training_step_on_a_device_reads_nothing_back() -> None:
    points = regular_grid(0.0, 1.0, 5)
    predictor = AdditivePredictor(
        ComponentGroup(scaled(rbf, 2), [[0], [1]], points, by=[None, 2], by_levels=[None, 1.0], missing="marginal"),
        ComponentGroup(ScaleKernel(RBFKernel()), [[0, 1]], torch.rand(6, 2), missing="marginal"),
        ComponentGroup(
            ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), normalize=False)), [[2]], points, missing="marginal"
        ),
    )
    model = AdditiveGP(predictor)
    model.variational_strategy._initialize_once()
    objective = gpytorch.mlls.VariationalELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=10)
    objective.train().to("meta")
    with gpytorch.settings.debug(False), fused_projection("auto"):
        loss = -objective(model(torch.empty(20, 3, device="meta")), torch.empty(20, device="meta"))
        loss.backward()
    assert loss.device.type == "meta"
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_copies_and_conversions_keep_the_declaration() -> None:
    model = make_model()
    holes = make_inputs()[1]
    expected = model(holes).variance
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(holes).variance, expected)
    loaded = make_model().eval()
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(holes).variance, expected)
    single = copy.deepcopy(model).float()
    # float32: the jitter of 1e-4 that its covariances take
    torch.testing.assert_close(single(holes.float()).variance.double(), expected, rtol=1e-2, atol=1e-3)
