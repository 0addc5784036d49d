"""A fitted model with all that leads from a data frame to it and from it to responses in their units."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.known_inputs import KnownInputs, any_inputs
from gpytorch_gam.diagnostics import ModelMixture
from gpytorch_gam.effects import ComponentPosterior, JointSum, Prediction, SumPrediction
from gpytorch_gam.effects.drawing import allotted
from gpytorch_gam.models import AdditiveGP

from .design import Design
from .families import Family, Units
from .labels import known_label
from .parts import INTERCEPT, Part

# GPyTorch's kernels change themselves while they are called, so that one thread at a time may do it.
KERNELS = threading.RLock()

# The most rows of the data that are kept with the model, for summaries and ranges.
MOST_REFERENCE_ROWS = 1000

# The most of them over which terms are summarised.
_NUM_SUMMARISED = 400


@dataclass
class Fitted:
    """
    A fitted model.

    :ivar model: The model of the package.
    :ivar likelihood: Its likelihood.
    :ivar design: Terms and encodings.
    :ivar family: The distribution of the response.
    :ivar units: The units in which responses are fitted.
    :ivar reference: Some of the inputs of the fit, the range of each column included, ``(m, D)``.
    :ivar mixture: Models at several values of the hyperparameters, whose uncertainty predictions and effects include;
        the model alone if they are point estimates.
    :ivar hyperparameters: Which of the two, in words.
    :ivar intervals: Central 95% intervals of hyperparameters by their names, see
        :meth:`~gpytorch_gam.diagnostics.HyperparameterUncertainty.intervals`, of those that are known.
    """

    model: AdditiveGP
    likelihood: Likelihood
    design: Design
    family: Family
    units: Units
    reference: Tensor
    mixture: ModelMixture
    hyperparameters: str
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def components(self, x: Tensor) -> ComponentPosterior:
        """
        The joint posterior of the components.

        :param x: Inputs ``(n, D)``.
        """
        with KERNELS, any_inputs():
            return self.mixture.components(x) if len(self.mixture) > 1 else self.model.components(x)

    def predictions(self, x: Tensor, exclude: Sequence[str]) -> list[Prediction]:
        """
        The moments of the predictors under each model of the mixture.

        :param x: Inputs ``(n, D)``.
        :param exclude: The components to leave out.
        """
        with KERNELS, any_inputs():
            return self.mixture.predictions(x, components=False, exclude=exclude or None)

    def sums(self, x: Tensor, sums: Mapping[str, Sequence[str]]) -> SumPrediction:
        """
        The moments of sums of components.

        :param x: Inputs ``(n, D)``.
        :param sums: The components of each sum.
        """
        with KERNELS, any_inputs():
            return self.mixture.predict_sums(x, sums) if len(self.mixture) > 1 else self.model.predict_sums(x, sums)

    def joint_sums(self, pairs: Sequence[tuple[Tensor, Sequence[str]]]) -> list[JointSum]:
        """
        Sums of components as functions.

        :param pairs: For each sum its rows ``(n, D)`` and its components.
        """
        with KERNELS, any_inputs():
            return self.mixture.joint_sums(pairs)

    def draws(self, x: Tensor, num: int) -> Tensor:
        """
        Draws of all components ``(S, C, n)``, from each model of the mixture as many as its weight says.

        :param x: Inputs ``(n, D)``.
        :param num: Their number S.
        """
        found = []
        with KERNELS, any_inputs():
            for model, own in zip(self.mixture.models, allotted(self.mixture.weights, num), strict=True):
                if own > 0:
                    strategy: Any = model.variational_strategy
                    drawn = strategy.draw_components(strategy.read(x).inputs, x.shape[:-2], torch.Size([own]))
                    found.append(torch.cat(drawn, -2))
        return torch.cat(found)

    def know_inputs(self) -> None:
        """Let the model tell inputs in units of the fit, which it takes, from others."""
        known, reference = self.model.predictor.known_inputs, self.reference
        if known is not None and known.names:
            return
        self.model.predictor.known_inputs = KnownInputs(
            reference.shape[1],
            [name for name, _ in self.design.encodings],
            reference.nan_to_num(nan=torch.inf).amin(0),
            reference.nan_to_num(nan=-torch.inf).amax(0),
            "the model of an estimator takes gam.model_inputs(X), columns in units of the fit",
        )

    def complete_rows(self) -> Tensor:
        """Some rows of the data without missing values; with zeros for missing values, if there is none."""
        is_complete = self.reference.isfinite().all(-1)
        rows = self.reference[is_complete] if int(is_complete.sum()) > 1 else self.reference.nan_to_num()
        return rows[torch.linspace(0, len(rows) - 1, min(len(rows), _NUM_SUMMARISED)).round().long()]

    @property
    def parts(self) -> list[Part]:
        """All terms, with their components."""
        return self.design.parts

    @property
    def has_identity_link(self) -> bool:
        """Whether the first predictor is in units of the response."""
        return self.family.link == "identity" and self.family.name not in ("ordinal", "softmax")

    def scale_of(self, predictor: int) -> float:
        """
        By what effects of a predictor are multiplied to be in units of the response.

        :param predictor: Its number.
        """
        return self.units.scale if self.has_identity_link and predictor == 0 else 1.0

    def centre_of(self, predictor: int) -> float:
        """
        What is added to a predictor to be in units of the response; logarithms of scales are shifted, too.

        :param predictor: Its number.
        """
        log_scale = float(torch.tensor(self.units.scale, dtype=torch.float64).log())
        if self.has_identity_link:
            return self.units.centre if predictor == 0 else log_scale
        return log_scale if self.family.name == "gamma" else 0.0

    def chosen(self, only: Sequence[str] | str | None, exclude: Sequence[str] | str | None) -> list[Part]:
        """
        The terms that remain.

        :param only: Labels of terms to keep, such as ``["s(age)"]``; default all.
        :param exclude: Labels of terms to leave out.
        :raises ValueError: If both are given, or a label is unknown.
        :raises TypeError: If they are no labels.
        """
        if only is not None and exclude is not None:
            raise ValueError("only and exclude are both given: leave one of them out")
        if only is not None:
            labels = self._known("only", only)
            return [part for part in self.parts if part.label in labels or part.term.label in labels]
        labels = self._known("exclude", () if exclude is None else exclude)
        return [part for part in self.parts if part.label not in labels and part.term.label not in labels]

    def part(self, label: str) -> Part:
        """
        The (first) term with a label.

        :param label: The label, such as ``"s(age)"``.
        :raises ValueError: If there is none.
        """
        (label,) = self._known("term", label)
        return next(part for part in self.parts if label in (part.label, part.term.label))

    def _known(self, argument: str, labels: Sequence[str] | str) -> list[str]:
        if not isinstance(labels, str | Iterable):
            raise TypeError(f"{argument} must be a list of labels of terms, got {checks.shown(labels)}")
        labels = [labels] if isinstance(labels, str) else list(labels)
        known = list(dict.fromkeys(name for part in self.parts for name in (part.label, part.term.label)))
        return [known_label(argument, label, known, [part.term for part in self.parts]) for label in labels]

    def left_out(self, kept: Sequence[Part]) -> list[str]:
        """
        The components that do not belong to some terms; intercepts belong to all.

        :param kept: The terms.
        """
        names = {name for part in kept for name in part.components}
        return [name for name in self.model.predictor.names if name not in names and not self.is_intercept(name)]

    @staticmethod
    def is_intercept(component: str) -> bool:
        """
        Whether a component is the constant of its predictor.

        :param component: Its name.
        """
        return component == INTERCEPT or component.startswith(f"{INTERCEPT}[")


def alone(model: AdditiveGP, likelihood: Likelihood) -> ModelMixture:
    """
    A model whose hyperparameters count as known.

    :param model: The model.
    :param likelihood: Its likelihood.
    """
    return ModelMixture([model], [likelihood], torch.ones(1, dtype=torch.float64))


def reference_rows(x: Tensor) -> Tensor:
    """
    At most a thousand and some rows of the inputs, with the smallest and the largest value of each column.

    :param x: The inputs ``(n, D)``.
    """
    if len(x) <= MOST_REFERENCE_ROWS:
        return x
    chosen = torch.linspace(0, len(x) - 1, MOST_REFERENCE_ROWS, dtype=torch.float64).round().long()
    high = x.nan_to_num(nan=-torch.inf).argmax(0)
    low = x.nan_to_num(nan=torch.inf).argmin(0)
    return x[torch.cat([chosen, low, high]).unique()]
