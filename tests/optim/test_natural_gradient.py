"""Natural-gradient steps against dense float64 optima; robustness; the optimiser's contract."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, StudentTLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.numerics.blocks import diagonal_blocks
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.posterior.posterior import Posterior, transported
from gpytorch_gam.variational import BlockLowRankPrecisionVariationalDistribution
from gpytorch_gam.warnings import TrainingLoopWarning
from tests.problems import (
    backward,
    dense_optimum,
    effect,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_inputs,
    make_model,
    precision_and_mean,
    set_to_optimum,
    train,
)

# ------------------------------------------------------------------------------------- one step, Gaussian, all rows


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("family", ["block_low_rank", "low_rank"])
def test_one_step_on_all_rows_is_the_optimum_at_full_rank(family: str, correlation: float) -> None:
    x, y = gaussian_problem(correlation=correlation)
    model, likelihood = make_model(family, rank=20), gaussian_likelihood()
    train(model, likelihood, x, y, steps=1, batch_size=len(x))
    bound = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
    assert bound - elbo(model, likelihood, x, y) == pytest.approx(0.0, abs=1e-6)


def test_one_step_of_mean_field_has_the_blocks_of_the_optimum() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("mean_field"), gaussian_likelihood()
    train(model, likelihood, x, y, steps=1, batch_size=len(x))
    precision = CollapsedELBO(likelihood, model).optimum(x, y).precision
    expected = diagonal_blocks(precision, model.predictor.group_shapes)
    for factor, block in zip(model.variational_strategy._variational_distribution.block_factors, expected, strict=True):
        torch.testing.assert_close(add_identity(factor @ factor.mT), block, rtol=1e-9, atol=1e-9)


def test_large_batches_in_chunks_equal_whole_ones() -> None:
    x, y = gaussian_problem()
    parameters = []
    for chunk_size in (7, 8192):
        model = make_model("block_low_rank", rank=4)
        train(model, gaussian_likelihood(), x, y, steps=4, batch_size=200, chunk_size=chunk_size)
        parameters.append(precision_and_mean(model))
    for chunked, whole in zip(*parameters, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field"])
def test_a_step_moves_the_mean_and_the_blocks_by_the_formula(family: str) -> None:
    x, y = gaussian_problem()
    rank = {"block_low_rank": 20, "low_rank": 20}.get(family)
    model, likelihood = make_model(family, rank), gaussian_likelihood()
    natural = train(model, likelihood, x, y, steps=1, batch_size=len(x), lr=0.25)
    backward(model, likelihood, x[:100], y[:100], len(x))
    precision, mean = precision_and_mean(model)
    natural.step()
    with torch.no_grad():
        features = model.variational_strategy.features(x[:100])
    curvature = len(x) / 100 / likelihood.noise.item()
    expected = 0.75 * precision + 0.25 * add_identity(curvature * features @ features.mT)
    new_precision, new_mean = precision_and_mean(model)
    if family == "mean_field":
        blocks = torch.block_diag(*(torch.ones(size, size) for size in model.predictor.num_inducing_per_component)).to(
            x
        )
        expected = expected * blocks
    torch.testing.assert_close(new_precision, expected, rtol=1e-6, atol=1e-6)
    gradient = curvature * features @ (y[:100] - features.mT @ mean) - mean
    direction = torch.linalg.solve(expected, gradient)
    scale = (gradient @ direction) / (direction @ direction + curvature * (features.mT @ direction).square().sum())
    torch.testing.assert_close(new_mean, mean + 0.25 * scale.clamp_max(1) * direction, rtol=1e-6, atol=1e-6)


def test_transport_keeps_what_the_data_say_of_the_inducing_variables() -> None:
    def cholesky() -> torch.Tensor:
        root = torch.randn(2, 4, 4, dtype=torch.float64)
        return torch.linalg.cholesky(add_identity(root @ root.mT))

    old, new = cholesky(), cholesky()
    mean, factor = torch.randn(8, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    roots = torch.randn(2, 4, 4, dtype=torch.float64)
    moved = transported(Posterior(mean, factor, [roots], factor), [old], [new])

    def site(
        m: torch.Tensor, b: torch.Tensor, e: torch.Tensor, chol: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Precision and linear term in u = L v of the posterior divided by the prior."""
        inverse = torch.linalg.inv(torch.block_diag(*chol))
        data = torch.block_diag(*(e @ e.mT)) + b @ b.mT
        return inverse.mT @ data @ inverse, inverse.mT @ (m + data @ m)

    expected = site(mean, factor, roots, old)
    actual = site(moved.mean, moved.shared_factor, moved.block_factors[0], new)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


