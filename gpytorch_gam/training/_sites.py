"""Gaussian sites in the place of a likelihood, the posterior of some, and the extrapolation of their iteration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.predictors import semidefinite_rows

# Number of passes that an extrapolation of the sites takes into account.
_DEPTH = 5


class Sites(NamedTuple):
    """Gaussian factors, one a row, that stand for the likelihood: its quadratic approximation in the predictors."""

    curvatures: Tensor  # Lambda_n, (P, P, n)
    targets: Tensor  # Lambda_n eta_n + g_n, (P, n)

    def semidefinite(self, mean: Tensor) -> Sites:
        """The same derivatives at predictors ``(P, n)`` with semidefinite curvatures: all that holds far from there."""
        return self._with(semidefinite_rows(self.curvatures), mean)

    def uncorrelated(self, mean: Tensor) -> Sites:
        """
        The same gradients at predictors ``(P, n)`` with curvatures between predictors left out. In the mean and the
        log scale of a distribution they are zero on average, but anything where the mean is far from the responses.
        """
        diagonal = self.curvatures.diagonal(dim1=0, dim2=1).clamp_min(0.0)
        return self._with(torch.diag_embed(diagonal).movedim(0, -1), mean)

    def _with(self, curvatures: Tensor, mean: Tensor) -> Sites:
        return Sites(curvatures, self.targets + ((curvatures - self.curvatures) * mean.unsqueeze(0)).sum(1))

    def gradients(self, predictors: Tensor) -> Tensor:
        """The derivatives at predictors ``(P, n)``, ``(P, n)``."""
        return self.targets - (self.curvatures * predictors.unsqueeze(0)).sum(1)

    def are_finite(self) -> bool:
        """Whether all are."""
        return bool(torch.isfinite(self.targets.sum() + self.curvatures.sum()))

    def towards(self, other: Sites, share: float) -> Sites:
        return Sites(*(torch.lerp(own, new, share) for own, new in zip(self, other, strict=True)))


class Posterior(NamedTuple):
    """The posterior of some sites, its bound, and the sites that the likelihood has there."""

    sites: Sites
    mean: Tensor  # m, (Q,)
    precision: Tensor  # P, (Q, Q)
    covariance: Tensor  # its inverse
    divergence: Tensor  # from the prior in nats, ()
    own: float  # sum of the expected log-likelihoods of this process's rows, in nats
    expected: float  # that of all rows
    bound: float  # in nats, without priors of the hyperparameters
    next_sites: Sites
    predictors: Tensor  # means of the predictors in the rows, (P, n)
    covariances: Tensor  # their covariances, (P, P, n)
    change: Tensor | None  # of the features, (S - I) Phi, with one predictor, (Q, n)
    is_clipped: bool  # whether the precision is without negative eigenvalues that the sites give it

    def as_optimum(self) -> GaussianOptimum:
        """The posterior and its bound alone."""
        return GaussianOptimum(self.mean, self.precision, self.mean.new_tensor(self.bound))


class Acceleration:
    """Anderson's acceleration of the iteration of the sites of all processes, see Walker and Ni (2011)."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._points: list[Tensor] = []  # sites, flat
        self._residuals: list[Tensor] = []  # next sites minus sites

    def extrapolated(self, posterior: Posterior) -> Sites | None:
        """The sites to which the last ones converge if each residual is linear in the sites; None with one residual."""
        own, new = (torch.cat([part.flatten() for part in sites]) for sites in (posterior.sites, posterior.next_sites))
        self._points, self._residuals = [*self._points, own][-_DEPTH:], [*self._residuals, new - own][-_DEPTH:]
        if len(self._points) < 2:
            return None
        changes = torch.stack(self._residuals, dim=-1).diff(dim=-1)
        moves = torch.stack(self._points, dim=-1).diff(dim=-1) + changes
        weights = self._least_squares(changes, (new - own).unsqueeze(-1))
        parts = (new - (moves @ weights).squeeze(-1)).split([part.numel() for part in posterior.sites])
        return Sites(*(part.view_as(like) for part, like in zip(parts, posterior.sites, strict=True)))

    def _least_squares(self, matrix: Tensor, target: Tensor) -> Tensor:
        """The solution for the rows of all processes, from a triangle of each, which has the same squares."""
        triangle = torch.linalg.qr(torch.cat([matrix, target], dim=-1), mode="r").R
        size = matrix.shape[-1] + 1
        table = triangle.new_zeros(self._processes.size, size, size)
        table[self._processes.rank, : len(triangle)] = triangle
        table = self._processes.sum([table])[0].flatten(0, 1)
        return torch.linalg.lstsq(table[:, :-1], table[:, -1:], driver="gelsd").solution
