"""The model of an estimator takes columns in units of the fit, and tells raw ones from them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.diagnostics import sobol_indices
from gpytorch_gam.gam import GAMRegressor
from gpytorch_gam.warnings import InputRangeWarning

X = pd.DataFrame({"power": np.linspace(40.0, 200.0, 60), "site": list("uvw") * 20, "more": 1.0})


def fitted() -> GAMRegressor:
    y = np.log(X.power) + X.site.map({"u": 0.0, "v": 1.0, "w": 2.0})
    return GAMRegressor("~ s(power) + f(site)", hyperparameters="point", tolerance=1.0).fit(X, y)


def test_inputs_of_the_model_are_made_of_a_table() -> None:
    gam = fitted()
    inputs = gam.model_inputs(X)
    assert inputs.dtype == torch.float64 and inputs.shape == (60, 2)
    np.testing.assert_allclose(inputs[:, 0].std(), 1.0, rtol=0.3)
    effect = gam.model_.predict_sums(inputs, {"power": ["s(power)", "s(power).line"]}).mean
    expected = gam.predict_terms(X)["s(power)"]["mean"]
    np.testing.assert_allclose(effect[0] * gam._fitted.units.scale, expected)
    assert "gam.model_inputs(X)" in repr(gam.model_)


def test_raw_columns_are_told_from_inputs() -> None:
    gam, raw = fitted(), torch.tensor(np.column_stack([X.power, np.tile([0.0, 1.0, 2.0], 20)]))
    with pytest.warns(InputRangeWarning, match=r"power runs from 40 to 200, but .* gam.model_inputs\(X\)") as given:
        gam.model_(raw)
    assert given[0].filename == __file__
    gam.model_(raw)  # once
    wide = torch.column_stack([raw, raw[:, :1]])
    for read in (lambda: gam.model_(wide), lambda: sobol_indices(gam.model_, wide)):
        with pytest.raises(ValueError, match=r"trained with 2 \(power, site\): .* gam.model_inputs\(X\)"):
            read()
    gam.predict(X.assign(power=1e6))  # the estimator's own inputs are not in doubt
