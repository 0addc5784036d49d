"""The common part of the estimators: their fit, the tables that they read, and their files."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam._caught_warnings import warnings_at_caller
from gpytorch_gam.training import FitResult

from . import files
from .design import Design
from .encoded_terms import EncodedTerms
from .families import Family
from .fitted import Fitted
from .fitting import FitOfDesign, fit_design
from .frames import as_frame, as_rows, drop_columns, frame_of, refuse_response, some_rows, take_columns
from .freedom import warn_of_precisions
from .integration import HYPERPARAMETERS
from .interactions import Limits, interactions_of_description
from .options import Options
from .parts import Part, columns_of_parts
from .row_arguments import (
    named_arguments,
    refuse_counted_twice,
    refuse_not_given,
    with_columns_of_fit,
)
from .scores import Seen
from .smoothness import DEFAULT_KERNEL
from .specification import columns_of_terms, read_specification
from .stream_fit import Rows, fit_stream, with_weight
from .streams import Stream, stream_of
from .survey import survey
from .term_warnings import warn_of_multipliers
from .terms import KERNELS, MISSING
from .units_of_fit import fit_arguments
from .value_checks import is_dropped, warn_of_missing


class GAMEstimator(BaseEstimator):
    """The fit of terms and a family to a table, by the conventions of scikit-learn."""

    _fitted: Fitted
    _set_apart: list[str]  # columns of the data that are no features
    _needed: list[str] | None  # columns that the terms read; None if all are features
    _arguments: dict[str, str | None]  # row-wise arguments of the fit, and the columns that they were
    result_: FitResult | None
    deviance_explained_: float
    interactions_: pd.DataFrame | None
    n_rows_: int
    n_rows_left_out_: int
    _seen: Seen  # the responses of the fit
    family_: Family
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        terms: Any,
        family: Any,
        kernel: str,
        num_inducing: int | None,
        missing: str,
        posterior: str,
        hyperparameters: str,
        method: str,
        tolerance: float,
        device: str,
        progress: bool,
        random_state: Any,
        interactions: Any,
        interaction_nats: float,
    ) -> None:
        self.terms = terms
        self.family = family
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.missing = missing
        self.posterior = posterior
        self.hyperparameters = hyperparameters
        self.method = method
        self.tolerance = tolerance
        self.device = device
        self.progress = progress
        self.random_state = random_state
        self.interactions = interactions
        self.interaction_nats = interaction_nats

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    # ------------------------------------------------------------------ the fit

    @abstractmethod
    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        """Responses as numbers, and their distribution."""

    def _fit(self, X: Any, y: Any, sample_weight: Any, arguments: Mapping[str, Any]) -> Any:
        self._check_options()
        response = self._response_name()
        given = {"y": response if y is None else y, "sample_weight": sample_weight, **arguments}
        if given["y"] is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None (a formula may name it)"
            )
        parts = stream_of(X, given)
        given = given if parts is None else parts[1]
        columns, levels = columns_of_terms(self.terms)
        named = [name for name in given.values() if isinstance(name, str)]
        apart = named if columns is None else [given["y"]]
        self._set_apart = list(dict.fromkeys(name for name in [*apart, response] if isinstance(name, str)))
        self._arguments = named_arguments(arguments)
        stream = None if parts is None else parts[0]
        with warnings_at_caller(depth=2):
            found = self._fit_table(X, given) if stream is None else self._fit_stream(stream, given, columns, levels)
        self._fitted, self.result_, self.deviance_explained_, self.interactions_ = found
        self.family_ = self._fitted.family
        return self

    def _fit_table(self, X: Any, given: Mapping[str, Any]) -> FitOfDesign:
        """The fit to a table in memory and arguments with a value for each row, or the names of its columns."""
        X, given = take_columns(X, given)
        frame = as_frame(self, drop_columns(X, self._set_apart), reset=True)
        response = given.pop("y")
        y, family = self._encode_response(response)
        check_consistent_length(frame, y)
        weights = _check_sample_weight(
            given.pop("sample_weight"), frame.to_numpy(), dtype=np.float64, ensure_non_negative=True
        )
        warn_of_precisions(weights[weights > 0])
        rows = self._rows(frame, y, weights, family, given)
        design = self._design(family, rows.frame)
        is_left_out = is_dropped(design, rows.frame)
        rows = rows.some(~is_left_out)
        self._note_rows(Seen.of(*rows[1:]), int(is_left_out.sum()))
        refuse_response(response, frame, design.columns)
        numbers = {name: int(rows.frame[name].isna().sum()) for name in design.columns}
        warn_of_missing(design, numbers, len(rows.frame))
        return fit_design(design, family, *rows, self._options(), self._limits(family))

    def _fit_stream(
        self, stream: Stream, given: Mapping[str, Any], columns: list[str] | None, levels: set[str]
    ) -> FitOfDesign:
        """The fit to rows that are read in parts, of whose columns arguments are."""
        if self.interactions not in ("auto", 0):
            raise ValueError(
                f"interactions must be 'auto' or 0 where X is read in parts, got {self.interactions!r}: look for them "
                "in a table of some rows, and give them as terms"
            )
        if self.hyperparameters == "integrated":
            raise ValueError("hyperparameters must be 'auto' or 'point' where X is read in parts, got 'integrated'")
        weights, named = given["sample_weight"], [name for name in given.values() if isinstance(name, str)]
        if weights is not None and not isinstance(weights, str):
            raise TypeError(f"sample_weight must be the name of a column, as X is read in parts, got {weights!r}")
        options, features = self._options(), columns
        columns = None if columns is None else list(dict.fromkeys([*columns, *named]))
        levels = levels | {given["y"]} if is_classifier(self) else levels
        found = survey((with_weight(frame, weights) for frame in stream.frames(columns)), levels, options.seed)
        _, family = self._encode_response(found.frame[given["y"]])
        arguments = {name: value for name, value in given.items() if name not in ("y", "sample_weight")}

        def reader(frame: pd.DataFrame) -> Rows:
            frame = with_weight(frame, weights)
            own = np.ones(len(frame)) if weights is None else frame[weights].to_numpy(np.float64)
            return self._rows(frame, self._responses(frame[given["y"]]), own, family, take_columns(frame, arguments)[1])

        frame = found.frame.drop(columns=named) if features is None else found.frame[features]
        as_frame(self, frame if stream.array is None else stream.array[:2], reset=True)
        self._note_rows(Seen.joined(Seen.of(*reader(part)[1:]) for part in stream.frames(named)))
        return fit_stream(self._design(family, frame), family, stream, columns, found, reader, options)

    def _rows(
        self, frame: pd.DataFrame, y: np.ndarray, weights: np.ndarray, family: Family, arguments: Mapping[str, Any]
    ) -> Rows:
        """The rows with a positive weight, whose responses the family can have."""
        rows = self._row_arguments(family, arguments, len(frame))
        found = Rows(frame, y, weights, rows).some(weights > 0)
        family.check(found.y, found.arguments.get("trials"))
        return found

    def _note_rows(self, seen: Seen, num_left_out: int = 0) -> None:
        if seen.num_rows < 2:
            without = f" and no missing values ({num_left_out} rows have some)" if num_left_out else ""
            raise ValueError(f"n_samples={seen.num_rows} with a positive weight{without}, but a fit needs at least 2")
        self.n_rows_, self.n_rows_left_out_, self._seen = seen.num_rows, num_left_out, seen

    def _design(self, family: Family, frame: pd.DataFrame) -> Design:
        """The terms for some data."""
        specification = read_specification(self.terms, family.parameters)
        specification.refuse_no_intercept(family)
        design = Design(
            specification.terms(frame),
            tuple(family.parameters),
            DEFAULT_KERNEL if self.kernel == "auto" else self.kernel,
            self.num_inducing,
            self.missing,
            specification.has_intercepts if family.name != "ordinal" else (False,),
        )
        self._needed = None if specification.is_automatic else design.columns
        if not specification.is_automatic:
            warn_of_multipliers(design, frame)
        return design

    def _check_options(self) -> None:
        checks.choice("kernel", self.kernel, ("auto", *KERNELS))
        checks.choice("missing", self.missing, MISSING)
        if self.num_inducing is not None:
            checks.integer("num_inducing", self.num_inducing, least=3)
        checks.choice("posterior", self.posterior, ("auto", "coupled", "block_low_rank", "low_rank", "mean_field"))
        checks.choice("hyperparameters", self.hyperparameters, HYPERPARAMETERS)
        checks.choice("method", self.method, ("auto", "rows", "bins", "minibatches"))
        checks.number("tolerance", self.tolerance, above=0)
        checks.flag("progress", self.progress)
        if isinstance(self.interactions, str):
            checks.choice("interactions", self.interactions, ("auto",))
        else:
            checks.integer("interactions", self.interactions, least=0)
        checks.number("interaction_nats", self.interaction_nats, least=0)
        if not isinstance(self.device, str):
            raise TypeError(
                f"device must be 'auto', 'cpu' or the name of another device, got {checks.shown(self.device)}"
            )

    def _limits(self, family: Family) -> Limits | None:
        """Which interactions are added; None for none."""
        if not isinstance(self.interactions, str):
            return Limits(int(self.interactions), self.interaction_nats) if self.interactions else None
        is_automatic = read_specification(self.terms, family.parameters).is_automatic
        is_looked_for = is_automatic and len(family.parameters) == 1
        return Limits(None, self.interaction_nats, is_unasked=True) if is_looked_for else None

    def _options(self) -> Options:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Options(
            self.method,
            self.tolerance,
            self.posterior,
            self.device,
            self.progress,
            seed,
            self.hyperparameters,
            chooses_kernel=self.kernel == "auto",
        )

    def _response_name(self) -> str | None:
        terms = self.terms
        if isinstance(terms, Mapping):
            terms = list(terms.values())
        first = terms[0] if isinstance(terms, list | tuple) and terms else terms
        if not isinstance(first, str) or "~" not in first:
            return None
        return read_specification(first, ("mean",)).response

    def _row_arguments(self, family: Family, arguments: Mapping[str, Any], num_rows: int) -> dict[str, np.ndarray]:
        """The row-wise arguments that are given, which the family must read."""
        found = {}
        for name, value in arguments.items():
            rows = as_rows(name, value, num_rows)
            if rows is None:
                continue
            if name != "offset" and name not in family.arguments:
                raise ValueError(
                    f"family {family.name!r} reads no {name}: leave it out, or take a family of "
                    f"{'successes among trials, such as binomial' if name == 'trials' else 'counts, such as poisson'}"
                )
            if name != "offset" and (rows <= 0).any():
                raise ValueError(f"{name} must be positive, but is not in {int((rows <= 0).sum())} of {num_rows} rows")
            found[name] = rows
        refuse_counted_twice(found)
        return found

    # ------------------------------------------------------------------ what was fitted

    @property
    def model_(self) -> Any:
        """
        The model of the package, an :class:`~gpytorch_gam.AdditiveGP` in units of the fit: it takes
        :meth:`model_inputs`, and returns responses that are centred and scaled.
        """
        fitted = self._checked()
        fitted.know_inputs()
        return fitted.model

    def model_inputs(self, X: Any) -> Tensor:
        """
        A table as the inputs of :attr:`model_`, which reads numbers centred and scaled (those with a long tail as
        logarithms there), dates in days, levels as codes and columns of periodic effects as places in their period.

        :param X: A table of the columns of the fit.
        :return: Inputs ``(n, D)`` in float64 on the device of the model, a column for each way in which one is read.

        Example:
            >>> gam.model_.components(gam.model_inputs(X))
        """
        return self._read(X, {})[2].to(self._checked().model.predictor.device)

    @property
    def likelihood_(self) -> Any:
        """Its likelihood."""
        return self._checked().likelihood

    @property
    def bound_(self) -> float:
        """
        The evidence lower bound in nats, of responses in their units (that of ``result_`` is of scaled ones): the
        larger the better among models of the same responses, see :func:`~gpytorch_gam.gam.compare`.
        """
        fitted = self._checked()
        if self.result_ is None:
            return float("nan")
        return self.result_.bound - self._seen.weight * math.log(fitted.units.scale)

    @property
    def hyperparameters_(self) -> str:
        """Whether hyperparameters are integrated out or point estimates, and why."""
        return self._checked().hyperparameters

    @property
    def terms_(self) -> list[str]:
        """The labels of the terms."""
        return [part.label for part in self._checked().parts]

    # ------------------------------------------------------------------ reading tables

    def _checked(self) -> Fitted:
        check_is_fitted(self)
        return self._fitted

    def _part(self, term: str) -> tuple[Fitted, Part]:
        fitted = self._checked()
        if not isinstance(term, str):
            raise TypeError(f"term must be the label of a term, got {checks.shown(term)}")
        return fitted, fitted.part(term)

    def _read(
        self, X: Any, arguments: Mapping[str, Any], kept: Sequence[Part] | None = None
    ) -> tuple[Fitted, pd.DataFrame, Any, dict[str, Any]]:
        """
        The fitted model, the data frame, its inputs, and row-wise arguments in units of the fit. Columns of terms that
        are not kept are not read.
        """
        fitted = self._checked()
        X, arguments = take_columns(*with_columns_of_fit(X, arguments, self._arguments))
        frame, names = self._columns_of(X, kept), None if kept is None else columns_of_parts(kept)
        x = fitted.design.inputs(frame, names)
        rows = self._row_arguments(fitted.family, arguments, len(frame))
        return fitted, frame, x, fit_arguments(fitted.family, fitted.units.scale, rows)

    def _frame(self, X: Any) -> pd.DataFrame:
        """A table as a data frame of the columns that predictions read."""
        return self._columns_of(take_columns(X, {})[0])

    def _given(self, X: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Row-wise arguments for rows with responses, of which none of the fit may be missing."""
        self._checked()
        found = with_columns_of_fit(X, arguments, self._arguments)[1]
        refuse_not_given(found, self._arguments)
        return found

    def _checked_columns(self, only: Any = None, exclude: Any = None) -> list[str] | None:
        """The columns that predictions by some of the terms read; None for all."""
        return self._needed_by(self._checked().chosen(only, exclude))

    def _needed_by(self, kept: Sequence[Part] | None) -> list[str] | None:
        """The columns that some of the terms read, by default all terms; None for all columns."""
        if self._needed is None or kept is None:
            return self._needed
        read = columns_of_parts(kept)
        return [name for name in self._needed if name in read]

    def _checked_arguments(self) -> dict[str, str | None]:
        """The row-wise arguments of the fit, and the columns that they were."""
        self._checked()
        return self._arguments

    def _columns_of(self, X: Any, kept: Sequence[Part] | None = None) -> pd.DataFrame:
        """A table without the columns that are no features; it needs those of the terms that are kept."""
        X = drop_columns(X, self._set_apart) if self._needed is None else X
        return as_frame(self, X, reset=False, needed=self._needed_by(kept))

    def _scored(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Responses and weights of some rows, which may be the names of their columns."""
        y = self._response_name() if y is None else y
        if y is None:
            raise ValueError("y is None, and no formula names the response: pass the responses, or their column")
        _, given = take_columns(X, {"y": y, "sample_weight": sample_weight})
        return given["y"], given["sample_weight"]

    def _without(
        self, left_out: Callable[[EncodedTerms, pd.DataFrame], np.ndarray], X: Any, given: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any], np.ndarray | None]:
        """
        A table and values of its rows, by the names of arguments, without rows in which values are missing; and which
        rows are left, None for all.
        """
        design = self._checked().design
        if not design.columns_that_drop() or stream_of(X, {}) is not None:
            return X, dict(given), None
        table, values = take_columns(X, given)
        used = ~left_out(design, self._columns_of(table))
        if used.all():
            return X, dict(given), None
        frame = frame_of(table)
        rows = some_rows(table if frame is None else frame, used)
        return rows, {name: some_rows(value, used) for name, value in values.items()}, used

    def _observed(
        self, X: Any, y: Any, sample_weight: Any, arguments: Mapping[str, Any]
    ) -> tuple[Fitted, Any, np.ndarray, np.ndarray, dict[str, Any]]:
        """The fitted model, inputs, responses in units of the fit, weights and row-wise arguments of some rows."""
        y, sample_weight = self._scored(X, y, sample_weight)
        fitted, frame, x, rows = self._read(X, self._given(X, arguments))
        values = self._responses(y)
        check_consistent_length(frame, values)
        fitted.family.check(values, rows["trials"].numpy() if "trials" in rows else None)
        weights = as_rows("sample_weight", sample_weight, len(values))
        weights = np.ones(len(values)) if weights is None else weights
        if (weights < 0).any():
            raise ValueError(f"sample_weight must not be negative, but is in {int((weights < 0).sum())} rows")
        if not weights.any():
            raise ValueError(f"sample_weight is zero in all of {len(weights)} rows: at least one must count")
        return fitted, x, (values - fitted.units.centre) / fitted.units.scale, weights, rows

    @abstractmethod
    def _responses(self, y: Any) -> np.ndarray:
        """Responses of further rows as numbers."""

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the fitted estimator to a file of safetensors, which :meth:`load` reads.

        :param path: The name of the file, which is replaced if it exists.
        """
        files.write(path, self, self._checked())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """
        A fitted estimator from a file that :meth:`save` has written. A file cannot run code.

        :param path: The name of the file.
        :raises FileError: If the file is damaged, was written by a newer version, or holds another estimator.
        """
        with files.reading(path):
            description, fitted = files.read(path)
            if description["estimator"] != cls.__name__:
                raise files.FileError(f"{os.fspath(path)!r} holds a {description['estimator']}: use its load")
            found = cls(**{name: files.from_plain(value) for name, value in description["parameters"].items()})
            found._fitted, found.family_ = fitted, fitted.family
            found.result_ = files.result_of_description(description["result"])
            found._seen = Seen(**description["seen"])
            found.n_rows_, found.deviance_explained_ = description["n_rows"], description["deviance_explained"]
            found.n_rows_left_out_ = description["n_rows_left_out"]
            found.interactions_ = interactions_of_description(description["interactions"])
            found.n_features_in_ = description["n_features_in"]
            if description["feature_names_in"] is not None:
                found.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
            found._set_apart, found._needed = description["set_apart"], description["needed"]
            found._arguments = description["arguments"]
            classes = files.classes_of_description(description["classes"])
            if classes is not None:
                found.classes_ = classes
            return found
