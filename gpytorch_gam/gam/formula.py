"""R-style formulas, ``y ~ s(age) + te(lon, lat) + re(subject) + sex``, read by formulaic's parser, never evaluated."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
from formulaic.errors import FormulaParsingError, FormulaSyntaxError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.algos.tokenize import tokenize
from formulaic.parser.types import Factor as ParsedFactor
from formulaic.parser.types import Token

from gpytorch_gam._checks import did_you_mean

from .columns import kind_of
from .terms import FUNCTIONS, Factor, Linear, Term

# What mgcv says by the basis of a term.
_WITHOUT_BASIS = (
    "there is no bs: periodic effects are s(x, period=24), random ones re(g), curves by levels fs(x, g), and others "
    "have a kernel="
)

# What does the work of functions of mgcv's and R's left sides.
_REMEDIES_OF_RESPONSES = {
    "log": ", or take a family with a log link, such as family='gamma' or 'poisson'",
    "cbind": ": of successes and failures that of successes, with fit(..., trials=) for their sum",
}

# The operators of interactions.
_OF_PRODUCTS = ("**", "^", "*", ":", "/", "in")

# How formulaic marks the place of an error.
_MARKED, _COLOUR = re.compile("⧛(.*?)⧚", re.DOTALL), re.compile("\x1b\\[[0-9;]*m")


class FormulaError(ValueError):
    """A formula that cannot be read. The message shows the place."""

    def __init__(self, problem: str, text: str, start: int = 0, length: int = 1) -> None:
        super().__init__(f"{problem}\n    {text}\n    {' ' * start}{'^' * max(1, length)}")


@dataclass(frozen=True)
class Formula:
    """
    A formula.

    :ivar text: As it was given.
    :ivar response: The name of the response; None if the left side is missing.
    :ivar parts: Terms, and names of columns whose effect depends on what they hold.
    :ivar has_intercept: False if the formula says ``- 1`` or ``+ 0``.
    """

    text: str
    response: str | None
    parts: tuple[Term | str, ...]
    has_intercept: bool

    def terms(self, frame: pd.DataFrame) -> list[Term]:
        """
        The terms; a column by itself is linear if it holds numbers, and otherwise a factor.

        :param frame: The data.
        :raises FormulaError: If a column is missing.
        """
        found: list[Term] = []
        for part in self.parts:
            for name in [part] if isinstance(part, str) else part.columns:
                if name not in frame.columns:
                    known = list(map(str, frame.columns))
                    raise FormulaError(
                        f"X has no column {name!r}{did_you_mean(name, known)}: {known}",
                        self.text,
                        *place_of(self.text, name),
                    )
            if isinstance(part, str):
                part = Linear(column=part) if kind_of(frame[part]).is_number else Factor(column=part)
            found.append(part)
        return found


def parse(text: str) -> Formula:
    """
    Read a formula.

    Terms are ``s``, ``te``, ``ti``, ``f``, ``re``, ``fs`` and ``linear``, see :mod:`gpytorch_gam.gam.terms`, and names
    of columns. Names that are no identifiers stand in backticks. ``- 1`` leaves out the intercept: lines then go
    through zero, as in R, and effects that are centred stay so, as in mgcv.

    :param text: The formula.
    :raises FormulaError: If it is none; the message shows the place.
    """
    try:
        tokens = list(tokenize(text))
        _refuse_number_as_name(tokens, text)
        _refuse_bar(tokens, text)
        found = DefaultFormulaParser(include_intercept=True).get_terms(text)
    except FormulaSyntaxError as error:
        raise _as_formula_error(error, text) from error
    except FormulaParsingError as error:
        raise _as_error_of_all_columns(error, text) from error
    except SyntaxError as error:  # of Python, in the call of a term
        raise FormulaError(
            f"{error.msg}: names of columns that are no identifiers stand in backticks, and words of Python, such as "
            "class, cannot be names inside of terms",
            text,
            text.find("~") + 1,
            len(text) - text.find("~") - 1,
        ) from error
    sides = found.lhs if hasattr(found, "lhs") else None
    right = found.rhs if hasattr(found, "rhs") else found
    response = None if sides is None else _response(list(sides), text)
    parts, has_intercept = [], False
    for term in right:
        if str(term) == "1":
            has_intercept = True
        else:
            parts.append(_part(term, text))
    _refuse_products_of_one(tokens, text)
    if not parts and not has_intercept:
        raise FormulaError("there is neither a term nor an intercept: write '~ 1' for a constant", text, 0, len(text))
    return Formula(text, response, tuple(parts), has_intercept)


def _refuse_number_as_name(tokens: list[Token], text: str) -> None:
    """Refuse the column of the name 1 by itself, which the parser takes for the intercept, backticks or not."""
    for token in tokens:
        if token.kind is Token.Kind.NAME and token.token == "1":
            raise FormulaError(
                "`1` by itself counts as the intercept: write linear(`1`), s(`1`), or f(`1`) of a category",
                text,
                token.source_start or 0,
                len("`1`"),
            )


def _refuse_bar(tokens: list[Token], text: str) -> None:
    """Refuse what stands for random effects, or several predictors, in formulas of other packages."""
    for token in tokens:
        if token.kind is Token.Kind.OPERATOR and token.token == "|":
            raise FormulaError(
                "'|' is no operator here: random effects are re(g), random slopes re(g, by=x), random curves fs(x, g), "
                "and each parameter of a family has a formula of its own",
                text,
                token.source_start or 0,
            )


def _refuse_products_of_one(tokens: list[Token], text: str) -> None:
    """Refuse operators of products that gave none: in R, x**2 and x:x are x."""
    for token in tokens:
        if token.kind is Token.Kind.OPERATOR and token.token in _OF_PRODUCTS:
            raise FormulaError(
                f"{token.token!r} makes interactions of different columns: compute a power or product as a column "
                "before the fit, or take s() for a curve",
                text,
                token.source_start or 0,
                len(token.token),
            )


def _as_formula_error(error: FormulaSyntaxError, text: str) -> FormulaError:
    """The error of formulaic's parser with the place below the formula."""
    message = _COLOUR.sub("", str(error))
    marked = _MARKED.search(message)
    problem = message.split("\n")[0].replace("insuffient", "insufficient").rstrip(".")
    if marked is None:
        return FormulaError(problem, text, max(len(text) - 1, 0))
    start = text.find(marked.group(1).strip(), max(0, marked.start() - message.rfind("\n", 0, marked.start()) - 1))
    return FormulaError(problem, text, max(start, 0), len(marked.group(1).strip()))


