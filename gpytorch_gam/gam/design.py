"""From terms and a data frame to the components of a model, and from further data frames to its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam import terms as factories
from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.warnings import ConstantColumnWarning

from .column_roles import columns_and_roles
from .columns import CycleEncoding, LevelEncoding, NumberEncoding, kind_of
from .encoded_terms import EncodedTerms, Key
from .parts import INTERCEPT, Part
from .term_groups import TermGroups
from .term_warnings import warn_of_units
from .terms import DeviatingCurves, Factor, Term
from .time_zones import zone_of
from .value_checks import check_values

# Prior variance of the intercept, in units of the fit.
_INTERCEPT_VARIANCE = 25.0


@dataclass
class Design(EncodedTerms):
    """
    The terms of a model, which choose how the columns that they read are encoded, and make inputs and components.

    :ivar parts: What each term consists of; filled by :meth:`predictor`.
    """

    parts: list[Part] = field(default_factory=list)

    def learn_columns(self, frame: pd.DataFrame, weights: np.ndarray) -> None:
        """
        Choose how columns are read.

        :param frame: The data of the fit.
        :param weights: The weights of the rows.
        """
        for term in self.all_terms:
            for name, role in columns_and_roles(term, frame):
                key = (name, role)
                if key not in self.encodings and key not in self.aliases:
                    self._learn(key, frame[name], weights)

    def extended(self, terms: Sequence[Sequence[Term]], frame: pd.DataFrame, weights: np.ndarray) -> Design:
        """
        A design with further terms, in which columns that are read already stay where they are in the inputs.

        :param terms: The further terms of each predictor.
        :param frame: The data of the fit.
        :param weights: The weights of the rows.
        """
        all_terms = [[*own, *more] for own, more in zip(self.terms, terms, strict=True)]
        found = replace(self, terms=all_terms, encodings=dict(self.encodings), aliases=dict(self.aliases), parts=[])
        found.learn_columns(frame, weights)
        return found

    def _learn(self, key: Key, values: pd.Series, weights: np.ndarray) -> None:
        name, role = key
        if role == "levels":
            missing_is_level = any(self.missing_of(t) == "level" for t in self.all_terms if name in t.columns)
            self.encodings[key] = LevelEncoding.of(values, missing_is_level=missing_is_level)
        elif role == "multiplier":
            self.encodings[key] = NumberEncoding.about_zero(values, weights)
        elif role.startswith("cycle"):
            period = float(role.removeprefix("cycle "))
            self.encodings[key] = CycleEncoding(name, kind_of(values).name, period, zone_of(values))
        elif role == "coordinate":
            self.encodings[key] = replace(NumberEncoding.of(values, weights, draws_in=False), scale=1.0)
        else:
            encoding = NumberEncoding.of(values, weights, draws_in=role == "number")
            other = self.encodings.get((name, "line" if role == "number" else "number"))
            if other == encoding:
                self.aliases[key] = (name, "line" if role == "number" else "number")
            else:
                self.encodings[key] = encoding

    def inputs(self, frame: pd.DataFrame, names: Collection[str] | None = None) -> Tensor:
        """
        The rows of a data frame as inputs of the model ``(n, D)``, in float64.

        :param frame: A data frame with the columns that the terms read.
        :param names: The columns that are read, those of terms that are left out being zeros; None for all.
        :raises TypeError: If a column holds something else than when the model was fitted.
        :raises ValueError: If values are missing or infinite, or levels unseen, where a term does not allow it.
        """
        names = self.columns if names is None else names
        inputs = np.zeros((len(frame), len(self.encodings)))
        for index, ((name, _), encoding) in enumerate(self.encodings.items()):
            if name in names:
                encoding.refuse_other_zone(frame[name])
                inputs[:, index] = encoding.encode(frame[name])
        for term in self.all_terms:
            if set(term.columns) <= set(names):
                check_values(self, term, frame, inputs)
        return torch.from_numpy(inputs)

    def outside(self, frame: pd.DataFrame) -> pd.DataFrame:
        """
        Which values are outside of what the model has seen: beyond the range of a number, or an unseen level.

        :param frame: A data frame.
        """
        found = {}
        for (name, _), encoding in self.encodings.items():
            encoding.refuse_other_zone(frame[name])
            if isinstance(encoding, NumberEncoding):
                found[name] = encoding.outside(frame[name])
            elif isinstance(encoding, LevelEncoding):
                codes = encoding.encode(frame[name])
                found[name] = codes >= len(encoding.labels)
        return pd.DataFrame(found, index=frame.index)

    # ------------------------------------------------------------------ components

    def predictor(self, x: Tensor) -> AdditivePredictor:
        """
        The components of all terms, with ranges from inputs of the model.

        :param x: The inputs ``(n, D)``.
        """
        self.parts = []
        warn_of_units(self)
        groups: list[ComponentGroup] = []
        groups_of_terms = TermGroups(self, x)
        with default_dtype(torch.float64):
            for index, terms in enumerate(self.terms):
                if self.has_intercepts[index]:
                    groups.append(self._intercept(index))
                for term in terms:
                    label = self.labelled(term.label, index)
                    made = [] if self._has_no_effect(term, x) else groups_of_terms.of(term, label, index)
                    groups += made
                    components = tuple(name for group in made for name in group.names)
                    self.parts.append(Part(label, term, index, components))
            self._with_a_component_each(groups)
            return AdditivePredictor(*groups)

    def _with_a_component_each(self, groups: list[ComponentGroup]) -> None:
        """A predictor without any component gets a constant."""
        for index in range(len(self.terms)):
            if all(group.predictor_index != index for group in groups):
                groups.append(self._intercept(index))

    def _intercept(self, index: int) -> ComponentGroup:
        """
        The constant of a predictor. Its wide prior is fixed: responses are centred, so that a variance that is trained
        goes to zero, and the uncertainty of the mean level with it.
        """
        group = factories.constant(_INTERCEPT_VARIANCE, name=self.labelled(INTERCEPT, index), predictor=index)
        group.kernel.requires_grad_(False)
        return group

    def labelled(self, label: str, index: int) -> str:
        """
        A label that is unique among predictors.

        :param label: The label in one predictor.
        :param index: The number of the predictor.
        """
        return label if index == 0 and len(self.parameters) < 3 else f"{label}[{self.parameters[index]}]"

    def _has_no_effect(self, term: Term, x: Tensor) -> bool:
        """Whether a column of the term is constant, of which a warning tells."""
        for name, role in self.keys_of(term):
            encoding = self.encoding(name, role)
            values = x[:, self.position(name, role)]
            values = values[values.isfinite()]
            if isinstance(encoding, LevelEncoding):
                is_constant = len(encoding.labels) < 2 and isinstance(term, Factor | DeviatingCurves)
            else:
                is_number = isinstance(encoding, NumberEncoding)
                is_constant = encoding.is_constant if is_number else bool((values == values[:1]).all())
                is_constant = is_constant and role != "multiplier"
            if is_constant:
                warnings.warn(
                    f"column {name!r} has the same value in all rows: {term.label} is zero",
                    ConstantColumnWarning,
                    stacklevel=2,
                )
                return True
        return False
