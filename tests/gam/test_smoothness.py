"""The kernel of effects that the bound chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor, f, s


@pytest.fixture(autouse=True)
def quick_fits() -> None:
    """Here estimators choose a kernel as they do for users, unlike in other modules."""


def table(truth: str, num_rows: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    """Two columns and responses: of a sine wave, or of a random walk."""
    random = np.random.default_rng(0)
    x = np.sort(random.random(num_rows))
    effect = np.sin(6 * x) if truth == "smooth" else 0.15 * random.normal(size=num_rows).cumsum()
    return pd.DataFrame({"x": x, "g": random.choice(list("ab"), num_rows)}), effect + 0.1 * random.normal(size=num_rows)


@pytest.mark.parametrize(("truth", "kernel"), [("smooth", "rbf"), ("rough", "matern32")])
def test_the_kernel_with_the_highest_bound_is_taken(truth: str, kernel: str, tmp_path: Path) -> None:
    x, y = table(truth)
    gam = GAMRegressor([s("x")], hyperparameters="point").fit(x, y)
    assert gam.summary().facts["kernel"] == kernel and gam.result_ is not None and gam.result_.converged
    bounds = {
        name: GAMRegressor([s("x")], kernel=name, hyperparameters="point").fit(x, y).bound_
        for name in ("matern32", "matern52", "rbf")
    }
    assert max(bounds, key=lambda name: bounds[name]) == kernel
    assert gam.bound_ == pytest.approx(bounds[kernel], abs=0.1)  # twice the tolerance of a fit
    gam.save(tmp_path / "model.gam")
    loaded = GAMRegressor.load(tmp_path / "model.gam")
    assert loaded.kernel == "auto" and loaded.summary().facts["kernel"] == kernel
    np.testing.assert_allclose(loaded.predict(x), gam.predict(x), rtol=1e-9)


@pytest.mark.parametrize("terms", [[s("x", kernel="matern52")], [f("g"), s("x", period=1.0)]])
def test_named_kernels_and_terms_without_one_are_left_alone(
    terms: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpytorch_gam.gam.smoothness.Start.of", None)  # it is not called
    gam = GAMRegressor(terms).fit(*table("smooth", 100))
    assert "kernel" not in gam.summary().facts


def test_fits_by_bins_keep_the_kernel_they_begin_with() -> None:
    gam = GAMRegressor([s("x")], method="bins", hyperparameters="point").fit(*table("smooth"))
    assert gam.summary().facts["kernel"] == "matern52"


def test_an_interrupted_comparison_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table("smooth", 200)
    before = GAMRegressor([s("x")], kernel="matern52", hyperparameters="point").fit(x, y)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpytorch_gam.gam.smoothness.Start.of", interrupted)
    with pytest.warns(UserWarning, match="comparison of kernels was interrupted"):
        gam = GAMRegressor([s("x")], hyperparameters="point").fit(x, y)
    assert gam.summary().facts["kernel"] == "matern52"
    np.testing.assert_array_equal(gam.predict(x), before.predict(x))
