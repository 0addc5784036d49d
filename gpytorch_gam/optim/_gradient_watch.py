"""Whether a backward pass adds to the gradients that are there, or begins anew."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

# A gradient's identity and the number of times it was written, which can be seen without reading its values.
_Mark = tuple[int, int] | None


class GradientWatch:
    """
    Tells backward passes that add up from those after cleared gradients: torch does not announce ``zero_grad``. Values
    are read only where a gradient was written between two backward passes.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters: list[Tensor] = []
        self._before: list[_Mark] = []
        self._after: list[_Mark] = []  # empty before the end of a first pass
        self._is_open, self._was_interrupted, self._left_nothing = False, False, False
        self.add(parameters)

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Watch more parameters; those that are watched already are skipped."""
        known = set(map(id, self._parameters))
        new = [each for each in dict.fromkeys(parameters) if id(each) not in known and each.requires_grad]
        self._parameters += new
        self._after += [None] * len(new) if self._after else []

    def begin(self) -> None:
        """Must be called before a backward pass reaches the parameters."""
        self._was_interrupted, self._is_open = self._is_open, True
        self._before = self._marks()

    def begins_anew(self) -> bool:
        """
        Whether a gradient was cleared since the last pass, or that pass did not finish or left no gradients (as
        ``torch.autograd.grad``), so that the present one does not add to it.
        """
        return self._was_interrupted or (bool(self._after) and (self._left_nothing or self._has_cleared()))

    def end(self) -> None:
        """Must be called when the backward pass is over."""
        self._after = self._marks()
        self._left_nothing = self._after == self._before + [None] * (len(self._after) - len(self._before))
        self._is_open = False

    def _marks(self) -> list[_Mark]:
        gradients = [parameter.grad for parameter in self._parameters]
        return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]

    def _has_cleared(self) -> bool:
        for parameter, then, now in zip(self._parameters, self._after, self._before, strict=True):
            if then is None or then == now:
                continue
            if parameter.grad is None or not parameter.grad.any():
                return True
        return False
