"""Two processes against one with all of the rows."""

from __future__ import annotations

import copy
import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.processes import average_gradients, row_weighted
from gpytorch_gam.training import fit, polish
from gpytorch_gam.warnings import CurvatureWarning, TrainingLoopWarning
from tests.problems import gaussian_likelihood, gaussian_problem, make_model, precision_and_mean
from tests.two_processes import Together

# All tests of two processes share these.
pytestmark = pytest.mark.xdist_group("distributed")

NUM_ROWS = 400
Group = Any  # of processes; None for one process with all rows


class Case(NamedTuple):
    """How a model is trained."""

    family: str
    rank: int | str | None
    parts: tuple[int, int]  # rows of the two processes in each step
    labels: bool = False
    averaged_by: str = "hand"
    is_dense: bool = True  # whether steps that forget may form a dense matrix
    options: Mapping[str, Any] = MappingProxyType({})  # of NaturalGradient
    accumulates: bool = False
    by_closure: bool = False


EVEN, UNEVEN, ALL = (30, 30), (47, 13), (270, 130)
CASES = {
    "block + low-rank, even": Case("block_low_rank", 6, EVEN, averaged_by="DDP"),
    "block + low-rank, uneven, chunks": Case("block_low_rank", 6, UNEVEN, is_dense=False, options={"chunk_size": 20}),
    "block + low-rank, labels": Case("block_low_rank", 6, UNEVEN, labels=True, averaged_by="DDP", is_dense=False),
    "block + low-rank, all rows": Case("block_low_rank", 6, ALL, is_dense=False),
    "block + low-rank, averaging": Case("block_low_rank", 6, UNEVEN, options={"averaging": True}),
    "low-rank, uneven": Case("low_rank", 20, UNEVEN, averaged_by="DDP"),
    "low-rank, labels, all rows": Case("low_rank", 20, ALL, labels=True, is_dense=False),
    "mean-field, even": Case("mean_field", None, EVEN, is_dense=False),
    "mean-field, uneven, labels": Case("mean_field", None, UNEVEN, labels=True, averaged_by="DDP"),
    "automatic low rank, all rows": Case("low_rank", "auto", ALL),
    "automatic rank by DDP": Case("block_low_rank", "auto", UNEVEN, averaged_by="DDP, unused parameters"),
    "accumulated": Case("block_low_rank", 6, (31, 29), accumulates=True),
    "closures": Case("block_low_rank", 6, UNEVEN, labels=True, by_closure=True),
    "without variance reduction": Case("low_rank", 20, UNEVEN, options={"variance_reduction": False, "lr": 0.3}),
}
NUM_STEPS = 3


class Loss(torch.nn.Module):
    def __init__(self, case: Case, num_data: int = NUM_ROWS) -> None:
        super().__init__()
        self.model = make_model(case.family, case.rank)
        self.likelihood = BernoulliLikelihood() if case.labels else gaussian_likelihood()
        self.mll = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=num_data)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.mll(self.model(x), y)

    @property
    def hyperparameters(self) -> list[torch.nn.Parameter]:
        return [*self.model.hyperparameters(), *self.likelihood.parameters()]


def problem(case: Case) -> tuple[Tensor, Tensor]:
    x, y = gaussian_problem(NUM_ROWS)
    return x, (y > 0).to(y) if case.labels else y


def rank_of(group: Group) -> int:
    return 0 if group is None else distributed.get_rank(group)