def test_transport_is_exact_where_the_data_say_far_more_than_the_prior() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def data(posterior: Posterior) -> torch.Tensor:
        (blocks,), shared = posterior.block_factors, posterior.shared_factor
        return torch.block_diag(*(blocks @ blocks.mT)) + shared @ shared.mT

    old, new = (torch.linalg.cholesky(add_identity(root @ root.mT)) for root in normal(2, 2, 4, 4))
    mean, factor = normal(8), 1e3 * normal(8, 2)
    before = Posterior(mean, factor, [1e3 * normal(2, 4, 4)], factor)
    after = transported(before, [old], [new])
    maps = torch.block_diag(*torch.linalg.solve_triangular(old, new, upper=False).mT)
    linear = maps @ (mean + data(before) @ mean)
    assert (after.mean + data(after) @ after.mean - linear).norm() < 1e-12 * linear.norm()


# --------------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize(
    ("family", "rank", "correlation"),
    [("block_low_rank", 6, 0.9), ("low_rank", 20, 0.0), ("mean_field", None, 0.9)],
)
def test_minibatches_of_a_gaussian_come_close_to_the_optimum(family: str, rank: int | None, correlation: float) -> None:
    x, y = gaussian_problem(2000, correlation)
    model, likelihood = make_model(family, rank), gaussian_likelihood()
    train(model, likelihood, x, y, steps=100, batch_size=100)
    bound = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
    reached = elbo(model, likelihood, x, y)
    assert reached <= bound + 1e-6
    if family == "mean_field":
        set_to_optimum(model, likelihood, x, y)
        bound = elbo(model, likelihood, x, y)
    # Blocks alone precondition the mean poorly where inputs are correlated.
    assert bound - reached < (25.0 if family == "mean_field" else 1.5)


def test_minibatches_of_labels_come_close_to_the_optimum() -> None:
    torch.manual_seed(0)
    x = make_inputs(2000, 0.5)
    y = (torch.rand(2000).to(x) < torch.special.ndtr(2 * effect(x))).to(x)
    model, likelihood = make_model("block_low_rank", 6), BernoulliLikelihood()
    train(model, likelihood, x, y, steps=100, batch_size=100)
    assert -0.01 <= dense_optimum(model, likelihood, x, y) - elbo(model, likelihood, x, y) < 2.0


def test_steps_on_all_labels_reach_the_optimum() -> None:
    torch.manual_seed(0)
    x = make_inputs(500)
    y = (torch.rand(500).to(x) < torch.special.ndtr(2 * effect(x))).to(x)
    model, likelihood = make_model("block_low_rank", 20), BernoulliLikelihood()
    train(model, likelihood, x, y, steps=12, batch_size=500)
    assert elbo(model, likelihood, x, y) == pytest.approx(dense_optimum(model, likelihood, x, y), abs=1e-3)


@pytest.mark.parametrize(
    ("family", "columns"),
    [("block_low_rank", [[0], [0], [0]]), ("low_rank", [[0], [1], [3]])],
    ids=["duplicates", "constant column"],
)
def test_degenerate_columns(family: str, columns: list[list[int]]) -> None:
    x, y = gaussian_problem(1000, 0.9)
    x = torch.cat([x, torch.full_like(x[:, :1], 0.5)], dim=1)
    likelihood, values = gaussian_likelihood(), {}
    for name, rank in ((family, 12), ("mean_field", None)):
        model = make_model(name, rank, columns)
        train(model, likelihood, x, y, steps=30, batch_size=100)
        values[name] = elbo(model, likelihood, x, y)
    assert values[family] > values["mean_field"] - 2.0


# --------------------------------------------------------------------------------------------------- robustness


