"""Recorded steps, with a stand-in for CUDA graphs that repeats the function in the same memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant
from gpytorch_gam.training import _graphed_step, fit
from gpytorch_gam.training._graphed_step import GraphedStep, Outputs


def make_objective() -> gpytorch.mlls.VariationalELBO:
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 6))
    model = AdditiveGP(AdditivePredictor(group, constant()), rank=3).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    return gpytorch.mlls.VariationalELBO(likelihood, model, num_data=60)


@pytest.fixture
def num_recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that the model is on a GPU, and count recordings."""
    counter: list[int] = []

    def stand_in(evaluate: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        counter.append(1)
        outputs = evaluate()

        def replay() -> None:
            for old, new in zip(tensors_of(outputs), tensors_of(evaluate()), strict=True):
                old.detach().copy_(new)

        return outputs, replay

    monkeypatch.setattr(_graphed_step, "_require_cuda", lambda device: None)
    monkeypatch.setattr(_graphed_step, "record_graph", stand_in)
    return counter


def tensors_of(outputs: Outputs) -> list[Tensor]:
    records = [tensor for record in outputs.recorded.records for tensor in record]
    weights = [record.weight for record in outputs.recorded.divergences]
    return [outputs.loss, *outputs.gradients, *records, *weights]


def test_it_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="cuda_graph=True needs a model on a CUDA device, this one is on cpu"):
        GraphedStep(make_objective())


def test_training_equals_eager_training(num_recordings: list[int]) -> None:
    x = torch.rand(60, 2).double()
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(60).double()
    eager, losses = make_objective(), []
    graphed = copy.deepcopy(eager)
    for objective, is_graphed in ((eager, False), (graphed, True)):
        torch.manual_seed(1)
        step = GraphedStep(objective) if is_graphed else None
        natural = NaturalGradient(objective.model, num_data=60)
        adam = torch.optim.Adam([*objective.model.hyperparameters(), *objective.likelihood.parameters()], lr=0.05)
        objective.train()
        found = []
        for index in range(12):
            rows = slice(0, 20) if index % 4 else slice(20, 53)  # two shapes
            if step is not None:
                loss = step(Rows(x[rows], y[rows], {}))
            else:
                adam.zero_grad()
                loss = -objective(objective.model(x[rows]), y[rows])
                loss.backward()
            natural.step()
            adam.step()
            found.append(loss.detach())
        losses.append(torch.stack(found))
    assert len(num_recordings) == 2
    torch.testing.assert_close(*losses)
    for left, right in zip(eager.parameters(), graphed.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_other_shapes_run_eagerly_and_replaced_parameters_are_recorded_anew(num_recordings: list[int]) -> None:
    objective, x = make_objective().train(), torch.rand(60, 2).double()
    step = GraphedStep(objective)
    for size in (10, 20, 30, 40, 10, 20):
        loss = step(Rows(x[:size], x[:size, 0], {}))
        objective.zero_grad()
        expected = -objective(objective.model(x[:size]), x[:size, 0])
        torch.testing.assert_close(loss, expected.detach())
    assert len(num_recordings) == 2
    q = objective.model.variational_strategy._variational_distribution
    q.resize(4)
    step(Rows(x[:10], x[:10, 0], {}))
    assert len(num_recordings) == 3
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_checks_are_off_while_recording_only() -> None:
    before = torch.distributions.Distribution._validate_args
    with _graphed_step._without_waiting():
        assert not torch.distributions.Distribution._validate_args and gpytorch.settings.debug.off()
    assert torch.distributions.Distribution._validate_args == before and gpytorch.settings.debug.on()


@pytest.mark.filterwarnings("ignore:the fit has not arrived")  # the search at the end is short
@pytest.mark.parametrize("names", [(), ("weights", "offset")])
def test_fit_with_recorded_steps_equals_fit(num_recordings: list[int], names: tuple[str, ...]) -> None:
    x = torch.rand(60, 2).double()
    arguments = {name: 0.5 + torch.rand(60).double() for name in names}
    batches = [
        (x[rows], torch.sin(6 * x[rows, 0]), {name: value[rows] for name, value in arguments.items()})
        for rows in (slice(0, 25), slice(25, 50), slice(50, 60))
    ]
    objectives = [make_objective()]
    objectives.append(copy.deepcopy(objectives[0]))
    histories = []
    for objective, cuda_graph in zip(objectives, (False, True), strict=True):
        torch.manual_seed(1)
        likelihood = RowwiseLikelihood(objective.likelihood)
        options = {"num_epochs": 8, "tolerance": 10.0, "cuda_graph": cuda_graph}
        histories.append(fit(objective.model, likelihood, batches, 60, **options).history)
    assert len(num_recordings) == 2
    torch.testing.assert_close(*(torch.tensor([epoch.elbo for epoch in history]) for history in histories))
    for left, right in zip(objectives[0].parameters(), objectives[1].parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_batches_of_other_arguments_are_recorded_apart(num_recordings: list[int]) -> None:
    objective, x = make_objective().train(), torch.rand(10, 2).double()
    objective.likelihood = RowwiseLikelihood(objective.likelihood)
    step = GraphedStep(objective)
    for arguments in ({}, {"weights": torch.rand(10).double()}, {"weights": torch.rand(10).double()}):
        loss = step(Rows(x, x[:, 0], arguments))
        expected = -objective(objective.model(x), x[:, 0], **arguments)
        torch.testing.assert_close(loss, expected.detach())
    assert len(num_recordings) == 2


def test_fit_refuses_graphs_on_a_cpu() -> None:
    objective = make_objective()
    with pytest.raises(ValueError, match="cuda_graph=True needs a model on a CUDA device"):
        fit(
            objective.model,
            objective.likelihood,
            [(torch.rand(5, 2).double(), torch.rand(5).double())],
            5,
            cuda_graph=True,
        )
    assert objective.model.variational_strategy.training_hooks is None
