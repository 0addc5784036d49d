"""A walk through all public callables: a misspelt keyword is refused by its name, wherever it is given."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.mlls import VariationalELBO

import gpytorch_gam
from gpytorch_gam import AdditiveGP, AdditivePredictor, data, kernels, likelihoods, mlls, terms, training
from gpytorch_gam.diagnostics import HyperparameterUncertainty

MISSPELT = {"weigths": 1.0}
X = torch.rand(12, 2).double()
Y = torch.ones(12).double()


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, constructors, and the methods that the package defines, by the name of their class."""
    rooms = [info.name for info in pkgutil.walk_packages(gpytorch_gam.__path__, "gpytorch_gam.") if info.ispkg]
    for room in map(importlib.import_module, ["gpytorch_gam", *rooms]):
        for name in getattr(room, "__all__", ()):
            entry = getattr(room, name)
            if inspect.isclass(entry):
                yield name, entry
                yield from methods(entry)
            elif callable(entry):
                yield name, entry


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for attribute in dir(owner):
        found = inspect.getattr_static(owner, attribute)
        function = getattr(found, "__func__", found)
        is_ours = str(getattr(function, "__module__", "")).startswith("gpytorch_gam")
        if inspect.isfunction(function) and is_ours and (attribute == "__call__" or not attribute.startswith("_")):
            yield f"{owner.__name__}.{attribute}", function


def takes_any_keyword(entry: Callable[..., Any]) -> bool:
    parameters = inspect.signature(entry).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


# A method that operators inherit, and a class that is not made itself.
NOT_CALLED = ("add_low_rank", "Measure")

CALLABLES = {name: entry for name, entry in public_callables() if not name.endswith(NOT_CALLED)}
# Methods that several classes share are called once.
OPEN = {entry: name for name, entry in reversed(CALLABLES.items()) if takes_any_keyword(entry)}


@functools.cache
def model() -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(terms.smooth([0, 1], X, num_inducing=4), terms.constant())).double()


@functools.cache
def uncertainty() -> HyperparameterUncertainty:
    own, noise = copy.deepcopy(model()), GaussianLikelihood().double()
    own.requires_grad_(False)
    training.fit(own, noise, (X, torch.sin(7 * X[:, 0]) + X[:, 1]))
    return HyperparameterUncertainty(own, noise, (X, torch.sin(7 * X[:, 0]) + X[:, 1]), max_models=2)


@functools.cache
def likelihood(name: str) -> Likelihood:
    arguments = {"SoftmaxLikelihood": (3,), "OrdinalLikelihood": (3,), "QuantileLikelihood": (0.5,)}
    arguments["RowwiseLikelihood"] = (GaussianLikelihood(),)
    return getattr(likelihoods, name)(*arguments.get(name, ())).double()


def predictors(name: str) -> MultivariateNormal:
    latent = MultivariateNormal(torch.zeros(12).double(), torch.eye(12).double())
    count = getattr(likelihood(name), "num_predictors", 1)
    return latent if count == 1 else MultitaskMultivariateNormal.from_repeated_mvn(latent, count)


def call_likelihood(name: str, method: str, **keywords: Any) -> Any:
    latent = predictors(name)
    given = {"forward": (latent.mean,), "marginal": (latent,)}.get(method, (Y, latent))
    return getattr(likelihood(name), method)(*given, **keywords)


def call_kernel(name: str, method: str, **keywords: Any) -> Any:
    made = {
        "ANOVAKernel": lambda: kernels.ANOVAKernel(RBFKernel(), kernels.Uniform(0, 1)),
        "CentredKernel": lambda: kernels.CentredKernel(RBFKernel(), X[:, :1]),
        "CentredLinearKernel": lambda: kernels.CentredLinearKernel(0.5, 1.0),
        "LevelKernel": lambda: kernels.LevelKernel(3),
        "OrdinalKernel": lambda: kernels.OrdinalKernel([0.0, 1.0, 2.0]),
    }
    column = torch.tensor([[0.0], [1.0]])
    return getattr(made[name](), method)(column, column, **keywords)


SUMS = {"both": ["x0", "x1"]}
PAIRS = [(X, ["x0", "x1"])]

