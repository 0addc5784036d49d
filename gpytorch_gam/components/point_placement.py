"""Places for inducing points whose number is left to a fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class PointPlacement(ABC):
    """
    Places for several numbers of inducing points of a group: what ``num_inducing="auto"`` of a term gives the group, so
    that a fit can add points. It is copied and pickled with the group.

    :param sizes: What a term calls ``num_inducing``, from the first number to the largest.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    @property
    def first_number(self) -> int:
        """The number M of inducing points of each component that the group begins with."""
        return self.points(self.sizes[0]).shape[-2]

    @abstractmethod
    def points(self, size: int) -> Tensor:
        """
        The inducing points of all components of the group, ``(C_g, M, d)``.

        :param size: One of the sizes.
        """

    def more_points(self, num_inducing: int) -> Tensor | None:
        """
        The points of the smallest size that has more than some number of them, ``(C_g, M, d)``; None if there is none.

        :param num_inducing: The present number M of each component.
        """
        for size in self.sizes:
            points = self.points(size)
            if points.shape[-2] > num_inducing:
                return points
        return None
