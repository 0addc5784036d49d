"""The loop of a fit by minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam.optim.natural_gradient import NaturalGradient
from gpytorch_gam.optim.processes import Processes, average_gradients, row_weighted, start_from_first
from gpytorch_gam.optim.rows.likelihood_check import is_gaussian
from gpytorch_gam.optim.rows.steepness import curvature_steepness
from gpytorch_gam.optim.rows.stream import Rows, checked_rows
from gpytorch_gam.parameters.log_scale import Adam, Coordinates

from ._convergence import MeanGradient
from ._graphed_step import GraphedStep
from ._likelihood_step import fit_likelihood
from ._network_weights import has_network, network_weights
from ._row_count import number_of_batches, warn_of_other_rows
from .starting_values import null_model_of, start_from_null_model, units_of_means

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Step of the natural gradient's schedule at which a fit starts from the null model: its size is one half.
_FIRST_STEP = 10

# Adam's rate for the weights of a network, relative to that of hyperparameters, whose raw values move by some units. At
# the whole rate a network is driven into saturation, where its features hardly vary and do not return; at a tenth some
# hundred steps are too few for it.
_SHARE_OF_NETWORK = 0.3

# Number of first steps that are checked, unless the likelihood is Gaussian.
_NUM_CHECKED = 100


class MinibatchLoop:
    """The objective, both optimisers and the state of a training loop."""

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: gpytorch.likelihoods.Likelihood,
        num_data: int,
        lr: float,
        num_held_back: int,
        warm_start: bool,
        process_group: ProcessGroup | None,
        cuda_graph: bool,
    ) -> None:
        self.mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)
        if cuda_graph and process_group is not None:
            raise ValueError("cuda_graph=True is for one process: leave out process_group, or the graph")
        self.evaluate = GraphedStep(self.mll) if cuda_graph else self._evaluate
        self.natural = NaturalGradient(model, num_data=num_data, warm_start=warm_start, process_group=process_group)
        self.process_group, self.processes = process_group, Processes(process_group)
        self.hyperparameters = [p for p in (*model.hyperparameters(), *likelihood.parameters()) if p.requires_grad]
        weights = {id(weight) for weight in network_weights(model)}
        self._shares = dict.fromkeys(weights, _SHARE_OF_NETWORK)
        self.has_network = has_network(model)
        #: Those that are no weights of a network.
        self.own_hyperparameters = [p for p in self.hyperparameters if not (self.has_network and id(p) in weights)]
        # None for a model whose hyperparameters are all fixed, which trains its posterior alone.
        self.adam: Adam | None = None
        self._units: Mapping[int, float] = {}
        self.coordinates = self.coordinates_of(self.hyperparameters)
        self.lr = lr
        self.num_held_back = num_held_back
        self.num_steps = 0
        self.has_counted = False
        self.limits_moves = False
        self.gradient = MeanGradient(self.hyperparameters)

    def start(self, batches: Iterable[Any], keeps_values: bool) -> None:
        """Set the starting values, unless present ones are kept, and find the units in which hyperparameters move."""
        model, likelihood = self.mll.model, self.mll.likelihood
        strategy = model.variational_strategy
        null = null_model_of(strategy, likelihood, batches, self.processes)
        if null is not None and not keeps_values:
            start_from_null_model(strategy, likelihood, null)
        start_from_first(self.processes, strategy, [model, likelihood])
        if null is not None and not keeps_values and not is_gaussian(likelihood):
            # That of the null model is narrow, and widens by a factor a step as the data allow. Under a log link, rows
            # that a first batch does not have would be seen under the prior otherwise.
            self.natural.begin_at(_FIRST_STEP)
        if self.hyperparameters:
            self._units = {} if null is None else units_of_means(strategy, null)
            self.coordinates = self.coordinates_of(self.hyperparameters)
            self.adam = Adam(self.hyperparameters, self.coordinates, self.lr, self._shares)

    def coordinates_of(self, parameters: Sequence[Tensor]) -> Coordinates:
        """The coordinates in which some of the hyperparameters move."""
        return Coordinates(parameters, [self.mll.model, self.mll.likelihood], self._units)

    @property
    def has_moved(self) -> bool:
        """Whether the hyperparameters have taken a step."""
        return self.adam is not None and self.num_steps > self.num_held_back

    @property
    def is_moving(self) -> bool:
        """Whether all that is trained moves: the hyperparameters, or without any the posterior."""
        return self.has_moved or self.adam is None

    def set_rate(self, rate: float) -> None:
        """Set Adam's rate for hyperparameters, and with it that for the weights of a network."""
        if self.adam is not None:
            self.adam.set_rate(rate)

    def run(self, batches: Iterable[Any]) -> float:
        """One pass over the data; returns the mean of the batches' ELBOs, weighted by their rows, in nats."""
        self._check_lengths(batches)
        self.mll.train()
        self.gradient = MeanGradient(self.hyperparameters)
        self.limits_moves = not is_gaussian(self.mll.likelihood)
        device = self.mll.model.variational_strategy.predictor.device
        total, num_rows, largest = torch.zeros((), dtype=torch.float64, device=device), 0, 0
        for batch in batches:
            rows = self._checked(batch)
            total, num_rows = total + len(rows.y) * self._step(rows).to(total), num_rows + len(rows.y)
            largest = max(largest, len(rows.y))
        if not num_rows:
            raise ValueError(
                "batches is empty: there is no data to fit (a loader with drop_last gives nothing if its batches are "
                "larger than the data)"
            )
        sums = self.processes.sum([total, total.new_tensor([num_rows, largest])])
        num_rows, largest = map(int, sums[1].tolist())
        if self.processes.leads and not self.has_counted:
            warn_of_other_rows(batches, num_rows, self.mll.num_data, tolerance=largest)
        self.has_counted = True
        return sums[0].item() / num_rows * self.mll.num_data

    def _checked(self, batch: Any) -> Rows:
        rows = checked_rows(self.mll.model.variational_strategy, self.mll.likelihood, batch)
        if len(rows.y) > self.mll.num_data:
            raise ValueError(
                f"num_data is {self.mll.num_data}, but a batch has {len(rows.y)} rows: num_data is the number of rows "
                "of all the data, not that of the batches"
            )
        return rows

    def _check_lengths(self, batches: Iterable[Any]) -> None:
        number = number_of_batches(batches)
        if number is not None:
            device = self.mll.model.variational_strategy.predictor.device
            self.processes.require_equal({"numbers of batches": number}, device)

    def _limit_moves(self, rows: Rows) -> None:
        """Let the natural gradient know how fast the likelihood's curvature changes, once an epoch."""
        steepness = curvature_steepness(self.mll.model.variational_strategy, self.mll.likelihood, rows)
        self.processes.broadcast([steepness])
        self.natural.steepness, self.limits_moves = steepness, False

    def _step(self, rows: Rows) -> Tensor:
        if self.limits_moves:
            self._limit_moves(rows)
        if self.adam is not None and self.num_steps == self.num_held_back > 0:
            self._release_likelihood(rows)
        if self._is_checked(rows):
            loss = self.natural.step(lambda: self.evaluate(rows))
        else:
            loss = self.evaluate(rows)
            self.natural.step()
        if self.adam is not None and self.num_steps >= self.num_held_back:
            self.gradient.add(len(rows.y))
            self.adam.step()
        self.num_steps += 1
        return -loss

    def _release_likelihood(self, rows: Rows) -> None:
        """Fit the likelihood's parameters before Adam moves them: near the prior, noise and shape were unknown."""
        fit_likelihood(self.mll.model, self.mll.likelihood, rows, self.mll.num_data, self.process_group)

    def _is_checked(self, rows: Rows) -> bool:
        """
        Whether a step is checked against the loss of its rows: with all rows its size does not fall, and far from the
        optimum curvatures can be off by the factor of an exponential.
        """
        if is_gaussian(self.mll.likelihood):
            return False  # its curvatures are the same everywhere
        return self.num_steps < _NUM_CHECKED or len(rows.y) >= self.mll.num_data

    def _evaluate(self, rows: Rows) -> Tensor:
        """Minus the ELBO per row; its gradients are left in the parameters."""
        if self.adam is not None:
            self.adam.zero_grad()
        loss = -self.mll(self.mll.model(rows.x), rows.y, **rows.row_arguments)
        if loss.dim():
            raise ValueError(
                f"the objective has shape {tuple(loss.shape)} and is no number: {type(self.mll.likelihood).__name__} "
                f"must give one expected log-probability a row for responses of shape {tuple(rows.y.shape)}"
            )
        row_weighted(loss, len(rows.y), self.process_group).backward()
        average_gradients(self.hyperparameters, self.process_group)
        return loss.detach()

    def finish(self) -> None:
        self.natural.remove()
        self.mll.eval()
