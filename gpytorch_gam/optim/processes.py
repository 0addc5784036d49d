"""Steps on rows that are spread over several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from gpytorch.variational._variational_distribution import _VariationalDistribution
from torch import Tensor, distributed

from gpytorch_gam.variational import AdditiveVariationalStrategy

from .posterior.posterior import Posterior
from .rows.sums import Resistance, RowSums, Totals

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_T = TypeVar("_T")


class Processes:
    """
    The processes that train one model, each with rows of its own; without a group this one alone, sending nothing.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        if group is not None and not (distributed.is_available() and isinstance(group, distributed.ProcessGroup)):
            raise TypeError(
                "process_group must be None or a torch.distributed.ProcessGroup that this process belongs to, such as "
                f"torch.distributed.group.WORLD, got {group!r}"
            )
        self.group = group
        self.size = 1 if group is None else distributed.get_world_size(group)
        self.rank = 0 if group is None else distributed.get_rank(group)

    @property
    def is_alone(self) -> bool:
        """Whether there is no group."""
        return self.group is None

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the processes, the same bits in all of them, added up in float64 in one message."""
        if self.group is None or not tensors:
            return list(tensors)
        total = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        distributed.all_reduce(total, group=self.group)
        parts = total.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def minimum(self, tensor: Tensor) -> Tensor:
        """The elementwise minimum over the processes."""
        if self.group is None:
            return tensor
        smallest = tensor.clone()
        distributed.all_reduce(smallest, distributed.ReduceOp.MIN, group=self.group)
        return smallest

    def gather(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """The numbers of each process, in the order of their ranks; each process gives equally many."""
        if self.group is None:
            return [list(numbers)]
        table = torch.zeros(self.size, len(numbers), dtype=torch.int64, device=device)
        table[self.rank] = torch.tensor(numbers, device=device)
        distributed.all_reduce(table, group=self.group)
        return table.tolist()

    def gather_objects(self, value: _T) -> list[_T]:
        """The values of each process, which are pickled, in the order of their ranks."""
        found = [value] * self.size
        if self.group is not None:
            distributed.all_gather_object(found, value, group=self.group)
        return found

    def of_first(self, value: _T) -> _T:
        """The value of the first process, which is pickled."""
        found = [value]
        if self.group is not None:
            distributed.broadcast_object_list(found, distributed.get_global_rank(self.group, 0), group=self.group)
        return found[0]

    def require_equal(self, numbers: Mapping[str, int], device: torch.device) -> None:
        """Raise a ValueError in every process if they differ in a number, named by a plural."""
        table = self.gather(list(numbers.values()), device)
        for name, values in zip(numbers, zip(*table, strict=True), strict=True):
            if len(set(values)) > 1:
                raise ValueError(f"the processes of process_group have {name} {list(values)}: they must agree")

    @contextmanager
    def sharing_errors(self, what: str, device: torch.device) -> Iterator[None]:
        """Raise an error of one process, which cannot do ``what``, in all: in the others as a RuntimeError."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        failed = [rank for rank, (has_failed,) in enumerate(self.gather([error is not None], device)) if has_failed]
        if error is not None:
            raise error
        if failed:
            raise RuntimeError(f"process {failed[0]} of process_group cannot {what}: see its error")

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors, of the same shapes and dtypes in all processes, the values of the first one, in place."""
        if self.group is None:
            return
        source = distributed.get_global_rank(self.group, 0)
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            distributed.broadcast(sent, source, group=self.group)
            if not self.leads:
                tensor.copy_(sent)


@torch.no_grad()
def start_from_first(
    processes: Processes, strategy: AdditiveVariationalStrategy, modules: Iterable[torch.nn.Module]
) -> None:
    """Give modules, the model included, the first process's values and automatic rank; a ValueError if shapes vary."""
    if processes.is_alone:
        return
    q = strategy._variational_distribution
    fixed_rank = -1 if _has_automatic_rank(q) else getattr(q, "rank", 0)
    shape = {"numbers of inducing variables": q.num_inducing_points, "ranks": fixed_rank}
    processes.require_equal(shape, q.device)
    strategy._initialize_once()  # draws random numbers
    take_distribution_of_first(processes, q)
    for module in modules:
        processes.broadcast([*module.parameters(), *module.buffers()])
    jitter = torch.tensor(strategy.jitter_val, dtype=torch.float64, device=q.device)
    processes.broadcast([jitter])
    strategy._fix_jitter(jitter.item())


