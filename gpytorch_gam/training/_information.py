"""The Fisher information of hyperparameters, as the curvature of a bound to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._component_information import ComponentInformation
from ._mean_information import MeanInformation
from ._quasi_newton import Known
from ._site_rows import SiteRows


class Information:
    """
    What is known of the curvature of a bound in the ``parameters`` of components and of mean modules, in their
    ``coordinates``, and in a Gaussian ``noise`` that all rows share: minus its second derivatives as they are expected
    where the model is right. Each process has rows of its own. It costs about as much as two evaluations of the bound.
    """

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        parameters: Sequence[Tensor],
        coordinates: Coordinates,
        noise: Tensor | None,
        processes: Processes,
    ) -> None:
        kinds = (
            ComponentInformation(strategy, parameters, coordinates, noise),
            MeanInformation(strategy, parameters, coordinates),
        )
        self._kinds = [kind for kind in kinds if kind.is_wanted]
        self._parameters, self._processes = list(parameters), processes

    @torch.no_grad()
    def __call__(self, read: Callable[[], Iterable[SiteRows]]) -> Known | None:
        """
        That at the present hyperparameters, from the rows that are ``read``; None where there is nothing to know, or no
        information. A mean has none together with a variance, as far as can be expected.
        """
        if not self._kinds:
            return None
        try:
            sums = [self._processes.sum(total) for total in self._sums(read())]
            parts = [kind.of_sums(total) for kind, total in zip(self._kinds, sums, strict=True) if total]
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return None
        known = [part for part in parts if torch.isfinite(part.curvature.sum())]
        coordinates = [coordinate for part in known for coordinate in part.coordinates]
        return Known(coordinates, torch.block_diag(*(part.curvature for part in known))) if known else None

    def _sums(self, parts: Iterable[SiteRows]) -> list[list[Tensor]]:
        """The sums of each kind over all rows of this process."""
        totals: list[list[Tensor]] = [[] for _ in self._kinds]
        for part in parts:
            for place, kind in enumerate(self._kinds):
                with self._kept():
                    new = kind.sums(part)
                old = totals[place]
                totals[place] = [a + b for a, b in zip(old, new, strict=True)] if old else list(new)
        return totals

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Put the hyperparameters back in the end."""
        origin = [parameter.clone() for parameter in self._parameters]
        try:
            yield
        finally:
            for parameter, value in zip(self._parameters, origin, strict=True):
                parameter.copy_(value)
