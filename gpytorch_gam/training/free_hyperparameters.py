"""The hyperparameters that can move, as one vector of coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.numerics.blocks import join_groups
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._hyperparameters import entries_at_bounds, hyperparameters_of, limits_of

# Sum of a component's squared whitened means and of the share of its variance that the data explain below which its
# hyperparameters make no difference.
NO_EFFECT = 0.05

# Distance of a coordinate from its limit within which it counts as being there.
_NEAR_LIMIT = 0.5


class FreeHyperparameters:
    """
    Entries of the trained hyperparameters of a model and its likelihood: of those with a constraint, and of all that
    belong to the mean modules and the likelihood. Their coordinates are those of :func:`~gpytorch_gam.fit`: logarithms
    of what is positive, logits within intervals. Entries at a bound of their constraint, and those of components of
    which the posterior is as good as the prior, stay where they are.

    :param model: A model with its optimal posterior.
    :param likelihood: Its likelihood.
    :param units: The unit of each parameter that has one other than 1, by its id.
    """

    def __init__(
        self, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, units: Mapping[int, float] | None = None
    ) -> None:
        self._model, self._likelihood = model, likelihood
        #: The parameters to which the entries belong.
        self.parameters = list(_moving(model, likelihood))
        self._coordinates = Coordinates(self.parameters, [model, likelihood], units)
        self._places = [(parameter, entry) for parameter in self.parameters for entry in range(parameter.numel())]
        self._base = _joined(self._coordinates.read())
        names, reasons = self._names(), self._reasons_to_stay()
        free = [index for index, place in enumerate(self._places) if _key(place) not in reasons]
        self._free = torch.tensor(free, dtype=torch.long, device=self._base.device)
        #: Their names: those of the raw parameters, with the index of the entry.
        self.names = [names[index] for index in free]
        #: The entries that stay, with the reason.
        self.left_out = {
            name: reasons[_key(place)]
            for name, place in zip(names, self._places, strict=True)
            if _key(place) in reasons
        }
        #: The parameter to which each of them belongs.
        self.owners = [self._places[index][0] for index in free]
        #: Which of them are parameters of the likelihood.
        of_likelihood = [name.startswith("likelihood.") for name in self.names]
        self.is_of_likelihood = torch.tensor(of_likelihood, dtype=torch.bool, device=self._base.device)
        #: The coordinates when this was made, ``(k,)``, float64.
        self.position = self._base[self._free]

    def write(self, position: Tensor) -> None:
        """
        Move them.

        :param position: The coordinates ``(k,)``.
        """
        whole = self._base.index_copy(0, self._free, position)
        parts = whole.split([parameter.numel() for parameter in self.parameters])
        self._coordinates.write([part.view_as(own) for part, own in zip(parts, self.parameters, strict=True)])

    def gradient(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """
        The gradient in the coordinates, ``(k,)``, at the present position.

        :param gradients: Those in :attr:`parameters`, None for zeros.
        """
        pairs = zip(gradients, self.parameters, strict=True)
        filled = [torch.zeros_like(own) if each is None else each.detach() for each, own in pairs]
        return _joined(self._coordinates.gradients(filled))[self._free]

    @torch.no_grad()
    def values(self, position: Tensor) -> Tensor:
        """
        Their values, ``(k,)``, float64: those of the constraints.

        :param position: The coordinates ``(k,)``.
        """
        self.write(position)
        constraints = {
            id(raw): constraint
            for module in (self._model, self._likelihood)
            for _, raw, constraint in module.named_parameters_and_constraints()
            if constraint is not None
        }
        raws = [(constraints.get(id(raw)), raw.double()) for raw in self.parameters]
        found = _joined([raw if constraint is None else constraint.transform(raw) for constraint, raw in raws])
        self.write(self.position)
        return found[self._free]

    def _names(self) -> list[str]:
        named = {
            id(parameter): f"{owner}.{name}"
            for owner, module in (("model", self._model), ("likelihood", self._likelihood))
            for name, parameter in module.named_parameters()
        }
        return [f"{named[id(parameter)]}[{entry}]" for parameter, entry in self._places]

    def _reasons_to_stay(self) -> dict[tuple[int, int], str]:
        """The reasons for which entries do not move, by the id of the parameter and the entry."""
        reasons = dict.fromkeys(_without_effect(self._model.variational_strategy), "its component is switched off")
        limits = limits_of(self.parameters, self._model, self._likelihood)
        for parameter, position, limit in zip(self.parameters, self._coordinates.read(), limits, strict=True):
            for entry in (position.flatten().abs() > limit - _NEAR_LIMIT).nonzero().flatten().tolist():
                reasons[id(parameter), entry] = "it is at a bound"
        for module in (self._model, self._likelihood):
            for _, raw, constraint in module.named_parameters_and_constraints():
                for indices in entries_at_bounds(raw, constraint):
                    reasons[id(raw), _flat(indices, raw.shape)] = "it is at a bound"
        return reasons


def _key(place: tuple[Tensor, int]) -> tuple[int, int]:
    return id(place[0]), place[1]


def _moving(model: gpytorch.models.ApproximateGP, likelihood: Likelihood) -> Iterator[torch.nn.Parameter]:
    """The trained hyperparameters but inducing points and those of other modules without constraints."""
    constrained = {
        id(raw)
        for module in (model, likelihood)
        for _, raw, constraint in module.named_parameters_and_constraints()
        if constraint is not None
    }
    means = (parameter for mean in model.variational_strategy.predictor.means for parameter in mean.parameters())
    kept = constrained | {id(parameter) for parameter in (*means, *likelihood.parameters())}
    return (parameter for parameter in hyperparameters_of(model, likelihood) if id(parameter) in kept)


def _without_effect(strategy: AdditiveVariationalStrategy) -> list[tuple[int, int]]:
    """Ids and entries of kernel parameters that only components read whose posterior is as good as the prior."""
    sizes = effect_sizes(strategy)
    largest: dict[tuple[int, int], float] = {}
    for group in strategy.predictor.groups:
        for raw in group.parameters():
            for entry in range(raw.numel()):
                own = max(sizes[name] for name in _owners(group, raw, entry))
                largest[id(raw), entry] = max(own, largest.get((id(raw), entry), 0.0))
    return [place for place, size in largest.items() if size < NO_EFFECT]


@torch.no_grad()
def effect_sizes(strategy: AdditiveVariationalStrategy) -> dict[str, float]:
    """
    The sum of a component's squared whitened means, and of how far the posterior variances are below the prior's.

    :param strategy: The strategy of a fitted model.
    """
    factors = strategy.covariance_factors()
    total = factors.mean.square()
    if factors.explained_blocks is not None:
        own = [root.square().sum(-1, keepdim=True) for root in factors.explained_blocks]
        total = total + join_groups(own).squeeze(-1)
    if factors.explained_shared is not None:
        total = total - factors.shared_sign * factors.explained_shared.square().sum(-1)
    return {name: total[place].sum().item() for name, place in strategy.predictor.inducing_slices.items()}


def _owners(group: ComponentGroup, raw: Tensor, entry: int) -> Sequence[str]:
    """The components that read an entry of a parameter of their kernel."""
    if raw.dim() == 0 or len(raw) != group.num_components:
        return group.names
    return [group.names[entry // (raw.numel() // group.num_components)]]


def _flat(indices: Sequence[int], shape: torch.Size) -> int:
    """The index in the flattened parameter."""
    place = 0
    for index, size in zip(indices, shape, strict=True):
        place = place * size + index
    return place


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten().double() for part in parts]) if parts else torch.empty(0, dtype=torch.float64)
