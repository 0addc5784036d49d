"""What the likelihoods of one predictor share: row-wise arguments, weights, expectations by quadrature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam.distributions.response_mixture import ResponseMixture
from gpytorch_gam.numerics.quadrature import (
    NormalRule,
    equispaced_rule,
    expectation,
    focused_rule,
    log_expectation,
    product_rule,
)
from gpytorch_gam.parameters.initial_values import forget_initial_value, note_initial_value

from .null_model import NullModel, Responses
from .row_arguments import RowArguments, check_responses, refuse_positional, row_vector, weighted

# Row-wise arguments and learnt parameters of a likelihood, broadcasting to (*batch, n).
Values = Mapping[str, Tensor]


class _Rows(NamedTuple):
    """Responses, marginals of the predictor with its offset, and what else the likelihood takes, in float64."""

    y: Tensor
    mean: Tensor
    variance: Tensor
    values: Values
    weights: Tensor | None  # in the dtype of the predictor


class OnePredictorLikelihood(Likelihood, ABC):
    """
    A likelihood :math:`p(y_n | f_n)` of one predictor with row-wise arguments, given by keyword to the objective
    (``mll(model(x), y, weights=weights)``), the likelihood and its methods. Each is a number or a tensor that
    broadcasts to ``(*batch, n)``.

    - ``offset`` is added to the predictor.
    - ``weights``, not negative, multiply the rows' (expected) log-probabilities. With ``num_data`` the number of rows,
      integer weights give the bound of repeated rows in total nats. Predictions do not depend on them.
    - others by name, as the classes say.

    Expected log-probabilities are closed forms or quadratures with errors below 1e-6 nats; both are computed in float64
    and rounded to the model's dtype. ``likelihood(model(x))`` is deterministic: the distribution of new responses,
    rows independent, with ``mean`` and ``variance`` by quadrature, exact ``sample`` and ``log_prob``.

    Responses, ``(*batch, n)``, may be of any real dtype. They are checked on the CPU while ``gpytorch.settings.debug``
    is on.
    """

    #: Number of predictors, as of the likelihoods of several.
    num_predictors: ClassVar[int] = 1
    #: Row-wise arguments beside offset and weights, all positive, and their defaults.
    _row_arguments: ClassVar[Mapping[str, float]] = {}
    #: Names of learnt positive parameters.
    _parameter_names: ClassVar[tuple[str, ...]] = ()
    #: Nodes of expected log-probabilities, and of marginal ones, whose integrand can be sharp.
    _num_nodes: ClassVar[int] = 40
    _num_marginal_nodes: ClassVar[int] = 64
    #: The distribution function of new responses from y, mean, variance and values, where nodes are too few for it.
    _marginal_cdf: Callable[..., Tensor] | None = None

    @property
    def row_arguments(self) -> tuple[str, ...]:
        """Names of the row-wise arguments."""
        return ("offset", "weights", *self._row_arguments)

    def expected_log_prob(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **rows: Any,
    ) -> Tensor:
        r"""
        Weighted :math:`\mathbb E_{q(f_n)} \log p(y_n | f_n)`.

        :param observations: Responses ``(*batch, n)``.
        :param function_dist: Of the predictor, ``(*batch, n)``; its marginals alone matter.
        :param offset: Added to the predictor.
        :param weights: Of the rows.
        :param rows: Further row-wise arguments.
        :return: ``(*batch, n)``.
        :raises TypeError: If a row-wise argument is unknown, has no name, or is not a number.
        :raises ValueError: If shapes, devices or values do not fit.
        """
        refuse_positional(type(self).__name__, args)
        given = self._rows(observations, function_dist, offset, weights, rows)
        value = self._expected_log_prob(given.y, given.mean, given.variance, given.values)
        return weighted(value.to(function_dist.mean.dtype), given.weights)

    def log_marginal(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **rows: Any,
    ) -> Tensor:
        r"""
        Weighted :math:`\log \mathbb E_{q(f_n)} p(y_n | f_n)`; parameters as for :meth:`expected_log_prob`.

        :param observations: Responses ``(*batch, n)``.
        :param function_dist: Of the predictor, ``(*batch, n)``.
        :param offset: Added to the predictor.
        :param weights: Of the rows.
        :param rows: Further row-wise arguments.
        :return: ``(*batch, n)``.
        """
        refuse_positional(type(self).__name__, args)
        given = self._rows(observations, function_dist, offset, weights, rows)
        value = self._log_marginal(given.y, given.mean, given.variance, given.values)
        return weighted(value.to(function_dist.mean.dtype), given.weights)

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **rows: Any,
    ) -> Distribution:
        """
        The distribution of new responses, rows independent.

        :param function_dist: Of the predictor, ``(*batch, n)``.
        :param offset: Added to the predictor.
        :param weights: Without effect.
        :param rows: Further row-wise arguments.
        :return: A distribution of batch shape ``(*batch, n)``.
        """
        refuse_positional(type(self).__name__, args)
        self._require_one_predictor(function_dist)
        mean, variance = function_dist.mean, function_dist.variance
        values = self._values(mean, rows)
        row_vector("weights", weights, mean, nonnegative=True)
        shift = row_vector("offset", offset, mean)
        shape = torch.broadcast_shapes(mean.shape, self._values_shape(values))
        shifted = mean if shift is None else mean + shift
        return self._marginal(shifted.expand(shape), variance.expand(shape), values)

    def forward(
        self,
        function_samples: Tensor,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **rows: Any,
    ) -> Distribution:
        """
        The distribution of responses given values of the predictor.

        :param function_samples: ``(*sample, *batch, n)``.
        :param offset: Added to them.
        :param weights: Without effect.
        :param rows: Further row-wise arguments.
        :return: A distribution of batch shape ``(*sample, *batch, n)``.
        """
        refuse_positional(type(self).__name__, args)
        values = self._values(function_samples, rows)
        row_vector("weights", weights, function_samples, nonnegative=True)
        shift = row_vector("offset", offset, function_samples)
        return self._conditional(function_samples if shift is None else function_samples + shift, values)

    @abstractmethod
    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        """``log p(y | f)`` in float64, elementwise; ``f`` may have more leading dimensions."""

    @abstractmethod
    def _conditional(self, f: Tensor, values: Values) -> Distribution:
        """The distribution of y given f, of batch shape ``f.shape``."""

    @abstractmethod
    def _check_responses(self, y: Tensor, values: Values) -> None:
        """Refuse responses that the likelihood cannot have."""

    @abstractmethod
    def _null_model(self, responses: Responses) -> NullModel:
        """The model without effects, from moments of the responses."""

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        """Place and width of the bend of ``log p(y | f)`` in f, broadcasting to ``(*batch, n)``: for quadratures."""
        raise NotImplementedError

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        rule = self._bend_rule(y, mean, variance, values, self._num_nodes)
        return expectation(lambda f: self._log_prob(y, f, values), mean, variance, rule)

    def _log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        rule = self._marginal_rule(y, mean, variance, values)
        return log_expectation(lambda f: self._log_prob(y, f, values), mean, variance, rule)

    def _marginal_rule(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> NormalRule:
        return product_rule(lambda f: self._log_prob(y, f, values), mean, variance, self._num_marginal_nodes)

    def _marginal(self, mean: Tensor, variance: Tensor, values: Values) -> Distribution:
        rule = equispaced_rule(self._num_nodes, mean)
        log_marginal = partial(self._log_marginal, values=_double(values))
        cdf = None if self._marginal_cdf is None else partial(self._marginal_cdf, values=_double(values))
        return ResponseMixture(mean, variance, self._conditional, values, rule, log_marginal, cdf)

    def _bend_rule(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values, num_nodes: int) -> NormalRule:
        with torch.no_grad():
            place, width = self._bend(y, values)
            deviation = variance.sqrt()
            centre, width = torch.broadcast_tensors((place - mean) / deviation, width / deviation)
            return focused_rule(centre, width, num_nodes)

    def _values(self, like: Tensor, rows: Mapping[str, Any]) -> dict[str, Tensor]:
        RowArguments(self.row_arguments).refuse_others(type(self).__name__, rows)
        values: dict[str, Tensor] = {}
        for name, default in self._row_arguments.items():
            given = rows.get(name)
            value = row_vector(name, default if given is None else given, like, positive=True)
            assert value is not None
            values[name] = value
        return values | {name: getattr(self, name) for name in self._parameter_names}

    def _rows(
        self,
        y: Tensor,
        function_dist: MultivariateNormal,
        offset: Tensor | float | None,
        weights: Tensor | float | None,
        rows: Mapping[str, Any],
    ) -> _Rows:
        self._require_one_predictor(function_dist)
        mean, variance = function_dist.mean, function_dist.variance
        check_responses(type(self).__name__, y, mean)
        like = mean.expand(torch.broadcast_shapes(mean.shape, y.shape))
        values, checked_weights = self._values(like, rows), row_vector("weights", weights, like, nonnegative=True)
        self._check_responses(y, values)
        shift = row_vector("offset", offset, like)
        shifted = mean.double() if shift is None else mean.double() + shift.double()
        # All rows in full, also those of batches of parameters: dimensions of nodes are put to the left.
        shape = torch.broadcast_shapes(like.shape, self._values_shape(values))
        y, shifted, variance = (tensor.expand(shape) for tensor in (y.double(), shifted, variance.double()))
        return _Rows(y, shifted, variance, _double(values), checked_weights)

    def _values_shape(self, values: Values) -> torch.Size:
        """A shape that broadcasts with ``(*batch, n)``."""
        return torch.broadcast_shapes(*(value.shape for value in values.values()))

    def _require_one_predictor(self, function_dist: MultivariateNormal) -> None:
        if len(function_dist.event_shape) != 1:
            raise ValueError(
                f"{type(self).__name__} takes one predictor, but the distribution has event shape "
                f"{tuple(function_dist.event_shape)}: take a likelihood of several predictors"
            )

    def _learn(
        self,
        name: str,
        initial: float,
        batch_shape: torch.Size,
        constraint: Interval,
        prior: Prior | None,
    ) -> None:
        """Register a parameter of shape ``(*batch_shape, 1)`` in GPyTorch's way, with its raw form and prior."""
        self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.zeros(*batch_shape, 1)))
        self.register_constraint(f"raw_{name}", constraint)
        # A constraint has the last word: by its own initial value, or by leaving no room for ours.
        if constraint.initial_value is None and constraint.lower_bound < initial < constraint.upper_bound:
            self._write(name, initial)
            note_initial_value(self, f"raw_{name}")
        if prior is not None:
            # Partial functions, because closures could not be pickled.
            self.register_prior(f"{name}_prior", prior, partial(_get, name=name), partial(_set, name=name))

    def _raw_names(self, name: str) -> tuple[str, ...]:
        """Of the parameters behind a learnt one."""
        return (f"raw_{name}",)

    def _get(self, name: str) -> Tensor:
        raw = getattr(self, f"raw_{name}")
        return getattr(self, f"raw_{name}_constraint").transform(raw)

    def _set(self, name: str, value: Tensor | float) -> None:
        forget_initial_value(self, f"raw_{name}")
        self._write(name, value)

    def _write(self, name: str, value: Tensor | float) -> None:
        raw = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        self.initialize(**{f"raw_{name}": getattr(self, f"raw_{name}_constraint").inverse_transform(value)})


def _get(module: OnePredictorLikelihood, name: str) -> Tensor:
    return module._get(name)


def _set(module: OnePredictorLikelihood, value: Tensor | float, name: str) -> None:
    module._set(name, value)


def _double(values: Values) -> dict[str, Tensor]:
    return {name: value.double() for name, value in values.items()}
