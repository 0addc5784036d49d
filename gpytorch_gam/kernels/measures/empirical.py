"""A discrete distribution on weighted atoms."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gpytorch.settings import trace_mode
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.transforms import is_transformed

from .._parameters import as_parameter, checked_weights
from ..batch_shapes import resize_for_state
from .measure import Measure, RBFConstants

# At this distance a Matern kernel has fallen to 1e-19, while its polynomial is still small.
_LARGEST_MATERN_DISTANCE = 50.0


class Empirical(Measure):
    r"""
    The discrete distribution with the given atoms, for instance the observed values of an input.

    Components then have mean zero over the data themselves, as in mgcv's sum-to-zero constraint. Means are float64 sums
    over all J atoms: a kernel evaluation at n inputs costs O(n J + J^2) a component beside the kernel matrix itself,
    for Matern kernels O(n log J + J^2). Keep J in the tens or low hundreds; :meth:`from_data` thins a column of data to
    that.

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

    def matern_deviation(self, x: Tensor, rate: Tensor, nu: float) -> Tensor | None:
        """
        See :meth:`Measure.matern_deviation`. The atoms on one side of x are those of its neighbour on that side, at a
        further distance: a kernel is a polynomial times an exponential, so that their sum at x follows from sums there.
        """
        if trace_mode.on() or is_transformed(x, rate):
            return None  # searches among sorted atoms know no such transformations
        atoms, order = self.atoms.double().sort(-1)
        weights = self._normalised_weights().gather(-1, order)
        batch_shape = torch.broadcast_shapes(x.shape[:-1], atoms.shape[:-1], rate.shape[:-1])
        place = torch.searchsorted(
            atoms.expand(*batch_shape, -1).contiguous(), x.detach().expand(*batch_shape, -1).contiguous(), right=True
        )
        below, above = _sums_on_each_side(rate.unsqueeze(-1) * _distances(atoms), weights, nu)
        padded = torch.cat([atoms[..., :1], atoms, atoms[..., -1:]], -1)
        from_below, to_above = (_taken(part, place) for part in (padded[..., :-1], padded[..., 1:]))
        left = _matern_sum(rate * (x - from_below), _Sums(*(_taken(part, place) for part in below)), nu)
        right = _matern_sum(rate * (to_above - x), _Sums(*(_taken(part, place) for part in above)), nu)
        return left + right

    def _normalised_weights(self) -> Tensor:
        # Conversion to float32 rounds the stored weights; their sum is restored in float64.
        weights = self.weights.double()
        return weights / weights.sum(-1, keepdim=True)


class _Sums(NamedTuple):
    r"""Sums over atoms on one side of a point, with weights w, at scaled distances v from it."""

    exponential: Tensor  # of w exp(-v)
    loss: Tensor  # of w (exp(-v) - 1)
    slope: Tensor  # of w v exp(-v)
    deviation: Tensor  # of w (p(v) exp(-v) - 1), p the polynomial of the Matern kernel


def _distances(atoms: Tensor) -> Tensor:
    return (atoms.unsqueeze(-1) - atoms.unsqueeze(-2)).abs()


def _sums_on_each_side(distance: Tensor, weights: Tensor, nu: float) -> tuple[_Sums, _Sums]:
    """
    From scaled distances ``(*batch, J, J)`` between sorted atoms and their weights ``(*batch, J)``, the sums for each
    of the J + 1 gaps between them: of the atoms below a gap at the highest of these, of those above at the lowest.
    """
    distance = distance.clamp(max=_LARGEST_MATERN_DISTANCE)
    loss = torch.expm1(-distance)
    exponential = 1 + loss
    parts = _Sums(exponential, loss, distance * exponential, _matern_deviation(distance, loss, nu))
    column = weights.unsqueeze(-1)
    below = [(part.tril() @ column).squeeze(-1) for part in parts]
    above = [(part.triu() @ column).squeeze(-1) for part in parts]
    pad = torch.nn.functional.pad
    return _Sums(*(pad(part, (1, 0)) for part in below)), _Sums(*(pad(part, (0, 1)) for part in above))


def _taken(values: Tensor, place: Tensor) -> Tensor:
    """Values ``(*batch, J + 1)`` at places ``(*batch, n)``."""
    return values.expand(*place.shape[:-1], values.shape[-1]).gather(-1, place)


def _matern_sum(distance: Tensor, sums: _Sums, nu: float) -> Tensor:
    r"""
    The sum of :math:`w (p(u + v) e^{-u - v} - 1)` at scaled distances :math:`u` from the nearest of the atoms, whose
    own are :math:`v`, and with :math:`g(t) = p(t) e^{-t} - 1`

    .. math::
        g(u + v) = g(u) e^{-v} + e^{-u} g(v) - (e^{-u} - 1) (e^{-v} - 1) + c \, u e^{-u} v e^{-v} ,

    where :math:`c = 2 / 3` if p is quadratic, and otherwise zero. At short distances all terms are of the order of the
    result, which is of the second: none cancels another.
    """
    u = distance.clamp(0.0, _LARGEST_MATERN_DISTANCE)
    loss = torch.expm1(-u)
    exponential = 1 + loss
    total = torch.addcmul(exponential * sums.deviation, _matern_deviation(u, loss, nu), sums.exponential)
    total = total - loss * sums.loss
    return total if nu < 2 else torch.addcmul(total, u * exponential, sums.slope, value=2 / 3)


def _matern_deviation(distance: Tensor, loss: Tensor, nu: float) -> Tensor:
    r""":math:`p(t) e^{-t} - 1` at scaled distances t, given :math:`e^{-t} - 1`."""
    if nu == 0.5:
        return loss
    polynomial = distance if nu == 1.5 else torch.addcmul(distance, distance, distance, value=1 / 3)
    return torch.addcmul(polynomial, loss, 1 + polynomial)
