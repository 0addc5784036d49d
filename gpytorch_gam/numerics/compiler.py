"""Methods that torch's compiler leaves alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def without_compiler(method: Callable[..., Any]) -> Callable[..., Any]:
    """
    Run a method as it is where ``torch.compile`` compiles its caller: its many small graphs would take minutes to make,
    and longer to run. Unlike ``torch.compiler.disable``, it does not import the compiler, which takes a second.
    """

    disabled: list[Callable[..., Any]] = []  # made when it is needed; the compiler does not see caches

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if not disabled:
                disabled.append(torch.compiler.disable(method))
            return disabled[0](*args, **kwargs)
        return method(*args, **kwargs)

    return wrapped
