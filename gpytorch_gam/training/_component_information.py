"""The Fisher information of the components' variances and lengthscales, as the curvature of a bound to begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.predictors import Segment, predictor_segments, weighted_gram
from gpytorch_gam.parameters.log_scale import Coordinates

from ._component_scales import places_of_components, scales_of_components
from ._component_scan import Place, SiteView
from ._quasi_newton import Known
from ._row_bound import RowBound

# Step of the differences that give the derivatives of features in a coordinate.
_STEP = 1e-4


class ComponentInformation:
    """
    The Fisher information of the ``parameters`` that are trained output scales and lengthscales of components, in their
    ``coordinates``, and of a Gaussian noise that all rows share: minus the second derivatives of the bound that are
    expected where the model is right. It costs about as much as two evaluations of the bound.
    """

    def __init__(
        self, objective: RowBound, predictor: AdditivePredictor, parameters: Sequence[Tensor], coordinates: Coordinates
    ) -> None:
        self._objective, self._predictor = objective, predictor
        self._parameters, self._coordinates = list(parameters), coordinates
        starts, total = {}, 0
        for parameter in parameters:
            starts[id(parameter)], total = total, total + parameter.numel()
        # For each direction in which components move, the variance first: coordinates of components, by their number.
        self._moves: list[dict[int, int]] = [{}]
        numbers = {name: place.number for name, place in places_of_components(predictor).items()}
        for scale in scales_of_components(predictor):
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
        noise = objective.noise_parameter
        self._noise = None if noise is None else starts.get(id(noise))

    @torch.no_grad()
    def __call__(self) -> Known | None:
        """The information at the present hyperparameters; None where there is nothing to know, or the bound is not."""
        if not self._moves[0]:
            return None
        origin, here = [parameter.clone() for parameter in self._parameters], self._coordinates.read()
        num_rows = None if self._noise is None else self._objective.sum_of_weights()
        try:
            view = self._objective.site_view()
            if view is None:
                return None
            derivatives = [self._derivative(view.features, here, moves) for moves in self._moves[1:]]
            # Inducing points may have been added.
            places, segments = list(places_of_components(self._predictor).values()), predictor_segments(self._predictor)
            table = information(view, derivatives, places, segments, self._objective.processes, num_rows)
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return None
        finally:
            for parameter, value in zip(self._parameters, origin, strict=True):
                parameter.copy_(value)
        if not torch.isfinite(table.sum()):
            return None
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

    def _derivative(self, features: Tensor, here: Sequence[Tensor], moves: dict[int, int]) -> Tensor:
        """The derivatives of all components' features, each in a coordinate of its own."""
        self._coordinates.write_moved(here, list(moves.values()), _STEP)
        return (self._objective.trial().features - features) / _STEP


def information(
    view: SiteView,
    derivatives: Sequence[Tensor],
    places: Sequence[Place],
    segments: Sequence[Segment],
    processes: Processes,
    num_rows: float | Tensor | None = None,
) -> Tensor:
    r"""
    The Fisher information of the rows' Gaussian factors: with :math:`\Sigma = \Lambda^{-1} + \Phi^\top \Phi` it is
    :math:`\frac12 \mathrm{tr}\, \Sigma^{-1} \Sigma_i \Sigma^{-1} \Sigma_j`. First come the logarithms of the variances
    of the C components at ``places``, then for each of the ``derivatives`` of the features, ``(Q, n)``, the C
    hyperparameters in which these are. With ``num_rows``, that of all processes, the last one is the logarithm of a
    noise variance that all rows share.
    """
    size, count = len(view.features), 1 + len(derivatives)
    stacked = torch.cat([view.features, *derivatives])
    repeated = [
        Segment(owner, slice(place.start + shift, place.stop + shift))
        for shift in (range(0, count * size, size) if len(segments) > 1 else ())
        for owner, place in segments
    ]
    gram = processes.sum([weighted_gram(stacked, view.curvatures, repeated or segments)])[0]
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
