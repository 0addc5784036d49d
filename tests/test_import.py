"""An import of the package stays quick."""

from __future__ import annotations

import subprocess
import sys

SLOW = ("scipy.cluster", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "torch._dynamo", "triton")
CODE = "import sys, {}; print(*(name for name in sys.argv[1:] if name in sys.modules))"


def test_an_import_brings_no_slow_modules_that_gpytorch_does_not() -> None:
    loaded = {}
    for package in ("gpytorch", "gpytorch_gam"):
        command = [sys.executable, "-c", CODE.format(package), *SLOW]
        loaded[package] = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert loaded["gpytorch_gam"] == loaded["gpytorch"]
