"""Reading a model writes nothing, also while an optimiser follows its kernels; a loop goes on from any point of it."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import pytest
import torch
from torch import Tensor

from gpytorch_gam import AdditiveGP
from gpytorch_gam.diagnostics import concurvity, sobol_indices
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.variational import BlockLowRankPrecisionVariationalDistribution
from gpytorch_gam.variational.forward_recorder import ForwardRecorder
from tests.problems import backward, gaussian_likelihood, gaussian_problem, make_model

FAMILIES = ("block_low_rank", "low_rank", "mean_field", "restricted blocks")


def model_of(family: str, dtype: torch.dtype = torch.float64) -> AdditiveGP:
    if family != "restricted blocks":
        return make_model(family, None if family == "mean_field" else 4, dtype=dtype)
    model = make_model("mean_field", dtype=dtype)
    q = BlockLowRankPrecisionVariationalDistribution(model.predictor.group_shapes, rank=4, block_rank=2)
    model.variational_strategy._variational_distribution = q.to(dtype)
    return model


def bits(model: AdditiveGP) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def same(left: Any, right: Any) -> bool:
    """Bit by bit, dtypes and shapes included."""
    if torch.is_tensor(left):
        is_alike = left.dtype == right.dtype and left.shape == right.shape
        return is_alike and left.detach().numpy().tobytes() == right.detach().numpy().tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def saved(model: AdditiveGP) -> bytes:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def sampled(model: AdditiveGP, x: Tensor) -> object:
    return model.components(x).rsample(torch.Size([2]))


READINGS: dict[str, Callable[[AdditiveGP, Tensor], object]] = {
    "state_dict": lambda model, x: model.state_dict(),
    "torch.save": lambda model, x: saved(model),
    "deepcopy": lambda model, x: copy.deepcopy(model),
    "pickle": lambda model, x: pickle.dumps(model),
    "call": lambda model, x: model(x),
    "covariance": lambda model, x: model(x).covariance_matrix,
    "call with diag=False": lambda model, x: model(x, diag=False).variance,
    "call of the prior": lambda model, x: model(x, prior=True).variance,
    "mean alone": lambda model, x: mean_alone(model, x),
    "components": lambda model, x: model.components(x).variance,
    "centred components": lambda model, x: model.components(x).centred(x).mean,
    "samples": sampled,
    "predict": lambda model, x: model.predict(x),
    "divergence": lambda model, x: model.variational_strategy.kl_divergence(),
    "inducing posterior": lambda model, x: model.variational_strategy.inducing_posterior().covariance_matrix,
    "whitened posterior": lambda model, x: model.variational_strategy.variational_distribution.covariance_matrix,
    "covariance factors": lambda model, x: model.variational_strategy.covariance_factors(),
    "moments": lambda model, x: model.variational_strategy.predictor_moments(x),
    "features": lambda model, x: model.variational_strategy.features(x),
    "concurvity": lambda model, x: concurvity(model, x),
    "Sobol indices": lambda model, x: sobol_indices(model, x, num_samples=16),
}


def mean_alone(model: AdditiveGP, x: Tensor) -> Tensor:
    with gpytorch.settings.skip_posterior_variances():
        return model(x).mean


def trained(family: str, dtype: torch.dtype = torch.float64) -> tuple[AdditiveGP, NaturalGradient, Tensor]:
    """After a step of Adam, so that the posterior belongs to other kernels than the present ones."""
    x, y = (tensor.to(dtype) for tensor in gaussian_problem(60))
    model, likelihood = model_of(family, dtype), gaussian_likelihood().to(dtype)
    natural, adam = NaturalGradient(model, num_data=60), torch.optim.Adam(model.hyperparameters(), lr=0.1)
    for _ in range(3):
        backward(model, likelihood, x, y, 60)
        natural.step()
        adam.step()
    return model, natural, x[:9]


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize(
    ("family", "is_attached"), [*((family, True) for family in FAMILIES), ("block_low_rank", False)]
)
def test_reading_changes_no_bit(family: str, is_attached: bool) -> None:
    model, natural, x = trained(family)
    if not is_attached:
        natural.remove()
    for is_training in (False, True):
        model.train(is_training)
        for name, read in READINGS.items():
            is_forward = name in ("call", "covariance", "mean alone")  # a training step begins with one
            for with_gradients in (not is_forward,) if is_training else (False, True):
                before, state, generator = bits(model), copy.deepcopy(natural.state_dict()), torch.get_rng_state()
                with torch.set_grad_enabled(with_gradients):
                    read(model, x)
                assert same(bits(model), before), (name, is_training)
                assert same(natural.state_dict(), state), (name, is_training)
                if name not in ("samples", "Sobol indices"):
                    assert torch.equal(torch.get_rng_state(), generator), (name, is_training)


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_reads_the_posterior_under_the_present_kernels(family: str, by_hand: bool) -> None:
    model, natural, x = trained(family)
    if by_hand:
        model.predictor.groups[0].kernel.outputscale = 3.0
    model.eval()
    strategy = model.variational_strategy

    def read() -> Iterator[Tensor]:
        yield model(x).mean
        yield model(x).covariance_matrix
        yield model.components(x).variance
        yield model.predict(x).variance
        yield strategy.kl_divergence()
        yield strategy.inducing_posterior().covariance_matrix
        yield strategy.predictor_moments(x).mean
        yield strategy.covariance_factors().mean
        yield from dict(sorted(model.state_dict().items())).values()

    attached = list(read())
    other = model_of(family)
    other.load_state_dict(model.state_dict())
    copies = [other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    natural.remove()
    for value, expected in zip(attached, read(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)
    for copied in copies:
        torch.testing.assert_close(copied(x).covariance_matrix, attached[1], rtol=1e-9, atol=1e-10)


def test_gradients_of_what_is_read_reach_the_parameters() -> None:
    model, natural, x = trained("block_low_rank")
    parameters = list(model.variational_strategy._variational_distribution.parameters())
    model.eval()
    attached = torch.autograd.grad(model(x).variance.sum() + model(x).mean.sum(), parameters)
    natural.remove()
    alone = torch.autograd.grad(model(x).variance.sum() + model(x).mean.sum(), parameters)
    for left, right in zip(attached, alone, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------------------------------------------------------- checkpoints


class Loop:
    """A training loop, call by call."""

    calls = ("zero_grad", "forward", "backward", "natural", "adam")

    def __init__(self, family: str, dtype: torch.dtype, **options: Any) -> None:
        self.dtype = dtype
        self.model = model_of(family, dtype)
        self.likelihood = gaussian_likelihood().to(dtype)
        self.natural = NaturalGradient(self.model, num_data=120, **options)
        self.hyperparameters = [*self.model.hyperparameters(), *self.likelihood.parameters()]
        self.adam = torch.optim.Adam(self.hyperparameters, lr=0.05)
        self.mll = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=120)
        self.loss: Tensor | None = None

    def call(self, number: int) -> None:
        step, name = divmod(number, len(self.calls))
        x, y = (tensor.to(self.dtype) for tensor in gaussian_problem(120))
        rows = (torch.arange(24) + 24 * step) % 120
        if name == 0:
            self.adam.zero_grad()
        elif name == 1:
            self.loss = -self.mll(self.model(x[rows]), y[rows])
        elif name == 2:
            self.loss.backward()
        elif name == 3:
            self.natural.step()
        else:
            self.adam.step()

    def state(self) -> bytes:
        modules = self.model.state_dict(), self.likelihood.state_dict()
        gradients = [None if each.grad is None else each.grad.clone() for each in self.hyperparameters]
        optimisers = self.natural.state_dict(), self.adam.state_dict()
        return pickle.dumps((*modules, *optimisers, torch.get_rng_state(), gradients))

    def load(self, state: bytes) -> None:
        model, likelihood, natural, adam, generator, gradients = pickle.loads(state)
        self.model.load_state_dict(model)
        self.likelihood.load_state_dict(likelihood)
        self.natural.load_state_dict(natural)
        self.adam.load_state_dict(adam)
        torch.set_rng_state(generator)
        for parameter, gradient in zip(self.hyperparameters, gradients, strict=True):
            parameter.grad = gradient


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize(
    ("family", "dtype", "options"),
    [
        ("block_low_rank", torch.float64, {}),
        ("block_low_rank", torch.float32, {}),
        ("low_rank", torch.float64, {"averaging": True}),
        ("mean_field", torch.float64, {"lr": 0.3, "variance_reduction": False}),
        ("restricted blocks", torch.float64, {}),
    ],
)
def test_a_checkpoint_between_any_two_calls_resumes_bit_by_bit(
    family: str, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    num_calls = 4 * len(Loop.calls)
    torch.manual_seed(0)
    loop, checkpoints = Loop(family, dtype, **options), []
    for number in range(num_calls):
        checkpoints.append(loop.state())
        loop.call(number)
    end = pickle.loads(loop.state())
    for number in random.Random(0).sample(range(num_calls), 3) + list(range(5, 11)):
        resumed = Loop(family, dtype, **options)
        resumed.load(checkpoints[number])
        start = number - number % len(Loop.calls) if number % len(Loop.calls) in (2, 3) else number
        for following in range(start, num_calls):  # graphs are no part of a checkpoint
            resumed.call(following)
        found = pickle.loads(resumed.state())
        if dtype == torch.float64:
            assert same(found, end), number
        else:  # products of float32 matrices differ by the alignment of their memory
            for name, value in found[0].items():
                if torch.is_tensor(value) and value.is_floating_point():
                    torch.testing.assert_close(value, end[0][name], rtol=1e-3, atol=1e-3, equal_nan=True)


def test_the_state_of_another_optimiser_is_refused() -> None:
    model, natural, _ = trained("mean_field")
    adam = torch.optim.Adam(model.variational_parameters())
    with pytest.raises(ValueError, match=r"not that of a NaturalGradient, .* it lacks \['block_factors', 'choleskys'"):
        natural.load_state_dict(adam.state_dict())
    state = natural.state_dict()
    state["state"][0] = {**state["state"][0], "momentum": 1.0}
    with pytest.raises(ValueError, match=r"it lacks \[\] and has \['momentum'\] besides"):
        natural.load_state_dict(state)


# ------------------------------------------------------------------------------------------------------------- hooks


def test_a_with_block_ends_the_part_of_the_optimiser() -> None:
    x, y = gaussian_problem(60)
    model, likelihood = make_model("mean_field"), gaussian_likelihood()
    with NaturalGradient(model, num_data=60) as natural:
        backward(model, likelihood, x, y, 60)
        natural.step()
        assert model.variational_strategy.training_hooks is not None
    assert model.variational_strategy.training_hooks is None
    natural.remove()  # once more is no error
    with pytest.raises(RuntimeError, match="was removed from its model: make a new one"):
        natural.step()
    with pytest.raises(ZeroDivisionError), NaturalGradient(model, num_data=60):
        1 / 0  # noqa: B018
    assert model.variational_strategy.training_hooks is None


def test_hooks_are_called_around_training_forwards_alone() -> None:
    class Counting(ForwardRecorder):
        def __init__(self) -> None:
            super().__init__()
            self.shapes: list[torch.Size] = []

        def before_forward(self, choleskys: Any) -> None:
            self.shapes += [cholesky.shape for cholesky in choleskys]

    x, y = gaussian_problem(60)
    model, likelihood, hooks = make_model("mean_field"), gaussian_likelihood(), Counting()
    handle = model.variational_strategy.register_training_hooks(hooks)
    with pytest.raises(ValueError, match=r"NaturalGradient attached: call its remove\(\)"):
        model.variational_strategy.register_training_hooks(Counting())
    backward(model, likelihood, x, y, 60)
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    assert hooks.shapes == [cholesky.shape for cholesky in model.variational_strategy.inducing_choleskys()]
    recorded = hooks.take()
    assert recorded.num_forwards == len(recorded.records) == len(recorded.divergences) == 1
    handle.remove()
    backward(model, likelihood, x, y, 60)
    assert hooks.take().num_forwards == 0


@pytest.mark.parametrize("have_moved", [True, False])
def test_on_a_gpu_kernels_are_followed_without_a_look_at_them(
    have_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, natural, x = trained("block_low_rank")
    if not have_moved:
        model.train()(x)
    strategy, before = model.variational_strategy, bits(model)
    expected = {**before, **model.state_dict()} if have_moved else before
    choleskys = [GpuTensor(cholesky) for cholesky in strategy.inducing_choleskys()]
    monkeypatch.setattr(natural, "_have_moved", None)
    natural._follow_kernels(choleskys)
    for name, value in bits(model).items():
        assert have_moved or same(value, expected[name]), name
        torch.testing.assert_close(value, expected[name], equal_nan=True)


class GpuTensor(torch.Tensor):
    """Says that it is on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True
