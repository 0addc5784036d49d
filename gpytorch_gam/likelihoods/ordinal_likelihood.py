"""Ordered classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical

from gpytorch_gam import _checks as checks
from gpytorch_gam.parameters.initial_values import forget_initial_value, note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

from .null_model import NullModel, Responses
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values
from .response_checks import refuse_non_classes

# Width of the bend of log-probabilities: functions of the normal distribution function, as in the binomial likelihood.
_BEND_WIDTH = 2.0

# The least gap between the cut-points of the null model, around classes with hardly any row.
_LEAST_GAP = 1e-3

# A number in the place of infinity, whose gradients would be NaN.
_FAR_AWAY = 1e8


class OrdinalLikelihood(OnePredictorLikelihood):
    r"""
    Ordered classes :math:`0, \dots, K - 1`: a latent response :math:`f_n + o_n + \varepsilon_n` with unit normal noise
    is seen through cut-points :math:`c_1 < \dots < c_{K - 1}` (ordered probit),

    .. math::
        p(y_n = k | f_n) = \Phi(c_{k + 1} - f_n) - \Phi(c_k - f_n), \qquad c_0 = -\infty, \; c_K = \infty .

    The parameters are the first cut-point and the gaps between them; initially classes are equally likely for a
    predictor of zero. The expected log-probability is a quadrature, the marginal distribution exact.

    **Identifiability.** Adding a number to the predictor and to all cut-points changes nothing, so a model of centred
    components should have no ``constant()`` and no mean: the cut-points determine the level. With a constant, its prior
    divides the level between the two, and the cut-points mean nothing by themselves. The unit noise fixes the scale.

    Row-wise arguments: ``offset`` and ``weights``.

    :param num_classes: The number K of classes, at least two.
    :param batch_shape: Batch shape of the cut-points.
    :raises TypeError: If ``num_classes`` is no integer.
    :raises ValueError: If ``num_classes`` is less than two.

    Example:
        >>> likelihood = OrdinalLikelihood(5)
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y)
        >>> likelihood(model(x_new)).probs  # (n, 5)
    """

    _learnt = ("cutpoints",)

    def __init__(self, num_classes: int, batch_shape: torch.Size = torch.Size([])) -> None:  # noqa: B008
        num_classes = checks.integer("num_classes", num_classes, least=2)
        super().__init__()
        self.num_classes = num_classes
        self.register_parameter("first_cutpoint", torch.nn.Parameter(torch.zeros(*batch_shape, 1)))
        if num_classes > 2:
            self.register_parameter("raw_gaps", torch.nn.Parameter(torch.zeros(*batch_shape, num_classes - 2)))
            self.register_constraint("raw_gaps", positive(1e-4))
        self.cutpoints = torch.special.ndtri(torch.arange(1, num_classes, dtype=torch.float64) / num_classes)
        for name in self._raw_names("cutpoints"):
            note_initial_value(self, name)

    def _raw_names(self, name: str) -> tuple[str, ...]:
        return ("first_cutpoint",) if self.num_classes == 2 else ("first_cutpoint", "raw_gaps")

    @property
    def cutpoints(self) -> Tensor:
        """The cut-points, increasing, ``(*batch_shape, K - 1)``. They can be set."""
        if self.num_classes == 2:
            return self.first_cutpoint
        gaps = self.raw_gaps_constraint.transform(self.raw_gaps)
        return torch.cat([self.first_cutpoint, self.first_cutpoint + gaps.cumsum(-1)], dim=-1)

    @cutpoints.setter
    def cutpoints(self, value: Tensor) -> None:
        value = torch.as_tensor(value, dtype=self.first_cutpoint.dtype, device=self.first_cutpoint.device)
        gaps = value.diff(dim=-1)
        if value.shape[-1:] != (self.num_classes - 1,) or not (gaps > 1e-4).all():
            raise ValueError(
                f"cutpoints must be {self.num_classes - 1} numbers with gaps above 1e-4, got {value.tolist()}"
            )
        for name in self._raw_names("cutpoints"):
            forget_initial_value(self, name)
        self.initialize(first_cutpoint=value[..., :1].expand_as(self.first_cutpoint))
        if self.num_classes > 2:
            raw = self.raw_gaps_constraint.inverse_transform(gaps)
            self.initialize(raw_gaps=raw.expand_as(self.raw_gaps))

    def _values_shape(self, values: Values) -> torch.Size:
        return torch.Size((*values["cutpoints"].shape[:-1], 1))

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return self._interval_log_prob(y, f, torch.ones_like(f), values["cutpoints"])

    def _interval_log_prob(self, y: Tensor, mean: Tensor, scale: Tensor, cutpoints: Tensor) -> Tensor:
        """The log-probability of class y for a latent response of this mean and inverse standard deviation."""
        lower, upper = self._limits(y, cutpoints)
        return _log_normal_interval(scale * (lower - mean), scale * (upper - mean))

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        lower, upper = self._limits(y, values["cutpoints"])
        place = torch.where(y == 0, upper, torch.where(y == self.num_classes - 1, lower, 0.5 * (lower + upper)))
        return place, torch.full_like(place, _BEND_WIDTH)

    def _log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        # f + noise is normal with variance 1 + v
        return self._interval_log_prob(y, mean, (1 + variance).rsqrt(), values["cutpoints"])

    def _marginal(self, mean: Tensor, variance: Tensor, values: Values) -> Categorical:
        return self._classes(mean, (1 + variance).rsqrt(), values["cutpoints"])

    def _conditional(self, f: Tensor, values: Values) -> Categorical:
        return self._classes(f, torch.ones_like(f), values["cutpoints"])

    def _classes(self, mean: Tensor, scale: Tensor, cutpoints: Tensor) -> Categorical:
        limits = _with_ends(cutpoints.double()).unsqueeze(-2) - mean.double().unsqueeze(-1)  # (*batch, n, K + 1)
        limits = scale.double().unsqueeze(-1) * limits
        logits = _log_normal_interval(limits[..., :-1], limits[..., 1:])
        return Categorical(logits=logits.to(mean.dtype), validate_args=False)

    def _limits(self, y: Tensor, cutpoints: Tensor) -> tuple[Tensor, Tensor]:
        """The lower and the upper limit of a class, broadcasting to its shape."""
        limits = _with_ends(cutpoints)
        limits = limits.view(*(1,) * (y.dim() - limits.dim()), *limits.shape[:-1], 1, limits.shape[-1])
        index = y.long().unsqueeze(-1)
        lower, upper = (torch.take_along_dim(limits, places, dim=-1).squeeze(-1) for places in (index, index + 1))
        return lower, upper

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_classes(type(self).__name__, y, self.num_classes)

    def _null_model(self, responses: Responses) -> NullModel:
        counts = responses.counts(self.num_classes)
        shares = counts.cumsum(0)[:-1] / counts.sum()
        cutpoints = torch.special.ndtri(shares) + responses.mean(responses.offset)
        gaps = cutpoints.diff().clamp_min(_LEAST_GAP)
        spaced = torch.cat([cutpoints[:1], cutpoints[:1] + gaps.cumsum(0)])
        return NullModel([0.0], [1.0], {"cutpoints": spaced})


def _with_ends(cutpoints: Tensor) -> Tensor:
    ends = torch.full_like(cutpoints[..., :1], _FAR_AWAY)
    return torch.cat([-ends, cutpoints, ends], dim=-1)


def _log_normal_interval(low: Tensor, high: Tensor) -> Tensor:
    r""":math:`\log(\Phi(b) - \Phi(a))` for a < b, computed in the tail in which both are small."""
    is_above = low + high > 0
    low, high = torch.where(is_above, -high, low), torch.where(is_above, -low, high)
    smaller, larger = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    # rounding of equal tails must not make it log(0)
    return larger + torch.log(-torch.expm1((smaller - larger).clamp_max(-1e-300)))
