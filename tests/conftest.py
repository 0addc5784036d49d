"""Settings that all tests share."""

import gc
from collections.abc import Iterator

import pytest
import torch

from gpytorch_gam import settings
from tests.two_processes import Together, two_processes

# Matrices here are small: more threads only get into each other's way, badly so on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random numbers, whatever ran before it."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # which would note, a thousand times, to seed devices if some turn up
        torch.default_generator.manual_seed(0)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Tensors and modules are made in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    """Two processes, which start where they are used first: in tests with the mark ``xdist_group("distributed")``."""
    with two_processes(tmp_path_factory.mktemp("processes")) as call:
        yield call


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fused-projection off`` runs the tests on the plain path."""
    parser.addoption("--fused-projection", default="auto", choices=settings.fused_projection._choices)


def pytest_configure(config: pytest.Config) -> None:
    """Settings of the whole run."""
    settings.fused_projection._set_value(config.getoption("--fused-projection"))


def pytest_collection_finish() -> None:
    """What is there before the first test stays: collections of garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
