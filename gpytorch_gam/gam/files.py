"""
Estimators in files: safetensors for the numbers, with JSON in their header for all else. A file holds values and cannot
run code; it is read as a whole and compared with its checksum before anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.likelihoods import Likelihood
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpytorch_gam.diagnostics import ModelMixture
from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.training import FitResult
from gpytorch_gam.warnings import ConstantColumnWarning

from .columns import Encoding
from .design import Design
from .encoded_terms import described_encodings, encodings_of_description
from .families import Family, Units, described_family, family_of_description, regression_family
from .fitted import Fitted, alone
from .interactions import described_interactions
from .model_making import JITTER, make
from .options import Options
from .terms import Term, described, from_description

# The version of the format; files of a higher one are refused.
FORMAT = 3

# Parameters of estimators that are kept as their own, because they are plain values.
_PLAIN = (str, int, float, bool, type(None))


# What fields of encodings hold, by their annotations.
_KINDS_OF_FIELDS: dict[str, Any] = {
    "float": int | float,
    "int": int,
    "bool": bool,
    "str": str,
    "tuple[Any, ...]": tuple,
}

# Names of sizes in descriptions.
_SIZES = ("k", "num_classes")


class FileError(ValueError):
    """A file that does not hold an estimator, or not a whole one."""


def write(path: str | os.PathLike[str], estimator: Any, fitted: Fitted) -> None:
    """
    Write an estimator to a file, which is replaced at once if it exists.

    :param path: The name of the file.
    :param estimator: The estimator.
    :param fitted: Its fitted model.
    """
    tensors = {**_state(fitted.model, fitted.likelihood), "reference": fitted.reference}
    if len(fitted.mixture) > 1:
        tensors["weights"] = fitted.mixture.weights
        for number, members in enumerate(zip(fitted.mixture.models, fitted.mixture.likelihoods, strict=True)):
            own = _state(*members)
            changed = {name: value for name, value in own.items() if not torch.equal(value, tensors[name])}
            tensors |= {f"{number}.{name}": value for name, value in changed.items()}
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    text = json.dumps(_description(estimator, fitted))
    part = Path(f"{os.fspath(path)}.part")
    save_file(tensors, part, {"format": str(FORMAT), "gam": text, "sha256": _checksum(tensors, text)})
    os.replace(part, path)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Fitted]:
    """
    The description of an estimator in a file, and its fitted model.

    :param path: The name of the file.
    :raises FileError: If the file is damaged, or written by a newer version.
    :raises FileNotFoundError: If there is none.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {os.fspath(path)!r}")
    tensors, metadata = _contents(path)
    version = metadata.get("format", "")
    if version.isdecimal() and int(version) > FORMAT:
        raise FileError(
            f"{os.fspath(path)!r} was written by a newer version (format {version}, this one reads up to {FORMAT}): "
            "install a newer gpytorch-gam"
        )
    text = metadata.get("gam", "")
    if version != str(FORMAT) or _checksum(tensors, text) != metadata.get("sha256"):
        raise FileError(f"{os.fspath(path)!r} is damaged: its contents do not have the checksum that was written")
    description = json.loads(text)
    most = sum(value.numel() for value in tensors.values())
    _check_numbers([description[name] for name in ("design", "family", "units")], most)
    return description, _fitted(description, tensors)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """
    What goes wrong with the contents of a file is a :class:`FileError`, whose checksum may be right all the same.

    :param path: The name of the file.
    """
    try:
        yield
    except FileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise FileError(
            f"{os.fspath(path)!r} is damaged: what it says of an estimator cannot be understood "
            f"({type(error).__name__}: {error})"
        ) from error


def _check_numbers(description: Any, most: int) -> None:
    """Refuse numbers that are not finite, and sizes beyond those of the numbers in the file, before memory is taken."""
    if isinstance(description, float) and not math.isfinite(description):
        raise ValueError("a number is not finite")
    if isinstance(description, list):
        for each in description:
            _check_numbers(each, most)
    if isinstance(description, dict):
        for name, each in description.items():
            if name in _SIZES and each is not None and not (isinstance(each, int) and 0 < each <= most):
                raise ValueError(f"{name} is {each!r}")
            _check_numbers(each, most)


