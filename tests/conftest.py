"""Settings that all tests share."""

import pytest
import torch

from gpytorch_gam import settings

# Matrices here are small: more threads only get into each other's way, badly so on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fused-projection off`` runs the tests on the plain path."""
    parser.addoption("--fused-projection", default="auto", choices=settings.fused_projection._choices)


def pytest_configure(config: pytest.Config) -> None:
    """Settings of the whole run."""
    settings.fused_projection._set_value(config.getoption("--fused-projection"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
