"""What tests of scripts share."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits look for no better maxima and no other kernel, which is what tests/training and tests/gam are about."""
    monkeypatch.setattr("gpytorch_gam.gam.smoothness._OTHERS", ())
    monkeypatch.setattr("gpytorch_gam.training._component_jumps._MAX_JUMPS", 0)
