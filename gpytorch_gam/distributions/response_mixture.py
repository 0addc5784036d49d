"""The distribution of a response whose predictor is normal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from torch.distributions.constraints import Constraint

from gpytorch_gam.numerics.quadrature import NormalRule


class ResponseMixture(MixtureSameFamily):
    r"""
    :math:`p(y) = \int p(y | f) \mathcal N(f; m, v)\, df` in independent rows ``(*batch, n)``.
    ``conditional(f, values)`` is the distribution of y given f; ``log_marginal(y, mean, variance, values)`` is the
    logarithm of the integral, in float64. Mean and variance are those of the mixture of :math:`p(y | f)` over the nodes
    of ``rule``, ``(K,)``. Samples are drawn through the predictor, and log-probabilities are separate integrals,
    because the mixture itself is a row of spikes where the predictor is less certain than the response. So is the
    distribution function if ``marginal_cdf`` is given; that of the mixture has steps.
    """

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        conditional: Callable[[Tensor, Mapping[str, Tensor]], Distribution],
        values: Mapping[str, Tensor],
        rule: NormalRule,
        log_marginal: Callable[..., Tensor],
        marginal_cdf: Callable[..., Tensor] | None = None,
    ) -> None:
        self._predictor_mean, self._predictor_variance = mean, variance
        self._conditional, self._values = conditional, values
        self._rule, self._log_marginal, self._marginal_cdf = rule, log_marginal, marginal_cdf
        nodes = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * rule.nodes.to(mean.dtype)  # (*batch, n, K)
        components = conditional(nodes, {name: value.unsqueeze(-1) for name, value in values.items()})
        # Weights are given by logits: probabilities below the resolution of the dtype would be rounded up to it.
        logits = rule.log_weights.to(mean.dtype).expand(components.batch_shape)
        super().__init__(Categorical(logits=logits, validate_args=False), components)

    @property
    def support(self) -> Constraint | None:
        """That of the conditional distribution in each row; of the mixture, torch before 2.9 has that of each node."""
        return self._conditional(self._predictor_mean, self._values).support

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities or log-densities."""
        if self._validate_args:
            self._validate_sample(value)
        return self._integrated(self._log_marginal, value)

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        return super().cdf(value) if self._marginal_cdf is None else self._integrated(self._marginal_cdf, value)

    @property
    def has_rows(self) -> bool:
        """Whether :meth:`cdf_in_rows` is known."""
        return self._marginal_cdf is not None

    def cdf_in_rows(self, value: Tensor, rows: Tensor) -> Tensor:
        """The distribution function at values ``(m,)`` in some of all rows, ``(m,)``, if ``marginal_cdf`` is given."""
        assert self._marginal_cdf is not None
        return self._integrated(self._marginal_cdf, value, rows)

    def _integrated(self, function: Callable[..., Tensor], value: Tensor, rows: Tensor | None = None) -> Tensor:
        mean, variance, *others = (
            part.double() if rows is None else part.expand(self.batch_shape).flatten()[rows].double()
            for part in (self._predictor_mean, self._predictor_variance, *self._values.values())
        )
        value, mean, variance = torch.broadcast_tensors(value.double(), mean, variance)
        values = dict(zip(self._values, others, strict=True))
        return function(value, mean, variance, values).to(self._predictor_mean.dtype)

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw a predictor and then a response, independently for each row."""
        shape = torch.Size(sample_shape) + self.batch_shape
        mean, variance = self._predictor_mean, self._predictor_variance
        f = mean + variance.sqrt() * torch.randn(shape, dtype=mean.dtype, device=mean.device)
        return self._conditional(f, self._values).sample()

    def expand(self, batch_shape: Any, _instance: Any = None) -> ResponseMixture:
        """The same distribution with more batch dimensions."""
        mean, variance = (tensor.expand(batch_shape) for tensor in (self._predictor_mean, self._predictor_variance))
        functions = self._log_marginal, self._marginal_cdf
        return ResponseMixture(mean, variance, self._conditional, self._values, self._rule, *functions)