def _as_error_of_all_columns(error: FormulaParsingError, text: str) -> FormulaError:
    """The error of a formula that formulaic can read only with data, as one with a dot."""
    if "`.`" not in str(error):
        return FormulaError(str(error), text)
    place = text.find(".", text.find("~") + 1)
    return FormulaError("name the columns instead of '.', or give terms='auto' for a term of each", text, place)


def _response(sides: list[Any], text: str) -> str:
    names = [str(term) for term in sides]
    is_name = len(names) == 1 and len(sides[0].factors) == 1 and _is_column(sides[0].factors[0])
    if not is_name:
        left = text[: text.find("~")].strip()
        raise FormulaError(
            f"the left side must be the name of one column: compute {left} as a column first"
            + _REMEDIES_OF_RESPONSES.get(left.split("(")[0], ""),
            text,
            0,
            max(text.find("~"), 1),
        )
    return names[0].strip("`")


def _is_column(factor: Any) -> bool:
    return factor.eval_method is ParsedFactor.EvalMethod.LOOKUP


def _part(term: Any, text: str) -> Term | str:
    """A term of the model, or the name of a column that stands for itself."""
    factors = [factor.expr for factor in term.factors]
    if len(factors) > 1:
        place = place_of(text, factors[0])
        raise FormulaError(f"the interaction of {' and '.join(factors)} {_as_one_term(factors)}", text, *place)
    expression = factors[0]
    if _is_column(term.factors[0]):
        return expression.strip("`")
    return _call(expression, text)


