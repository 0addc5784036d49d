"""Checks of arguments that many entries share: which one is wrong, what was given, and what to pass instead."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor


def integer(name: str, value: Any, *, least: int | None = None) -> int:
    """
    A whole number: of Python, NumPy, or an integer tensor without dimensions.

    :param name: Of the argument.
    :param value: What was given.
    :param least: The smallest that is allowed.
    :raises TypeError: If it is something else, such as 1.5 or True.
    :raises ValueError: If it is too small.
    """
    number = _unpacked(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    if least is not None and number < least:
        wanted = f"be at least {least}" if least else "not be negative"
        raise ValueError(f"{name} must {wanted}, got {int(number)}")
    return int(number)


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """
    A real number: of Python, NumPy, or a tensor without dimensions. NaN is none.

    :param name: Of the argument.
    :param value: What was given.
    :param above: A lower bound that is not allowed itself.
    :param least: The smallest that is allowed.
    :param below: An upper bound that is not allowed itself.
    :param most: The largest that is allowed.
    :raises TypeError: If it is something else, such as a string or True.
    :raises ValueError: If it is out of range.
    """
    found = _unpacked(value)
    if isinstance(found, bool) or not isinstance(found, numbers.Real):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    found = float(found)
    is_low = (above is not None and not found > above) or (least is not None and not found >= least)
    is_high = (below is not None and not found < below) or (most is not None and not found <= most)
    if is_low or is_high or math.isnan(found):
        raise ValueError(f"{name} must {_range(above, least, below, most)}, got {found!r}")
    return found


def shape(name: str, value: Any) -> torch.Size:
    """
    A shape.

    :param name: Of the argument.
    :param value: What was given.
    :raises TypeError: If it is no sequence of integers.
    :raises ValueError: If one is negative.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} must be a torch.Size, or a sequence of integers, got {shown(value)}")
    return torch.Size([integer(name, size, least=0) for size in value])


def flag(name: str, value: Any) -> bool:
    """
    True or False.

    :param name: Of the argument.
    :param value: What was given.
    :raises TypeError: If it is something else, such as "no", which is true.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """
    One of some strings.

    :param name: Of the argument.
    :param value: What was given.
    :param allowed: The strings.
    :raises TypeError: If it is no string.
    :raises ValueError: If it is another string.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {list(allowed)}, got {shown(value)}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {list(allowed)}, got {value!r}{did_you_mean(value, allowed)}")
    return value


def tensor(name: str, value: Any) -> Tensor:
    """
    A tensor.

    :param name: Of the argument.
    :param value: What was given.
    :raises TypeError: If it is something else, such as an array of NumPy's.
    """
    if not torch.is_tensor(value):
        array = f"{name}.to_numpy()" if hasattr(value, "to_numpy") else name
        is_array = array != name or isinstance(value, np.ndarray | list | tuple)
        remedy = f": pass torch.as_tensor({array}, dtype=...)" if is_array else ""
        raise TypeError(f"{name} must be a torch.Tensor, got {_kind(value)}{remedy}")
    return value


def likelihood(value: Any) -> gpytorch.likelihoods.Likelihood:
    """
    A likelihood.

    :param value: What was given.
    :raises TypeError: If it is something else: a class that was not called, or the model.
    """
    if not isinstance(value, gpytorch.likelihoods.Likelihood):
        raise TypeError(f"likelihood must be a GPyTorch likelihood, got {_kind(value)}{_instead(value, 'likelihood')}")
    return value


def approximate_gp(value: Any) -> gpytorch.models.ApproximateGP:
    """
    A model with a variational strategy.

    :param value: What was given.
    :raises TypeError: If it is something else.
    """
    if not isinstance(value, torch.nn.Module) or not hasattr(value, "variational_strategy"):
        raise TypeError(
            f"model must be an ApproximateGP with a variational_strategy, such as an AdditiveGP, got {_kind(value)}"
            f"{_inside(value) or _instead(value, 'model')}"
        )
    return value


def batches(value: Any) -> None:
    """
    Batches of rows.

    :param value: What was given.
    :raises TypeError: If it cannot be gone through, or is not batches but the inputs.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping | np.ndarray) or torch.is_tensor(value):
        raise TypeError(
            f"batches must be pairs (x, y) of inputs and responses, in a DataLoader or a list, such as [(x, y)], got "
            f"{shown(value)}"
        )


def function(name: str, value: Any) -> None:
    """
    Something to be called, or None.

    :param name: Of the argument.
    :param value: What was given.
    :raises TypeError: If it is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, or None, got {shown(value)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    The nearest spelling for the end of a message, or nothing.

    :param name: What was given.
    :param known: What there is.
    """
    nearest = get_close_matches(name, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest and nearest[0] != name else ""


def shown(value: Any) -> str:
    """
    A value for a message, on one line.

    :param value: Any.
    """
    if torch.is_tensor(value) or isinstance(value, np.ndarray):
        return f"{_kind(value)} of shape {tuple(value.shape)}"
    if isinstance(value, str | numbers.Number | None):
        return repr(value)
    return f"{_kind(value)} {' '.join(reprlib.repr(value).split())}"


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _inside(value: Any) -> str:
    """Where a module holds the model that is asked for; empty if it holds none."""
    modules = value.named_modules() if isinstance(value, torch.nn.Module) else ()
    found = next((name for name, module in modules if hasattr(module, "variational_strategy")), None)
    return "" if found is None else f": pass the GP inside it, its {found}, with the inputs that reach it"


def _instead(value: Any, wanted: str) -> str:
    if isinstance(value, type):
        return f": call it, {value.__name__}(...)"
    if isinstance(value, gpytorch.likelihoods.Likelihood) or hasattr(value, "variational_strategy"):
        return f": is the {wanted} in another's place?"
    return ""


def _unpacked(value: Any) -> Any:
    """The number in a tensor or array without dimensions."""
    is_array = torch.is_tensor(value) or isinstance(value, np.ndarray | np.generic)
    return value.item() if is_array and not value.shape else value


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    lower, upper = above if least is None else least, below if most is None else most
    if lower is not None and upper is not None:
        return f"lie in {'[' if above is None else '('}{lower:g}, {upper:g}{']' if below is None else ')'}"
    if upper is not None:
        return f"be at most {upper:g}" if below is None else f"be below {upper:g}"
    if lower is not None and above is None:
        return f"be at least {lower:g}" if lower else "not be negative"
    if lower is not None:
        return f"be above {lower:g}" if lower else "be positive"
    return "not be NaN"


def as_numbers(term: str, name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """
    Numbers as a tensor. Data frames have names where terms have numbers of columns, and do not pass for an array.

    :param term: Name of the factory, for messages.
    :param name: Name of the argument, for messages.
    :param value: A tensor, an array, a number, or a list.
    :param dtype: Of the result; default that of the value.
    :raises TypeError: If it is something else.
    """
    if hasattr(value, "to_numpy"):
        raise TypeError(
            f"{name} of {term} must be a tensor or an array, got a {type(value).__name__}: pass the tensor that the "
            "model is called with, such as torch.as_tensor(frame.to_numpy(), dtype=torch.float64), whose columns are "
            "0, 1, ..."
        )
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} of {term} must be a tensor or an array of numbers, got {type(value).__name__}: {error}"
        ) from error
