"""
What a group of components is apart from the numbers in its state, so that a state is not loaded into another group.

It travels in the state dict as JSON in bytes: tools that average, convert or write state dicts expect tensors in them,
and ``torch.load(weights_only=True)`` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor

Structure = dict[str, Any]

# The key under which torch saves what get_extra_state returns.
STATE_KEY = "_extra_state"


def as_bytes(structure: Structure) -> Tensor:
    """A structure of numbers, strings, lists and dictionaries in the form in which it is saved: uint8 on the CPU."""
    return torch.frombuffer(bytearray(json.dumps(structure).encode()), dtype=torch.uint8)


def from_bytes(saved: Any) -> Structure:
    """The structure that :func:`as_bytes` saved, from any device. Anything else raises a ValueError."""
    try:
        structure = json.loads(bytes(saved.detach().cpu().tolist()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            "the state holds something else where the structure of the model was saved: leave entries whose "
            "name ends in '_extra_state' as they are when you change a state dict"
        ) from error
    if not isinstance(structure, dict):
        raise ValueError(f"the structure of a model must be a dictionary, got {type(structure).__name__}")
    return structure


def kernel_structure(kernel: Kernel) -> Structure:
    """The modules of a group's kernel by name: their classes, and those settings that no parameter or buffer holds."""
    return dict(_parts(kernel, ""))


def _parts(module: torch.nn.Module, path: str) -> Iterator[tuple[str, Structure]]:
    """Priors are left out, as no prediction depends on them; so are the modules inside of constraints."""
    yield path, _module_structure(module)
    if not isinstance(module, Interval):
        for name, child in module.named_children():
            if not isinstance(child, Prior):
                yield from _parts(child, f"{path}.{name}".lstrip("."))


def _module_structure(module: torch.nn.Module) -> Structure:
    settings = {name: value for name, value in vars(module).items() if _is_setting(name, value)}
    if isinstance(module, Interval):  # raw values have no meaning without the transform
        settings["transform"] = getattr(module._transform, "__name__", type(module._transform).__name__)
    return {"class": type(module).__name__, **settings}


def _is_setting(name: str, value: Any) -> bool:
    return not name.startswith("_") and name != "training" and isinstance(value, bool | int | float | str)


def difference(saved: Structure, own: Structure) -> str | None:
    """
    One difference, in words, between the structure of a saved group and that of the group to load it into, or None.
    Entries that only one of them has come from another version of this package or of GPyTorch, and are skipped.
    """
    for name in own:
        if name == "kernel" or name not in saved or _is_same(saved[name], own[name]):
            continue
        return f"{name}: {_shown(saved[name])} in the state, {_shown(own[name])} here"
    return _kernel_difference(saved.get("kernel", {}), own["kernel"])


def _kernel_difference(saved: Structure, own: Structure) -> str | None:
    for path in [*own, *(path for path in saved if path not in own)]:
        where = f"kernel.{path}".rstrip(".")
        classes = [modules[path]["class"] if path in modules else "none" for modules in (saved, own)]
        if classes[0] != classes[1]:
            return f"{where}: {classes[0]} in the state, {classes[1]} here"
        for name in own[path].keys() & saved[path].keys():
            if not _is_same(saved[path][name], own[path][name]):
                return f"{name} of {where}: {_shown(saved[path][name])} in the state, {_shown(own[path][name])} here"
    return None


def _is_same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)  # in JSON, NaN equals itself


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
