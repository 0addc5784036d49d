"""Code knows when it runs inside of torch.func, and is right, if slower, where torch does not say so."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import Tensor

from gpytorch_gam.numerics import transforms
from tests.problems import make_inputs, make_model


def test_transformations_are_known() -> None:
    seen = []

    def look(tensor: Tensor) -> Tensor:
        seen.append((transforms.is_transformed(), transforms.is_vmapped(tensor)))
        return tensor.sum()

    x = torch.ones(2, 3)
    look(x)
    torch.func.grad(look)(x)
    torch.vmap(look)(x)
    torch.func.grad(lambda y: torch.vmap(look)(y).sum())(x)
    assert seen == [(False, False), (True, False), (True, True), (True, True)]


def test_a_torch_that_does_not_tell_is_served_by_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model("block_low_rank", 4), make_inputs(20)
    expected = model(x)
    loss = expected.mean.sum() + expected.variance.sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    monkeypatch.setattr(transforms, "CAN_TELL", False)
    found = model(x)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    loss = found.mean.sum() + found.variance.sum()
    for ours, theirs in zip(
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True), gradients, strict=True
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs)


def test_a_torch_that_does_not_tell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._functorch", None)
    try:
        with pytest.warns(RuntimeWarning, match="does not say whether code runs inside of torch.func"):
            importlib.reload(transforms)
        assert transforms.is_transformed() and not transforms.is_vmapped(torch.ones(2))
    finally:
        monkeypatch.undo()
        importlib.reload(transforms)
    assert not transforms.is_transformed()
