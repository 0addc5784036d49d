"""An import of the package stays quick."""

from __future__ import annotations

import subprocess
import sys

SLOW = ("scipy.cluster", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "torch._dynamo", "triton")
CODE = """
import sys
for package in ("gpytorch", "gpytorch_gam"):
    __import__(package)
    print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_an_import_brings_no_slow_modules_that_gpytorch_does_not() -> None:
    command = [sys.executable, "-c", CODE, *SLOW]
    before, after = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert after == before
