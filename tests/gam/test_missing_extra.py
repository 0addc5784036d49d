"""The package is imported without the packages of its extra, and says what to install where they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Modules that cannot be imported are None there.
_HIDDEN = """
import sys

for name in ("sklearn", "pandas", "formulaic", "matplotlib", "safetensors"):
    sys.modules[name] = None
"""

_SCRIPT = """
import gpytorch_gam
from gpytorch_gam.gam import s, te
print(s("age"), te("lon", "lat"))
try:
    gpytorch_gam.gam.GAMRegressor
except ImportError as error:
    print(error)
"""


def test_what_needs_the_extra_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_HIDDEN + _SCRIPT)
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout.splitlines()
    assert printed[0] == "s('age') te('lon', 'lat')"
    assert printed[1].startswith("GAMRegressor needs ")
    assert printed[1].endswith("which is not installed: pip install gpytorch-gam[gam]")
