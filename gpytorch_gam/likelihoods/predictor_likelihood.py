"""The base class of the likelihoods of this package: expectations from the moments of the predictors in each row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.parameters.initial_values import forget_initial_value, note_initial_value

from .null_model import NullModel, Responses
from .response_checks import check_responses
from .row_argument import WEIGHTS, RowArgument
from .row_arguments import RowArguments
from .row_arguments_likelihood import RowArgumentsLikelihood

# Row-wise arguments and learnt parameters of a likelihood, broadcasting to (*batch, n).
Values = Mapping[str, Tensor]


class PredictorLikelihood(RowArgumentsLikelihood):
    """
    A likelihood of the predictors of a row: ``(*batch, n)`` with variances alike if there is one, otherwise
    ``(*batch, n, P)`` with covariances ``(*batch, n, P, P)``. The methods that a subclass defines come first.
    """

    #: Number P of predictors.
    num_predictors: int
    #: Row-wise arguments beside offset and weights.
    _own_arguments: ClassVar[tuple[RowArgument, ...]] = ()
    #: Whether expectations are computed in float64, and in the model's dtype otherwise.
    _is_double: ClassVar[bool] = False
    #: Names of the learnt parameters.
    _learnt: tuple[str, ...] = ()

    # ------------------------------------------------------------------ methods of subclasses

    @abstractmethod
    def _expected_log_prob(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        """Expected log-probabilities ``(*batch, n)``."""

    @abstractmethod
    def _log_marginal(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        """The logarithms of the expected probabilities, ``(*batch, n)``."""

    @abstractmethod
    def _marginal(self, mean: Tensor, covariance: Tensor, values: Values) -> Distribution:
        """The distribution of new responses, of batch shape ``(*batch, n)``, in the dtype of the model."""

    @abstractmethod
    def _conditional(self, predictors: Tensor, values: Values) -> Distribution:
        """The distribution of responses given the predictors, which may have further leading dimensions."""

    @abstractmethod
    def _null_model(self, responses: Responses) -> NullModel:
        """The model without effects, from moments of the responses."""

    def _check_responses(self, y: Tensor, values: Values) -> None:
        """Refuse responses that the likelihood cannot have; by default all real numbers are allowed."""

    # ------------------------------------------------------------------ one predictor or several

    @abstractmethod
    def _moments(self, function_dist: MultivariateNormal) -> PredictorMoments:
        """The mean and covariance of the predictors in each row."""

    @abstractmethod
    def _in_rows(self, predictors: Tensor) -> Tensor:
        """The only predictor in each row, ``(*batch, n)``, after a check of their number."""

    @abstractmethod
    def _shifted(self, predictors: Tensor, offset: Any) -> Tensor:
        """The predictors with the offset added."""

    # ------------------------------------------------------------------ reading of arguments

    @property
    def readable_arguments(self) -> RowArguments:
        """The row-wise arguments that the likelihood reads."""
        names = ("offset", "weights", *(argument.name for argument in self._own_arguments))
        return RowArguments(type(self).__name__, names)

    def _expected(self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any) -> Tensor:
        return self._integrated(self._expected_log_prob, y, function_dist, offset, rows)

    def _log_expected(
        self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any
    ) -> Tensor:
        return self._integrated(self._log_marginal, y, function_dist, offset, rows)

    def _integrated(
        self,
        integral: Callable[[Tensor, Tensor, Tensor, Values], Tensor],
        y: Tensor,
        function_dist: MultivariateNormal,
        offset: Any,
        row_arguments: Mapping[str, Any],
    ) -> Tensor:
        mean, covariance = self._moments(function_dist)
        rows = self._in_rows(mean)
        check_responses(type(self).__name__, y, rows)
        rows = rows.expand(torch.broadcast_shapes(rows.shape, y.shape))
        values = self._values(rows, row_arguments)
        self._check_responses(y, values)
        dtype = torch.float64 if self._is_double else mean.dtype
        moments = self._expanded(rows, mean.to(dtype), covariance.to(dtype), values)
        y = y.to(dtype).expand(self._in_rows(moments.mean).shape)
        values = {name: value.to(dtype) for name, value in values.items()}
        return integral(y, self._shifted(moments.mean, offset), moments.covariance, values).to(mean.dtype)

    def _predictive(
        self, function_dist: MultivariateNormal, offset: Any, weights: Any, *args: Any, **rows: Any
    ) -> Distribution:
        mean, covariance = self._moments(function_dist)
        like = self._in_rows(mean)
        values = self._values(like, rows)
        WEIGHTS.read(weights, like)
        mean, covariance = self._expanded(like, self._shifted(mean, offset), covariance, values)
        return self._marginal(mean, covariance, values)

    def _given(self, predictors: Tensor, offset: Any, weights: Any, *args: Any, **rows: Any) -> Distribution:
        like = self._in_rows(predictors)
        values = self._values(like, rows)
        WEIGHTS.read(weights, like)
        return self._conditional(self._shifted(predictors, offset), values)

    def _expanded(self, rows: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> PredictorMoments:
        """Moments expanded to all rows, also those of batches of parameters: nodes get dimensions to the left."""
        shape = torch.broadcast_shapes(rows.shape, self._values_shape(values))
        num_dims = self._in_rows(mean).dim()
        return PredictorMoments(*(tensor.expand(shape + tensor.shape[num_dims:]) for tensor in (mean, covariance)))

    def _values(self, like: Tensor, row_arguments: Mapping[str, Any]) -> dict[str, Tensor]:
        """The row-wise arguments and the learnt parameters by name."""
        values = {
            argument.name: argument.read(row_arguments.get(argument.name), like) for argument in self._own_arguments
        }
        return values | {name: getattr(self, name) for name in self._learnt}

    def _values_shape(self, values: Values) -> torch.Size:
        """The common shape of the values, which broadcasts with ``(*batch, n)``."""
        return torch.broadcast_shapes(*(value.shape for value in values.values()))

    # ------------------------------------------------------------------ learnt parameters

    def _learn(
        self,
        name: str,
        initial: float,
        batch_shape: torch.Size,
        constraint: Interval,
        prior: Prior | None,
    ) -> None:
        """Register a parameter of shape ``(*batch_shape, 1)`` as GPyTorch does, with its raw form and prior."""
        self._learnt = (*self._learnt, name)
        self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.zeros(*batch_shape, 1)))
        self.register_constraint(f"raw_{name}", constraint)
        # A constraint takes precedence, by an initial value of its own or by bounds that exclude ours.
        if constraint.initial_value is None and constraint.lower_bound < initial < constraint.upper_bound:
            self._write(name, initial)
            note_initial_value(self, f"raw_{name}")
        if prior is not None:
            # Partial functions, because closures could not be pickled.
            self.register_prior(f"{name}_prior", prior, partial(_get, name=name), partial(_set, name=name))

    def _raw_names(self, name: str) -> tuple[str, ...]:
        """The names of the raw parameters behind a learnt one."""
        return (f"raw_{name}",)

    def _write(self, name: str, value: Tensor | float) -> None:
        raw = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        self.initialize(**{f"raw_{name}": getattr(self, f"raw_{name}_constraint").inverse_transform(value)})


def learnt(name: str, doc: str) -> Any:
    """A property for a parameter that ``_learn`` registers."""
    return property(partial(_get, name=name), partial(_set, name=name), doc=doc)


def _get(likelihood: PredictorLikelihood, name: str) -> Tensor:
    return getattr(likelihood, f"raw_{name}_constraint").transform(getattr(likelihood, f"raw_{name}"))


def _set(likelihood: PredictorLikelihood, value: Tensor | float, name: str) -> None:
    forget_initial_value(likelihood, f"raw_{name}")
    likelihood._write(name, value)
