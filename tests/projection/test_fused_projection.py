"""Fused projections against kernel matrices, and the kernels that they know."""

from __future__ import annotations

import functools
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, settings
from gpytorch_gam.components import regular_grid
from gpytorch_gam.components.group_projection import project_components, project_sum
from gpytorch_gam.kernels import ANOVAKernel, Empirical, Normal, Uniform
from gpytorch_gam.projection import separable_form as form_module
from gpytorch_gam.projection.blockwise import (
    BlockwiseProjection,
    ProjectionInputs,
    fused_projection,
    kernel_values,
    plain_kernel,
    plain_projection,
)
from gpytorch_gam.projection.separable_form import LocalShape, separable_form
from gpytorch_gam.terms import constant

from .projection_cases import converted, make_inputs

SIZE = torch.Size([3])
UNIFORM = Uniform(0.0, 1.0)


def scaled(kernel: Kernel) -> ScaleKernel:
    return ScaleKernel(kernel, batch_shape=SIZE)


def matern(nu: float) -> MaternKernel:
    return MaternKernel(nu, batch_shape=SIZE)


def periodic() -> PeriodicKernel:
    return PeriodicKernel(batch_shape=SIZE)


def rbf(**kwargs: object) -> RBFKernel:
    return RBFKernel(batch_shape=SIZE, **kwargs)


KNOWN: dict[str, tuple[Callable[[], Kernel], int]] = {
    "rbf": (lambda: scaled(rbf()), 1),
    "unscaled": (rbf, 1),
    "matern12": (lambda: scaled(matern(0.5)), 1),
    "matern32": (lambda: scaled(matern(1.5)), 1),
    "matern52": (lambda: scaled(matern(2.5)), 1),
    "periodic": (lambda: scaled(periodic()), 1),
    "anova rbf": (lambda: scaled(ANOVAKernel(rbf(), UNIFORM)), 1),
    "anova rbf, normal": (lambda: scaled(ANOVAKernel(rbf(), Normal(0.4, 0.2))), 1),
    "anova rbf, empirical": (lambda: scaled(ANOVAKernel(rbf(), Empirical(torch.rand(7).double()))), 1),
    "anova rbf, not normalized": (lambda: ANOVAKernel(scaled(rbf()), UNIFORM, normalize=False), 1),
    "anova matern12": (lambda: scaled(ANOVAKernel(matern(0.5), UNIFORM)), 1),
    "anova matern32": (lambda: scaled(ANOVAKernel(matern(1.5), UNIFORM)), 1),
    "anova matern52": (lambda: scaled(ANOVAKernel(matern(2.5), Normal(0.5, 0.3))), 1),
    "anova periodic": (lambda: scaled(ANOVAKernel(periodic(), UNIFORM)), 1),
    "rbf of two columns": (lambda: scaled(rbf()), 2),
    "rbf with two lengthscales": (lambda: scaled(rbf(ard_num_dims=2)), 2),
    "anova interaction": (
        lambda: scaled(
            ANOVAKernel(rbf(), UNIFORM, active_dims=[0]) * ANOVAKernel(matern(2.5), UNIFORM, active_dims=[1])
        ),
        2,
    ),
    "product of scaled": (lambda: scaled(scaled(rbf(active_dims=[1])) * PeriodicKernel(active_dims=[0])), 2),
    "column chosen outside": (lambda: ScaleKernel(rbf(), batch_shape=SIZE, active_dims=[1]), 2),
    "shared hyperparameters": (lambda: ScaleKernel(RBFKernel()), 1),
}


def make_kernel(name: str) -> tuple[Kernel, int]:
    make, num_columns = KNOWN[name]
    kernel = make().double()
    for parameter in kernel.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return kernel, num_columns


def make_tensors(num_columns: int) -> list[Tensor]:
    """Inducing points, data, shared and block weights, multipliers."""
    shapes = (3, 5, num_columns), (3, 17, num_columns), (3, 5, 4), (3, 5, 2), (3, 17)
    return [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kept_numbers", [0, 2**23])
@pytest.mark.parametrize("name", KNOWN)
def test_values_and_gradients_equal_those_of_the_kernel_matrix(name: str, kept_numbers: int) -> None:
    kernel, num_columns = make_kernel(name)
    z, x, shared, block, multiplier = tensors = make_tensors(num_columns)
    form = separable_form(kernel, z, x)
    assert form is not None
    backend = BlockwiseProjection(block_numbers=40, kept_numbers=kept_numbers)  # two or three rows at a time
    actual = (*fused_projection(ProjectionInputs(form.factors, shared, block, multiplier), backend), form.variance)

    matrix = kernel(z, x).to_dense() * multiplier.unsqueeze(-2)
    expected = (
        torch.einsum("cms,cmn->sn", shared, matrix),
        (block.mT @ matrix).square().sum((0, 1)),
        kernel(x, diag=True).expand(3, 17),
    )
    upstream = [torch.randn_like(value) for value in expected]
    leaves = [*tensors, *kernel.parameters()]
    for result, truth in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-10, atol=1e-12)
    # The columns that a kernel leaves out get no gradient from one of the two, zero from the other.
    totals = [sum((v * u).sum() for v, u in zip(values, upstream, strict=True)) for values in (actual, expected)]
    grads = [torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True) for total in totals]
    for result, truth in zip(*grads, strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-9, atol=1e-10 * float(truth.abs().max() + 1))


