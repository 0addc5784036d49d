"""Terms name columns and refuse what they cannot be; formulas give the same terms, or errors that show the place."""

from __future__ import annotations

import pandas as pd
import pytest

from gpytorch_gam.gam import f, fs, linear, re, s, sz, te, ti
from gpytorch_gam.gam.formula import FormulaError, parse
from gpytorch_gam.gam.terms import check_terms, described, from_description

FRAME = pd.DataFrame({"age": [1.0], "sex": ["m"], "body mass": [2.0], "x": [0.0], "g": ["a"]})


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (s("age"), "s(age)"),
        (s("age", by="sex", k=20, kernel="rbf"), "s(age, by=sex, k=20, kernel='rbf')"),
        (s("hour", period=24), "s(hour, period=24)"),
        (s("day", period="year", missing="marginal"), "s(day, period='year', missing='marginal')"),
        (te("lon", "lat"), "te(lon, lat)"),
        (s("east", "north", k=30), "s(east, north, k=30)"),
        (ti("lon", "lat", k=5), "ti(lon, lat, k=5)"),
        (re("subject", by="time"), "re(subject, by=time)"),
        (fs("time", "subject"), "fs(time, subject)"),
        (sz("time", "sex", k=5), "sz(time, sex, k=5)"),
        (f("body mass"), "f(`body mass`)"),
        (f("grade", ordered=True), 'f("grade", ordered=True)'),
        (linear("age"), "linear(age)"),
    ],
)
def test_a_formula_gives_the_terms_of_the_calls_in_it(term: object, text: str) -> None:
    assert parse(f"y ~ {text}").parts == (term,)


@pytest.mark.parametrize(
    "term",
    [
        s("a", by="b"),
        te("a", "b", k=4),
        s("a", "b", linear=False),
        f("a"),
        re("a"),
        fs("a", "b"),
        sz("a", "b"),
        linear("a"),
    ],
)
def test_terms_survive_a_description_in_plain_values(term: object) -> None:
    assert from_description(described(term)) == term
    assert eval(repr(term)) == term


def test_columns_in_a_formula_are_linear_or_factors_by_what_they_hold() -> None:
    formula = parse("y ~ age + sex + `body mass` - 1")
    assert formula.terms(FRAME) == [linear("age"), f("sex"), linear("body mass")]
    assert formula.response == "y"
    assert not formula.has_intercept


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("y ~ s(age) + z(x)", "z is no term", "z(x)"),
        ("y ~ s(age, kk=3)", "unexpected keyword argument 'kk'", "s(age, kk=3)"),
        ("y ~ s(age, k=2)", "k of s must be at least 3", "s(age, k=2)"),
        ("y ~ s(log(age))", "compute it as a column before the fit", "s(log(age))"),
        ("y ~ age:sex", "interaction of age and sex is written te(age, sex)", "age"),
        ("y ~ s(age, z):sex", "is none of the terms: s and linear of one column", "s(age, z)"),
        ("y ~ s(age, k=5):sex", "is written s(age, by=sex, k=5), with f(sex)", "s(age, k=5)"),
        ("y ~ age + offset(log(minutes))", 'fit(..., exposure="minutes")', "offset(log(minutes))"),
        ("y ~ offset(z)", 'fit(..., offset="z")', "offset(z)"),
        ("log(y) ~ age", "one column: compute log(y) as a column first, or take a family with a log link", "log(y) "),
        ("y ~ s(agee)", "no column 'agee' (did you mean age?)", "agee"),
        ("y ~ ~ x", "incorrectly used", "~ ~"),
        ("y ~ age | sex", "'|' is no operator here: random effects are re(g)", "|"),
        ("y ~ age + (1 | sex)", "random slopes re(g, by=x)", "|"),
        ("y ~ age**2", "compute a power or product as a column", "**"),
        ("y ~ x + age^2", "compute a power or product as a column", "^"),
        ("y ~ age:age", "compute a power or product as a column", ":"),
    ],
)
def test_errors_of_formulas_point_at_the_place(text: str, problem: str, place: str) -> None:
    with pytest.raises(FormulaError) as raised:
        parse(text).terms(FRAME)
    message, shown, mark = str(raised.value).split("\n")
    assert problem in message
    assert shown.strip() == text
    start, length = mark.index("^"), mark.count("^")
    assert shown[start : start + length] == place


def test_a_formula_is_not_evaluated() -> None:
    with pytest.raises(FormulaError, match="is no term"):
        parse("y ~ __import__('os')")


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: s(3), TypeError, "names of columns"),
        (lambda: s("a", by="a"), ValueError, "its column already"),
        (lambda: s("a", period=-1), ValueError, "period of s"),
        (lambda: s("a", period="month"), ValueError, "'day', 'week', 'year'"),
        (lambda: s("a", missing="level"), ValueError, "missing of s"),
        (lambda: s("a", "b", by="c"), ValueError, "takes no by"),
        (lambda: s("a", "b", period=24), ValueError, "takes no period"),
        (lambda: s("a", "a"), ValueError, "two or three different columns"),
        (lambda: s(), TypeError, "names of columns"),
        (lambda: check_terms([s("a"), s("a", "b")]), ValueError, "effect of 'a' twice"),
        (lambda: te("a"), ValueError, "two or three different columns"),
        (lambda: fs("a", "a"), ValueError, "twice"),
        (lambda: check_terms(["age"]), TypeError, r"write s\('age'\)"),
        (lambda: check_terms([s("a"), s("a", k=9)]), ValueError, "more than once"),
        (lambda: check_terms([s("a"), te("a", "b")]), ValueError, "effect of 'a' twice"),
    ],
)
def test_terms_refuse_what_they_cannot_be(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
