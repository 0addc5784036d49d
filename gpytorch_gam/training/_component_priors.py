"""The priors of components' hyperparameters at the variances and lengthscales that a scan tries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.priors import Prior
from torch import Tensor

from ._component_scales import Scale
from ._component_scan import RATIOS, Change


class ComponentPriors:
    """
    The log densities of the variances and the lengthscales of components with ``scales``, one number a component. A
    prior that reads both is taken at the present lengthscales, and one that is the density of several components
    together is left out.
    """

    def __init__(self, scales: Sequence[Scale]) -> None:
        kernels = [kernel for kernel, _ in itertools.groupby(scale.kernel for scale in scales)]
        self._kernels = [_KernelPriors.of(kernel) for kernel in kernels]

    def exist(self) -> bool:
        """Whether there are any."""
        return any(own.of_scale or own.of_others for own in self._kernels)

    @torch.no_grad()
    def of_variances(self, variances: Tensor) -> Tensor:
        """Those of variances ``(S, K)`` of the components, ``(S, K)``."""
        parts = variances.split([own.number for own in self._kernels])
        return torch.cat([own.of_variances(part) for own, part in zip(self._kernels, parts, strict=True)])

    @torch.no_grad()
    def of_lengthscales(self) -> Tensor:
        """Those of the present lengthscales, ``(S,)``."""
        return torch.cat([own.densities(own.of_others, [None]) for own in self._kernels]).squeeze(-1)


class ScanPriors:
    """
    The log priors, up to a number for each component, where a scan goes: at multiples of the variances of trials.

    :param priors: The priors.
    :param variances: Present variances ``(S,)``.
    :param units: Those in all trials, ``(S,)``.
    :param least: Those that stand for none, ``(S,)``.
    :param of_lengthscales: Log priors of the lengthscales at present and in each trial, ``(S, T + 1)``.
    """

    def __init__(
        self, priors: ComponentPriors, variances: Tensor, units: Tensor, least: Tensor, of_lengthscales: Tensor
    ) -> None:
        self._priors, self._variances, self._units, self._least = priors, variances.clone(), units, least
        self._of_lengthscales = of_lengthscales.clone()
        self._at_present, self._in_trials = self._at_multiples(variances), self._at_multiples(units)

    def _at_multiples(self, variances: Tensor) -> Tensor:
        multiples = torch.outer(variances, variances.new_tensor(RATIOS))
        return self._priors.of_variances(torch.maximum(multiples, self._least.unsqueeze(-1)))

    def table(self, index: int) -> Tensor:
        """Those of a component for the present one and each trial at all of :data:`RATIOS`, ``(T + 1, K)``."""
        own = self._of_lengthscales[index]
        others = self._in_trials[index].expand(len(own) - 1, -1)
        return own.unsqueeze(-1) + torch.cat([self._at_present[index : index + 1], others])

    def take(self, changes: Mapping[int, Change]) -> None:
        """Make changes of components."""
        for index, change in changes.items():
            if change.trial >= 0:
                self._variances[index] = self._units[index]
                self._of_lengthscales[index, 0] = self._of_lengthscales[index, change.trial + 1]
            self._variances[index] *= change.ratio
        self._at_present = self._at_multiples(self._variances)


class _OwnPrior(NamedTuple):
    """A prior of a kernel's hyperparameters, and how to read what it is a density of."""

    prior: Prior
    read: Callable[[Any], Tensor]
    owner: torch.nn.Module


class _KernelPriors(NamedTuple):
    """The priors of a kernel with an output scale for each component: those that read it, and others."""

    kernel: ScaleKernel
    of_scale: list[_OwnPrior]
    of_others: list[_OwnPrior]

    @classmethod
    def of(cls, kernel: ScaleKernel) -> _KernelPriors:
        found = cls(kernel, [], [])
        with torch.enable_grad():
            for _, owner, prior, closure, _ in kernel.named_priors():
                value = closure(owner)
                is_of_scale = value.requires_grad and _depends_on(value, kernel.raw_outputscale)
                (found.of_scale if is_of_scale else found.of_others).append(_OwnPrior(prior, closure, owner))
        return found

    @property
    def number(self) -> int:
        """That of components."""
        return self.kernel.raw_outputscale.numel()

    def of_variances(self, variances: Tensor) -> Tensor:
        raw, constraint = self.kernel.raw_outputscale, self.kernel.raw_outputscale_constraint
        if not self.of_scale:
            return torch.zeros_like(variances)
        values = torch.maximum(variances, 1.001 * constraint.lower_bound.max().to(variances))
        origin, columns = raw.clone(), constraint.inverse_transform(values).mT
        try:
            return self.densities(self.of_scale, (raw.copy_(column.view_as(raw)) for column in columns))
        finally:
            raw.copy_(origin)

    def densities(self, priors: Sequence[_OwnPrior], places: Iterable[Any]) -> Tensor:
        """The sum of the log densities of each component ``(C, K)`` at K places, to which the iterable goes."""
        read = [[own.read(own.owner).clone() for own in priors] for _ in places]
        total = torch.zeros(len(read), self.number, dtype=torch.float64, device=self.kernel.raw_outputscale.device)
        for own, values in zip(priors, zip(*read, strict=True), strict=True):
            found = own.prior.log_prob(torch.stack(values)).double()
            if self.number == 1 or found.shape[1:2] == (self.number,):
                total = total + found.reshape(len(read), self.number, -1).sum(-1)
        return total.mT


def _depends_on(value: Tensor, parameter: Tensor) -> bool:
    return torch.autograd.grad(value.sum(), parameter, allow_unused=True)[0] is not None