@pytest.mark.parametrize("name", ["rbf", "matern52", "periodic", "anova rbf", "anova interaction"])
def test_first_and_second_derivatives(name: str) -> None:
    kernel, num_columns = make_kernel(name)
    z, x, shared, block, _ = make_tensors(num_columns)
    with torch.no_grad():
        form = separable_form(kernel, z[:, :3], x[:, :4])
    shapes = tuple(factor.shape for factor in form.factors)
    flat = ProjectionInputs(form.factors, shared[:, :3], block[:, :3], None).flat()
    leaves = [None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in flat]

    def function(*present: Tensor) -> tuple[Tensor, Tensor]:
        found = iter(present)
        inputs = ProjectionInputs.from_flat(shapes, [None if leaf is None else next(found) for leaf in leaves])
        return fused_projection(inputs, BlockwiseProjection(20))

    present = [leaf for leaf in leaves if leaf is not None]
    assert torch.autograd.gradcheck(function, present, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, present, fast_mode=True)


@pytest.mark.parametrize("lengthscale", [0.05, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("name", [name for name in KNOWN if name != "product of scaled"])
def test_float32_is_as_accurate_as_rounding_allows(name: str, lengthscale: float) -> None:
    if "periodic" in name and lengthscale < 0.3:
        pytest.skip("too short for the quadrature of periodic kernels")
    kernel, num_columns = make_kernel(name)
    for module in kernel.modules():
        if isinstance(module, RBFKernel | MaternKernel | PeriodicKernel):
            module.lengthscale = lengthscale
    z, x, *_ = (tensor.detach().float() for tensor in make_tensors(num_columns))
    variance = kernel(x.double(), diag=True).expand(3, 17)
    exact = kernel(z.double(), x.double()).to_dense()
    z_variance = kernel(z.double(), diag=True).expand(3, 5)
    kernel.float()
    form = separable_form(kernel, z, x)
    identity = torch.eye(5).expand(3, 5, 5)
    matrices = [
        fused_projection(
            ProjectionInputs(form.factors, identity * (torch.arange(3) == c)[:, None, None], None, None),
            BlockwiseProjection(),
        )[0]
        for c in range(3)
    ]
    scale = (z_variance.unsqueeze(-1) * variance.unsqueeze(-2)).sqrt()
    # Hyperparameters are rounded as well, which counts for as much as they are multiplied by.
    assert ((torch.stack(matrices).double() - exact).abs() / scale).max() < 2e-5
    torch.testing.assert_close(form.variance.double(), variance, rtol=2e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_product", [False, True])
@pytest.mark.parametrize("shape", LocalShape)
def test_values_without_gradients_are_those_with_them(shape: LocalShape, has_product: bool, dtype: torch.dtype) -> None:
    inputs = converted(make_inputs((shape, LocalShape.RBF), products=(has_product, False)), dtype)
    before = [None if tensor is None else tensor.clone() for tensor in inputs.flat()]
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        kernel_values(inputs.factors), plain_kernel(inputs.factors), rtol=tolerance, atol=tolerance
    )
    assert all(
        old is new or torch.equal(old, new) for old, new in zip(before, inputs.flat(), strict=True)
    )  # and nothing is written to


@pytest.mark.parametrize("name", KNOWN)
def test_inducing_points_in_double_precision_with_hyperparameters_in_float32(name: str) -> None:
    kernel, num_columns = make_kernel(name)
    kernel.float()
    z = torch.rand(3, 5, num_columns).double().requires_grad_()
    form = separable_form(kernel, z, z)
    assert form is not None
    actual, expected = plain_kernel(form.factors), kernel(z).to_dense().expand(3, 5, 5)
    # GPyTorch's distances are off by 1e-8, and it divides periods in float32.
    tolerance = 1e-5 if "periodic" in name or "product" in name else 1e-8
    torch.testing.assert_close(actual, expected, rtol=10 * tolerance, atol=tolerance)
    upstream = torch.randn_like(actual)
    leaves = [z, *kernel.parameters()]
    for result, truth in zip(
        torch.autograd.grad(actual, leaves, upstream), torch.autograd.grad(expected, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


class OwnKernel(RBFKernel):
    """Unknown, although it is an RBF kernel by birth."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        return 2 * super().forward(x1, x2, diag=diag, **params)


def patched() -> Kernel:
    kernel = RBFKernel()
    kernel.forward = functools.partial(OwnKernel.forward, OwnKernel())
    return ScaleKernel(kernel)


UNKNOWN: dict[str, tuple[Callable[[], Kernel], int]] = {
    "rational quadratic": (lambda: ScaleKernel(RQKernel()), 1),
    "sum": (lambda: AdditiveKernel(RBFKernel(), MaternKernel()), 1),
    "polynomial": (lambda: PolynomialKernel(2), 1),
    "matern of two columns": (lambda: MaternKernel(), 2),
    "rbf of three columns": (lambda: RBFKernel(), 3),
    "subclass": (lambda: ScaleKernel(OwnKernel()), 1),
    "forward replaced": (patched, 1),
    "anova of rational quadratic": (lambda: ANOVAKernel(RQKernel(), UNIFORM), 1),
    "no columns": (lambda: ConstantKernel(), 0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_kernels_take_the_plain_path(name: str) -> None:
    make, num_columns = UNKNOWN[name]
    kernel = make().double()
    columns = [list(range(num_columns))] * 3
    group = ComponentGroup(kernel, columns, torch.rand(3, 5, num_columns).double(), names=["a", "b", "c"])
    x, shared, block = torch.rand(17, 4).double(), torch.randn(3, 5, 4).double(), torch.randn(3, 5, 2).double()
    assert separable_form(kernel, group.inducing_points, group.select(x)) is None
    check_against_plain(group, x, shared, block)


def check_against_plain(group: ComponentGroup, x: Tensor, shared: Tensor, block: Tensor | None) -> None:
    actual, by_component = project_sum(group, x, shared, block), project_components(group, x, shared, block)
    with settings.fused_projection("off"):
        expected, expected_components = (
            project_sum(group, x, shared, block),
            project_components(group, x, shared, block),
        )
    for result, truth in zip((*actual, *by_component), (*expected, *expected_components), strict=True):
        torch.testing.assert_close(result, truth)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("kernel_batch", [(), (2,)])
@pytest.mark.parametrize("weight_batch", [(), (2,), (4, 2)])
def test_batches(grad: bool, batch: tuple, kernel_batch: tuple, weight_batch: tuple) -> None:
    size = torch.Size([*kernel_batch, 3])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size).double()
    group = ComponentGroup(kernel, [[0], [1], [2]], regular_grid(0.0, 1.0, 5).double(), by=[None, 1, None])
    x = torch.rand(*batch, 17, 4).double()
    shared, block = torch.randn(*weight_batch, 3, 5, 4).double(), torch.randn(*weight_batch, 3, 5, 2).double()
    with torch.set_grad_enabled(grad):
        check_against_plain(group, x, shared, block)


def test_the_setting_takes_known_values_only_and_is_put_back() -> None:
    with pytest.raises(ValueError, match="fused_projection takes one of"):
        settings.fused_projection("fast")
    with pytest.raises(ValueError, match="tensor_core_precision takes one of"):
        settings.tensor_core_precision("half")
    before = settings.fused_projection.value()
    with settings.fused_projection("off"):
        assert settings.fused_projection.value() == "off"
    assert settings.fused_projection.value() == before


def test_functions_of_the_data_are_evaluated_again_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = make_kernel("anova rbf")
    z, x, *_ = make_tensors(1)
    whole = separable_form(kernel, z, x)
    monkeypatch.setattr(form_module, "_CHUNK_SIZE", 4)
    monkeypatch.setattr(form_module, "_CHUNK_ELEMENTS", 4)
    pieces = separable_form(kernel, z, x)
    upstream = torch.randn_like(whole.factors[0].right)
    leaves = [x, *kernel.parameters()]
    torch.testing.assert_close(pieces.factors[0].right, whole.factors[0].right)
    for result, truth in zip(
        torch.autograd.grad(pieces.factors[0].right, leaves, upstream, allow_unused=True),
        torch.autograd.grad(whole.factors[0].right, leaves, upstream, allow_unused=True),
        strict=True,
    ):
        assert result is truth is None or torch.allclose(result, truth)


@pytest.mark.parametrize("name", ["anova rbf", "anova matern32"])
def test_evaluating_again_takes_the_tensors_of_the_forward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_module, "_CHUNK_SIZE", 4)
    monkeypatch.setattr(form_module, "_CHUNK_ELEMENTS", 4)
    kernel, _ = make_kernel(name)
    kernel.base_kernel.measure = Uniform(torch.zeros(()), torch.ones(()))
    z, x, *_ = make_tensors(1)

    class Right(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self) -> Tensor:
            return separable_form(self.kernel, z, x).factors[0].right

    others = {name: torch.nn.Parameter(value + 0.5) for name, value in Right().named_parameters()}
    others["kernel.base_kernel.measure.high"] = torch.tensor(1.5)
    actual = torch.func.functional_call(Right(), others, ())
    upstream = torch.rand_like(actual)
    leaves = [value for value in others.values() if value.requires_grad]
    grads = torch.autograd.grad(actual, leaves, upstream, allow_unused=True)
    monkeypatch.setattr(form_module, "_CHUNK_SIZE", 100)
    expected = torch.func.functional_call(Right(), others, ())
    for grad, truth in zip(grads, torch.autograd.grad(expected, leaves, upstream, allow_unused=True), strict=True):
        assert grad is truth is None or torch.allclose(grad, truth)


def test_a_component_that_is_switched_off_has_finite_gradients() -> None:
    kernel = scaled(rbf())
    group = ComponentGroup(kernel, [[0], [1], [2]], regular_grid(0.0, 1.0, 5))
    kernel.raw_outputscale.data[0] = -110.0
    assert kernel.outputscale[0] == 0
    projection = project_sum(group, torch.rand(4, 3), torch.rand(3, 5, 2), torch.rand(3, 5, 2))
    sum(part.sum() for part in projection).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


def test_transformations_of_functions() -> None:
    kernel, _ = make_kernel("rbf")
    group = ComponentGroup(kernel, [[0], [1], [2]], regular_grid(0.0, 1.0, 5).double())
    x, shared, block = torch.rand(4, 3).double(), torch.rand(3, 5, 2).double(), torch.rand(3, 5, 2).double()

    def function(x: Tensor) -> Tensor:
        projection = project_sum(group, x, shared, block)
        return projection.shared.sum(0) + projection.squares

    expected = torch.autograd.functional.jacobian(function, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(function, x, vectorize=True), expected)


def test_blocks_of_many_inducing_points_are_not_tiny() -> None:
    form = separable_form(rbf(), torch.rand(3, 5, 1), torch.rand(3, 200, 1))
    inputs = ProjectionInputs(form.factors, torch.rand(3, 100_000, 1), None, None)
    assert [block.stop - block.start for block in BlockwiseProjection()._blocks(inputs)] == [64, 64, 64, 8]


def test_little_is_kept_for_the_backward_pass_of_many_rows() -> None:
    kernel, z, x = scaled(rbf()), torch.rand(3, 64, 1), torch.rand(3, 50_000, 1)
    form = separable_form(kernel, z, x)
    inputs = ProjectionInputs(form.factors, torch.rand(3, 64, 4, requires_grad=True), None, None)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.untyped_storage().nbytes()) or t, lambda t: t
    ):
        shared, _ = fused_projection(inputs, BlockwiseProjection())
    assert shared.grad_fn.kept == [None] * len(shared.grad_fn.kept)
    assert max(sizes) <= 3 * 50_000 * 4  # the data themselves
    with settings.fused_projection("off"):
        torch.testing.assert_close(plain_projection(inputs)[0], shared)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled", "delta"])
def test_training_steps_agree(family: str) -> None:
    interaction = scaled(ANOVAKernel(rbf(), UNIFORM, active_dims=[0]) * ANOVAKernel(rbf(), UNIFORM, active_dims=[1]))
    predictor = AdditivePredictor(
        ComponentGroup(scaled(matern(2.5)), [[0], [1], [2]], regular_grid(0.0, 1.0, 8), learn_inducing_locations=True),
        ComponentGroup(interaction, [[0, 1], [0, 2], [1, 2]], regular_grid([0.0, 0.0], [1.0, 1.0], 3)),
        constant(),
    )
    model = AdditiveGP(predictor, family, 4 if "low_rank" in family else None).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=50)
    x = torch.rand(50, 3).double()
    y = torch.sin(6 * x[:, 0])
    grads = []
    for choice in ("auto", "off", "blockwise"):
        with settings.fused_projection(choice):
            model.zero_grad()
            (-mll(model(x), y)).backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    for fused, plain, blockwise in zip(*grads, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-7, atol=1e-9)
        assert torch.equal(fused, blockwise)
