"""Loops that users of torch write around NaturalGradient: each leaves the posterior of the plain one, or says why."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
from collections.abc import Callable
from typing import NamedTuple

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.training import polish
from gpytorch_gam.warnings import TrainingLoopWarning
from tests.problems import (
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_model,
    precision_and_mean,
)

NUM_ROWS, BATCH = 120, 24


class Parts(NamedTuple):
    """What a loop works with. The rate of the hyperparameters is zero, so that all loops have the same optimum."""

    model: AdditiveGP
    likelihood: GaussianLikelihood
    mll: gpytorch.mlls.VariationalELBO
    natural: NaturalGradient
    adam: torch.optim.Adam
    lbfgs: torch.optim.LBFGS

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.mll(self.model(x), y)

    def closure(self, x: Tensor, y: Tensor, set_to_none: bool = True) -> Callable[[], Tensor]:
        def evaluate() -> Tensor:
            self.adam.zero_grad(set_to_none)
            loss = self.loss(x, y)
            loss.backward()
            return loss

        return evaluate


def make_parts(**options: object) -> Parts:
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS, **options)
    hyperparameters = [*model.hyperparameters(), *likelihood.parameters()]
    return Parts(
        model,
        likelihood,
        mll,
        NaturalGradient(model, num_data=NUM_ROWS),
        torch.optim.Adam(hyperparameters, lr=0.0),
        torch.optim.LBFGS(hyperparameters, lr=0.0, max_iter=3),
    )


Loop = Callable[[Parts, Tensor, Tensor], object]


def run(loop: Loop, num_steps: int = 6, **options: object) -> tuple[Tensor, Tensor]:
    """Precision and mean after some steps."""
    parts = make_parts(**options)
    x, y = gaussian_problem(NUM_ROWS)
    for step in range(num_steps):
        rows = (torch.arange(BATCH) + step * BATCH) % NUM_ROWS
        loop(parts, x[rows], y[rows])
    return precision_and_mean(parts.model)


def plain(parts: Parts, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
    parts.adam.zero_grad()
    (scale * parts.loss(x, y)).backward()
    parts.natural.step()
    parts.adam.step()


@functools.cache
def run_plainly() -> tuple[Tensor, Tensor]:
    """What other loops are compared with, which leave it as it is."""
    torch.manual_seed(0)
    return run(plain)


# ------------------------------------------------------------------------------------- backward passes of other steps


def backward_then_closure_of_adam(parts: Parts, x: Tensor, y: Tensor, set_to_none: bool = True) -> None:
    closure = parts.closure(x, y, set_to_none)
    closure()
    parts.natural.step()
    parts.adam.step(closure)


def backward_then_closure_of_lbfgs(parts: Parts, x: Tensor, y: Tensor) -> None:
    parts.closure(x, y)()
    parts.natural.step()
    parts.lbfgs.step(parts.closure(x, y))


def line_search_by_hand(parts: Parts, x: Tensor, y: Tensor, set_to_none: bool = True) -> None:
    closure = parts.closure(x, y, set_to_none)
    closure()
    parts.natural.step()
    for _ in range(3):
        closure()


def gradients_cleared_after_the_forward(parts: Parts, x: Tensor, y: Tensor) -> None:
    for with_natural in (False, True):
        loss = parts.loss(x, y)
        parts.adam.zero_grad()
        loss.backward()
        if with_natural:
            parts.natural.step()
        parts.adam.step()


def gradients_that_are_handed_over(parts: Parts, x: Tensor, y: Tensor) -> None:
    for _ in range(2):
        torch.autograd.grad(parts.loss(x, y), [*parts.model.parameters(), *parts.likelihood.parameters()])
    parts.natural.step()


def gradients_along_inputs_in_the_loss(parts: Parts, x: Tensor, y: Tensor) -> None:
    parts.adam.zero_grad()
    parts.natural.zero_grad()
    x = x.clone().requires_grad_()
    output = parts.model(x)
    torch.autograd.grad(output.mean.sum() + output.variance.sum(), x, retain_graph=True)
    (-parts.mll(output, y)).backward()
    parts.natural.step()


def a_failed_backward_pass(parts: Parts, x: Tensor, y: Tensor) -> None:
    def fail(gradient: Tensor) -> None:
        raise ArithmeticError

    parameter = parts.model.predictor.groups[0].kernel.raw_outputscale
    handle = parameter.register_hook(fail)
    with pytest.raises(ArithmeticError):
        parts.closure(x, y)()
    handle.remove()
    plain(parts, x, y)


def parts_of_a_batch(parts: Parts, x: Tensor, y: Tensor, share: float = 1 / 3) -> None:
    parts.adam.zero_grad()
    for x_part, y_part in zip(x.chunk(3), y.chunk(3), strict=True):
        (share * parts.loss(x_part, y_part)).backward()
    parts.natural.step()
    parts.adam.step()


def parts_of_a_batch_at_fixed_hyperparameters(parts: Parts, x: Tensor, y: Tensor) -> None:
    for parameter in [*parts.model.hyperparameters(), *parts.likelihood.parameters()]:
        parameter.requires_grad_(False)
    parts_of_a_batch(parts, x, y)


def forwards_for_validation(parts: Parts, x: Tensor, y: Tensor) -> None:
    parts.loss(x[:3], y[:3])
    parts.closure(x, y)()
    parts.loss(x[:5], y[:5])
    parts.natural.step()
    parts.loss(x[:5], y[:5])


def divergences_for_a_log(parts: Parts, x: Tensor, y: Tensor) -> None:
    parts.model.variational_strategy.kl_divergence()
    parts.closure(x, y)()
    parts.model.variational_strategy.kl_divergence()
    parts.natural.step()


def closures_that_do_nothing(parts: Parts, x: Tensor, y: Tensor) -> None:
    """What Lightning passes to its optimisers in manual optimisation."""
    parts.closure(x, y)()
    assert parts.natural.step(closure=lambda: None) is None
    parts.adam.step(closure=lambda: None)


def loss_scaler(parts: Parts, x: Tensor, y: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    parts.adam.zero_grad()
    scaler.scale(parts.loss(x, y)).backward()
    scaler.step(parts.natural)
    scaler.step(parts.adam)
    scaler.update()


@pytest.mark.parametrize(
    "loop",
    [
        backward_then_closure_of_adam,
        lambda *arguments: backward_then_closure_of_adam(*arguments, set_to_none=False),
        backward_then_closure_of_lbfgs,
        line_search_by_hand,
        lambda *arguments: line_search_by_hand(*arguments, set_to_none=False),
        gradients_cleared_after_the_forward,
        gradients_that_are_handed_over,
        gradients_along_inputs_in_the_loss,
        a_failed_backward_pass,
        parts_of_a_batch,
        lambda *arguments: parts_of_a_batch(*arguments, share=1.0),
        parts_of_a_batch_at_fixed_hyperparameters,
        forwards_for_validation,
        divergences_for_a_log,
        closures_that_do_nothing,
        loss_scaler,
    ],
)
def test_only_the_batch_counts(loop: Loop) -> None:
    for found, expected in zip(run(loop), run_plainly(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("other", ["adam", "lbfgs"])
@pytest.mark.parametrize("natural_is_first", [True, False])
def test_a_closure_is_the_batch(other: str, natural_is_first: bool) -> None:
    def alone(parts: Parts, x: Tensor, y: Tensor) -> None:
        parts.natural.step(parts.closure(x, y))

    def both(parts: Parts, x: Tensor, y: Tensor) -> None:
        optimisers = [parts.natural, getattr(parts, other)]
        for optimiser in optimisers if natural_is_first else reversed(optimisers):
            optimiser.step(parts.closure(x, y))

    for found, expected in zip(run(both), run(alone), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_an_optimiser_that_is_made_of_others_records_the_closure_of_its_natural_part() -> None:
    class Both(torch.optim.Optimizer):
        def __init__(self, parts: Parts) -> None:
            super().__init__(parts.model.parameters(), {})
            self.parts = parts

        def step(self, closure: Callable[[], Tensor]) -> Tensor:
            self.parts.natural.step(closure)
            return self.parts.adam.step(closure)

    def composed(parts: Parts, x: Tensor, y: Tensor) -> None:
        Both(parts).step(parts.closure(x, y))

    def alone(parts: Parts, x: Tensor, y: Tensor) -> None:
        parts.natural.step(parts.closure(x, y))

    for found, expected in zip(run(composed), run(alone), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_lbfgs_beside_it_finds_the_hyperparameters_of_the_collapsed_bound() -> None:
    x, y = gaussian_problem(NUM_ROWS)
    model, likelihood = make_model("block_low_rank", rank=20), gaussian_likelihood(0.5)
    natural = NaturalGradient(model, num_data=NUM_ROWS)
    lbfgs = torch.optim.LBFGS(likelihood.parameters(), lr=0.5, max_iter=10)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS)

    def closure() -> Tensor:
        model.zero_grad()
        likelihood.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        return loss

    for _ in range(6):
        natural.step(closure)
        lbfgs.step(closure)
    natural.step(closure)
    bound = CollapsedELBO(likelihood, model)
    assert bound.optimum(x, y).bound.item() - elbo(model, likelihood, x, y) == pytest.approx(0.0, abs=1e-6)
    (slope,) = torch.autograd.grad(bound(x, y), list(likelihood.parameters()))
    assert abs(slope.item()) < 1e-3


def test_what_a_closure_of_another_optimiser_evaluated_is_no_batch() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    parts.adam.step(parts.closure(x, y))
    with pytest.raises(RuntimeError, match="what a closure of another optimiser evaluates does not count"):
        parts.natural.step()

    def fail() -> Tensor:
        parts.loss(x, y)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        parts.adam.step(fail)
    plain(parts, x, y)  # recording goes on


def test_other_optimisers_are_left_alone_without_a_natural_gradient() -> None:
    gc.collect()  # of other tests
    before = len(_global_optimizer_pre_hooks)
    parts = make_parts()
    assert len(_global_optimizer_pre_hooks) == before + 1
    copied = copy.deepcopy(parts.model)
    parts.natural.remove()
    assert len(_global_optimizer_pre_hooks) == before
    natural = NaturalGradient(copied, num_data=NUM_ROWS)
    del natural
    gc.collect()
    assert len(_global_optimizer_pre_hooks) == before


# ------------------------------------------------------------------------------------------------- losses of any scale


def assembled(weigh: Callable[[Tensor, Tensor], Tensor]) -> Loop:
    """A loss of expected log-likelihoods per row and a divergence."""

    def loop(parts: Parts, x: Tensor, y: Tensor) -> None:
        parts.adam.zero_grad()
        expected = parts.likelihood.expected_log_prob(y, parts.model(x)).mean()
        weigh(expected, parts.model.variational_strategy.kl_divergence()).backward()
        parts.natural.step()
        parts.adam.step()

    return loop


@pytest.mark.parametrize("scale", [0.01, BATCH, 65536.0])
def test_a_multiple_of_the_bound_has_the_same_optimum(scale: float) -> None:
    for found, expected in zip(
        run(lambda *arguments: plain(*arguments, scale=scale)), run(lambda *arguments: plain(*arguments)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_multiple_of_the_bound_has_the_same_multiple_of_its_gradients() -> None:
    x, y = gaussian_problem(NUM_ROWS)
    gradients = []
    for scale in (1.0, 100.0):
        parts = make_parts()
        for _ in range(2):
            plain(parts, x, y, scale)
        gradients.append(torch.cat([each.grad.flatten() / scale for each in parts.model.hyperparameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta", [0.1, 3.0])
def test_the_weight_of_the_divergence_tempers_the_posterior(beta: float) -> None:
    x, y = gaussian_problem(NUM_ROWS)
    parts = make_parts(beta=beta)
    plain(parts, x, y)
    tempered = gaussian_likelihood(0.09 * beta)  # a Gaussian to the power 1 / beta
    optimum = CollapsedELBO(tempered, parts.model).optimum(x, y)
    _, mean = precision_and_mean(parts.model)
    torch.testing.assert_close(mean, optimum.mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("weigh", "relative"),
    [
        (lambda expected, divergence: -expected + divergence / NUM_ROWS, None),
        (lambda expected, divergence: NUM_ROWS * -expected + divergence, "120"),
        (lambda expected, divergence: (-expected + divergence / NUM_ROWS) / 100, "0.01"),
    ],
)
def test_a_loss_of_ones_own_is_followed_and_another_weight_of_its_divergence_said(
    weigh: Callable[[Tensor, Tensor], Tensor], relative: str | None
) -> None:
    if relative is None:
        found = run(assembled(weigh))
    else:
        with pytest.warns(TrainingLoopWarning, match=rf"{re.escape(relative)} times the 1 / num_data") as caught:
            found = run(assembled(weigh))
        assert [warning.filename for warning in caught] == [__file__]
    for part, expected in zip(found, run_plainly(), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-6, atol=1e-6)


def test_terms_that_are_not_combined_are_a_loss_of_ones_own() -> None:
    def loop(parts: Parts, x: Tensor, y: Tensor) -> None:
        parts.adam.zero_grad()
        expected, divergence, *_ = parts.mll(parts.model(x), y)
        (divergence - expected).backward()
        parts.natural.step()

    for found, expected in zip(run(loop, combine_terms=False), run_plainly(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_losses_without_a_divergence_or_of_the_wrong_sign_are_errors() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    parts.model(x)
    before = copy.deepcopy(parts.model.state_dict())
    with pytest.raises(RuntimeError, match=r"divergence was not differentiated.*VariationalELBO"):
        assembled(lambda expected, _: -expected)(parts, x, y)
    torch.autograd.grad(parts.loss(x, y), list(parts.model.hyperparameters()))
    with pytest.raises(RuntimeError, match=r"differentiate in model.variational_parameters\(\), too"):
        parts.natural.step()
    with pytest.raises(ValueError, match=r"loss = -mll\(model\(x\), y\), with the minus sign"):
        plain(parts, x, y, scale=-1.0)
    assert all(torch.equal(value, before[name]) for name, value in parts.model.state_dict().items())


@pytest.mark.parametrize("objective", [gpytorch.mlls.PredictiveLogLikelihood, gpytorch.mlls.GammaRobustVariationalELBO])
def test_objectives_that_are_no_bounds_are_errors(objective: type[gpytorch.mlls.MarginalLogLikelihood]) -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    other = objective(parts.likelihood, parts.model, num_data=NUM_ROWS)
    (-other(parts.model(x), y)).backward()
    with pytest.raises(TypeError, match=rf"{objective.__name__} has none: train model.variational_parameters\(\)"):
        parts.natural.step()
    other(parts.model(x), y)  # for a log
    plain(parts, x, y)


# -------------------------------------------------------------------------------------------------- numbers of rows


def test_the_objective_and_the_optimiser_have_the_same_number_of_rows() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    other = gpytorch.mlls.VariationalELBO(parts.likelihood, parts.model, num_data=5)
    (-other(parts.model(x), y)).backward()
    with pytest.raises(ValueError, match=r"objective has num_data=5 and NaturalGradient num_data=120"):
        parts.natural.step()


@pytest.mark.parametrize("passes", [1, 2, 40])
def test_more_rows_than_there_are_is_an_error(passes: int) -> None:
    x, y = gaussian_problem(BATCH + 1)
    model, likelihood = make_model("block_low_rank", rank=4), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=BATCH)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=BATCH)
    for _ in range(passes):
        (-mll(model(x), y)).backward()
    with pytest.raises(ValueError, match=r"rows since the last step are more than num_data=24, .*\(not of batches\)"):
        natural.step()
    model.zero_grad()
    (-mll(model(x[:BATCH]), y[:BATCH])).backward()
    natural.step()


# ------------------------------------------------------------------------------------------------------ other state


@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_of_several_columns_that_stand_still_raise_no_alarm(
    kernel: type[gpytorch.kernels.Kernel], dtype: torch.dtype
) -> None:
    """They evaluate to other bits with gradients than without. A warning is an error here."""
    torch.manual_seed(0)
    size = torch.Size([2])
    covariance = ScaleKernel(kernel(batch_shape=size, ard_num_dims=2), batch_shape=size)
    group = ComponentGroup(covariance, [[0, 1], [2, 3]], torch.rand(2, 10, 2))
    model, likelihood = AdditiveGP(AdditivePredictor(group), rank=4).to(dtype).train(), GaussianLikelihood().to(dtype)
    natural = NaturalGradient(model, num_data=60)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=60)
    adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.1)
    x = torch.rand(60, 4, dtype=dtype)
    for rows in torch.arange(60).split(20):
        adam.zero_grad()
        (-mll(model(x[rows]), torch.sin(6 * x[rows, 0]))).backward()
        natural.step()
        adam.step()
    assert natural.state_dict()["state"][0]["step"] == 3


def test_a_scheduler_needs_a_step_size() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    for optimiser in (parts.natural, make_parts().natural):
        optimiser.load_state_dict(copy.deepcopy(parts.natural.state_dict()))
        with pytest.raises(ValueError, match=r"lr=None, and no step size for a scheduler of torch.*pass lr=\.\.\."):
            torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma=0.9)
    plain(parts, x, y)


def test_an_average_of_models_gets_its_posterior_by_polish() -> None:
    x, y = gaussian_problem(NUM_ROWS)
    parts = make_parts()
    averaged = AveragedModel(parts.model)
    with pytest.warns(
        TrainingLoopWarning, match=r"AveragedModel averages the factors.*polish\(averaged.module"
    ) as caught:
        for step in range(4):
            rows = (torch.arange(BATCH) + step * BATCH) % NUM_ROWS
            plain(parts, x[rows], y[rows])
            averaged.update_parameters(parts.model)
    assert len(caught) == 1
    bound = polish(averaged.module, parts.likelihood, [(x, y)])[-1]
    assert bound == pytest.approx(polish(parts.model, parts.likelihood, [(x, y)])[-1], abs=1e-4)
    del averaged
    gc.collect()
    plain(make_parts(), x[:BATCH], y[:BATCH])


def test_an_average_is_made_after_an_automatic_rank_has_settled() -> None:
    x, y = gaussian_problem(NUM_ROWS)
    model, likelihood = make_model("block_low_rank", rank="auto"), gaussian_likelihood()
    natural, averaged = NaturalGradient(model, num_data=NUM_ROWS), AveragedModel(model)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS)
    (-mll(model(x), y)).backward()
    with pytest.raises(ValueError, match="make it after the first step, or give the posterior a rank"):
        natural.step()
    del averaged
    gc.collect()
    model.zero_grad()
    (-mll(model(x), y)).backward()
    natural.step()
    averaged = AveragedModel(model)
    averaged.update_parameters(model)


def test_copies_that_are_not_averaged_are_no_matter() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    for copied in (
        copy.deepcopy(parts.model),
        pickle.loads(pickle.dumps(parts.model)),
        AveragedModel(parts.model).module,
    ):
        assert copied.variational_strategy._variational_distribution._averaged_by is None
    gc.collect()
    plain(parts, x, y)


def test_a_posterior_that_is_fixed_is_refused() -> None:
    parts, (x, y) = make_parts(), gaussian_problem(BATCH)
    q = parts.model.variational_strategy._variational_distribution
    parts.closure(x, y)()
    q.precision_factor.requires_grad_(False)
    with pytest.raises(ValueError, match=r"precision_factor of the variational distribution do not require gradients"):
        parts.natural.step()
    parts.natural.remove()
    with pytest.raises(ValueError, match=r"call requires_grad_\(True\)"):
        NaturalGradient(parts.model, num_data=NUM_ROWS)


def test_backward_passes_through_one_forward_add_up() -> None:
    x, y = gaussian_problem(NUM_ROWS)
    means = []
    for shares in ((1.0,), (0.25, 0.75)):
        parts = make_parts()
        loss = parts.loss(x, y)
        for share in shares:
            (share * loss).backward(retain_graph=True)
        parts.natural.step()
        means.append(precision_and_mean(parts.model)[1])
    torch.testing.assert_close(means[1], means[0])
