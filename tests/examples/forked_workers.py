"""
``python -m tests.examples.forked_workers SCRIPT ARGUMENTS`` runs a script in two workers with one restart, as torchrun
does, but by its agent's ``fork``: workers need not import torch once more each, which takes longer than they work.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import gpytorch  # noqa: F401  in the process that is forked
import torch._dynamo  # noqa: F401  which optimisers import when they are made
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import gpytorch_gam.training  # noqa: F401


def work(script: str, *arguments: str) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    torchrun = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        run_id="standalone",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
    )
    elastic_launch(torchrun, work)(*sys.argv[1:])
