"""Checks that kernels share: of a base kernel, of inputs with one column, and of the arguments of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gpytorch_gam import _checks as checks


def check_base_kernel(owner: str, kernel: Any, probe: Tensor, normalize_cancels_scale: bool) -> None:
    """Raise an error if an argument is no kernel of one output, or has an output scale that ``owner`` would cancel."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"base_kernel must be a gpytorch Kernel, got {type(kernel).__name__}")
    name = type(kernel).__name__
    if kernel.num_outputs_per_input(probe, probe) != 1:
        raise ValueError(f"base_kernel must have one output, but {name} has several")
    if normalize_cancels_scale:
        raise ValueError(
            f"base_kernel {name} has an outputscale, which normalize=True cancels; put it outside, "
            f"ScaleKernel({owner}(...)), or pass normalize=False"
        )


def one_column(kernel: Kernel, x: Tensor, params: Mapping[str, Any]) -> Tensor:
    """The only column ``(*batch, n)`` of the inputs ``(*batch, n, 1)`` of a kernel; more columns are a ValueError."""
    check_call(kernel, params)
    if x.size(-1) != 1:
        raise ValueError(
            f"{type(kernel).__name__} is a kernel of one column, but x has {x.size(-1)}; choose one by "
            "active_dims=[...], or move the columns to a batch dimension: x.mT.unsqueeze(-1)"
        )
    return x.squeeze(-1)


def check_call(kernel: Kernel, keywords: Mapping[str, Any]) -> None:
    """Refuse unknown arguments of a call of a kernel (GPyTorch passes ``last_dim_is_batch``, which is deprecated)."""
    name = type(kernel).__name__
    unknown = sorted([keyword for keyword in keywords if keyword != "last_dim_is_batch"])
    if unknown:
        raise TypeError(f"a call of {name} takes no argument {', '.join(map(repr, unknown))}")
    if keywords.get("last_dim_is_batch"):
        raise NotImplementedError(
            f"{name} has no last_dim_is_batch; move the columns of x to a batch dimension: x.mT.unsqueeze(-1)"
        )


def keywords_of_kernels(name: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Refuse arguments of a constructor that GPyTorch's, to which it hands them on, would silently ignore."""
    known = inspect.signature(Kernel.__init__).parameters.keys() - {"self", "kwargs"}
    for keyword in keywords:
        if keyword not in known:
            raise TypeError(f"{name} takes no argument {keyword!r}{checks.did_you_mean(keyword, known)}")
    return keywords


def result_dtype(x1: Tensor, x2: Tensor, base_kernel: Kernel | None = None) -> torch.dtype:
    """The common dtype of two inputs (the default one if they are integers) and of the parameters of a kernel."""
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    parameters = () if base_kernel is None else base_kernel.parameters()
    return functools.reduce(torch.promote_types, (parameter.dtype for parameter in parameters), dtype)