OTHERS: dict[str, Callable[..., Any]] = {
    # The names of row-wise arguments are the likelihood's, which refuses those that it does not know.
    "RowDataset": lambda **keywords: training.fit(
        model(),
        GaussianLikelihood().double(),
        torch.utils.data.DataLoader(data.RowDataset(X, Y, **dict.fromkeys(keywords, Y)), batch_size=6),
        num_epochs=1,
    ),
    "drop_missing": lambda **keywords: training.polish(
        model(), GaussianLikelihood().double(), [data.drop_missing(X, Y, **dict.fromkeys(keywords, Y))[:3]]
    ),
    "initialize_posterior": lambda **keywords: training.initialize_posterior(
        model(), GaussianLikelihood().double(), X, Y, **dict.fromkeys(keywords, Y)
    ),
    "AdditiveGP.predict_sums": lambda **keywords: model().predict_sums(X, SUMS, **keywords),
    "AdditiveVariationalStrategy.predict_sums": lambda **keywords: model().variational_strategy.predict_sums(
        X, SUMS, **keywords
    ),
    "AdditiveGP.joint_sums": lambda **keywords: model().joint_sums(PAIRS, **keywords),
    "AdditiveVariationalStrategy.joint_sums": lambda **keywords: model().variational_strategy.joint_sums(
        PAIRS, **keywords
    ),
    "HyperparameterUncertainty.predict_sums": lambda **keywords: uncertainty().predict_sums(X, SUMS, **keywords),
    "HyperparameterUncertainty.predictions": lambda **keywords: uncertainty().predictions(X, **keywords),
    "HyperparameterUncertainty.responses": lambda **keywords: uncertainty().responses(X, **keywords),
    "HyperparameterUncertainty.responses_given": lambda **keywords: uncertainty().responses_given(
        uncertainty().predictions(X, components=False), **keywords
    ),
    "ANOVAKernel": lambda **keywords: kernels.ANOVAKernel(RBFKernel(), kernels.Uniform(0, 1), **keywords),
    "OrdinalKernel": lambda **keywords: kernels.OrdinalKernel([0.0, 1.0, 2.0], **keywords),
}

# Calls that GPyTorch hands on to what the package defines.
THROUGH_GPYTORCH: dict[str, Callable[..., Any]] = {
    "kernel()": lambda **keywords: kernels.ANOVAKernel(RBFKernel(), kernels.Uniform(0, 1))(
        X[:, :1], **keywords
    ).to_dense(),
    "likelihood()": lambda **keywords: likelihood("PoissonLikelihood")(predictors("PoissonLikelihood"), **keywords),
    "VariationalELBO()": lambda **keywords: VariationalELBO(likelihood("PoissonLikelihood"), model(), num_data=12)(
        model()(X), Y, **keywords
    ),
    "CollapsedELBO()": lambda **keywords: mlls.CollapsedELBO(GaussianLikelihood().double(), model())(X, Y, **keywords),
    "predictor()": lambda **keywords: model().variational_strategy.predictor(X, **keywords),
}


def call(name: str, **keywords: Any) -> Any:
    owner, _, method = name.partition(".")
    if name in OTHERS:
        return OTHERS[name](**keywords)
    if owner in likelihoods.__all__:
        return call_likelihood(owner, method, **keywords)
    if owner in kernels.__all__:
        return call_kernel(owner, method, **keywords)
    if owner == "CollapsedELBO":
        objective = mlls.CollapsedELBO(GaussianLikelihood().double(), model())
        return getattr(objective, method)(X, Y, **dict.fromkeys(keywords, Y))
    return getattr(model() if owner == "AdditiveGP" else model().variational_strategy, method)(X, **keywords)


def test_signatures_refuse_a_misspelt_keyword() -> None:
    closed = [name for name, entry in CALLABLES.items() if not takes_any_keyword(entry)]
    print(f"{len(CALLABLES)} public callables, of which {len(closed)} take named arguments alone")
    for name in closed:
        with pytest.raises(TypeError, match="weigths"):
            inspect.signature(CALLABLES[name]).bind_partial(**MISSPELT)


@pytest.mark.parametrize("name", sorted(OPEN.values()))
def test_calls_that_take_any_keyword_refuse_a_misspelt_one(name: str) -> None:
    with pytest.raises(TypeError, match="weigths"):
        call(name, **MISSPELT)


@pytest.mark.parametrize("name", THROUGH_GPYTORCH)
def test_calls_through_gpytorch_refuse_a_misspelt_keyword(name: str) -> None:
    with pytest.raises(TypeError, match="weigths"):
        THROUGH_GPYTORCH[name](**MISSPELT)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("keyword", ["offset", "weights", "exposure"])
def test_a_model_says_where_row_arguments_belong(keyword: str, is_training: bool) -> None:
    gp = model().train(is_training)
    for entry in (gp, gp.variational_strategy, gp.components, gp.predict):
        with pytest.raises(TypeError, match=rf"'{keyword}'(.|\n)*likelihood"):
            entry(X, **{keyword: Y})
    gp.train()


def test_stock_modules_of_the_walk_work_without_the_keyword() -> None:
    assert isinstance(model()(X), gpytorch.distributions.MultivariateNormal)
    assert torch.isfinite(THROUGH_GPYTORCH["VariationalELBO()"]())