@pytest.mark.parametrize(
    ("kind", "family", "rank", "dtype"),
    [
        ("log counts", "block_low_rank", 6, torch.float64),
        *((kind, "block_low_rank", 6, torch.float32) for kind in ("log counts", "student", "separable")),
        *((kind, "low_rank", 20, torch.float32) for kind in ("log counts", "separable")),
        *((kind, "mean_field", None, torch.float32) for kind in ("log counts", "student")),
    ],
)
def test_hard_likelihoods_do_not_diverge(kind: str, family: str, rank: int | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = make_inputs(500, 0.5, dtype)
    if kind == "log counts":
        y, likelihood = torch.poisson((effect(x) * 3 + 8).exp()), PoissonLikelihood()
        assert y.max() > 1e5
    elif kind == "student":
        y, likelihood = (
            effect(x) + 0.1 * torch.distributions.StudentT(1.0).sample((500,)).to(dtype),
            StudentTLikelihood(),
        )
        likelihood.noise, likelihood.deg_free = 0.01, 3.0
    else:
        y, likelihood = (effect(x) > 0).to(dtype), BernoulliLikelihood()
    likelihood = likelihood.to(dtype)
    model = make_model(family, rank, dtype=dtype)
    model(x[:1])
    start = elbo(model, likelihood, x, y)
    train(model, likelihood, x, y, steps=20, batch_size=100)
    middle = elbo(model, likelihood, x, y)
    train(model, likelihood, x, y, steps=10, batch_size=100, lr=0.05)
    end = elbo(model, likelihood, x, y)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    # Nothing is lost at a small step size, up to the noise of the batches.
    assert start + 1000 < middle < end + 15


# ------------------------------------------------------------------------------------------- contract of an optimiser


def test_accumulated_halves_equal_one_batch() -> None:
    x, y = gaussian_problem()
    results = []
    for halves in (1, 2):
        model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
        mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
        natural = NaturalGradient(model, num_data=len(x))
        for _ in range(3):
            for x_part, y_part in zip(x[:200].chunk(halves), y[:200].chunk(halves), strict=True):
                (-mll(model(x_part), y_part) / halves).backward()
            natural.step()
        results.append(precision_and_mean(model))
    for whole, accumulated in zip(*results, strict=True):
        torch.testing.assert_close(accumulated, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field"])
def test_restored_state_continues_exactly(family: str, dtype: torch.dtype) -> None:
    x, y = (tensor.to(dtype) for tensor in gaussian_problem())
    likelihood = gaussian_likelihood().to(dtype)
    model = make_model(family, None if family == "mean_field" else 4, dtype=dtype)
    natural = train(model, likelihood, x, y, steps=4, batch_size=100)
    saved = pickle.loads(pickle.dumps((model.state_dict(), natural.state_dict())))
    other = make_model(family, None if family == "mean_field" else 4, dtype=dtype)
    restored = NaturalGradient(other, num_data=len(x))
    other.load_state_dict(saved[0])
    restored.load_state_dict(saved[1])
    for name, value in natural._own.as_dict().items():
        torch.testing.assert_close(getattr(restored._own, name), value, rtol=0, atol=0)  # dtypes, too
    for one, optimiser in ((model, natural), (other, restored)):
        for _ in range(2):
            backward(one, likelihood, x[:100], y[:100], len(x))
            optimiser.step()
    # Products of float32 matrices differ by the alignment of their memory.
    tolerance = 0.0 if dtype == torch.float64 else 1e-3
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(other.named_parameters())[name], parameter, rtol=tolerance, atol=tolerance)


def test_training_is_deterministic_given_a_seed() -> None:
    x, y = gaussian_problem()
    runs = []
    for _ in range(2):
        model = make_model("block_low_rank", rank=4)
        train(model, gaussian_likelihood(), x, y, steps=4, batch_size=100)
        runs.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*runs)


def test_a_restricted_block_rank_keeps_the_rest_in_the_optimiser() -> None:
    x, y = gaussian_problem(2000)
    likelihood, gaps = gaussian_likelihood(), []
    for block_rank in (2, None):
        model = make_model("mean_field")
        shapes = model.predictor.group_shapes
        q = BlockLowRankPrecisionVariationalDistribution(shapes, rank=12, block_rank=block_rank).double()
        model.variational_strategy._variational_distribution = q
        natural = train(model, likelihood, x, y, steps=100, batch_size=100)
        assert (natural._own.block_factors is not None) == (block_rank is not None)
        bound = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
        gaps.append(bound - elbo(model, likelihood, x, y))
    assert [factor.shape[-1] for factor in q.block_factors] == [7, 5, 1]
    assert max(gaps) < 1.5


def test_step_size() -> None:
    x, y = gaussian_problem(1000)
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=10**7, tolerance=1.0)
    assert natural._step_size(100).item() == 1.0
    for _ in range(11):
        backward(model, likelihood, x[:100], y[:100], 10**7)
        natural.step()
    assert natural._step_size(100).item() == pytest.approx(1 / 2.1)
    assert natural._step_size(50).item() == pytest.approx(0.5 / 2.1)  # half the rows of the batches before
    natural._own.step = 10**9
    dimension = natural._own.effective_dimension.item()
    assert 5 < dimension < 20
    assert natural._step_size(100).item() == pytest.approx(4 * 100 / (1e7 * dimension), rel=1e-3)
    assert natural._step_size(10**7).item() == 1.0
    natural._num_data = 200  # 180 rows are not in the batch
    assert natural._step_size(20).item() == pytest.approx(4 * 20 / (180 * dimension))
    natural.param_groups[0]["lr"] = 0.2
    assert natural._step_size(100).item() == pytest.approx(0.2)