@torch.no_grad()
def take_distribution_of_first(processes: Processes, distribution: _VariationalDistribution) -> None:
    """Give a distribution the parameters of the first process, and its rank if that is automatic."""
    if processes.is_alone:
        return
    if _has_automatic_rank(distribution):
        ((rank,), *_) = processes.gather([distribution.rank], distribution.device)
        distribution.resize(rank)
    processes.broadcast(distribution.parameters())


def _has_automatic_rank(distribution: _VariationalDistribution) -> bool:
    return getattr(distribution, "rank_tolerance", None) is not None


class _Request(IntEnum):
    TOTALS = 0
    GRAM = 1
    APPLY = 2
    RESISTANCE = 3
    DONE = 4
    FAILED = 5


def step_together(
    processes: Processes, own: RowSums, old: Posterior, take_step: Callable[[RowSums], Posterior]
) -> Posterior:
    """
    Take a step on the rows of all processes; each calls this, and all return the same posterior, bit by bit. The first
    runs ``take_step`` with sums to which the others add theirs on request, so that eigenvectors and random numbers are
    those of one process. Its error is raised there as it is, and as a RuntimeError in the others.
    """
    if processes.is_alone:
        return take_step(own)
    after = _lead(processes, own, old, take_step) if processes.leads else _follow(processes, own, old)
    processes.broadcast(_tensors_of(after))
    return after


def _lead(processes: Processes, own: RowSums, old: Posterior, take_step: Callable[[RowSums], Posterior]) -> Posterior:
    sums = _SumsOfAll(processes, own, old)
    try:
        after = take_step(sums)
    except Exception:
        sums.announce(_Request.FAILED)
        raise
    sums.announce(_Request.DONE)
    processes.gather([_columns(after.shared_factor), _columns(after.directions)], old.mean.device)
    return after


def _follow(processes: Processes, own: RowSums, old: Posterior) -> Posterior:
    """Contribute sums until the first process has finished its step, then receive the new posterior."""
    while True:
        order = torch.empty(2, dtype=torch.int64, device=old.mean.device)
        processes.broadcast([order])
        request, width = order.tolist()
        if request == _Request.FAILED:
            raise RuntimeError("the step failed in the first process of process_group: see its error")
        if request == _Request.DONE:
            break
        argument = old.mean.new_empty(len(old.mean), width)
        processes.broadcast([argument])
        _answer(processes, own, old, request, argument)
    factor, directions = processes.gather([0, 0], old.mean.device)[0]
    return Posterior(
        torch.empty_like(old.mean),
        old.mean.new_empty(len(old.mean), factor) if factor else None,
        [old.mean.new_empty(count, size, size) for count, size in old.shapes],
        old.mean.new_empty(len(old.mean), directions) if directions else None,
    )


def _columns(matrix: Tensor | None) -> int:
    return 0 if matrix is None else matrix.shape[-1]


def _tensors_of(posterior: Posterior) -> list[Tensor]:
    tensors = (posterior.mean, posterior.shared_factor, *posterior.block_factors, posterior.directions)
    return [tensor for tensor in tensors if tensor is not None]


