"""Effects of places: `s(east, north)` is the package's isotropic term in the units of its columns."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.gam import GAMRegressor, s
from gpytorch_gam.warnings import ColumnKindWarning


@functools.cache
def places(num_rows: int = 150) -> tuple[pd.DataFrame, np.ndarray]:
    """Places in kilometres and a bump on a slope."""
    random = np.random.default_rng(0)
    x = pd.DataFrame({"east": random.uniform(500, 520, num_rows), "north": random.uniform(6000, 6010, num_rows)})
    bump = np.exp(-((x.east - 508) ** 2 + (x.north - 6004) ** 2) / 8)
    return x, (0.1 * (x.east - 510) + 2 * bump + 0.2 * random.normal(size=num_rows)).to_numpy()


@functools.cache
def fitted(unit: float = 1.0, turned: bool = False) -> GAMRegressor:
    x, y = places()
    x = x * unit
    if turned:
        x = pd.DataFrame({"east": x.north, "north": -x.east})
    return GAMRegressor("y ~ s(east, north, k=20)", hyperparameters="point", tolerance=0.01).fit(x, y)


def test_covariance_depends_on_the_distance_in_units_of_the_columns() -> None:
    gam = fitted()
    group = gam.model_.predictor.group_of("s(east, north)")
    x = gam._fitted.design.inputs(pd.DataFrame({"east": [510.0, 513.0, 510.0], "north": [6005.0, 6005.0, 6008.0]}))
    kernel = group.kernel.base_kernel.base_kernel  # without its variance and its centring
    with torch.no_grad():
        covariance = kernel(x).to_dense().reshape(3, 3)
        scaled = 5**0.5 * 3.0 / kernel.lengthscale.item()
    assert covariance[0, 1].item() == pytest.approx(covariance[0, 2].item(), rel=1e-9)
    expected = (1 + scaled + scaled**2 / 3) * np.exp(-scaled)  # Matern 5/2
    assert covariance[0, 1].item() == pytest.approx(expected, rel=1e-6)
    assert gam.summary().terms.lengthscale["s(east, north)"] == pytest.approx(kernel.lengthscale.item())


def test_turned_axes_and_other_units_give_the_same_effect() -> None:
    x, _ = places()
    gam = fitted()
    mean = gam.predict(x)
    assert gam.deviance_explained_ > 0.9
    metres = fitted(1000.0)
    np.testing.assert_allclose(metres.predict(1000.0 * x), mean, atol=0.02)
    ratio = metres.summary().terms.lengthscale.iloc[0] / gam.summary().terms.lengthscale.iloc[0]
    assert ratio == pytest.approx(1000.0, rel=0.05)
    turned = fitted(1.0, True)
    np.testing.assert_allclose(turned.predict(pd.DataFrame({"east": x.north, "north": -x.east})), mean, atol=0.05)


def test_what_estimators_offer_works_for_places(tmp_path: Path) -> None:
    x, _ = places()
    gam = fitted()
    assert gam.terms_ == ["s(east, north)"]
    grid = gam.effect("s(east, north)", num=25)
    assert grid.east.between(500, 520).all() and grid.north.between(6000, 6010).all()
    gam.plot()
    draws = gam.draw_functions(3, random_state=0)
    assert draws(x.head(4)).shape == (3, 4)
    gam.save(tmp_path / "gam")
    np.testing.assert_allclose(GAMRegressor.load(tmp_path / "gam").predict(x), gam.predict(x), rtol=1e-9)
    assert not gam.outside_range(x).to_numpy().any()
    assert gam.outside_range(x + 1e3).to_numpy().all()


def test_columns_that_cannot_have_the_same_unit_are_warned_of() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"age": random.uniform(20, 80, 60), "income": random.uniform(0, 1e5, 60)})
    with pytest.warns(ColumnKindWarning, match=r"write te\(age, income\)"):
        GAMRegressor([s("age", "income", k=8)], hyperparameters="point", tolerance=1.0).fit(x, x.age / 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ColumnKindWarning)
        GAMRegressor([s("age", "x", k=8)], hyperparameters="point", tolerance=1.0).fit(
            x.assign(x=x.income / 1e4), x.age / 60
        )