class Trainer:
    """A loop that can be interrupted. Workers draw different numbers at first, which must not matter."""

    def __init__(self, case: Case, group: Group) -> None:
        self.case, self.group = case, group
        self.loss = Loss(case)
        self.loss.model.variational_strategy._initialize_once()  # with the random numbers after making the model
        if rank_of(group) > 0:
            with torch.no_grad():
                for parameter in self.loss.model.parameters():
                    parameter.add_(0.1 * torch.rand_like(parameter))
        self.natural = NaturalGradient(self.loss.model, num_data=NUM_ROWS, process_group=group, **case.options)
        self.adam = torch.optim.Adam(self.loss.hyperparameters, lr=0.05)
        self.forward: Callable[..., Tensor] = self.loss
        if group is not None and "DDP" in case.averaged_by:
            self.forward = DistributedDataParallel(self.loss, find_unused_parameters="unused" in case.averaged_by)
        self.num_done = 0

    def rows(self) -> Tensor:
        """Of this process; the batches of all overlap."""
        size = sum(self.case.parts)
        rows = (torch.arange(size) + self.num_done * size) % NUM_ROWS
        return rows if self.group is None else rows.split(self.case.parts)[rank_of(self.group)]

    def backward(self) -> float:
        x, y = problem(self.case)
        self.adam.zero_grad()
        own, total = self.rows(), 0.0
        for rows in own.split(20) if self.case.accumulates else [own]:
            loss = self.forward(x[rows], y[rows]) * (len(rows) / len(own))
            loss = row_weighted(loss, len(own), self.group)
            loss.backward()
            total += loss.item()
        if "DDP" not in self.case.averaged_by:
            average_gradients(self.loss.hyperparameters, self.group)
        return total

    def step(self) -> dict[str, Any]:
        if self.case.by_closure:
            value = self.natural.step(self.backward)
        else:
            value = self.backward()
            self.natural.step()
        found = {
            "loss": value,
            "gradient": torch.cat([each.grad.flatten() for each in self.loss.hyperparameters]),
            "posterior": precision_and_mean(self.loss.model),
            "bits": copy.deepcopy((self.loss.state_dict(), self.natural.state_dict())),
        }
        self.adam.step()
        self.num_done += 1
        return found

    def states(self) -> Any:
        parts = (self.loss, self.natural, self.adam)
        return copy.deepcopy([part.state_dict() for part in parts])

    def load(self, states: Any) -> None:
        for part, state in zip((self.loss, self.natural, self.adam), states, strict=True):
            part.load_state_dict(state)


def dense(case: Case) -> Any:
    return nullcontext() if case.is_dense else mock.patch("gpytorch_gam.optim.natural_gradient.DENSE_LIMIT", 0)


def trained(name: str, group: Group) -> list[dict[str, Any]]:
    case = CASES[name]
    torch.manual_seed(0)
    with dense(case):
        trainer = Trainer(case, group)
        return [trainer.step() for _ in range(NUM_STEPS)]


# ------------------------------------------------------------------------------------------- what the workers do


def resumed(group: Group) -> Any:
    """The bits after six steps, without an interruption and with one after three."""
    case = CASES["block + low-rank, uneven, chunks"]
    whole, first, second = (Trainer(case, group) for _ in range(3))
    for _ in range(3):
        whole.step()
        first.step()
    whole.states()  # saving brings the posterior to the present kernels
    states = first.states() if rank_of(group) == 0 else None
    sent = [states]
    distributed.broadcast_object_list(sent, 0)
    second.load(sent[0])
    second.num_done = 3
    for _ in range(3):
        ends = [trainer.step()["bits"] for trainer in (whole, second)]
    return ends


def polished(family: str, rank: int | str | None, labels: bool, dense_limit: int, group: Group) -> Any:
    case = Case(family, rank, ALL, labels)
    loss, (x, y) = Loss(case), problem(case)
    if dense_limit == 0:  # goes on from a fit
        polish(loss.model, loss.likelihood, [(x, y)], max_passes=1)
    share = slice(None) if group is None else [slice(0, 270), slice(270, None)][rank_of(group)]
    batches = list(zip(x[share].split(100), y[share].split(100), strict=True))
    history = polish(loss.model, loss.likelihood, batches, dense_limit=dense_limit, process_group=group)
    return {"history": history, "posterior": precision_and_mean(loss.model), "bits": loss.state_dict()}


POLISHED = [
    ("coupled", None, False, 1000),
    ("block_low_rank", 6, True, 1000),
    ("low_rank", "auto", False, 1000),
    ("block_low_rank", "auto", True, 0),
    ("low_rank", 20, True, 0),
    ("mean_field", None, False, 0),
]


