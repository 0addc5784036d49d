"""The Fisher information of the components' variances and lengthscales, as the curvature of a bound to begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.rows.predictors import Segment, predictor_segments, weighted_gram
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._component_scales import places_of_components, scales_of_components
from ._component_scan import Place
from ._quasi_newton import Known
from ._site_rows import SiteRows

# Step of the differences that give the derivatives of features in a coordinate.
_STEP = 1e-4


class ComponentInformation:
    """
    The Fisher information of the ``parameters`` that are trained output scales and lengthscales of components, in their
    ``coordinates``, and of a Gaussian ``noise`` that all rows share: minus the second derivatives of the bound that are
    expected where the model is right. It costs about as much as two evaluations of the bound.
    """

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        parameters: Sequence[Tensor],
        coordinates: Coordinates,
        noise: Tensor | None,
    ) -> None:
        self._predictor, self._coordinates = strategy.predictor, coordinates
        starts, total = {}, 0
        for parameter in parameters:
            starts[id(parameter)], total = total, total + parameter.numel()
        # For each direction in which components move, the variance first: coordinates of components, by their number.
        self._moves: list[dict[int, int]] = [{}]
        numbers = {name: place.number for name, place in places_of_components(self._predictor).items()}
        for scale in scales_of_components(self._predictor):
            if id(scale.raw) not in starts:
                continue
            number = numbers[scale.name]
            self._moves[0][number] = starts[id(scale.raw)] + scale.entry
            own = [
                starts[id(raw)] + scale.entry * raw[0].numel() + entry
                for raw in (kernel.raw_lengthscale for kernel in scale.lengthscales)
                for entry in range(raw[0].numel())
            ]
            self._moves += [{} for _ in range(1 + len(own) - len(self._moves))]
            for moves, coordinate in zip(self._moves[1:], own, strict=False):
                moves[number] = coordinate
        self._noise = None if noise is None else starts.get(id(noise))

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to know."""
        return bool(self._moves[0])

    def sums(self, rows: SiteRows) -> list[Tensor]:
        """Sums over some rows, which add up. Hyperparameters are left where they were moved to."""
        here = self._coordinates.read()
        derivatives = [self._derivative(rows, here, moves) for moves in self._moves[1:]]
        segments = predictor_segments(self._predictor)
        return [gram_with_derivatives(rows.features, derivatives, rows.curvatures, segments), rows.total_weight]

    def of_sums(self, sums: Sequence[Tensor]) -> Known:
        """The information of all rows, from the sums over them."""
        gram, total_weight = sums
        places = list(places_of_components(self._predictor).values())  # inducing points may have been added
        table = information(gram, len(self._moves), places, None if self._noise is None else total_weight)
        number = self._predictor.num_components
        entries = {
            coordinate: direction * number + component
            for direction, moves in enumerate(self._moves)
            for component, coordinate in moves.items()
        }
        if self._noise is not None:
            entries[self._noise] = len(table) - 1
        chosen = torch.tensor(list(entries.values()), device=table.device)
        return Known(list(entries), table[chosen.unsqueeze(-1), chosen])

    def _derivative(self, rows: SiteRows, here: Sequence[Tensor], moves: dict[int, int]) -> Tensor:
        """The derivatives of all components' features, each in a coordinate of its own."""
        self._coordinates.write_moved(here, list(moves.values()), _STEP)
        return (rows.evaluate() - rows.features) / _STEP


def gram_with_derivatives(
    features: Tensor, derivatives: Sequence[Tensor], curvatures: Tensor, segments: Sequence[Segment]
) -> Tensor:
    r"""
    Sums :math:`\sum_n \Phi_n \Lambda_n \Phi_n^\top` of features ``(Q, n)`` together with some of their derivatives.
    """
    size, count = len(features), 1 + len(derivatives)
    repeated = [
        Segment(owner, slice(place.start + shift, place.stop + shift))
        for shift in (range(0, count * size, size) if len(segments) > 1 else ())
        for owner, place in segments
    ]
    return weighted_gram(torch.cat([features, *derivatives]), curvatures, repeated or segments)


def information(gram: Tensor, count: int, places: Sequence[Place], num_rows: float | Tensor | None = None) -> Tensor:
    r"""
    The Fisher information of the rows' Gaussian factors: with :math:`\Sigma = \Lambda^{-1} + \Phi^\top \Phi` it is
    :math:`\frac12 \mathrm{tr}\, \Sigma^{-1} \Sigma_i \Sigma^{-1} \Sigma_j`. First come the logarithms of the variances
    of the C components at ``places``, then for each of the derivatives of the features in the ``gram``, ``(count Q,
    count Q)``, the C hyperparameters in which these are. With ``num_rows``, that of all processes, the last one is the
    logarithm of a noise variance that all rows share.
    """
    size = len(gram) // count
    cholesky = torch.linalg.cholesky(add_identity(gram[:size, :size]))
    half = torch.linalg.solve_triangular(cholesky, gram[:size], upper=False)
    inner = gram - half.mT @ half  # of the stacked features and their derivatives, in Sigma^-1
    blocks = inner.view(count, size, count, size)
    members = inner.new_zeros(size, len(places))  # the components' inducing variables
    for number, place in enumerate(places):
        members[place.part, number] = 1.0
    own = blocks[0, :, 0]
    rows = [
        [members.mT @ (own * blocks[a, :, b] + blocks[0, :, b] * blocks[a, :, 0]) @ members for b in range(count)]
        for a in range(count)
    ]
    table = torch.cat([torch.cat(row, dim=-1) for row in rows])
    # The derivative of Sigma in a log variance is that of half of the features.
    factors = torch.cat([torch.full_like(members[0], 0.5 if a == 0 else 1.0) for a in range(count)])
    table = factors.unsqueeze(-1) * table * factors
    if num_rows is None:
        return table
    # Sigma^-1 Lambda^-1 Sigma^-1 = Sigma^-1 - Sigma^-1 Phi' Phi Sigma^-1
    residual = (inner[:size] - own @ inner[:size]).view(size, count, size)
    across = factors * torch.cat([residual[:, a].diagonal() @ members for a in range(count)])
    noise = 0.5 * (num_rows - 2.0 * own.diagonal().sum() + own.square().sum())
    right = torch.cat([across, noise.reshape(1)]).unsqueeze(-1)
    return torch.cat([torch.cat([table, across.unsqueeze(0)]), right], dim=-1)
