"""Scores of further rows and of rows that are left out, and tables that compare models by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.metrics import log_loss

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, compare, linear, s

from .data import fitted, responses, table


def counts() -> pd.DataFrame:
    x, random = table(), np.random.default_rng(2)
    exposure = random.uniform(1, 3, len(x))
    mean = exposure * np.exp(np.sin(x.age / 10))
    return x.assign(exposure=exposure, deaths=random.poisson(mean))


def test_log_densities_are_those_of_a_normal_distribution() -> None:
    x = table()
    gam = GAMRegressor([s("age", k=6)], hyperparameters="point").fit(x, responses(x))
    further, y = table().assign(age=x.age + 1), responses(x, seed=5)
    mean, deviation = gam.predict(further, return_std=True)
    expected = stats.norm.logpdf(y, mean, deviation)
    np.testing.assert_allclose(gam.log_density(further, y), expected, atol=1e-8)
    weights = np.arange(len(x)) % 3
    assert gam.log_score(further, y, weights) == pytest.approx(np.average(expected, weights=weights))


def test_log_scores_of_classes_are_minus_the_log_loss() -> None:
    x = table()[["age", "site"]]
    y = pd.Series(np.where(responses(table()) > 0.5, "b", "a"), index=x.index)
    gam = GAMClassifier([s("age", k=6)]).fit(x, y)
    assert gam.log_score(x, y) == pytest.approx(-log_loss(y, gam.predict_proba(x)), abs=1e-6)


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.SampleWeightWarning")
def test_log_scores_of_counts_read_columns_and_the_formula() -> None:
    data = counts()
    gam = GAMRegressor("deaths ~ s(age, k=6)", family="poisson", tolerance=0.5)
    gam.fit(data, exposure="exposure", sample_weight="hour")
    probability = np.exp(gam.log_density(data.assign(deaths=2), exposure="exposure"))
    interval = gam.predict_quantiles(data, [0.5], exposure="exposure")
    assert (probability[interval[:, 0] == 2] > 0.15).all()
    assert gam.log_score(data, sample_weight="hour", exposure="exposure") < 0
    with pytest.raises(ValueError, match="negative or fractional values"):
        gam.log_score(data, data.deaths + 0.5)
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        gam.log_score(data, sample_weight=-data.hour)


def test_bounds_and_densities_are_of_responses_in_their_units() -> None:
    x, y = table(), responses(table())
    first = GAMRegressor([s("age", k=6)]).fit(x, y)
    second = GAMRegressor([s("age", k=6)]).fit(x, 100 * y)
    shift = -len(x) * np.log(100)
    assert second.bound_ == pytest.approx(first.bound_ + shift, abs=0.1)
    assert second.leave_one_out(x, 100 * y).total == pytest.approx(first.leave_one_out(x, y).total + shift, abs=0.1)
    assert second.summary().facts["bound"] == second.bound_


def test_rows_are_left_out_as_by_a_fit_to_the_others() -> None:
    x, y = table(), responses(table())
    gam = GAMRegressor([s("age", k=6)]).fit(x, y)
    found = gam.leave_one_out(x, y)
    for row in (0, 50):
        others = np.arange(len(x)) != row
        refit = GAMRegressor(gam.terms).fit(x[others], y[others])
        (expected,) = refit.log_density(x.iloc[[row]], y[[row]])
        # Its hyperparameters differ by what the row says about them.
        assert found.log_densities[row].item() == pytest.approx(expected, abs=0.05)


def test_weights_count_rows_that_often_when_they_are_left_out() -> None:
    x, y, weights = table(), responses(table()), np.arange(len(table())) % 3
    repeated = x.loc[x.index.repeat(weights)], y.repeat(weights)
    gam = GAMRegressor([s("age", k=6)], hyperparameters="point", tolerance=1e-4)
    expected = clone(gam).fit(*repeated).leave_one_out(*repeated)
    gam.fit(x, y, weights)
    found = gam.leave_one_out(x, y, weights)
    assert len(found.weights) == (weights > 0).sum()
    assert found.total == pytest.approx(expected.total, abs=0.1)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-2)


def test_the_better_model_comes_first() -> None:
    x, y = table(), responses(table())
    smooth, line = fitted(), GAMRegressor([linear("age")]).fit(x, y)
    by_bound = compare(line, smooth, names=["line", "smooth"])
    assert by_bound.table.index.tolist() == ["smooth", "line"]
    assert by_bound.table.columns.tolist() == ["bound", "bound_diff"]
    assert by_bound.table.bound_diff["line"] == pytest.approx(line.bound_ - smooth.bound_)
    found = compare(line, smooth, X=x, y=y)
    left_out = [gam.leave_one_out(x, y) for gam in (smooth, line)]
    assert found.table.index.tolist() == ["model 2", "model 1"]
    np.testing.assert_allclose(found.table.elpd, [each.total for each in left_out])
    np.testing.assert_allclose(found.table.elpd_se, [each.standard_error for each in left_out])
    differences = (left_out[1].log_densities - left_out[0].log_densities).numpy()
    assert found.table.elpd_diff["model 1"] == pytest.approx(differences.sum())
    assert found.table.diff_se["model 1"] == pytest.approx(np.sqrt(len(x)) * differences.std())
    assert found.table.diff_se["model 2"] == 0
    assert not found.warnings
    assert "model 1: gaussian, linear(age)" in str(found)
    again = GAMRegressor([linear("age")]).fit(x, y)
    assert "predict alike" in str(compare(line, again, X=x, y=y))


def test_rows_that_were_held_back_are_scored() -> None:
    x, y = table(), responses(table())
    smooth, line = (GAMRegressor([term]).fit(x[:80], y[:80]) for term in (s("age", k=6), linear("age")))
    weights = np.arange(40) % 3
    found = compare(smooth, line, X=x[80:], y=y[80:], sample_weight=weights, held_out=True).table
    assert found.elpd["model 1"] == pytest.approx(weights.sum() * smooth.log_score(x[80:], y[80:], weights))
    assert "num_parameters" not in found and "unreliable" not in found
    for wrong, message in ((-weights, "must not be negative"), (0 * weights, "is zero in all of 40 rows")):
        with pytest.raises(ValueError, match=message):
            compare(smooth, line, X=x[80:], y=y[80:], sample_weight=wrong, held_out=True)
        with pytest.raises(ValueError, match=message):
            smooth.log_score(x[80:], y[80:], wrong)


def test_models_of_several_predictors_are_compared() -> None:
    x = table()
    y = responses(x, noise=0.3) * np.where(x.treated, 3, 1)
    formulas = ["y ~ s(age, k=5)", "~ f(treated)"]
    data = x.assign(y=y)
    varying = GAMRegressor(formulas, family="gaussian_location_scale").fit(data)
    same = GAMRegressor(formulas[0]).fit(data)
    found = compare(same, varying, X=data, names=["same", "varying"]).table
    assert found.index[0] == "varying"
    # The bound counts what the prior leaves open as well, which is some nats for each parameter.
    assert -40 < found.elpd_diff["same"] < found.bound_diff["same"] < -15


def test_classes_in_another_order_compare_where_their_responses_are_given() -> None:
    x = table()[["age"]]
    y = pd.cut(responses(table()), [-9, 0, 1, 9], labels=["low", "middle", "high"])
    softmax, ordinal = (
        GAMClassifier([linear("age")], family=family, hyperparameters="point").fit(x, y)
        for family in ("softmax", "ordinal")
    )
    found = compare(softmax, ordinal, X=x, y=y, names=["softmax", "ordinal"]).table
    for name, gam in (("softmax", softmax), ("ordinal", ordinal)):
        assert found.elpd[name] == pytest.approx(gam.leave_one_out(x, y).total)
    with pytest.raises(
        ValueError, match=r"other orders, \[high, low, middle\] and \[low, middle, high\].*pass X and y"
    ):
        compare(softmax, ordinal)


def test_what_does_not_compare_is_refused() -> None:
    x, y = table(), responses(table())
    gam, part = fitted(), GAMRegressor([linear("age")]).fit(x[:80], y[:80])
    shifted = GAMRegressor([linear("age")]).fit(x, y + 1)
    for other in (part, shifted):
        with pytest.raises(ValueError, match="are fits to different responses or rows"):
            compare(gam, other)
    with pytest.raises(ValueError, match="takes two or more fitted estimators, got 1"):
        compare(gam)
    for given in (x, [gam, gam]):
        with pytest.raises(TypeError, match="takes fitted estimators one by one"):
            compare(gam, given)
    with pytest.raises(ValueError, match="names must be 2 different strings"):
        compare(gam, gam, names=["a", "a"])
    with pytest.raises(ValueError, match="y is given without X"):
        compare(gam, gam, y=y)
    with pytest.raises(ValueError, match=r"are not those of the fit \(120 rows\)"):
        compare(gam, gam, X=x[:80], y=y[:80])
    with pytest.raises(ValueError, match="y is None, and no formula names the response"):
        gam.leave_one_out(x)


def test_rows_are_left_out_with_the_arguments_of_the_fit_alone() -> None:
    data, options = counts().assign(shift=np.arange(len(table())) % 3), {"hyperparameters": "point"}
    with_exposure = GAMRegressor("deaths ~ linear(age)", family="poisson", **options).fit(data, exposure="exposure")
    without = GAMRegressor("deaths ~ linear(age)", family="poisson", **options).fit(data)
    shifted = GAMRegressor("exposure ~ linear(age)", **options).fit([data[:70], data[70:]], offset="shift")
    assert with_exposure.leave_one_out(data, exposure=data.exposure).total < 0
    assert shifted.leave_one_out(data, offset="shift").total < 0
    others = (with_exposure, {"exposure": 1.0}), (without, {"exposure": "exposure"}), (shifted, {"offset": "age"})
    for gam, arguments in others:
        with pytest.raises(ValueError, match="offset, exposure or trials are not those of the fit"):
            gam.leave_one_out(data, **arguments)


def test_estimators_from_streams_and_files_know_their_responses(tmp_path: Path) -> None:
    x = table().assign(y=responses(table()), w=np.arange(len(table())) % 3)
    whole = GAMRegressor("y ~ linear(age)", tolerance=0.5).fit(x, sample_weight="w")
    parts = GAMRegressor("y ~ linear(age)", tolerance=0.5).fit([x[:50], x[50:]], sample_weight="w")
    assert compare(whole, parts).table.bound_diff.min() > -0.1
    whole.save(tmp_path / "gam")
    loaded = GAMRegressor.load(tmp_path / "gam")
    assert loaded.bound_ == whole.bound_
    assert loaded.leave_one_out(x, sample_weight="w").total == whole.leave_one_out(x, sample_weight="w").total


def test_models_of_some_columns_each_are_compared_with_one_table() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.uniform(size=(60, 2)), columns=["a", "b"])
    x["y"] = x.a + 0.1 * random.normal(size=60)
    one = GAMRegressor(num_inducing=4, hyperparameters="point").fit(x[["a"]], x.y)
    two = GAMRegressor("y ~ s(a) + s(b)", num_inducing=4, hyperparameters="point").fit(x)
    found = compare(one, two, X=x).table  # one formula names the response for both
    assert found.elpd["model 1"] == pytest.approx(one.leave_one_out(x[["a"]], x.y).log_densities.sum().item(), abs=1e-6)
    ahead = compare(one, two, X=x, held_out=True).table
    assert ahead.elpd["model 1"] == pytest.approx(one.log_density(x[["a"]], x.y).sum(), abs=1e-6)
