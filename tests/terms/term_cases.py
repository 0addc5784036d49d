"""A term of every kind, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpytorch_gam import ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.terms import (
    cyclic,
    factor,
    factor_smooth,
    interaction,
    linear,
    ordinal,
    random_effect,
    smooth,
    spatial,
    tensor,
)

SITES = Levels((-3.0, 0.5, 7.0), ("Bergen", "Oslo", "Bodo"))


def inputs(n: int = 60, dtype: torch.dtype = torch.float32) -> Tensor:
    """Columns: [0, 1], [-50, 50], [2000, 2010], codes of SITES."""
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    u[0], u[1] = 0.0, 1.0
    codes = torch.tensor(SITES.codes, dtype=torch.float64)[torch.arange(n) % 3]
    return torch.stack([u[:, 0], 100 * u[:, 1] - 50, 2000 + 10 * u[:, 2], codes], -1).to(dtype)


TERMS: dict[str, Callable[[Tensor], ComponentGroup]] = {
    "smooth": lambda x: smooth([0, 1, 2], x),
    "smooth, matern": lambda x: smooth([0, 1], x, kernel="matern52", centred=False),
    "smooth by a number": lambda x: smooth([0, 1], x, by=2),
    "smooth by levels": lambda x: smooth([0, 1], x, by=3, levels=SITES),
    "smooth, learnt locations": lambda x: smooth(0, x, learn_inducing_locations=True),
    "tensor, pure": lambda x: tensor((0, 1), x),
    "tensor, pairs": lambda x: tensor([(0, 1), (1, 2)], x, num_inducing=(3, 4), kernel="matern32"),
    "tensor, full": lambda x: tensor((0, 1), x, centred=False),
    "linear": lambda x: linear([0, 1, 2], x),
    "linear by levels": lambda x: linear(0, x, by=3, levels=SITES),
    "cyclic": lambda x: cyclic([0, 1], period=[1.0, 24.0]),
    "cyclic by levels": lambda x: cyclic(1, 24.0, by=3, levels=SITES),
    "random effect": lambda x: random_effect(3, SITES),
    "random slope": lambda x: random_effect(3, SITES, by=0),
    "factor": lambda x: factor(3, SITES),
    "ordinal": lambda x: ordinal(3, SITES),
    "factor smooth": lambda x: factor_smooth(0, 3, SITES, x),
    "factor smooth, centred": lambda x: factor_smooth(0, 3, SITES, x, centred=True, kernel="matern32"),
    "interaction": lambda x: interaction(0, 3, SITES, x),
    "spatial": lambda x: spatial((0, 1), x, num_inducing=10),
    "spatial, plain": lambda x: spatial((0, 1), x, num_inducing=10, kernel="rbf", centred=False),
}
