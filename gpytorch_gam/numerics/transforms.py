"""Whether code runs inside of a transformation of ``torch.func``, such as ``grad`` or ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.settings import debug, trace_mode
from torch import Tensor
from torch.overrides import TorchFunctionMode


def is_transformed(*tensors: Tensor) -> bool:
    """
    Whether this runs inside of a transformation, which functions with a backward pass of their own do not serve.

    :param tensors: which may be batches of tensors that look like single ones.
    """
    is_batch = (torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch.is_batchedtensor)
    return torch._C._functorch.maybe_current_level() is not None or any(
        check(tensor) for tensor in tensors for check in is_batch
    )


def is_vmapped(tensor: Tensor) -> bool:
    """
    Whether the values of a tensor cannot be looked at, because ``vmap`` stands for a batch of them.

    :param tensor: Inside of transformations, or not.
    """
    if torch.compiler.is_compiling():  # which does not know how to ask, and does not trace what vmap wraps
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


@contextmanager
def for_transforms() -> Iterator[None]:
    """Kernels leave out functions with a backward pass of their own, and do not look at values."""
    with trace_mode(), debug(False), _BatchesDiffer():
        yield


class _BatchesDiffer(TorchFunctionMode):
    """
    GPyTorch's kernels ask whether their inputs are the same numbers, to save work. Where ``vmap`` stands for the
    numbers, inputs are taken to be the same if they are the same tensor.
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
