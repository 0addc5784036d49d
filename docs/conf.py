"""
Sphinx configuration.

``python -m sphinx -W docs docs/_build/html`` builds the site and runs every block of code in it; warnings are errors.
"""

import importlib.metadata
import os
import sys
from abc import ABC
from pathlib import Path

from docutils.nodes import TextElement, reference
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from report import read_records  # noqa: E402
from site_numbers import site_numbers  # noqa: E402

project = "gpytorch-gam"
author = "The gpytorch-gam developers"
copyright = author
version = release = importlib.metadata.version(project)

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # without a network, too
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "substitution"]
myst_substitutions = site_numbers(read_records(BENCHMARKS / "results"))  # measured numbers, {{ name }} in pages
myst_heading_anchors = 3

# Every page with code is run, once until it or the settings change; an error in a cell is an error of the build.
os.environ["MATPLOTLIBRC"] = str(Path(__file__).parent / "matplotlibrc")
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # any other draws nothing on the page
os.environ.setdefault("OMP_NUM_THREADS", "1")
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # for busy machines
nb_output_stderr = "warn"
nb_merge_streams = True

autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "code"
nitpicky = True
# References that lead out of this site, and names of types that annotations keep short.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|gpytorch|linear_operator|numpy|os|pandas|sklearn|torch|typing)\..*"),
    ("py:class", r"gpytorch_gam\..*\.(ForwardRecorder|LevelRows|Phase|Processes|Rows)"),
    (
        "py:class",
        r"_VariationalDistribution|AdditiveModel|Axes|Base|Figure|Interval|Kernel|Likelihood|LinearOperator|Mean|Paths|PointPlacement|"
        r"Prior|ProcessGroup|Tensor",
    ),
]

html_theme = "furo"
html_title = "gpytorch-gam"
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = ">>> "


def _in_any_room(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: TextElement) -> reference | None:
    """A link to an object that is documented in another room than the one that the reference names, or leaves out."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    ending = "." + node["reftarget"].removeprefix("gpytorch_gam.")
    others = {"method"} if node["reftype"] == "func" else set()  # estimators have a method of a function's name
    names = [
        name
        for name, entry in domain.objects.items()
        if name.endswith(ending) and not entry.aliased and entry.objtype not in others
    ]
    if len(names) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], names[0], node, text)


def _show_public_bases(app: Sphinx, name: str, obj: type, options: object, bases: list[type]) -> None:
    """Replace bases that are private to a room by the nearest ones that users may name."""
    found = [public for base in bases for public in _nearest_public(base)]
    bases[:] = [base for base in dict.fromkeys(found) if base not in (object, ABC)] or [object]


def _nearest_public(base: type) -> list[type]:
    path = f"{base.__module__}.{base.__qualname__}"
    if path.startswith("gpytorch_gam.") and any(part.startswith("_") for part in path.split(".")):
        return [public for parent in base.__bases__ for public in _nearest_public(parent)]
    return [base]


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out members of other libraries, hooks of torch's modules, and fields without a text of their own."""
    if what != "class":
        return None
    if name in ("extra_repr", "get_extra_state", "set_extra_state") or (obj.__doc__ or "").startswith(
        "Alias for field"
    ):
        return True
    function = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
    module = getattr(function, "__module__", None) or "gpytorch_gam"
    return None if module.startswith("gpytorch_gam") else True


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls."""
    app.connect("missing-reference", _in_any_room)
    app.connect("autodoc-process-bases", _show_public_bases)
    app.connect("autodoc-skip-member", _skip)
