"""
A walk through the public entries: whatever an argument is given of the wrong kind or out of range is refused by a
TypeError or ValueError that names the argument, before any work.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    ComponentGroup,
    components,
    distributions,
    kernels,
    likelihoods,
    terms,
)
from gpytorch_gam.data import MemoryMappedBatches, RowDataset, drop_missing
from gpytorch_gam.diagnostics import HyperparameterUncertainty, concurvity, leave_one_out, sobol_indices
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.training import FitStatistics, fit, initialize_posterior, polish
from gpytorch_gam.training.discretized import ColumnBins
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    FullAdditiveVariationalStrategy,
    LowRankPrecisionVariationalDistribution,
    SiteVariationalDistribution,
    TiedAdditiveVariationalStrategy,
)

NAN = float("nan")
X, Y = torch.rand(20, 2), torch.rand(20)

# What is wrong for each kind of argument.
NO_INTEGERS = (1.5, "3", True, NAN, [2])
COUNT = (*NO_INTEGERS, -1, None)
PERIOD = ("1", NAN, -1.0, 0.0, None)
POINTS = (1.5, "3", True, NAN, 1, -1, None)
OPTIONAL_COUNT = (*NO_INTEGERS, 0, -1)
POSITIVE = ("1", True, NAN, -1.0, 0.0, None, [1.0])
NOT_NEGATIVE = ("1", True, NAN, -1.0, None)
OPTIONAL_POSITIVE = ("1", True, NAN, -1.0)
VARIANCE = (*OPTIONAL_POSITIVE, 0.0, [1.0])
SHARE = (*POSITIVE, 1.5)
FLAG = ("no", 1, None, [])
SWITCH = ("no", 1, [])
NO_SUMS = ({"a": "x0"}, {"a": []}, {"a": ["x9"]}, {"a": [1]})
INPUTS = (None, "x", [0.1, 0.2], X.numpy(), 3)
RESPONSES = (None, "y", [0.1, 0.2], Y.numpy(), 3, Y[:5], Y.unsqueeze(-1))
MODEL = (None, "model", GaussianLikelihood(), AdditiveGP, torch.nn.Linear(1, 1))
LIKELIHOOD = (None, "gaussian", GaussianLikelihood, torch.nn.Linear(1, 1))
BATCHES = (None, 3, "xy", X, X.numpy(), [X], [(X,)], [(X.numpy(), Y)], [(X, Y.tolist())])
CALLBACK = (3, "print")
CHOICE = (3, None, "other", ["rbf"])
PREDICTOR = (None, "smooth", terms.constant())
INDEX = (1.5, "0", True, -1, None)
NAMES = (["x7"], "x7", [], 3, [0])
UNCERTAINTY = {"hyperparameters": (3, True, [1.0])}
COLUMN_NAMES = (3, [], [1], ["a", "b"])
LEVELS = (None, 2.5, True, 0, [], [NAN])

Entry = tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, tuple[Any, ...]]]


@functools.cache
def predictor() -> AdditivePredictor:
    return AdditivePredictor(terms.smooth([0, 1], X, num_inducing=4), terms.constant())


@functools.cache
def model() -> AdditiveGP:
    return AdditiveGP(predictor(), rank=2)


def term(name: str, required: Mapping[str, Any], wrong: Mapping[str, tuple[Any, ...]]) -> Entry:
    is_single = "name" in inspect.signature(getattr(terms, name)).parameters
    shared = {
        "variance": (*OPTIONAL_POSITIVE, 0.0, [1.0]),
        "predictor": INDEX,
        "missing": CHOICE,
        **({"name": (3, ["a"])} if is_single else {"names": COLUMN_NAMES}),
    }
    return getattr(terms, name), required, {**shared, **wrong}


def with_model(entry: Callable[..., Any], wrong: Mapping[str, tuple[Any, ...]], **required: Any) -> Entry:
    return entry, {"model": None, **required}, {"model": MODEL, **wrong}


OF_DATA = {"likelihood": GaussianLikelihood(), "batches": [(X, Y)]}
IN_MEMORY = {"x": X.numpy(), "y": Y.numpy(), "batch_size": 5}

ENTRIES: dict[str, Entry] = {
    "fit": with_model(
        fit,
        {
            "likelihood": LIKELIHOOD,
            "data": BATCHES,
            "num_data": (*NO_INTEGERS, 0, -1),
            "method": CHOICE,
            "tolerance": POSITIVE,
            "num_epochs": OPTIONAL_COUNT,
            "lr": OPTIONAL_POSITIVE,
            "num_held_back": NO_INTEGERS,
            "patience": OPTIONAL_COUNT,
            "warm_start": FLAG,
            "polish_passes": NO_INTEGERS,
            "callback": CALLBACK,
            "progress": FLAG,
            "cuda_graph": tuple(value for value in FLAG if value is not None),
        },
        likelihood=GaussianLikelihood(),
        data=[(X, Y)],
        num_epochs=1,
    ),
    "polish": with_model(
        polish,
        {
            "likelihood": LIKELIHOOD,
            "batches": BATCHES,
            "max_passes": COUNT,
            "tolerance": NOT_NEGATIVE,
            "dense_limit": COUNT,
            "chunk_size": OPTIONAL_COUNT,
        },
        **OF_DATA,
    ),
    "fit by bins": with_model(
        fit,
        {
            "max_bins": (1.5, "3", True, NAN, -1, []),
            "bins": (3, "bins", [1.0]),
        },
        likelihood=GaussianLikelihood(),
        data=[(X, Y)],
    ),
    "FitStatistics.from_batches": (
        FitStatistics.from_batches,
        {"batches": [(X, Y)], "bins": ColumnBins.from_data(X)},
        {"batches": (None, 3, "xy", X, X.numpy(), [], [X], [(X,)], [(X.numpy(), Y)]), "bins": (None, 3, "bins")},
    ),
    "HyperparameterUncertainty": with_model(
        HyperparameterUncertainty,
        {
            "likelihood": LIKELIHOOD,
            "data": BATCHES,
            "num_data": (*NO_INTEGERS, 0, -1),
            "prior_stddev": POSITIVE,
            "max_models": (*COUNT, 1),
        },
        likelihood=GaussianLikelihood(),
        data=(X, Y),
    ),
    "initialize_posterior": with_model(
        initialize_posterior,
        {"likelihood": LIKELIHOOD, "x": INPUTS, "y": RESPONSES, "num_data": (*NO_INTEGERS, 5, -1)},
        likelihood=GaussianLikelihood(),
        x=X,
        y=Y,
    ),
    "NaturalGradient": with_model(
        NaturalGradient,
        {
            "num_data": COUNT,
            "lr": (*OPTIONAL_POSITIVE, 0.0, 2.0),
            "tolerance": POSITIVE,
            "chunk_size": COUNT,
            "warm_start": FLAG,
            "averaging": FLAG,
            "variance_reduction": FLAG,
        },
        num_data=20,
    ),
    "CollapsedELBO": with_model(
        CollapsedELBO, {"likelihood": LIKELIHOOD, "chunk_size": COUNT}, likelihood=GaussianLikelihood()
    ),
    "CollapsedELBO call": (
        lambda **data: CollapsedELBO(GaussianLikelihood(), model())(**data),
        {"x": X, "y": Y},
        {"x": INPUTS, "y": RESPONSES},
    ),
    "optimum_of_batches": (
        lambda batches: CollapsedELBO(GaussianLikelihood(), model()).optimum_of_batches(batches),
        {},
        {"batches": (None, 3, "xy", X, [X], [(X,)])},
    ),
    "sobol_indices": with_model(
        sobol_indices,
        {
            "x": INPUTS,
            "num_samples": (*COUNT, 1),
            "probability": SHARE,
            "names": NAMES,
            "hyperparameters": (3, "integrated"),
            "column_names": (3, "ab", [1, 2], ["a"]),
        },
        x=X,
    ),
    "leave_one_out": with_model(
        leave_one_out,
        {
            "likelihood": LIKELIHOOD,
            "x": INPUTS,
            "y": RESPONSES,
            "hyperparameters": (3, "integrated", model),
        },
        likelihood=GaussianLikelihood(),
        x=X,
        y=Y,
    ),
    "concurvity": with_model(
        concurvity, {"x": INPUTS, "chunk_size": OPTIONAL_COUNT, "tolerance": SHARE, "sums": NO_SUMS}, x=X
    ),
    "AdditiveGP": (
        AdditiveGP,
        {"predictor": None},
        {
            "predictor": PREDICTOR,
            "family": CHOICE,
            "rank": (1.5, "many", True, -1, 1000),
            "batch_shape": (3, "2", [1.5], torch.Size([-1])),
            "jitter_val": OPTIONAL_POSITIVE,
            "rank_tolerance": OPTIONAL_POSITIVE,
        },
    ),
    "model call": (lambda **given: model()(**given), {"inputs": X}, {"inputs": INPUTS, "prior": FLAG}),
    "components": (lambda **given: model().components(**given), {"x": X}, {"x": INPUTS, "names": NAMES, **UNCERTAINTY}),
    "components without": (lambda **given: model().components(X, **given), {}, {"exclude": NAMES}),
    "predict": (
        lambda **given: model().predict(**given),
        {"x": X},
        {"x": INPUTS, "components": ("x7", ["x7"], 3), "chunk_size": OPTIONAL_COUNT, "exclude": NAMES, **UNCERTAINTY},
    ),
    "predict_sums": (
        lambda **given: model().predict_sums(**given),
        {"x": X, "sums": {"all": ["x0", "x1"]}},
        {
            "x": INPUTS,
            "sums": (None, 3, "x0", ["x0"], {}, {"a": "x7"}, {"a": []}, {"a": None}, {"a": 3}),
            **UNCERTAINTY,
        },
    ),
    "joint_sums": (
        lambda **given: model().joint_sums(**given),
        {"pairs": [(X, ["x0", "x1"])]},
        {"pairs": (None, 3, "x0", X, ["x0"], [(X,)], [(X, "x7")], [(X, [])], [(X, None)], [(X, 3)]), **UNCERTAINTY},
    ),
    "AdditivePredictor": (
        lambda **given: AdditivePredictor(terms.constant(), **given),
        {},
        {"mean": ("zero", 3, [None, None])},
    ),
    "ComponentGroup": (
        ComponentGroup,
        {"kernel": RBFKernel(), "columns": [[0]], "inducing_points": torch.rand(4, 1)},
        {
            "kernel": (None, "rbf", RBFKernel, 3),
            "columns": (None, 0, "0", [], [0], [[0.5]], [[-1]]),
            "inducing_points": (None, "grid", 16, [], [0.1, 0.2], torch.rand(4, 2), torch.rand(0, 1)),
            "names": (3, "a", ["a", "b"], [1]),
            "by": (1.5, "x", [1.5], [-1], [0, 1]),
            "levels": (3, [2], {0: 3}),
            "missing": CHOICE,
            "predictor": INDEX,
            "learn_inducing_locations": FLAG,
            "exact": FLAG,
        },
    ),
    "LowRankPrecisionVariationalDistribution": (
        LowRankPrecisionVariationalDistribution,
        {"num_inducing_points": 4, "rank": 2},
        {
            "num_inducing_points": COUNT,
            "rank": (1.5, "many", True, -1, 5),
            "mean_init_std": NOT_NEGATIVE,
            "init_scale": POSITIVE,
            "rank_tolerance": POSITIVE,
        },
    ),
    "BlockLowRankPrecisionVariationalDistribution": (
        BlockLowRankPrecisionVariationalDistribution,
        {"group_shapes": [(2, 2)], "rank": 2},
        {
            "group_shapes": (None, 4, "22", [], [2, 2], [(0, 2)], [(1, 1.5)], [(1, True)], [(1, 2, 3)]),
            "rank": (1.5, "many", True, -1, 5),
            "block_rank": OPTIONAL_COUNT,
            "mean_init_std": NOT_NEGATIVE,
            "init_scale": POSITIVE,
            "rank_tolerance": POSITIVE,
        },
    ),
    "SiteVariationalDistribution": (
        SiteVariationalDistribution,
        {"num_data": 4},
        {"num_data": COUNT, "mean_init_std": NOT_NEGATIVE, "init_scale": POSITIVE},
    ),
    "AdditiveVariationalStrategy": (
        lambda **given: AdditiveVariationalStrategy(
            None, **{"variational_distribution": model().variational_strategy._variational_distribution, **given}
        ),
        {"predictor": None},
        {"predictor": PREDICTOR, "variational_distribution": (None, "q", 3), "jitter_val": OPTIONAL_POSITIVE},
    ),
    **{
        kind.__name__: (
            lambda kind=kind, **given: kind(None, **given),
            {"predictor": None, "inputs": X},
            {"predictor": PREDICTOR, "inputs": INPUTS, "jitter_val": OPTIONAL_POSITIVE},
        )
        for kind in (FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy)
    },
    "smooth": term(
        "smooth",
        {"columns": 0, "x": X},
        {
            "columns": (*INDEX, [], [0.5]),
            "x": (None, "x", X[:0], X[:, :0], 3),
            "num_inducing": POINTS,
            "kernel": CHOICE,
            "centred": ("no", 1, []),
            "measure": (3, "uniform"),
            "by": (1.5, "x", True, -1),
            "low": ("a", NAN, 5.0),
            "learn_inducing_locations": FLAG,
        },
    ),
    "cyclic": term(
        "cyclic",
        {"columns": 0, "period": 1.0},
        {
            "columns": INDEX,
            "period": ("1", NAN, -1.0, 0.0, None),
            "start": ("a", NAN),
            "num_inducing": POINTS,
            "centred": ("no", 1),
        },
    ),
    "linear": term("linear", {"columns": 0, "x": X}, {"columns": INDEX, "scale": ("a", NAN, 0.0, -1.0)}),
    "factor": term("factor", {"column": 0, "levels": 3}, {"column": INDEX, "levels": LEVELS}),
    "ordinal": term("ordinal", {"column": 0, "levels": 3}, {"column": INDEX, "levels": LEVELS}),
    "random_effect": term("random_effect", {"column": 0, "levels": 3}, {"column": INDEX, "levels": LEVELS}),
    "spatial": term(
        "spatial",
        {"columns": [0, 1], "x": X},
        {"columns": INDEX, "kernel": CHOICE, "num_inducing": POINTS, "centred": SWITCH},
    ),
    "tensor": term(
        "tensor",
        {"columns": [0, 1], "x": X},
        {
            "columns": INDEX,
            "kernel": CHOICE,
            "num_inducing": POINTS,
            "centred": SWITCH,
            "measure": (3, "uniform", [3, 4]),
        },
    ),
    **{
        name: term(
            name,
            {"column": 0, "by": 1, "levels": 2, "x": X},
            {"column": INDEX, "by": INDEX, "levels": LEVELS, "kernel": CHOICE, "num_inducing": POINTS},
        )
        for name in ("factor_smooth", "interaction")
    },
    "constant": (
        terms.constant,
        {},
        {"variance": VARIANCE, "predictor": INDEX, "name": (3, ["a"])},
    ),
    "regular_grid": (
        components.regular_grid,
        {"low": 0.0, "high": 1.0, "num": 4},
        {
            "low": ("a", None, NAN, 2.0),
            "high": ("a", None, NAN, -1.0),
            "num": (1.5, "3", True, NAN, -1, None, 0, [2, 2]),
        },
    ),
    "quantile_points": (
        components.quantile_points,
        {"values": Y, "num": 4},
        {"values": (None, "x", Y[:0], Y * NAN), "num": COUNT},
    ),
    "kmeans_points": (
        components.kmeans_points,
        {"values": X, "num": 4},
        {"values": (None, "x", X[:0], X * NAN), "num": COUNT, "seed": COUNT},
    ),
    "ANOVAKernel": (
        kernels.ANOVAKernel,
        {"base_kernel": RBFKernel(), "measure": kernels.Uniform(0.0, 1.0)},
        {
            "base_kernel": (None, "rbf", RBFKernel),
            "measure": (None, "uniform", 3),
            "normalize": FLAG,
            "num_quadrature_nodes": COUNT,
        },
    ),
    "CentredKernel": (
        kernels.CentredKernel,
        {"base_kernel": RBFKernel(), "points": torch.rand(4, 1)},
        {"base_kernel": (None, "rbf", RBFKernel), "points": (None, "x", torch.rand(0, 1)), "normalize": FLAG},
    ),
    "Uniform": (kernels.Uniform, {"low": 0.0, "high": 1.0}, {"low": ("a", None, NAN, 2.0), "high": ("a", None, NAN)}),
    "Normal": (kernels.Normal, {"mean": 0.0, "sd": 1.0}, {"mean": ("a", None, NAN), "sd": ("a", None, NAN, 0.0)}),
    "OrdinalKernel": (kernels.OrdinalKernel, {"levels": [0.0, 1.0]}, {"levels": (None, "a", [], 3)}),
    "RowwiseLikelihood": (likelihoods.RowwiseLikelihood, {}, {"likelihood": LIKELIHOOD}),
    "SoftmaxLikelihood": (likelihoods.SoftmaxLikelihood, {}, {"num_classes": (*COUNT, 1)}),
    "OrdinalLikelihood": (likelihoods.OrdinalLikelihood, {}, {"num_classes": (*COUNT, 1)}),
    "QuantileLikelihood": (likelihoods.QuantileLikelihood, {}, {"quantile": SHARE, "power": ("a", None, NAN, 0.0)}),
    "BinomialLikelihood": (likelihoods.BinomialLikelihood, {}, {"link": CHOICE}),
    "predictive_quantiles": (
        distributions.predictive_quantiles,
        {"distribution": torch.distributions.Normal(0.0, 1.0), "probabilities": 0.5},
        {
            "distribution": (None, "normal", Y),
            "probabilities": (None, "a", NAN, -0.1, 1.1, []),
            "num_samples": COUNT,
        },
    ),
    "MemoryMappedBatches": (
        MemoryMappedBatches,
        IN_MEMORY,
        {
            "x": (None, 3, [0.1], Y.numpy()),
            "y": (None, 3, [0.1], X.numpy(), Y.numpy()[:5]),
            "batch_size": COUNT,
            "shuffle": FLAG,
            "seed": COUNT,
            "dtype": (3, "float32", torch.int64),
            "device": (1.5, "gpu"),
            "drop_last": FLAG,
            "shard": (3, (1,), (2, 2), ("a", 1)),
            "buffer_rows": OPTIONAL_COUNT,
            "chunk_rows": OPTIONAL_COUNT,
            "prefetch": FLAG,
        },
    ),
    "RowDataset": (RowDataset, {"x": X, "y": Y}, {"x": (None, "x", X.numpy()), "y": (None, Y.numpy(), Y[:5])}),
    "RowDataset weights": (lambda weights: RowDataset(X, Y, weights=weights), {}, {"weights": (None, 2.0, Y[:5])}),
    "drop_missing": (
        drop_missing,
        {"x": X, "y": Y},
        {"x": (None, "x", X.numpy(), Y), "y": (None, Y.numpy(), Y[:5])},
    ),
}

CASES = [
    pytest.param(name, argument, id=f"{name}-{argument}")
    for name, (_, _, wrong) in ENTRIES.items()
    for argument in wrong
]


def called(name: str, **changed: Any) -> Any:
    entry, required, _ = ENTRIES[name]
    made = {"model": model, "predictor": predictor}
    arguments = {key: made[key]() if value is None and key in made else value for key, value in required.items()}
    return entry(**{**arguments, **changed})


def complaint(name: str, argument: str, value: Any) -> str | None:
    """What is wrong with how an entry takes a value that it cannot take; None where nothing is."""
    try:
        called(name, **{argument: value})
    except (TypeError, ValueError) as refusal:
        message = str(refusal)
    except Exception as error:
        return f"{value!r} leads to {error!r}"
    else:
        return f"{value!r} is taken"
    # What a batch holds has a name of its own, and names are those of components.
    parts = {
        "batches": ["x", "y", "batches"],
        "data": ["x", "y", "batches", "data"],
        "names": ["names", "components"],
        "exclude": ["exclude", "components"],
    }
    named = parts.get(argument, [argument.rstrip("s")])
    if not any(re.search(rf"\b{name}", message) for name in named):
        return f"{value!r} is refused without the argument's name: {message}"
    if message.startswith(f"{getattr(ENTRIES[name][0], '__name__', name)}()"):
        return f"{value!r} is refused by Python: {message}"
    return None


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_what_an_argument_cannot_be_is_refused_by_its_name(name: str, argument: str) -> None:
    complaints = [complaint(name, argument, value) for value in ENTRIES[name][2][argument]]
    assert not [said for said in complaints if said is not None]