def fitted(group: Group) -> Any:
    case = Case("block_low_rank", 6, UNEVEN)
    loss, (x, y) = Loss(case), problem(case)
    with torch.no_grad():
        for parameter in (*loss.model.hyperparameters(), *loss.likelihood.parameters()):
            parameter += 0.01  # chosen by somebody
    if rank_of(group) > 0:
        loss.likelihood.noise = 3.0
    steps = torch.arange(360).split(60)
    parts = [rows if group is None else rows.split(UNEVEN)[rank_of(group)] for rows in steps]
    batches = [(x[rows], y[rows]) for rows in parts]
    options = {"num_epochs": 4, "num_held_back": 0, "polish_passes": 2}
    history = fit(loss.model, loss.likelihood, batches, num_data=360, process_group=group, **options).history
    return {"history": history, "posterior": precision_and_mean(loss.model), "bits": loss.state_dict()}


def error_of(action: Callable[[], Any]) -> tuple[str, str]:
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def errors(group: Group) -> dict[str, tuple[str, str]]:
    case, rank = CASES["block + low-rank, even"], rank_of(group)
    x, y = problem(case)
    found = {}

    loss = Loss(case)
    found["num_data"] = error_of(lambda: NaturalGradient(loss.model, num_data=400 + rank, process_group=group))
    other = Loss(Case("block_low_rank", 4 + rank, EVEN))
    found["rank"] = error_of(lambda: NaturalGradient(other.model, num_data=400, process_group=group))
    automatic = Loss(Case("block_low_rank", "auto", EVEN))
    automatic.model.variational_strategy._variational_distribution.resize(4 + 2 * rank)
    found["automatic rank"] = error_of(lambda: NaturalGradient(automatic.model, num_data=400, process_group=group))
    found["rank of the first"] = ("", str(automatic.model.variational_strategy._variational_distribution.rank))
    found["no rows"] = error_of(lambda: row_weighted(loss(x, y), rank, group))

    trainer = Trainer(case, group)
    before = copy.deepcopy(trainer.loss.state_dict())
    if rank == 1:
        trainer.loss(x[:30], y[:30]).backward()
    found["no forward"] = error_of(trainer.natural.step)
    bad = y.clone()
    bad[3] = math.inf if rank == 1 else 0.0
    trainer.loss(x[:30], bad[:30]).backward()
    found["not finite"] = error_of(trainer.natural.step)
    after = trainer.loss.state_dict()
    found["unchanged"] = ("", str(all(torch.equal(before[name], after[name]) for name in after)))

    loss_of_one = trainer.loss(x[:30], y[:30])
    (loss_of_one if rank == 0 else -loss_of_one).backward()
    found["sign"] = error_of(trainer.natural.step)
    trainer.loss(x[:200], y[:200]).backward()
    trainer.loss(x[:200], y[:200]).backward()
    found["rows"] = error_of(trainer.natural.step)

    trainer.loss(x[:30], y[:30]).backward()
    with mock.patch("gpytorch_gam.optim.natural_gradient.dense_step", side_effect=ArithmeticError("broken")):
        found["first fails"] = error_of(trainer.natural.step)
    trainer.loss(x[:30], y[:30]).backward()
    found["afterwards"] = error_of(trainer.natural.step)

    if rank == 1:
        trainer.natural.load_state_dict(Trainer(case, None).natural.state_dict())
        trainer.natural._own.step = 7
    trainer.loss(x[:30], y[:30]).backward()
    found["step"] = error_of(trainer.natural.step)

    unequal = [(x, y)] * (1 + rank)
    found["lengths"] = error_of(
        lambda: fit(loss.model, loss.likelihood, unequal, num_data=400, num_epochs=2, process_group=group)
    )
    for name, batches in (("infinite", [(x, bad)]), ("empty", [] if rank == 0 else [(x, y)])):
        found[name] = error_of(functools.partial(polish, loss.model, loss.likelihood, batches, process_group=group))
    return found