def _as_one_term(factors: list[str]) -> str:
    """How a product of columns, or of a column and a term, is written."""
    columns = [each for each in factors if re.fullmatch(r"[^\W\d]\w*|`[^`]*`", each)]
    if len(columns) == len(factors):
        first, second = factors[:2]
        return (
            f"is written te({first}, {second}) with their own effects, ti({first}, {second}) without, "
            f"s({first}, by={second}), or linear({first}, by={second}) of a product of numbers or, beside "
            f"f({second}), of slopes of categories"
        )
    node = next(_parsed(each) for each in factors if each not in columns)
    if len(factors) == 2 and isinstance(node, ast.Call) and len(node.args) == 1 and len(columns) == 1:
        name, options = ast.unparse(node.func), [ast.unparse(each) for each in node.keywords]
        if name in ("s", "linear") and not any(each.startswith("by=") for each in options):
            arguments = ", ".join([ast.unparse(node.args[0]), f"by={columns[0]}", *options])
            return f"is written {name}({arguments}), with f({columns[0]}) for the levels of a category"
    return "is none of the terms: s and linear of one column take another one as by="


def _parsed(expression: str) -> ast.expr:
    return ast.parse(re.sub("`([^`]*)`", lambda match: repr(match.group(1)), expression), mode="eval").body


def _remedy_of_offset(node: ast.Call) -> str:
    """What a fit takes instead of a term of mgcv."""
    problem = "an offset is no term but an argument of the fit"
    inner = node.args[0] if len(node.args) == 1 else None
    if isinstance(inner, ast.Name | ast.Constant):
        return f'{problem}: fit(..., offset="{_value(inner)}")'
    if isinstance(inner, ast.Call) and ast.unparse(inner.func) in ("log", "np.log") and len(inner.args) == 1:
        (column,) = inner.args
        if isinstance(column, ast.Name | ast.Constant):
            return (
                f'{problem}: of counts with a log link fit(..., exposure="{_value(column)}"), which multiplies their '
                "mean, and otherwise the logarithm computed as a column, whose name is offset="
            )
    return f"{problem}: compute it as a column, and pass its name as fit(..., offset=)"


def _call(expression: str, text: str) -> Term:
    start = max(text.find(expression), 0)
    try:
        node = _parsed(expression)
    except SyntaxError as error:
        raise FormulaError(f"{expression} cannot be read: {error.msg}", text, start, len(expression)) from error
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "offset":
        raise FormulaError(_remedy_of_offset(node), text, start, len(expression))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else expression
        raise FormulaError(
            f"{name} is no term{did_you_mean(name, FUNCTIONS)}: terms are {', '.join(FUNCTIONS)} and names of columns; "
            "compute other columns before the fit",
            text,
            start,
            len(expression),
        )
    options: dict[str, Any] = {}
    try:
        arguments = [_value(argument) for argument in node.args]
        options = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        return FUNCTIONS[node.func.id](*arguments, **options)
    except (TypeError, ValueError) as error:
        problem = _WITHOUT_BASIS if "bs" in options else str(error).replace("() ", " ")
        raise FormulaError(f"{expression}: {problem}", text, start, len(expression)) from error


def _value(node: ast.expr) -> Any:
    """The name of a column, or a literal."""
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(
            f"{ast.unparse(node)} is neither the name of a column nor a number: compute it as a column before the fit"
        ) from error


def place_of(text: str, name: str) -> tuple[int, int]:
    """
    Start and length of a name in a formula, preferably on its right side.

    :param text: The formula.
    :param name: The name of a column.
    """
    right = text.find("~") + 1
    match = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").search(text, right)
    return (match.start(), len(name)) if match else (max(right, 0), 1)
