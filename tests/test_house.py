"""
The layout of the package, read from its imports: rooms stand on floors, and imports go down only.

An underscore means private to its room: ``a/b/_c.py`` is imported from below ``a/b`` alone. A module is not hidden by a
function of its name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import gpytorch_gam

PACKAGE = Path(gpytorch_gam.__file__).parent
NAME = PACKAGE.name

# A room imports from lower floors, not from its own and not from above. Modules outside of rooms lie below all of them.
FLOORS = (
    ("numerics", "parameters", "data"),
    ("kernels", "operators", "distributions"),
    ("projection",),
    ("components", "likelihoods"),
    ("terms", "effects"),
    ("variational",),
    ("models", "optim"),
    ("mlls",),
    ("training",),
    ("diagnostics",),
    ("gam",),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str) -> Iterator[str]:
    """Modules of the package that a module imports anywhere, inside of functions as well."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if source in MODULES:
                names = (f"{source}.{alias.name}" for alias in node.names)
                yield from (name if name in MODULES else source for name in names)


@functools.cache
def imports() -> dict[str, list[str]]:
    """What each module imports. Reading all takes a second: processes that only collect tests do without."""
    return {module: sorted(set(imports_of(module))) for module in MODULES}


def room(module: str) -> str:
    """The room of a module; none for the modules of the package itself."""
    parts = module.split(".")
    return parts[1] if (PACKAGE / parts[1]).is_dir() else ""


def floor(module: str) -> int:
    return next((height for height, rooms in enumerate(FLOORS, start=1) if room(module) in rooms), 0)


def is_private_to_another(module: str, other: str) -> bool:
    parts = other.split(".")
    private = next((index for index, part in enumerate(parts) if part.startswith("_")), None)
    return private is not None and module.split(".")[:private] != parts[:private]


def circles() -> list[list[str]]:
    """Groups of modules that import each other, found as in a depth-first search that meets its own path."""
    found, done = [], set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(path[path.index(module) :])
        elif module not in done:
            for other in imports()[module]:
                visit(other, [*path, module])
            done.add(module)

    for module in imports():
        visit(module, [])
    return found


def test_the_package_has_no_circles_no_upward_imports_and_no_private_corridors() -> None:
    edges = [(module, other) for module, others in imports().items() for other in others if module != NAME]
    upward = [edge for edge in edges if room(edge[0]) != room(edge[1]) and floor(edge[0]) <= floor(edge[1])]
    private = [edge for edge in edges if is_private_to_another(*edge)]
    around = circles()
    counts = f"{len(around)} circles, {len(upward)} upward, {len(private)} imports of another room's private module"
    print(f"{len(MODULES)} modules: {counts}")
    assert not around
    assert not upward
    assert not private


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == {room for rooms in FLOORS for room in rooms}


def test_no_function_hides_its_module() -> None:
    hidden = []
    for module in MODULES:
        parent, _, leaf = module.rpartition(".")
        if parent and leaf != "_triton_kernels":  # which needs Triton
            found = importlib.import_module(module)
            hidden += [] if getattr(importlib.import_module(parent), leaf, None) is found else [module]
    assert not hidden


def test_dir_shows_what_is_public_and_no_more() -> None:
    assert sorted(gpytorch_gam.__all__) == sorted(name for name in dir(gpytorch_gam) if not name.startswith("_"))
    for name in gpytorch_gam.__all__:
        assert hasattr(gpytorch_gam, name)