def _state(model: AdditiveGP, likelihood: Likelihood) -> dict[str, Tensor]:
    """All tensors of a model and its likelihood."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    return found | {f"likelihood.{name}": value for name, value in likelihood.state_dict().items()}


def _contents(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, MemoryError) as error:
        raise FileError(f"{os.fspath(path)!r} is damaged, or no file of an estimator: {error}") from error


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()


# ------------------------------------------------------------------ descriptions as plain values


def _description(estimator: Any, fitted: Fitted) -> dict[str, Any]:
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "estimator": type(estimator).__name__,
        "parameters": {name: _plain(value) for name, value in estimator.get_params(deep=False).items()},
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else list(map(str, names)),
        "set_apart": estimator._set_apart,
        "needed": estimator._needed,
        "arguments": estimator._arguments,
        "classes": _described_classes(getattr(estimator, "classes_", None)),
        "family": described_family(fitted.family),
        "units": list(fitted.units),
        "design": _described_design(fitted.design),
        "posterior": _posterior_of(fitted),
        "hyperparameters": fitted.hyperparameters,
        "intervals": fitted.intervals,
        "result": _described_result(estimator.result_),
        "deviance_explained": estimator.deviance_explained_,
        "n_rows": estimator.n_rows_,
        "n_rows_left_out": estimator.n_rows_left_out_,
        "seen": estimator._seen._asdict(),
        "interactions": described_interactions(estimator.interactions_),
        "versions": {"gpytorch_gam": _version(), "torch": torch.__version__, "gpytorch": gpytorch.__version__},
    }


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("gpytorch-gam")
    except metadata.PackageNotFoundError:
        return "unknown"


def _posterior_of(fitted: Fitted) -> str:
    kind = type(fitted.model.variational_strategy._variational_distribution).__name__
    return {
        "CholeskyVariationalDistribution": "coupled",
        "LowRankPrecisionVariationalDistribution": "low_rank",
    }.get(kind, "block_low_rank")


def _plain(value: Any) -> Any:
    """A parameter of an estimator as JSON can hold it; what cannot be held, such as a random state, is left out."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Term):
        return {"term": described(value)}
    if isinstance(value, Family):
        return {"family": described_family(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {"mapping": {str(name): _plain(each) for name, each in value.items()}}
    return None


def from_plain(value: Any) -> Any:
    """
    A parameter of an estimator from what a file holds of it.

    :param value: The plain value.
    """
    if isinstance(value, list):
        return [from_plain(each) for each in value]
    if isinstance(value, dict):
        if "term" in value:
            return from_description(value["term"])
        if "family" in value:
            return regression_family(family_of_description(value["family"]))
        return {name: from_plain(each) for name, each in value["mapping"].items()}
    return value


def _described_classes(classes: np.ndarray | None) -> dict[str, Any] | None:
    return None if classes is None else {"values": classes.tolist(), "dtype": classes.dtype.str}


def classes_of_description(description: dict[str, Any] | None) -> np.ndarray | None:
    """
    Classes from what a file holds of them.

    :param description: The plain values, or None.
    """
    if description is None:
        return None
    dtype = np.dtype(object if description["dtype"].startswith("|O") else description["dtype"])
    return np.array(description["values"], dtype=dtype)


def _described_design(design: Design) -> dict[str, Any]:
    return {
        "terms": [[described(term) for term in terms] for terms in design.terms],
        "parameters": list(design.parameters),
        "kernel": design.kernel,
        "k": design.k,
        "missing": design.missing,
        "has_intercepts": list(design.has_intercepts),
        "encodings": described_encodings(design.encodings),
        "aliases": [[*key, *other] for key, other in design.aliases.items()],
    }


def _design(description: dict[str, Any]) -> Design:
    encodings = encodings_of_description(description["encodings"])
    for each in encodings.values():
        _check_kinds(each)
    return Design(
        [[from_description(term) for term in terms] for terms in description["terms"]],
        tuple(description["parameters"]),
        description["kernel"],
        description["k"],
        description["missing"],
        tuple(description["has_intercepts"]),
        encodings,
        {(key[0], key[1]): (key[2], key[3]) for key in description["aliases"]},
    )


def _check_kinds(encoding: Encoding) -> None:
    """Refuse an encoding whose fields are of other kinds than they are declared."""
    for each in fields(encoding):
        value, kind = getattr(encoding, each.name), _KINDS_OF_FIELDS[str(each.type)]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{each.name} of column {encoding.column!r} is {value!r}")


def _described_result(result: FitResult | None) -> dict[str, Any] | None:
    return None if result is None else {**asdict(result), "history": []}


def result_of_description(description: dict[str, Any] | None) -> FitResult | None:
    """
    What a fit has found, without its history, from what a file holds of it.

    :param description: The plain values, or None.
    """
    if description is None:
        return None
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in description.items()
    }
    return FitResult(**{**values, "history": []})


def _fitted(description: dict[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
    design, family = _design(description["design"]), family_of_description(description["family"])
    reference = tensors["reference"]
    options = Options("auto", 0.05, description["posterior"], "cpu", False, 0, "point")

    def made(tensors: Mapping[str, Tensor]) -> tuple[AdditiveGP, Likelihood]:
        model, likelihood = make(design, family, reference, options)
        model.load_state_dict(_below("model.", tensors))
        likelihood.load_state_dict(_below("likelihood.", tensors))
        return model.eval(), likelihood.eval()

    weights = tensors.get("weights", torch.ones(0))
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        gpytorch.settings.variational_cholesky_jitter(double_value=JITTER),
    ):
        warnings.simplefilter("ignore", ConstantColumnWarning)
        model, likelihood = made(tensors)
        members = [made({**tensors, **_below(f"{number}.", tensors)}) for number in range(len(weights))]
    mixture = alone(model, likelihood)
    if members:
        mixture = ModelMixture([each for each, _ in members], [each for _, each in members], weights)
    units, note = Units(*description["units"]), description["hyperparameters"]
    intervals = {name: (float(low), float(high)) for name, (low, high) in description["intervals"].items()}
    return Fitted(model, likelihood, design, family, units, reference, mixture, note, intervals)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
