"""An import of the package stays quick, and needs no packages of the extra."""

from __future__ import annotations

import subprocess
import sys

EXTRA = ("sklearn", "pandas", "formulaic", "matplotlib", "safetensors")
SLOW = ("scipy.cluster", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "torch._dynamo", "triton")
CODE = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRA}))  # cannot be imported
for package in ("gpytorch", "gpytorch_gam"):
    __import__(package)
    print(*(name for name in {SLOW} if name in sys.modules))
import gpytorch_gam
from gpytorch_gam.gam import s, te
print(s("age"), te("lon", "lat"))
try:
    gpytorch_gam.gam.GAMRegressor
except ImportError as error:
    print(error)
"""


def test_an_import_brings_no_slow_modules_that_gpytorch_does_not_and_says_what_needs_the_extra() -> None:
    command = [sys.executable, "-c", CODE]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    before, after, terms, error = printed
    assert after == before
    assert terms == "s('age') te('lon', 'lat')"
    assert error.startswith("GAMRegressor needs ")
    assert error.endswith("which is not installed: pip install gpytorch-gam[gam]")
