"""A discrete distribution on weighted atoms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks

from .._parameters import as_parameter, checked_weights
from ..batch_shapes import resize_for_state
from .measure import Measure, RBFConstants


class Empirical(Measure):
    r"""
    The discrete distribution with the given atoms, for instance the observed values of an input.

    Components then have mean zero over the data themselves, as in mgcv's sum-to-zero constraint. Means are float64 sums
    over all J atoms: a kernel evaluation at n inputs costs O(n J + J^2) a component beside the kernel matrix itself.
    Keep J in the tens or low hundreds; :meth:`from_data` thins a column of data to that.

    Where a few atoms lie a hundred times further out than the rest, the standard deviation says little about the rest,
    and float32 errors of an RBF kernel rise to some 2e-4: transform such an input, or clip the atoms. In a long tail
    the prior of a component is also far wider than on average, so that fits with a log link may fail to converge
    there: take a uniform measure in this case, or the logarithm of the input.

    :param atoms: The atoms ``(*batch, J)``, at least two of them distinct.
    :param weights: The weights of the atoms, nonnegative, ``(J,)`` or ``(*batch, J)``; normalised to sum to one.
        (Default: equal weights.)
    :raises ValueError: If a value is not finite, a weight is negative, all weights are zero, the shapes do not fit, or
        the whole weight lies on one value (every component would be zero).

    Example:
        >>> measure = Empirical.from_data(train_x.mT, num_atoms=64)  # train_x is N x C: one measure a column
    """

    num_event_dims = 1
    atoms: Tensor
    weights: Tensor

    def __init__(self, atoms: Any, weights: Any = None) -> None:
        super().__init__()
        atoms = as_parameter("Empirical", "atoms", atoms)
        if atoms.dim() == 0 or atoms.size(-1) < 2:
            raise ValueError(
                f"Empirical: atoms must have two or more values in its last dimension, got shape {tuple(atoms.shape)}"
            )
        weights = torch.ones_like(atoms) if weights is None else checked_weights("Empirical", weights, atoms, "atoms")
        if not bool((weights.sum(-1) > 0).all()):
            raise ValueError(
                "Empirical: weights must have a positive sum in every batch; give at least one positive weight"
            )
        if weights.dim() > atoms.dim() or weights.shape != atoms.shape:
            atoms, weights = (tensor.contiguous() for tensor in torch.broadcast_tensors(atoms, weights))
        self.register_buffer("atoms", atoms)
        self.register_buffer("weights", weights.double() / weights.double().sum(-1, keepdim=True))
        if not bool((self.standard_deviation > 0).all()):
            raise ValueError(
                "Empirical: atoms must have two or more distinct values of positive weight in every batch; "
                "drop the constant input"
            )

    @classmethod
    def from_data(cls, data: Any, num_atoms: int = 64) -> Empirical:
        """
        The empirical distribution of data, thinned to at most ``num_atoms`` weighted atoms.

        The sorted data are cut into ``num_atoms`` bins of (nearly) equal counts, each of which becomes an atom at its
        mean with its count as weight: the mean of the data is kept exactly, and the spread up to the spread within
        bins.

        :param data: The observed values ``(*batch, N)``.
        :param num_atoms: The largest number of atoms.
        :raises ValueError: If ``num_atoms < 2``, or as for the constructor.
        """
        checks.integer("num_atoms", num_atoms, least=2)
        data = as_parameter("Empirical", "data", data)
        if data.dim() == 0 or data.size(-1) <= num_atoms:
            return cls(data)
        bins = torch.tensor_split(data.double().sort(-1).values, num_atoms, dim=-1)
        counts = torch.tensor([float(part.size(-1)) for part in bins], dtype=torch.float64, device=data.device)
        return cls(torch.stack([part.mean(-1) for part in bins], -1), counts)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        resize_for_state(self, {"atoms": -1, "weights": -1}, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the atoms."""
        return (self._normalised_weights() * self.atoms.double()).sum(-1)

    @property
    def standard_deviation(self) -> Tensor:
        """The weighted standard deviation of the atoms."""
        offsets = self.atoms.double() - self.mean.unsqueeze(-1)
        return (self._normalised_weights() * offsets.square()).sum(-1).sqrt()

    def quadrature(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """The atoms and their weights; ``num_nodes`` is not used."""
        return self.atoms.double(), self._normalised_weights()

    def rbf_integrals(self, x: Tensor, lengthscale: Tensor) -> tuple[RBFConstants, Tensor, Tensor]:
        """See :meth:`Measure.rbf_integrals`."""
        moments = self._moments(lengthscale)
        return self._constants(lengthscale, moments), *self._embedding(x, lengthscale, moments)

    def _normalised_weights(self) -> Tensor:
        # Conversion to float32 rounds the stored weights; their sum is restored in float64.
        weights = self.weights.double()
        return weights / weights.sum(-1, keepdim=True)
