"""All rows of the data with their derivatives under a fixed posterior, read as often as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.likelihoods.expected_gradients import ExpectedGradients, expected_gradients, joint_expected_gradients
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.grad_mode import trainable
from gpytorch_gam.numerics.marginals import Marginals, marginal_moments
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.variational import AdditiveVariationalStrategy

from .likelihood_check import check_response_values, check_row_arguments, is_gaussian, responses_in_a_row
from .predictors import predictor_segments, product_in_rows
from .sums import FeatureChunk, Totals, WeightedFeatures


class OverflowingLikelihoodError(RuntimeError):
    """Derivatives of the expected log-likelihood are not finite under the present posterior."""


class DataStream(WeightedFeatures):
    """
    Derivatives of the expected log-likelihood of all rows, under the posterior when this was made. Sums are computed
    once, in chunks of rows. ``batches``, see :func:`checked_rows`, are iterated once a reading.
    """

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        batches: Iterable[Any],
        chunk_size: int,
    ) -> None:
        self._strategy, self._likelihood = strategy, likelihood
        self.segments = predictor_segments(strategy.predictor)
        self._choleskys = strategy.inducing_choleskys()
        self._batches, self._chunk_size = batches, chunk_size
        factors = strategy.covariance_factors()
        self._factors = factors._replace(mean=factors.mean.clone())  # never the memory of a parameter
        self._gram: tuple[Tensor, Tensor] | None = None
        self._totals: Totals | None = None
        #: Sum of the expected log-likelihoods in nats, set by a reading.
        self.expected = float("nan")

    def gram(self) -> tuple[Tensor, Tensor]:
        r""":math:`\Phi\Lambda\Phi^\top`, ``(Q, Q)``, and :math:`\Phi g`, ``(Q,)``."""
        if self._gram is None:
            self._gram = super().gram()
        return self._gram

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        """The diagonal blocks, for groups of ``(count, size)`` that must not change, and the projected gradients."""
        if self._totals is None:
            self._totals = super().totals(shapes)
        return self._totals

    def chunks(self) -> Iterator[FeatureChunk]:
        """All rows with their derivatives."""
        return (chunk for _, chunk in self.rows_and_chunks())

    def rows_and_chunks(self) -> Iterator[tuple[Rows, FeatureChunk]]:
        """All rows beside their derivatives."""
        device = self._strategy.predictor.device
        expected, is_empty = torch.zeros((), dtype=torch.float64, device=device), True
        for batch in self._batches:
            for rows in checked_rows(self._strategy, self._likelihood, batch).split(self._chunk_size):
                chunk, value = self._differentiate(rows)
                expected, is_empty = expected.to(value) + value, False
                yield rows, chunk
        if is_empty:
            raise ValueError("batches is empty: there is no data to fit, or it can be gone through only once")
        self.expected = expected.item()

    def _differentiate(self, rows: Rows) -> tuple[FeatureChunk, Tensor]:
        reading = self._strategy.read(rows.x)
        features = self._strategy.predictor.features(reading.inputs, self._choleskys).double()
        try:
            found = self._derivatives(rows, reading, features)
        except ValueError as error:
            missing = ~torch.isfinite(rows.y).flatten(1).all(-1) if rows.y.dim() > 1 else ~torch.isfinite(rows.y)
            if missing.any():
                raise ValueError(
                    f"y has NaN or infinity in {int(missing.sum())} of {len(missing)} rows: leave these rows out, as "
                    "gpytorch_gam.data.drop_missing does"
                ) from error
            raise
        gradients, curvatures = found.gradients, found.curvatures
        if gradients.dim() == 1:
            gradients, curvatures = gradients[:, None], curvatures[:, None, None]
        bad = ~(torch.isfinite(gradients).all(-1) & torch.isfinite(curvatures).flatten(1).all(-1))
        if bad.any():
            raise OverflowingLikelihoodError(
                f"the gradient of the expected log-likelihood is NaN or infinite in {int(bad.sum())} of {len(bad)} "
                "rows: look for such values in the responses, or for an overflow in the likelihood"
            )
        return FeatureChunk.of_rows(features, gradients, curvatures), found.expected.sum()

    def _derivatives(self, rows: Rows, reading: Reading, features: Tensor) -> ExpectedGradients:
        marginals = _marginals(self._strategy, self._factors, reading, features)
        mean, covariance = PredictorMoments.of(marginals, rows.x.dtype)
        if self._strategy.predictor.num_predictors > 1:
            return joint_expected_gradients(self._likelihood, rows.y, mean, covariance, rows.row_arguments)
        return expected_gradients(
            self._likelihood, rows.y, mean.squeeze(-1), covariance.flatten(-3), rows.row_arguments
        )


def _marginals(
    strategy: AdditiveVariationalStrategy, factors: CovarianceFactors, reading: Reading, features: Tensor
) -> Marginals:
    """Moments of the P predictors in each row from its features, ``(Q, n)``."""
    predictor, x = strategy.predictor, reading.inputs
    segments, num_predictors = predictor_segments(predictor), predictor.num_predictors
    prior, removed = predictor.observed_variances(x).double(), features.new_zeros(num_predictors, features.shape[-1])
    if factors.explained_blocks is not None:
        for group, root, part in zip(
            predictor.groups, factors.explained_blocks, split_groups(features, predictor.group_shapes), strict=True
        ):
            removed[group.predictor_index] += (root.mT @ part).square().sum((-3, -2))
    columns = factors.mean.unsqueeze(-1)
    if factors.explained_shared is not None:
        columns = torch.cat([columns, factors.explained_shared], dim=-1)
    seen = product_in_rows(features, columns, num_predictors, segments)  # (P, n, 1 + R)
    mean = reading.means.double() + seen[..., 0]
    return marginal_moments(mean, prior, removed, seen[..., 1:].mT, factors.shared_sign)


class Rows(NamedTuple):
    """Inputs ``(b, D)``, responses ``(b)`` or ``(b, T)``, and the likelihood's further arguments, with b rows each."""

    x: Tensor
    y: Tensor
    row_arguments: dict[str, Tensor]

    def split(self, size: int) -> Iterator[Rows]:
        """Yield chunks of ``size`` rows; the last may be smaller."""
        for start in range(0, len(self.x), size):
            part = slice(start, start + size)
            yield Rows(self.x[part], self.y[part], {name: value[part] for name, value in self.row_arguments.items()})