def test_a_scheduler_of_torch_sets_the_step_size() -> None:
    x, y = gaussian_problem()
    model = make_model("block_low_rank", rank=4)
    natural = NaturalGradient(model, num_data=len(x), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(natural, gamma=0.1)
    backward(model, gaussian_likelihood(), x[:50], y[:50], len(x))
    natural.step()
    scheduler.step()
    assert natural._step_size(50).item() == pytest.approx(0.05)


def test_a_closure_is_evaluated_with_gradients() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=len(x))
    before = natural.step(lambda: backward(model, likelihood, x, y, len(x)))
    assert -elbo(model, likelihood, x, y) < before * len(x)


def test_copies_of_an_attached_model_are_free() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=len(x))
    backward(model, likelihood, x, y, len(x))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(x)
        assert copied.variational_strategy.training_hooks is None
        again = NaturalGradient(copied, num_data=len(x))
        backward(copied, likelihood, x, y, len(x))
        again.step()
    natural.step()
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="load the state"):
            make(natural)


def test_a_forgotten_optimiser_leaves_the_model_free() -> None:
    x, _ = gaussian_problem()
    model = make_model("block_low_rank", rank=4)
    natural = NaturalGradient(model, num_data=len(x))
    with pytest.raises(ValueError, match="call its remove"):
        NaturalGradient(model, num_data=len(x))
    natural.remove()
    assert model.variational_strategy.training_hooks is None
    with pytest.raises(RuntimeError, match="was removed from its model"):
        natural.step()
    natural = NaturalGradient(model, num_data=len(x))
    del natural
    gc.collect()
    model(x)
    assert model.variational_strategy.training_hooks is None
    NaturalGradient(model, num_data=len(x))


def test_forwards_without_a_gradient_do_not_count() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=len(x))
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        natural.step()
    model(x)
    with pytest.raises(RuntimeError, match=r"call loss.backward\(\)"):
        natural.step()
    model(x[:3])
    backward(model, likelihood, x, y, len(x))
    elbo(model, likelihood, x, y)
    natural.step()
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        natural.step()


def test_gradients_that_are_not_finite_are_an_error_and_change_nothing() -> None:
    x, y = gaussian_problem()
    model = make_model("block_low_rank", rank=4)
    natural = NaturalGradient(model, num_data=len(x))
    y[3] = float("inf")
    model(x)
    before = copy.deepcopy(model.state_dict())
    backward(model, gaussian_likelihood(), x, y, len(x))
    with pytest.raises(RuntimeError, match="NaN or infinite in 1 of 400 rows"):
        natural.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_errors_name_what_is_wrong() -> None:
    x, y = gaussian_problem()
    model = make_model("block_low_rank", rank=4)
    for arguments, message in (
        ({"num_data": 0}, "num_data must be at least 1, got 0"),
        ({"num_data": 10.0}, "num_data must be an integer, got 10.0"),
        ({"num_data": 10, "lr": 0.0}, r"lr must lie in \(0, 1\]"),
        ({"num_data": 10, "lr": 1.5}, r"lr must lie in \(0, 1\]"),
        ({"num_data": 10, "tolerance": 0.0}, "tolerance must be positive, got 0.0"),
        ({"num_data": 10, "chunk_size": 0}, "chunk_size must be at least 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            NaturalGradient(model, **arguments)
    with pytest.raises(TypeError, match="CholeskyVariationalDistribution"):
        NaturalGradient(make_model("coupled"), num_data=10)
    with pytest.raises(TypeError, match="model must be an ApproximateGP"):
        NaturalGradient(torch.nn.Linear(1, 1), num_data=10)
    group = ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 4))
    batched = AdditiveGP(AdditivePredictor(group), rank=2, batch_shape=torch.Size([2]))
    with pytest.raises(NotImplementedError, match=r"batch shape \(2,\)"):
        NaturalGradient(batched, num_data=10)
    natural = NaturalGradient(model, num_data=len(x))
    likelihood = gaussian_likelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    (-mll(model(x.reshape(2, 200, 3)), y.reshape(2, 200)).sum()).backward()
    with pytest.raises(NotImplementedError, match=r"takes inputs \(n, D\)"):
        natural.step()