def drift(group: Group) -> list[str]:
    """Warnings of a loop that does not average gradients."""
    trainer = Trainer(CASES["block + low-rank, even"], group)
    trainer.forward = trainer.loss
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            trainer.step()
    return [str(warning.message) for warning in caught if warning.category is TrainingLoopWarning]


def loss_with_wrong_sign(loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    expected, divergence, _ = loss.mll(loss.model(x), y)
    return expected + divergence


def wrong_sign(group: Group) -> list[str]:
    """Warnings where the data term of one process, or of all, has the wrong sign."""
    case, found = Case("block_low_rank", 6, EVEN), []
    for ranks in ((1,), (0, 1)):
        trainer = Trainer(case, group)
        if rank_of(group) in ranks:
            trainer.loss.mll.combine_terms = False
            trainer.forward = functools.partial(loss_with_wrong_sign, trainer.loss)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(6):
                trainer.step()
        found.append(sum(warning.category is CurvatureWarning for warning in caught))
    return found


# ----------------------------------------------------------------------------------------------------- equality


@pytest.fixture(scope="module")
def trained_together(together: Together) -> Callable[[str], list[Any]]:
    """What each of two processes found in a case, which runs once."""
    return functools.cache(functools.partial(together, trained))


@pytest.fixture(scope="module")
def failed(together: Together) -> list[dict[str, tuple[str, str]]]:
    """The errors of each of two processes."""
    return together(errors)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the whole tensor."""
    assert (found - expected).norm() <= tolerance * expected.norm()


def assert_same_bits(one: Any, other: Any) -> None:
    if torch.is_tensor(one):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same_bits(one[name], other[name])
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_same_bits(*pair)
    else:
        assert one == other


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(trained_together: Callable[[str], list[Any]], name: str) -> None:
    steps = zip(trained(name, None), *trained_together(name), strict=True)
    for number, (expected, *found) in enumerate(steps):
        # Rounding grows when the posterior follows the kernels, most in directions that the jitter supports.
        tolerance, growth = (1e-11, 10) if number == 0 else (1e-9, 100)
        average = sum(each["loss"] for each in found) / 2
        assert average == pytest.approx(expected["loss"], rel=tolerance)
        for each in found:
            assert_close(each["gradient"], expected["gradient"], tolerance)
            for part, whole in zip(each["posterior"], expected["posterior"], strict=True):
                assert_close(part, whole, growth * tolerance)


@pytest.mark.parametrize("name", CASES)
def test_all_processes_have_the_same_bits(trained_together: Callable[[str], list[Any]], name: str) -> None:
    for one, other in zip(*trained_together(name), strict=True):
        assert_same_bits(one["gradient"], other["gradient"])
        for mine, theirs in zip(one["bits"], other["bits"], strict=True):
            for state in (mine, theirs):  # who has warned is the first one's affair
                for memory in state.get("state", {}).values():
                    memory.pop("has_warned", None)
            assert_same_bits(mine, theirs)


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.RankWarning")
@pytest.mark.parametrize("number", range(len(POLISHED)))
def test_polishing_together_equals_polishing_alone(together: Together, number: int) -> None:
    alone = polished(*POLISHED[number], None)
    one, other = together(polished, *POLISHED[number])
    assert_same_bits(one, other)
    assert one["history"] == pytest.approx(alone["history"], rel=1e-9)
    for part, whole in zip(one["posterior"], alone["posterior"], strict=True):
        assert_close(part, whole, 1e-8)


def test_fitting_together_equals_fitting_alone(together: Together) -> None:
    alone = fitted(None)
    one, other = together(fitted)
    assert_same_bits(one, other)
    # What depends on the responses at the start is that of the rows of the first process.
    for epoch, expected in zip(one["history"], alone["history"], strict=True):
        assert epoch == pytest.approx(expected, rel=1e-2)
    # The search at the end stops within a tenth of a nat: rounding decides where.
    assert one["history"][-1] == pytest.approx(alone["history"][-1], abs=0.1)
    for part, whole in zip(one["posterior"], alone["posterior"], strict=True):
        assert_close(part, whole, 1e-2)


def test_a_resumed_run_equals_an_uninterrupted_one(together: Together) -> None:
    for found in together(resumed):
        assert_same_bits(*found)


# ------------------------------------------------------------------------------------------- errors and warnings


@pytest.mark.parametrize(
    ("what", "kinds", "message"),
    [
        ("num_data", ("ValueError", "ValueError"), r"have num_data \[400, 401\]"),
        ("rank", ("ValueError", "ValueError"), r"have ranks \[4, 5\]"),
        ("no rows", ("ValueError", "ValueError"), r"have \[0, 1\] rows in this step"),
        ("no forward", ("RuntimeError", "RuntimeError"), "nothing was recorded|process 0 .* has no gradients"),
        ("not finite", ("RuntimeError", "RuntimeError"), "infinite in 1 of 30 rows|process 1 .* has no gradients"),
        ("sign", ("RuntimeError", "ValueError"), "with the minus sign|process 1 .* has no gradients"),
        ("rows", ("ValueError", "ValueError"), "800 rows since the last step are more than num_data=400"),
        ("first fails", ("ArithmeticError", "RuntimeError"), "broken|failed in the first process"),
        ("step", ("RuntimeError", "RuntimeError"), r"have taken \[1, 7\] steps"),
        ("lengths", ("ValueError", "ValueError"), r"have numbers of batches \[1, 2\]"),
        ("infinite", ("OverflowingLikelihoodError",) * 2, "infinite in 1 of 400|process 1 .* cannot read its rows"),
        ("empty", ("ValueError", "RuntimeError"), "batches is empty|process 0 .* cannot read its rows"),
    ],
)
def test_an_error_of_one_process_is_one_of_all(
    failed: list[dict[str, tuple[str, str]]], what: str, kinds: tuple[str, str], message: str
) -> None:
    for kind, found in zip(kinds, failed, strict=True):
        assert found[what][0] == kind
        assert re.search(message, found[what][1])


def test_a_failed_step_changes_nothing_and_the_next_one_works(failed: list[dict[str, tuple[str, str]]]) -> None:
    for found in failed:
        assert found["unchanged"][1] == "True"
        assert found["afterwards"] == ("", "")


def test_an_automatic_rank_becomes_that_of_the_first(failed: list[dict[str, tuple[str, str]]]) -> None:
    for found in failed:
        assert found["automatic rank"] == ("", "")
        assert found["rank of the first"][1] == "4"


def test_the_first_process_warns(together: Together) -> None:
    (warning,), others = together(drift)
    assert "average the gradients" in warning
    assert others == []
    assert together(wrong_sign) == [[0, 1], [0, 0]]


def test_what_is_no_group_is_an_error() -> None:
    loss = Loss(CASES["block + low-rank, even"])
    x, y = problem(CASES["block + low-rank, even"])
    for action in (
        lambda: NaturalGradient(loss.model, num_data=NUM_ROWS, process_group="world"),
        lambda: row_weighted(loss(x, y), NUM_ROWS, 2),
        lambda: average_gradients(loss.parameters(), distributed.GroupMember.NON_GROUP_MEMBER),
        lambda: fit(loss.model, loss.likelihood, [(x, y)], NUM_ROWS, process_group="world"),
        lambda: polish(loss.model, loss.likelihood, [(x, y)], process_group="world"),
    ):
        with pytest.raises(TypeError, match=r"process_group must be None or a torch.distributed.ProcessGroup"):
            action()


def test_polishing_refuses_a_sampler_that_repeats_rows() -> None:
    case = CASES["block + low-rank, even"]
    loss, data = Loss(case), TensorDataset(*problem(case))
    even, uneven = (DataLoader(data, 100, sampler=DistributedSampler(data, size, 0)) for size in (2, 3))
    assert math.isfinite(polish(loss.model, loss.likelihood, even, max_passes=1)[-1])
    with pytest.raises(ValueError, match="gives 402 rows for 400"):
        polish(loss.model, loss.likelihood, uneven)
