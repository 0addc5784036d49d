"""
Data-parallel training by several processes that survives the death of one of them.

    torchrun --nproc-per-node 2 examples/distributed_svi.py  # on GPUs: --device cuda
    python examples/distributed_svi.py                       # the same in one process

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # otherwise gloo may look for dead workers after a restart
    torchrun --nproc-per-node 2 --max-restarts 1 examples/distributed_svi.py --die-at-epoch 5

Each process has its own rows of every batch. DistributedDataParallel averages the gradients of the hyperparameters,
NaturalGradient adds up what it needs of the rows, and every process ends with the same model: the one that a single
process finds with all of the rows. After each epoch the first process writes a checkpoint; with several machines --out
has to be a folder that all of them see. Workers that torchrun has restarted go on from there, and so do new ones with
--resume. The data are simulated from three effects, so that predictions can be held against the truth.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import torch
import torch.distributed as dist
from _style import argument_parser, write_json
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.processes import row_weighted
from gpytorch_gam.terms import constant
from gpytorch_gam.training import polish

NUM_INPUTS = 4
NOISE = 0.5


# ----------------------------------------------------------------------------------------------- the processes


def join_processes(device: str) -> ProcessGroup:
    """The workers that torchrun has started, or this process alone."""
    backend = "nccl" if device == "cuda" else "gloo"
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


def own_device(device: str) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


def is_restarted() -> bool:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


# ---------------------------------------------------------------------------------------------------- the data


def truth(x: Tensor) -> Tensor:
    """The sum of three effects; the last input has none."""
    return torch.sin(2 * math.pi * x[:, 0]) + 2 * (x[:, 1] - 0.5) + 6 * (x[:, 2] - 0.5).square()


def simulate(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same in every process. Of data on disk, each would read its own part."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    x = torch.special.ndtr(math.sqrt(0.5) * (shared + own))
    return x, truth(x) + NOISE * torch.randn(num_rows, generator=generator, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------- the model


class Loss(torch.nn.Module):
    """Holds model and likelihood, so that DistributedDataParallel averages the gradients of both."""

    def __init__(self, num_data: int) -> None:
        super().__init__()
        batch = torch.Size([NUM_INPUTS])
        base = RBFKernel(batch_shape=batch, lengthscale_constraint=Interval(0.05, 10.0))
        base.lengthscale = 0.3
        kernel = ScaleKernel(ANOVAKernel(base, Uniform(0.0, 1.0)), batch_shape=batch)
        columns = [[column] for column in range(NUM_INPUTS)]
        smooth = ComponentGroup(kernel, columns, regular_grid(0.0, 1.0, 16))
        self.model = AdditiveGP(AdditivePredictor(smooth, constant()), "block_low_rank", rank=16)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.mll = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=num_data)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.mll(self.model(x), y)

    def hyperparameters(self) -> list[torch.nn.Parameter]:
        return [*self.model.hyperparameters(), *self.likelihood.parameters()]


# ---------------------------------------------------------------------------------------------------- the loop


class Training:
    """One process's part of the training, and what a checkpoint holds of it."""

    def __init__(
        self, data: TensorDataset, batch_size: int, num_epochs: int, device: torch.device, group: ProcessGroup
    ) -> None:
        torch.manual_seed(0)
        self.group, self.device, self.num_epochs = group, device, num_epochs
        self.loss = Loss(num_data=len(data)).double().to(device)
        self.natural = NaturalGradient(self.loss.model, num_data=len(data), process_group=group)
        self.adam = torch.optim.Adam(self.loss.hyperparameters(), lr=0.1)
        self.parallel = DistributedDataParallel(self.loss)
        self.sampler = DistributedSampler(data, dist.get_world_size(group), dist.get_rank(group))
        own_size = batch_size // dist.get_world_size(group)
        self.loader = DataLoader(data, batch_size=own_size, sampler=self.sampler, drop_last=True)
        self.num_done = 0

    def run_epoch(self, dies: bool) -> int:
        """One pass over the data; returns the number of rows that all processes have seen."""
        self.sampler.set_epoch(self.num_done)  # another order in each epoch, and the same after a restart
        self.adam.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * self.num_done / self.num_epochs))
        self.loss.train()
        num_rows = 0
        for x, y in self.loader:
            self.adam.zero_grad()
            loss = self.parallel(x.to(self.device), y.to(self.device))
            row_weighted(loss, len(y), self.group).backward()  # the weight is 1 unless processes have unequal batches
            self.natural.step()
            self.adam.step()
            num_rows += len(y) * dist.get_world_size(self.group)
            if dies:
                print("a worker dies", flush=True)
                os._exit(1)
        self.num_done += 1
        return num_rows

    def save(self, path: Path) -> None:
        """By one process. A reader finds the old checkpoint or the new one, never a part of it."""
        state = {
            "num_done": self.num_done,
            "loss": self.loss.state_dict(),  # before the optimiser's: it brings the posterior to the present kernels
            "natural": self.natural.state_dict(),
            "adam": self.adam.state_dict(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        """In every process."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.num_done = state["num_done"]
        self.loss.load_state_dict(state["loss"])
        self.natural.load_state_dict(state["natural"])
        self.adam.load_state_dict(state["adam"])


def polished_bound(training: Training, data: TensorDataset) -> float:
    """Bring the posterior to its optimum, each process with its share of the rows; the bound in nats."""
    own = slice(dist.get_rank(training.group), None, dist.get_world_size(training.group))
    rows = [tuple(tensor[own].to(training.device) for tensor in data.tensors)]
    return polish(training.loss.model, training.loss.likelihood, rows, process_group=training.group)[-1]


# ----------------------------------------------------------------------------------------------------- answers


@torch.no_grad()
def score(loss: Loss, x: Tensor) -> dict[str, float]:
    """The predictor against the truth on fresh inputs."""
    loss.eval()
    device = next(loss.parameters()).device
    error = torch.cat([loss.model(rows.to(device)).mean.cpu() for rows in x.split(1000)]) - truth(x)
    return {"rmse": error.square().mean().sqrt().item(), "noise_stddev": loss.likelihood.noise.sqrt().item()}


def print_results(results: dict[str, Any]) -> None:
    print(f"\n{'processes':<28}{results['processes']:>10}")
    print(f"{'epochs before this start':<28}{results['epochs_before']:>10}")
    print(f"{'rows a second':<28}{results['rows_per_second']:>10.0f}")
    print(f"{'ELBO (nats)':<28}{results['elbo']:>10.1f}")
    print(f"{'RMSE of the predictor':<28}{results['rmse']:>10.4f}")
    print(f"{'noise (truth ' + str(NOISE) + ')':<28}{results['noise_stddev']:>10.4f}")


# -------------------------------------------------------------------------------------------------- the script


class Setting(NamedTuple):
    num_rows: int
    num_epochs: int
    batch_size: int  # of all processes together


def run(arguments: argparse.Namespace, group: ProcessGroup) -> None:
    setting = Setting(1200, 3, 200) if arguments.quick else Setting(120000, 8, 8000)
    data, leads = TensorDataset(*simulate(setting.num_rows, seed=0)), dist.get_rank(group) == 0
    training = Training(data, setting.batch_size, setting.num_epochs, own_device(arguments.device), group)
    checkpoint = arguments.out / "distributed_svi.pt"
    if (arguments.resume or is_restarted()) and checkpoint.exists():
        training.load(checkpoint)
    epochs_before, num_rows, start = training.num_done, 0, time.perf_counter()
    for epoch in range(epochs_before + 1, setting.num_epochs + 1):
        is_last_process = dist.get_rank(group) == dist.get_world_size(group) - 1
        num_rows += training.run_epoch(is_last_process and epoch == arguments.die_at_epoch and not is_restarted())
        if leads:
            training.save(checkpoint)
    seconds = time.perf_counter() - start
    bound = polished_bound(training, data)
    if leads:
        results = {
            "rows": {"train": setting.num_rows, "test": 2000},
            "processes": dist.get_world_size(group),
            "epochs_before": epochs_before,
            "rows_per_second": num_rows / seconds,
            "elbo": bound,
            **score(training.loss, simulate(2000, seed=1)[0]),
        }
        print_results(results)
        write_json(results, arguments.json)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out, if there is one")
    parser.add_argument("--die-at-epoch", type=int, default=0, help="end a worker in this epoch, to try a restart")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    group = join_processes(arguments.device)
    try:
        run(arguments, group)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
