"""What a fit has found, and whether it is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Nats below which the summary is silent about the family of the posterior: what no plot shows.
_SHOWN_GAP = 1.0


class Epoch(NamedTuple):
    """
    A pass over the data, or with methods that see all rows at once a step of the hyperparameters.

    :ivar number: Its number: 1, 2, ...
    :ivar elbo: The evidence lower bound in nats, summed over the data, without the priors of hyperparameters. Of
        minibatches it is estimated: the mean over the rows of the batches' estimates.
    :ivar smoothed_elbo: The exponential moving average of ``elbo`` with weight one half, in nats.
    """

    number: int
    elbo: float
    smoothed_elbo: float

    @classmethod
    def after(cls, history: list[Epoch], elbo: float) -> Epoch:
        """
        The next entry of a history.

        :param history: The entries before.
        :param elbo: The bound in nats.
        """
        return cls(len(history) + 1, elbo, 0.5 * (elbo + (history[-1].smoothed_elbo if history else elbo)))


@dataclass(frozen=True)
class FitResult:
    """
    What :func:`~gpytorch_gam.fit` has done and found. Printed, it is a summary in a few lines.

    :ivar method: ``"rows"``, ``"bins"`` or ``"minibatches"``, see :func:`~gpytorch_gam.fit`.
    :ivar reason: Why this method.
    :ivar bound: The evidence lower bound of the fitted model in nats, summed over the data, without the priors of
        hyperparameters. NaN if the method gave only estimates.
    :ivar history: The way there.
    :ivar gradient: The largest magnitude of the bound's derivatives in the hyperparameters (priors included) where the
        fit ended, in nats per unit of the unconstrained parameter: its logarithm if it is positive, the logit within
        its interval if it has one. NaN if it is not known.
    :ivar open: Nats by which the bound is predicted to rise if the fit went on; NaN if hyperparameters did not move. Of
        minibatches it is given the weights of a network in front.
    :ivar converged: Whether ``open`` is below the tolerance, and a network in front gives no term constant inputs.
    :ivar stopped: Why the fit ended.
    :ivar passes: Number of passes over the data.
    :ivar evaluations: Number of evaluations of the bound's gradient by the quasi-Newton method.
    :ivar seconds: The time that it took.
    :ivar shortfalls: Nats that more inducing points would bring, by component, see
        :func:`~gpytorch_gam.training.inducing_shortfall`.
    :ivar at_bounds: The hyperparameters that ended at a bound of their constraint, such as ``"x0.lengthscale"``. An
        effect that is a straight line, or that is switched off, has no use for a finite lengthscale.
    :ivar switched_off: The components that are practically zero: the prior variance is below a hundredth of that of the
        predictor, and the data have hardly moved the posterior away from the prior: the squared whitened means and the
        shares of variance that the data explain sum to less than 0.05, which is worth some hundredths of a nat. A
        component of small variance that the data do see is not among them. Not known of fits by minibatches.
    :ivar family_gap: Nats by which the model's family of posteriors falls short of the optimal posterior, whatever its
        precision: where they are several, take a larger rank, or ``family="coupled"``, which has none and is as fast up
        to about a thousand inducing variables. Known of fits by rows, else NaN.
    :ivar messages: The texts of the warnings that were given.
    """

    method: str
    reason: str
    bound: float
    history: list[Epoch]
    gradient: float
    open: float
    converged: bool
    stopped: str
    passes: int
    evaluations: int
    seconds: float
    shortfalls: dict[str, float] = field(default_factory=dict)
    at_bounds: tuple[str, ...] = ()
    switched_off: tuple[str, ...] = ()
    family_gap: float = math.nan
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The summary."""
        state = "converged" if self.converged else "NOT converged"
        lines = [
            f"{state}: {self.stopped}",
            f"method {self.method} ({self.reason})",
            f"bound {self.bound:.2f} nats, {self.open:.2g} nats open, largest derivative {self.gradient:.2g}",
            f"{self.passes} passes, {self.evaluations} evaluations, {self.seconds:.2f} s",
        ]
        if self.family_gap > _SHOWN_GAP:
            lines.append(f"the family of the posterior leaves the bound {self.family_gap:.2g} nats below its optimum")
        lines += (
            [
                "switched off (variance zero, as is normal; x.line is the line of x beside its curve): "
                + ", ".join(self.switched_off)
            ]
            if self.switched_off
            else []
        )
        lines += [f"at a bound: {', '.join(self.at_bounds)}"] if self.at_bounds else []
        return "\n".join([*lines, *(f"warning: {message}" for message in self.messages)])


class Outcome(NamedTuple):
    """What a method reports; for the first entries see :class:`FitResult`."""

    history: list[Epoch]
    bound: float
    gradient: float
    open: float
    stopped: str
    passes: int
    evaluations: int
    of_small_variance: tuple[str, ...] = ()  # components beside whose predictor the prior variance is small
    family_gap: float = math.nan
    has_moved: bool = True  # whether any hyperparameter has
    notable: float | None = None  # nats that may be open without a warning, if not the tolerance
    open_names: Sequence[str] = ()  # the hyperparameters with most of what is open
    remedy: str = "Go on from here with fit(..., warm_start=True)"


class Recorder:
    """Called with bounds in nats, it keeps the history of a fit, and hands each entry to a callback."""

    def __init__(self, callback: Callable[[Epoch], Any] | None = None) -> None:
        self._callback = callback
        #: The entries so far.
        self.history: list[Epoch] = []

    def __call__(self, bound: float) -> None:
        """
        Add an entry.

        :param bound: The bound in nats.
        """
        self.history.append(Epoch.after(self.history, bound))
        if self._callback is not None:
            self._callback(self.history[-1])


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """
    The outcome of fits of the same data one after the other, which share a history.

    :param outcomes: One or more.
    """
    passes, evaluations = (sum(getattr(each, name) for each in outcomes) for name in ("passes", "evaluations"))
    return outcomes[-1]._replace(passes=passes, evaluations=evaluations)
