"""Forward and backward passes of training steps, recorded once as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational.forward_recorder import ForwardRecorder, Recorded

# Number of passes before a recording, in which libraries allocate workspaces and choose algorithms.
_NUM_WARM_UPS = 3

# Number of batch shapes to record; further ones run eagerly (a short last batch is rare, and ever-changing shapes would
# never be replayed).
_MAX_RECORDINGS = 2


class Outputs(NamedTuple):
    """The results of an evaluation."""

    loss: Tensor  # minus the objective
    gradients: list[Tensor | None]  # of the parameters, None for those without
    recorded: Recorded  # what the forward left, see `ForwardRecorder`


class _Recording(NamedTuple):
    rows: Rows  # the memory that the graph reads
    outputs: Outputs
    replay: Callable[[], Any]


class GraphedStep:
    """
    Evaluates minus an objective and its gradients by replaying a CUDA graph: the processor launches one graph instead
    of a thousand kernels, whose launches are what limits small batches on a GPU.

    Values are those of the eager step. Batches of the first two shapes are recorded; others run eagerly. A parameter
    that was replaced (by a rank that grows) causes a new recording. A model that is not on a CUDA device raises a
    ValueError.
    """

    def __init__(self, objective: gpytorch.mlls.MarginalLogLikelihood) -> None:
        self._objective = objective
        self._strategy: AdditiveVariationalStrategy = objective.model.variational_strategy
        _require_cuda(self._strategy.predictor.device)
        self._recordings: dict[Any, _Recording] = {}

    def __call__(self, rows: Rows) -> Tensor:
        """Minus the objective; its gradients are set, and the forward is recorded for an optimiser."""
        parameters = [parameter for parameter in self._objective.parameters() if parameter.requires_grad]
        identities = tuple(map(id, parameters))
        self._recordings = {key: value for key, value in self._recordings.items() if key[0] == identities}
        key = (identities, *((name, part.shape, part.dtype) for name, part in _parts(rows)))
        if key not in self._recordings:
            if len(self._recordings) == _MAX_RECORDINGS:
                return self._evaluate(parameters, rows)
            self._strategy.prepare_training()
            self._recordings[key] = self._record(parameters, rows)
        return self._replay(self._recordings[key], parameters, rows)

    def _evaluate(self, parameters: list[Any], rows: Rows) -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        loss = -self._objective(self._objective.model(rows.x), rows.y, **rows.row_arguments)
        loss.backward()
        return loss.detach()

    def _record(self, parameters: list[Any], rows: Rows) -> _Recording:
        by_name = {name: value.clone() for name, value in rows.row_arguments.items()}
        memory, recorder = Rows(rows.x.clone(), rows.y.clone(), by_name), ForwardRecorder()

        def evaluate() -> Outputs:
            with self._strategy.replaced_training_hooks(recorder), _without_waiting():
                loss = self._evaluate(parameters, memory)
            return Outputs(loss, [parameter.grad for parameter in parameters], recorder.take())

        with torch.cuda.device(rows.x.device) if rows.x.is_cuda else nullcontext():
            outputs, replay = record_graph(evaluate)
        return _Recording(memory, outputs, replay)

    def _replay(self, recording: _Recording, parameters: list[Any], rows: Rows) -> Tensor:
        self._strategy.prepare_training()  # this reads values, which a graph cannot do
        for (_, memory), (_, part) in zip(_parts(recording.rows), _parts(rows), strict=True):
            memory.copy_(part)
        recording.replay()
        for parameter, gradient in zip(parameters, recording.outputs.gradients, strict=True):
            parameter.grad = gradient
        if self._strategy.training_hooks is not None:
            self._strategy.training_hooks.put(recording.outputs.recorded)  # its gradients are replaced, too
        return recording.outputs.loss.clone()


def _parts(rows: Rows) -> list[tuple[str, Tensor]]:
    """All tensors of a batch with their names, row-wise arguments in alphabetical order."""
    return [("x", rows.x), ("y", rows.y), *sorted(rows.row_arguments.items())]


def _require_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs a model on a CUDA device, this one is on {device}")


def record_graph(evaluate: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], Any]]:
    """Record a function's work on the GPU; returns its result, and a function that repeats it in the same memory."""
    stream, present = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        for _ in range(_NUM_WARM_UPS):
            evaluate()
    present.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            outputs = evaluate()
    except RuntimeError as error:
        raise RuntimeError(
            "this step cannot be recorded as a CUDA graph, because a part of it waits for the GPU, as GPyTorch's "
            "BernoulliLikelihood and kernels do which the fused projection does not know: leave out cuda_graph"
        ) from error
    return outputs, graph.replay


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Switch off checks of arguments that read values back from the GPU."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with gpytorch.settings.debug(False):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