# ------------------------------------------------------------------------------------------- what surrounds the loop


def half_trained() -> tuple[AdditiveGP, NaturalGradient, torch.optim.Adam, torch.Tensor]:
    """After a step of Adam, so that the posterior has to follow the kernels."""
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    natural, adam = NaturalGradient(model, num_data=len(x)), torch.optim.Adam(model.hyperparameters(), lr=0.1)
    for _ in range(3):
        backward(model, likelihood, x, y, len(x))
        natural.step()
        adam.step()
    return model, natural, adam, x[:7]


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle", "remove"])
def test_what_is_saved_is_what_the_next_forward_uses(how: str) -> None:
    model, natural, _, x = half_trained()
    if how == "state_dict":
        other = make_model("block_low_rank", 4)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
    elif how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        natural.remove()
        other = model
    saved = other.eval()(x)
    attached, natural, _, _ = half_trained()
    expected = attached.eval()(x)
    torch.testing.assert_close(saved.mean, expected.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(saved.variance, expected.variance, rtol=1e-9, atol=1e-10)


def test_a_wrong_order_of_steps_and_a_second_optimiser_of_the_posterior_are_warned_of() -> None:
    x, y = gaussian_problem()
    likelihood = gaussian_likelihood()
    model = make_model("block_low_rank", 4)
    natural, adam = NaturalGradient(model, num_data=len(x)), torch.optim.Adam(model.hyperparameters(), lr=0.1)
    with pytest.warns(TrainingLoopWarning, match=r"call natural.step\(\) before that of their optimiser") as caught:
        for _ in range(4):
            backward(model, likelihood, x, y, len(x))
            adam.step()
            natural.step()
    assert [warning.filename for warning in caught] == [__file__]
    model = make_model("block_low_rank", 4)
    natural, adam = NaturalGradient(model, num_data=len(x)), torch.optim.Adam(model.parameters(), lr=0.1)
    with pytest.warns(TrainingLoopWarning, match="give other optimisers model.hyperparameters") as caught:
        for _ in range(4):
            backward(model, likelihood, x, y, len(x))
            natural.step()
            adam.step()
    assert len(caught) == 1


def closure_of(model: AdditiveGP, likelihood: object, x: torch.Tensor, y: torch.Tensor) -> object:
    def closure() -> float:
        return backward(model, likelihood, x, y, len(x))

    return closure


@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 6), ("low_rank", 20), ("mean_field", None)])
def test_steps_with_a_closure_never_raise_its_loss(
    family: str, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the limit on the reach of a step, the first ones overflow.
    monkeypatch.setattr("gpytorch_gam.optim.rows.sums.LONGEST_MOVE", 12.0)
    torch.manual_seed(0)
    x = make_inputs(300)
    y, likelihood = torch.poisson((effect(x) * 2 + 6).exp()), PoissonLikelihood()
    model = make_model(family, rank)
    natural = NaturalGradient(model, num_data=len(x))
    losses = [natural.step(closure_of(model, likelihood, x, y)) for _ in range(25)]
    losses.append(backward(model, likelihood, x, y, len(x)))
    assert all(after <= before + 1e-5 * abs(before) for before, after in itertools.pairwise(losses))
    assert losses[-1] < 10


def test_a_step_that_cannot_lower_the_loss_is_left_out() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=len(x))
    natural.step(closure_of(model, likelihood, x, y))
    before = copy.deepcopy(model.variational_strategy._variational_distribution.state_dict())
    calls = []

    def rising() -> float:
        calls.append(backward(model, likelihood, x, y, len(x)))
        return float(len(calls))

    assert natural.step(rising) == 1.0
    after = model.variational_strategy._variational_distribution.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert natural.state_dict()["state"][0]["step"] == 1


def test_a_closure_gives_the_gradients_of_the_new_posterior() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 20), gaussian_likelihood()
    NaturalGradient(model, num_data=len(x)).step(closure_of(model, likelihood, x, y))
    exact = torch.autograd.grad(-CollapsedELBO(likelihood, model)(x, y), list(model.hyperparameters()))
    for parameter, expected in zip(model.hyperparameters(), exact, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-7)


def test_a_step_that_cannot_be_factorised_says_why_and_leaves_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = gaussian_problem(40)
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=40)
    backward(model, likelihood, x, y, 40)
    before = copy.deepcopy(model.state_dict())

    def fail(*arguments: object) -> None:
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(natural, "_natural_step", fail)
    with pytest.raises(RuntimeError, match=r"curvature is out of all proportion .*polish \(not positive definite\)"):
        natural.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
