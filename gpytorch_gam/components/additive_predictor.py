"""The additive predictor: ordered groups of components, and the prior of their sum."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.means import Mean, ZeroMean
from linear_operator.operators import LinearOperator, SumBatchLinearOperator
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.autocast import without_autocast
from gpytorch_gam.numerics.transforms import is_vmapped
from gpytorch_gam.operators.block_diagonal_of_operators import BlockDiagonalOfOperators
from gpytorch_gam.operators.deferred_linear_operator import DeferredLinearOperator

from ._captured_calls import PredictorCall, capture_of
from ._input_checks import (
    check_columns_finite,
    check_kind,
    check_levels,
    check_means_finite,
    check_one_kind,
    check_shape,
)
from .component_group import ComponentGroup, GroupRows
from .joined_groups import JoinedGroup, by_group, joined_groups
from .known_inputs import KnownInputs, are_any_inputs
from .prior_normal import MultitaskPriorNormal, PriorNormal

# The classes of priors, to which a tensor of means can be added.
_PRIORS = (PriorNormal, MultitaskPriorNormal)


class PredictorRows(NamedTuple):
    """A predictor at its inducing points and at rows of data."""

    choleskys: list[Tensor]  # of the inducing covariances of each group, (*batch, num_blocks, size, size)
    features: Tensor  # (*batch, Q, n)
    prior_variances: Tensor  # of the predictors, see ComponentGroup.observed_variance, (*batch, P, n)


class AdditivePredictor(gpytorch.Module):
    r"""
    A sum of Gaussian processes, :math:`\rho(\mathbf x) = m(\mathbf x) + \sum_{c=1}^C f_c(\mathbf x_c)`.

    It owns the components (their kernels, inducing points and names), an optional mean module, and the order of the
    inducing variables :math:`U = (\mathbf u_1, \dots, \mathbf u_C)`. Components are numbered in the order of the
    groups.

    Called on ``x``, it returns the prior of :math:`\rho`, so it can also be the body of an
    :class:`~gpytorch.models.ExactGP`. For a likelihood with several parameters, groups name the predictor they belong
    to, and the call returns a :class:`~gpytorch.distributions.MultitaskMultivariateNormal` with one task a predictor.

    :param groups: The component groups.
    :param mean: A mean module for :math:`\rho`, called with the raw columns of ``x``, or one (or None) for each
        predictor. It is the only mean: components have mean zero.
    :raises ValueError: If names repeat, or the predictors are not numbered 0, 1, ... without gaps.

    Example:
        >>> predictor = AdditivePredictor(
        >>>     ComponentGroup(kernel, columns=[[0], [1]], inducing_points=regular_grid(0.0, 1.0, 16)),
        >>>     constant(),
        >>> )
        >>> predictor(x)  # MultivariateNormal: prior of rho at the rows of x
    """

    groups: Sequence[ComponentGroup]
    means: Sequence[Mean]

    def __init__(self, *groups: ComponentGroup, mean: Mean | Sequence[Mean | None] | None = None) -> None:
        super().__init__()
        if not groups:
            raise ValueError("AdditivePredictor needs at least one ComponentGroup")
        for group in groups:
            if not isinstance(group, ComponentGroup):
                raise TypeError(
                    f"AdditivePredictor takes component groups, such as smooth(0, x) returns, got {checks.shown(group)}"
                )
        self.groups = torch.nn.ModuleList(groups)  # type: ignore[assignment]
        #: What is known of the inputs of the training, with which others are compared; None if nothing is.
        self.known_inputs: KnownInputs | None = None
        self._validate_names()
        self._validate_predictors()
        self._validate_batch_shapes()
        means = list(mean) if isinstance(mean, Sequence) else [mean]
        if not all(module is None or isinstance(module, Mean) for module in means):
            raise TypeError(f"mean must be a GPyTorch mean module, or one a predictor, got {checks.shown(mean)}")
        if len(means) not in (1, self.num_predictors):
            raise ValueError(f"mean has {len(means)} entries for {self.num_predictors} predictors")
        means = means + [None] * (self.num_predictors - len(means))
        self.means = torch.nn.ModuleList(  # type: ignore[assignment]
            ZeroMean() if module is None else module for module in means
        )

    def _validate_names(self) -> None:
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise ValueError(
                f"component names must be unique, got {repeated} more than once: give these terms names of their own, "
                "such as smooth(0, x, names='trend'), linear(0, x, names='slope') or constant(name='level')"
            )

    def _validate_predictors(self) -> None:
        used = sorted({group.predictor_index for group in self.groups})
        if used != list(range(len(used))):
            raise ValueError(f"predictors must be numbered 0, 1, ... without gaps, the groups name {used}")

    def _validate_batch_shapes(self) -> None:
        shapes = {group.names: tuple(group.batch_shape) for group in self.groups}
        try:
            torch.broadcast_shapes(*shapes.values())
        except RuntimeError as error:
            raise ValueError(
                f"batch shapes of the groups do not broadcast: {[f'{list(n)}: {s}' for n, s in shapes.items()]}"
            ) from error

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the components, in order."""
        return tuple(name for group in self.groups for name in group.names)

    def names_of(self, predictor: int) -> tuple[str, ...]:
        """
        Names of the components of one predictor, in order.

        :param predictor: The number of the predictor.
        :raises TypeError: If ``predictor`` is no integer.
        :raises ValueError: If there is no such predictor.
        """
        if not 0 <= checks.integer("predictor", predictor) < self.num_predictors:
            raise ValueError(f"predictor must be an integer from 0 to {self.num_predictors - 1}, got {predictor!r}")
        return tuple(name for group in self.groups if group.predictor_index == predictor for name in group.names)

    def group_of(self, name: str) -> ComponentGroup:
        """
        The group that a component belongs to, with its kernel: ``group_of("site").kernel.outputscale``.

        :param name: The name of the component.
        :raises ValueError: If no component has this name.
        """
        self.component_indices(name)
        return next(group for group in self.groups if name in group.names)

    @property
    def num_components(self) -> int:
        """The number of components :math:`C`."""
        return sum(group.num_components for group in self.groups)

    @property
    def num_predictors(self) -> int:
        """The number of additive predictors."""
        return max(group.predictor_index for group in self.groups) + 1

    @property
    def num_inducing_per_component(self) -> tuple[int, ...]:
        """The number of inducing points of each component."""
        return tuple(group.num_inducing for group in self.groups for _ in range(group.num_components))

    @property
    def num_inducing_total(self) -> int:
        """The length :math:`Q` of the inducing vector."""
        return sum(self.num_inducing_per_component)

    @property
    def group_shapes(self) -> tuple[tuple[int, int], ...]:
        """
        For each group the number and the size of the blocks of its prior covariance, see
        :attr:`ComponentGroup.block_shape`.
        """
        return tuple(group.block_shape for group in self.groups)

    @property
    def predictor_of(self) -> tuple[int, ...]:
        """The predictor that each component belongs to."""
        return tuple(group.predictor_index for group in self.groups for _ in range(group.num_components))

    @property
    def inducing_slices(self) -> dict[str, slice]:
        """The slice of the inducing vector that holds the inducing variables of each component."""
        slices, start = {}, 0
        for name, size in zip(self.names, self.num_inducing_per_component, strict=True):
            slices[name] = slice(start, start + size)
            start += size
        return slices

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of independent models."""
        return torch.broadcast_shapes(*(group.batch_shape for group in self.groups))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that inputs must have."""
        return self.groups[0].inducing_points.dtype

    @property
    def device(self) -> torch.device:
        """The device that inputs must be on."""
        return self.groups[0].inducing_points.device

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check_state(self, state_dict: Mapping[str, Any], prefix: str = "", any_number: bool = False) -> None:
        """
        Raise an error unless a state is one of the same components, see :meth:`ComponentGroup.check_state`.

        :param state_dict: A state with the entries of the predictor.
        :param prefix: The beginning of the names of these entries.
        :param any_number: Whether it may have other numbers of inducing points where these are left to a fit.
        :raises ValueError: If the state is that of other components.
        """
        for index, group in enumerate(self.groups):
            group.check_state(state_dict, f"{prefix}groups.{index}.", any_number)

    def component_indices(
        self, names: Sequence[str] | str | None, exclude: Sequence[str] | str | None = None
    ) -> list[int]:
        """
        Positions of components given by name.

        :param names: Names, one name, or None for all components.
        :param exclude: Names, or one name, of components to leave out, instead of ``names``.
        :raises ValueError: If a name is unknown, or no component is left.
        """
        if exclude is not None:
            if names is not None:
                raise ValueError("give the components that are wanted, names, or those that are not, exclude; not both")
            left_out = set(self.component_indices(exclude))
            if len(left_out) == self.num_components:
                raise ValueError(f"exclude leaves none of the components {list(self.names)}")
            return [index for index in range(self.num_components) if index not in left_out]
        if names is None:
            return list(range(self.num_components))
        if not isinstance(names, Iterable):
            raise TypeError(f"names must be those of components, {list(self.names)}, got {checks.shown(names)}")
        names = [names] if isinstance(names, str) else list(names)
        if not names:
            raise ValueError(f"names is empty; the components are {list(self.names)}")
        unknown = [name for name in names if name not in self.names]
        if unknown:
            hint = checks.did_you_mean(unknown[0], self.names) if isinstance(unknown[0], str) else ""
            raise ValueError(f"unknown components {unknown}{hint}; the components are {list(self.names)}")
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ValueError(f"components {repeated} are named more than once")
        return [self.names.index(name) for name in names]

    def check_inputs(self, x: Tensor, check_finite: bool = True) -> None:
        """
        Raise a clear error for inputs that the components cannot read.

        :param x: Inputs ``(*batch, n, D)``.
        :param check_finite: Whether to look for NaN, infinity and unseen levels as well, which waits for the device.
            Inside of ``torch.vmap`` there are no values to look at.
        :raises TypeError: If ``x`` is no tensor.
        :raises ValueError: For a wrong dtype, device or shape, an empty batch, too few columns; for NaN and infinity in
            a column that a component uses (NaN only unless all components that read the column allow it by
            ``missing="marginal"``) or that a mean module reads; for values in columns with ``levels`` that are none
            of the levels, unless these allow unseen ones; and for another number of columns than in the training.
        """
        checks.tensor("x", x)
        check_one_kind(self.groups)
        check_kind(x, self.dtype, self.device)
        check_shape(self.groups, x)
        if self.known_inputs is not None:
            self.known_inputs.check(x, check_finite and not is_vmapped(x))
        if check_finite and not is_vmapped(x):
            self._check_values(x.detach())

    def remember_inputs(self, x: Tensor) -> None:
        """
        Take the number of columns for that of the training, unless one is known.

        :param x: Inputs ``(*batch, n, D)`` of the training.
        """
        if self.known_inputs is None and not are_any_inputs():
            self.known_inputs = KnownInputs(x.shape[-1])

    def extra_repr(self) -> str:
        """How inputs are made, if that is known."""
        return "" if self.known_inputs is None else self.known_inputs.remedy

    @torch.no_grad()
    def _check_values(self, x: Tensor) -> None:
        # A sum is finite unless an entry is not (or it overflows): one cheap reduction for the usual case.
        if not torch.isfinite(x.sum()):
            check_columns_finite(self.groups, x)
            # Mean modules read the raw columns, including those that may be missing.
            check_means_finite(self.prior_means(x))
        check_levels(self.groups, x)

    def prior_means(self, x: Tensor) -> Tensor:
        """
        The means of all predictors at ``x``, from their mean modules.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The means ``(*batch, P, n)``.
        """
        means = torch.broadcast_tensors(*(module(x) for module in self.means))
        return torch.stack(means, dim=-2)

    def prior_covariances(self, x: Tensor, factors: Sequence[Tensor | None] | None = None) -> list[LinearOperator]:
        """
        The prior covariance of each predictor over the rows of ``x``, lazily.

        :param x: Inputs ``(*batch, n, D)``.
        :param factors: For each group, see :meth:`ComponentGroup.missing_variance`.
        :return: For each predictor ``(*batch, n, n)``.
        """
        totals: list[LinearOperator | None] = [None] * self.num_predictors
        for place, group in enumerate(self.groups):
            factor = None if factors is None else factors[place]
            covariance = SumBatchLinearOperator(group.prior_covariance(x, factor), block_dim=-3)
            total = totals[group.predictor_index]
            totals[group.predictor_index] = covariance if total is None else total + covariance
        return [total for total in totals if total is not None]

    @without_autocast
    def features(self, x: Tensor, choleskys: Sequence[Tensor]) -> Tensor:
        r"""
        The features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)` of all components, stacked.

        :param x: Inputs ``(*batch, n, D)``.
        :param choleskys: :math:`L_c` of each group, from :meth:`ComponentGroup.inducing_cholesky`.
        :return: The features ``(*batch, Q, n)``.
        """
        joined = joined_groups(self.groups)
        return _stacked(joined, [each.group.features(x, each.joined(choleskys, -3)) for each in joined])

    def inducing_choleskys(self, jitter: float, relative: bool = False) -> list[Tensor]:
        """
        The Cholesky factors of each group's inducing covariances, see :meth:`ComponentGroup.inducing_cholesky`.

        :param jitter: The number to add to the diagonals.
        :param relative: Whether the jitter is relative to the mean variance of each component.
        """
        joined = joined_groups(self.groups)
        return by_group(joined, [each.group.inducing_cholesky(jitter, relative) for each in joined], -3)

    @without_autocast
    def observed_variances(self, x: Tensor) -> Tensor:
        """
        The prior variances of the predictors at ``x`` as training takes them: without those of components whose columns
        are missing in a row, see :meth:`ComponentGroup.observed_variance`.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The variances ``(*batch, P, n)``.
        """
        joined = joined_groups(self.groups)
        return self._summed_variances(joined, [each.group.observed_variance(x) for each in joined])

    @without_autocast
    def at_rows(self, x: Tensor, jitter: float, relative: bool = False) -> PredictorRows:
        """
        Choleskys, features and prior variances at ``x``, in the fewest operations: those of a single evaluation of each
        kind of kernel, if ``x`` is in float64 and there are no batch dimensions.

        :param x: Inputs ``(*batch, n, D)``.
        :param jitter: See :meth:`inducing_choleskys`.
        :param relative: See :meth:`inducing_choleskys`.
        """
        joined = joined_groups(self.groups)
        found = [each.group.at_rows(x, jitter, relative) for each in joined]
        return PredictorRows(
            by_group(joined, [rows.cholesky for rows in found], -3),
            _stacked(joined, [rows.features for rows in found]),
            self._summed_variances(joined, [rows.prior_variance for rows in found]),
        )

    @without_autocast
    def groups_at_rows(
        self, places: Sequence[int], x: Tensor, jitter: float, relative: bool = False
    ) -> list[GroupRows]:
        """
        Some of the groups at ``x``, in as few operations as :meth:`at_rows` takes.

        :param places: The numbers of the groups.
        :param x: Inputs ``(*batch, n, D)``.
        :param jitter: See :meth:`inducing_choleskys`.
        :param relative: See :meth:`inducing_choleskys`.
        """
        joined = joined_groups([self.groups[place] for place in places])
        found = [each.group.at_rows(x, jitter, relative) for each in joined]
        choleskys = by_group(joined, [rows.cholesky for rows in found], -3)
        features = by_group(joined, [rows.features for rows in found], -3)
        variances = by_group(joined, [rows.prior_variance for rows in found], -2)
        return [GroupRows(*own) for own in zip(choleskys, features, variances, strict=True)]

    def _summed_variances(self, joined: Sequence[JoinedGroup], variances: Sequence[Tensor]) -> Tensor:
        """The prior variances of the predictors ``(*batch, P, n)`` from those of the components of joined groups."""
        if self.num_predictors == 1:
            parts = [variance.sum(-2) for variance in variances]
            return functools.reduce(torch.add, parts).unsqueeze(-2)
        totals: list[Tensor | None] = [None] * self.num_predictors
        for group, variance in zip(self.groups, by_group(joined, variances, -2), strict=True):
            total = totals[group.predictor_index]
            totals[group.predictor_index] = variance.sum(-2) if total is None else total + variance.sum(-2)
        return torch.stack(torch.broadcast_tensors(*(total for total in totals if total is not None)), dim=-2)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """
        The prior of the predictor at the rows of ``x``, ``(*batch, n, D)``: a multivariate normal over ``n`` rows, or
        with several predictors a multitask one over ``n x P``. A tensor of means may be added to it.
        """
        capture = capture_of(self)
        if capture is None:
            self.check_inputs(x, check_finite=gpytorch.settings.debug.on())
            return predictor_distribution(self.prior_means(x), join_covariances(self.prior_covariances(x)), _PRIORS)
        self.check_inputs(x, check_finite=capture.check_finite)
        means = self.prior_means(x)
        prior = predictor_distribution(means, self._deferred_covariance(x, means), _PRIORS)
        capture.calls.append(PredictorCall(x, means, prior))
        return prior

    def _deferred_covariance(self, x: Tensor, means: Tensor) -> DeferredLinearOperator:
        """The joint prior covariance of the predictors over the rows of ``x``, not evaluated."""
        batch_shape = torch.broadcast_shapes(x.shape[:-2], self.batch_shape, means.shape[:-2])

        def build(chosen: range) -> LinearOperator:
            rows, is_single = slice(chosen.start, chosen.stop, chosen.step), self.num_predictors == 1
            covariance = join_covariances(self.prior_covariances(x[..., rows, :] if is_single else x))
            covariance = covariance.expand(*batch_shape, *covariance.shape[-2:])
            return covariance if covariance.shape[-1] == len(chosen) else covariance[..., rows, rows]

        return DeferredLinearOperator(means.expand(*batch_shape, *means.shape[-2:]).flatten(-2), build)


