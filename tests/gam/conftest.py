"""What all tests of estimators share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Estimators integrate hyperparameters out where they are asked to, not where they decide by themselves, and look for
    no better maxima and no other kernel. This takes half of the time of small fits, and is what other tests are about:
    those of modules that override this fixture, and of tests/training.
    """
    monkeypatch.setattr("gpytorch_gam.gam.integration._MOST_UNASKED", -1)
    monkeypatch.setattr("gpytorch_gam.gam.smoothness._OTHERS", ())
    monkeypatch.setattr("gpytorch_gam.training._component_jumps._MAX_JUMPS", 0)