def concatenated(parts: Sequence[Rows]) -> list[Rows]:
    """The rows as one, or as they are if their arguments have different names."""
    names = parts[0].row_arguments.keys()
    if any(part.row_arguments.keys() != names for part in parts):
        return list(parts)
    row_arguments = {name: torch.cat([part.row_arguments[name] for part in parts]) for name in names}
    return [Rows(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), row_arguments)]


def checked_rows(strategy: AdditiveVariationalStrategy | None, likelihood: Likelihood | None, batch: Any) -> Rows:
    """The rows of a batch, a pair or triple as for :func:`checked_data`; anything else is a ValueError."""
    return checked_data(strategy, likelihood, *_entries(batch))


def num_rows_of(batch: Any) -> int:
    """The number of rows of a batch, which is not checked further."""
    y = checks.tensor("y", _entries(batch)[1])
    if not y.dim():
        raise ValueError(
            "batches hold single rows, a response () each: pass a DataLoader of them, DataLoader(dataset, batch_size)"
        )
    return len(y)


def _entries(batch: Any) -> Sequence[Any]:
    """The entries of a pair or triple."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        raise ValueError(
            f"batches must hold pairs (x, y), or triples (x, y, dict of row-wise arguments), got {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}; pass [(x, y)] for a single one"
        )
    return batch


def checked_data(
    strategy: AdditiveVariationalStrategy | None,
    likelihood: Likelihood | None,
    x: Any,
    y: Any,
    row_arguments: Any = None,
) -> Rows:
    """
    Inputs ``(b, D)``, responses ``(b)`` or ``(b, T)``, integers too if they are Gaussian, and a mapping to row-wise
    arguments. Raises ValueErrors for shapes, dtypes and devices, and TypeErrors for other types and unread arguments.
    """
    if strategy is not None:
        strategy.check_inputs(x)
    if checks.tensor("x", x).dim() != 2:
        raise ValueError(f"x must be inputs of shape (b, D), got {tuple(x.shape)}")
    if strategy is not None:
        strategy.remember_inputs(x)
    _check_responses(likelihood, checks.tensor("y", y), x)
    row_arguments = {} if row_arguments is None else _checked_arguments(row_arguments, x)
    if likelihood is not None:
        check_row_arguments(likelihood, row_arguments)
        check_response_values(likelihood, y)
        if is_gaussian(likelihood):  # GPyTorch computes with the responses in their own dtype
            y = y.to(x.dtype)
    return Rows(trainable(x), trainable(y), {name: trainable(value) for name, value in row_arguments.items()})


def check_finite_responses(rows: Rows) -> None:
    """Raise a ValueError if responses are missing or infinite."""
    if torch.isfinite(rows.y.sum()):
        return
    bad = ~torch.isfinite(rows.y.reshape(len(rows.y), -1)).all(-1)
    if bad.any():
        raise ValueError(
            f"y has NaN or infinity in {int(bad.sum())} of {len(rows.y)} rows: leave these out, as "
            "gpytorch_gam.data.drop_missing(x, y) does where responses are missing"
        )


def _check_responses(likelihood: Likelihood | None, y: Tensor, x: Tensor) -> None:
    in_row = () if likelihood is None else responses_in_a_row(likelihood)
    fits = y.shape[:1] == x.shape[:1] if in_row is None else y.shape == (len(x), *in_row)
    if not fits:
        wanted = f"({', '.join(map(str, (len(x), *(in_row or ()))))}{'' if in_row else ','})"
        hint = ": pass y.squeeze(-1)" if y.shape == (len(x), 1) and not in_row else ""
        raise ValueError(
            f"y must hold responses of shape {wanted} beside {len(x)} rows of x, got {tuple(y.shape)}{hint}"
        )
    if y.is_complex():
        raise ValueError(f"y must be real numbers, got {y.dtype}")
    if y.device != x.device or (y.is_floating_point() and y.dtype != x.dtype):
        raise ValueError(f"y is {y.dtype} on {y.device}, but x is {x.dtype} on {x.device}: pass y.to(x)")


def _checked_arguments(row_arguments: Any, x: Tensor) -> dict[str, Tensor]:
    if not isinstance(row_arguments, Mapping):
        raise TypeError(
            f"the third entry of a batch must map names to row-wise arguments of the likelihood, such as "
            f'{{"weights": w}}, got {type(row_arguments).__name__}'
        )
    for name, value in row_arguments.items():
        if not torch.is_tensor(value) or value.dim() == 0 or len(value) != len(x):
            kind = ValueError if torch.is_tensor(value) else TypeError
            raise kind(
                f"{name} must be a tensor with one entry for each of the {len(x)} rows, got {checks.shown(value)}"
            )
        if value.device != x.device:
            raise ValueError(f"{name} is on {value.device}, but x is on {x.device}: move it with .to(...)")
    return dict(row_arguments)
