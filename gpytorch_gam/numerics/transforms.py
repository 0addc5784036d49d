"""Whether code runs inside of a transformation of ``torch.func``, such as ``grad`` or ``vmap``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.settings import debug, trace_mode
from torch import Tensor
from torch.overrides import TorchFunctionMode

try:
    from torch._C._functorch import (
        get_unwrapped,
        is_batchedtensor,
        is_functorch_wrapped_tensor,
        is_legacy_batchedtensor,
        maybe_current_level,
    )
except ImportError:  # these are private to torch, and have no public equivalent
    CAN_TELL = False
    warnings.warn(
        f"torch {torch.__version__} does not say whether code runs inside of torch.func: gpytorch_gam uses the slower "
        "functions that transformations can differentiate everywhere, and torch.vmap of a model may raise an error",
        RuntimeWarning,
        stacklevel=2,
    )
else:
    CAN_TELL = True


def is_transformed(*tensors: Tensor) -> bool:
    """Whether this runs inside of a transformation, which functions with their own backward pass do not support."""
    if not CAN_TELL or maybe_current_level() is not None:
        return True
    return any(is_legacy_batchedtensor(tensor) or is_batchedtensor(tensor) for tensor in tensors)


def is_vmapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for a batch inside of ``vmap``, so that its values cannot be read."""
    # The compiler cannot trace the question, and does not trace what vmap wraps.
    if not CAN_TELL or torch.compiler.is_compiling():
        return False
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


@contextmanager
def for_transforms() -> Iterator[None]:
    """Kernels called in this context use no functions with a backward pass of their own, and do not look at values."""
    with trace_mode(), debug(False), _BatchesDiffer():
        yield


class _BatchesDiffer(TorchFunctionMode):
    """
    GPyTorch's kernels ask whether their inputs hold the same numbers, to save work. Inside of ``vmap``, where the
    numbers cannot be read, inputs are taken to be the same if they are the same tensor.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (torch.equal, Tensor.equal) and any(is_vmapped(tensor) for tensor in args):
            return args[0] is args[1]
        return func(*args, **(kwargs or {}))