class _SumsOfAll(RowSums):
    """Sums over the rows of all processes, used in the first one."""

    def __init__(self, processes: Processes, own: RowSums, old: Posterior) -> None:
        self._processes, self._own, self._old = processes, own, old

    def announce(self, request: _Request, width: int = 0) -> None:
        """Tell the other processes which sum comes next, and its number of columns."""
        self._processes.broadcast([torch.tensor([int(request), width], device=self._old.mean.device)])

    def _ask(self, request: _Request, argument: Tensor | None = None) -> Any:
        argument = self._old.mean.new_empty(len(self._old.mean), 0) if argument is None else argument
        self.announce(request, argument.shape[-1])
        self._processes.broadcast([argument])
        return _answer(self._processes, self._own, self._old, request, argument)

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        assert list(shapes) == self._old.shapes
        return self._ask(_Request.TOTALS)

    def gram(self) -> tuple[Tensor, Tensor]:
        return self._ask(_Request.GRAM)

    def apply(self, columns: Tensor) -> Tensor:
        return self._ask(_Request.APPLY, columns)

    def resistance(self, direction: Tensor) -> Resistance:
        return self._ask(_Request.RESISTANCE, direction.unsqueeze(-1))


def _answer(processes: Processes, own: RowSums, old: Posterior, request: int, argument: Tensor) -> Any:
    """Compute in every process the requested sum over its rows, and add up the results."""
    if request == _Request.TOTALS:
        totals = own.totals(old.shapes)
        *blocks, projected = processes.sum([*totals.blocks, totals.projected])
        return Totals(blocks, projected)
    if request == _Request.GRAM:
        gram, projected = processes.sum(own.gram())
        return gram, projected
    if request == _Request.APPLY:
        return processes.sum([own.apply(argument)])[0]
    return resistance_of_all(processes, own, argument.squeeze(-1))


def resistance_of_all(processes: Processes, own: RowSums, direction: Tensor) -> Resistance:
    """The resistance of the rows of all processes to a step along a direction ``(Q,)``, the same in all processes."""
    resistance = own.resistance(direction)
    return Resistance(processes.sum([resistance.curvature])[0], processes.minimum(resistance.reach))


def row_weighted(loss: Tensor, num_rows: int, process_group: ProcessGroup | None) -> Tensor:
    r"""
    The loss of this process's rows, weighted such that its average over the processes is the loss of all their rows,
    however unevenly these are spread. It is this average that ``DistributedDataParallel`` and :func:`average_gradients`
    differentiate.

    With :math:`b_k` rows in process k of K, the objective of a process is its mean over :math:`b_k` rows less
    :math:`\mathrm{KL} / N`. Weighted by :math:`K b_k / \sum_j b_j`, the average is the mean over all rows, and the
    divergence counts once. Where all processes have as many rows, the loss is left as it is.

    Every process calls it as often as the others.

    :param loss: Minus the objective as it is returned, ``-mll(model(x), y)``, ``()``.
    :param num_rows: :math:`b_k`, the number of rows in it.
    :param process_group: The group, or None for a single process.
    :return: ``()``, with the graph of ``loss``.
    :raises ValueError: In every process, if one has no row.

    Example:
        >>> loss = row_weighted(-mll(model(x), y), len(y), torch.distributed.group.WORLD)
    """
    processes = Processes(process_group)
    counts = [count for (count,) in processes.gather([num_rows], loss.device)]
    if min(counts) < 1:
        raise ValueError(
            f"the processes have {counts} rows in this step, and each needs at least one: use a DistributedSampler, "
            "which gives all as many"
        )
    return loss if processes.is_alone else loss * (processes.size * num_rows / sum(counts))


def average_gradients(parameters: Iterable[Tensor], process_group: ProcessGroup | None) -> None:
    """
    Average the gradients of parameters over processes, in place: what ``DistributedDataParallel`` does in ``backward``,
    for those who do without it. Given the hyperparameters alone, it sends a few numbers only, and an automatic rank is
    no obstacle: the gradients of the posterior's own parameters are not needed by :class:`NaturalGradient`.

    Call it in every process, after ``backward``. A gradient that is None counts as zero.

    :param parameters: The same in all processes; those that need no gradient are passed over.
    :param process_group: The group, or None for a single process.

    Example:
        >>> loss.backward()
        >>> average_gradients([*model.hyperparameters(), *likelihood.parameters()], torch.distributed.group.WORLD)
    """
    processes = Processes(process_group)
    if processes.is_alone:
        return
    learnt = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in learnt]
    for parameter, total in zip(learnt, processes.sum(gradients), strict=True):
        parameter.grad = total / processes.size