def _stacked(joined: Sequence[JoinedGroup], features: Sequence[Tensor]) -> Tensor:
    """The features ``(*batch, Q, n)`` in the order of the groups, from those of joined groups."""
    parts = [part.flatten(-3, -2) for part in by_group(joined, features, -3)]
    if len(parts) == 1:
        return parts[0]
    batch = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], dim=-2)


def join_covariances(covariances: list[LinearOperator]) -> LinearOperator:
    """The joint prior covariance ``(*batch, P n, P n)`` of a priori independent predictors, from one of n rows each."""
    if len(covariances) == 1:
        return covariances[0]
    batch_shape = torch.broadcast_shapes(*(covariance.batch_shape for covariance in covariances))
    return BlockDiagonalOfOperators(*(_expand(covariance, batch_shape) for covariance in covariances))


def predictor_distribution(
    means: Tensor,
    covariance: LinearOperator | Tensor,
    kinds: tuple[type[MultivariateNormal], type[MultitaskMultivariateNormal]] = (
        MultivariateNormal,
        MultitaskMultivariateNormal,
    ),
) -> MultivariateNormal:
    """
    The distribution of the predictors over n rows, multitask (``kinds[1]``) if there are several, from means
    ``(*batch, P, n)`` and a covariance ``(*batch, P n, P n)`` whose rows run over (predictor, row of x). Batch shapes
    are broadcast.
    """
    batch_shape = torch.broadcast_shapes(means.shape[:-2], covariance.shape[:-2])
    means, covariance = means.expand(*batch_shape, *means.shape[-2:]), _expand(covariance, batch_shape)
    single, multitask = kinds
    if means.shape[-2] == 1:
        return single(means.squeeze(-2), covariance)
    return multitask(means.mT, covariance, interleaved=False)


def _expand(covariance: LinearOperator | Tensor, batch_shape: torch.Size) -> LinearOperator | Tensor:
    if covariance.shape[:-2] == batch_shape:
        return covariance
    return covariance.expand(*batch_shape, *covariance.shape[-2:])
