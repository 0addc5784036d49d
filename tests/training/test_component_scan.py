"""The scan of components' lengthscales and variances, against dense algebra."""

from __future__ import annotations

import pytest
import torch

from gpytorch_gam.training._component_scan import ComponentScan, Place, SiteView, SumsAtRows, Trial

pytestmark = pytest.mark.usefixtures("double_precision")

N = 30


def dense_bound(view: SiteView, places: list[Place]) -> float:
    """The collapsed bound up to a constant, over the stacked predictors of all rows."""
    num_predictors = len(view.targets)
    rows = view.features.new_zeros(num_predictors, N, len(view.features))
    unexplained = view.features.new_zeros(())
    for place in places:
        part = view.features[place.part]
        rows[place.predictor][:, place.part] = part.mT
        lost = view.variances[place.number] - part.square().sum(0)
        unexplained = unexplained + (view.curvatures[place.predictor, place.predictor] * lost).sum()
    phi = rows.movedim(1, 0)  # (n, P, Q)
    weighted = torch.einsum("npa,pqn,nqb->ab", phi, view.curvatures, phi)
    projected = torch.einsum("npa,pn->a", phi, view.targets)
    precision = torch.eye(len(weighted)) + weighted
    mean = torch.linalg.solve(precision, projected)
    return (0.5 * (projected @ mean - torch.linalg.slogdet(precision).logabsdet - unexplained)).item()


def problem(num_predictors: int, seed: int = 0) -> tuple[SiteView, list[Place], list[Trial]]:
    generator = torch.Generator().manual_seed(seed)
    sizes, owners = (3, 4, 2), [min(index, num_predictors - 1) for index in range(3)]
    starts = [0, 3, 7, 9]
    places = [Place(slice(starts[i], starts[i + 1]), owners[i], i) for i in range(len(sizes))]

    def trial(scale: float) -> Trial:
        features = scale * torch.randn(9, N, generator=generator)
        norms = torch.stack([features[place.part].square().sum(0) for place in places])
        return Trial(features, norms + 0.1 * scale**2)

    roots = torch.randn(N, num_predictors, num_predictors, generator=generator)
    curvatures = (roots @ roots.mT).permute(1, 2, 0)
    targets = 3 * torch.randn(num_predictors, N, generator=generator)
    present = trial(0.5)
    return SiteView(present.features, present.variances, curvatures, targets), places, [trial(0.2), trial(0.05)]


def changed(view: SiteView, place: Place, source: Trial, ratio: float) -> SiteView:
    features, variances = view.features.clone(), view.variances.clone()
    features[place.part] = ratio**0.5 * source.features[place.part]
    variances[place.number] = ratio * source.variances[place.number]
    return view._replace(features=features, variances=variances)


def scan_of(view: SiteView, places: list[Place], trials: list[Trial]) -> ComponentScan[Trial]:
    return ComponentScan(SumsAtRows(view, places), Trial(view.features, view.variances), trials, places)


@pytest.mark.parametrize("num_predictors", [1, 2])
def test_gains_of_changes_are_those_of_the_dense_bound(num_predictors: int) -> None:
    view, places, trials = problem(num_predictors)
    scan = scan_of(view, places, trials)
    for _ in range(4):
        change = scan.best()[0]
        source = Trial(view.features, view.variances) if change.trial < 0 else trials[change.trial]
        after = changed(view, change.place, source, change.ratio)
        assert change.gain == pytest.approx(dense_bound(after, places) - dense_bound(view, places), abs=1e-8)
        scan.take(change)
        view = after


@pytest.mark.parametrize("num_predictors", [1, 2])
def test_no_other_change_gains_more(num_predictors: int) -> None:
    view, places, trials = problem(num_predictors, seed=1)
    best = scan_of(view, places, trials).best()[0]
    own = Trial(view.features, view.variances)
    for place in places:
        for source in (own, *trials):
            for ratio in (0.0, 0.1, 1.0, 10.0):
                gain = dense_bound(changed(view, place, source, ratio), places) - dense_bound(view, places)
                assert gain <= best.gain + 1e-8


def test_a_scan_ends_where_nothing_gains() -> None:
    view, places, trials = problem(1, seed=2)
    scan, gains = scan_of(view, places, trials), []
    while (change := scan.best()[0]).gain > 1e-6:
        scan.take(change)
        gains.append(change.gain)
    assert len(gains) < 30 and scan.best()[0].gain <= 1e-6
