import copy
import functools
import json
import pathlib
import pickle

import gpytorch
import mpmath
import pytest
import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import (
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)

from gpytorch_gam.kernels import ANOVAKernel, Empirical, Normal, Uniform
from gpytorch_gam.kernels.anova_kernel import _RBFANOVAMatrix, rbf_anova_matrix

CASES = json.loads((pathlib.Path(__file__).parents[1] / "fixtures" / "cases.json").read_text())["anova_kernel"]

# Made anew each time: converting a kernel converts its measure.
MEASURES = {
    "uniform": lambda: Uniform(0.0, 1.0),
    "normal": lambda: Normal(0.5, 0.25),
    "empirical": lambda: Empirical([0.0, 0.05, 0.2, 0.25, 0.5, 0.7, 1.0], [1.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0]),
}
# The range of the input is 1 ([0, 1], two standard deviations each side, or all atoms). The form changes at .25 to .36.
LENGTHSCALES = [0.01, 0.05, 0.2, 0.24, 0.26, 0.28, 0.3, 0.35, 1.0, 10.0, 100.0]


def set_lengthscale(kernel, lengthscale):
    """An identity in place of the softplus, so that the lengthscale is the number given in every dtype."""
    kernel.register_constraint("raw_lengthscale", Positive(transform=lambda x: x, inv_transform=lambda x: x))
    kernel.initialize(raw_lengthscale=lengthscale)
    return kernel


def dense(kernel, x1, x2=None):
    return kernel(x1, x2).to_dense()


class MpmathOracle:
    """A kernel centred under a measure, in mpmath's precision; positions and parameters are the floats they are."""

    def __init__(self, measure, profile):
        self.measure, self.profile = measure, profile
        if isinstance(measure, Uniform):
            self.low, self.high = mpmath.mpf(measure.low.item()), mpmath.mpf(measure.high.item())
        elif isinstance(measure, Normal):
            self.centre, self.sd = mpmath.mpf(measure.mean.item()), mpmath.mpf(measure.sd.item())
            self.low, self.high = self.centre - 12 * self.sd, self.centre + 12 * self.sd

    def mean(self, function, *breaks):
        if isinstance(self.measure, Empirical):
            atoms, weights = self.measure.atoms.tolist(), list(map(mpmath.mpf, self.measure.weights.tolist()))
            total = mpmath.fsum(w * function(mpmath.mpf(a)) for a, w in zip(atoms, weights, strict=True))
            return total / mpmath.fsum(weights)
        points = sorted({self.low, self.high, *(b for b in breaks if self.low < b < self.high)})
        if isinstance(self.measure, Uniform):
            return mpmath.quad(function, points) / (self.high - self.low)
        return mpmath.quad(lambda s: function(s) * mpmath.npdf(s, self.centre, self.sd), points)

    def embedding(self, x):
        return self.mean(lambda s: self.profile(x - s), x)

    def double_mean(self):
        """By the distribution of the difference of two independent inputs: triangular, or normal."""
        if isinstance(self.measure, Empirical):
            return self.mean(self.embedding)
        if isinstance(self.measure, Uniform):
            width = self.high - self.low
            return mpmath.quad(lambda t: 2 * (1 - t) * self.profile(width * t), mpmath.linspace(0, 1, 5))
        sd = mpmath.sqrt(2) * self.sd
        return 2 * mpmath.quad(lambda r: self.profile(r) * mpmath.npdf(r, 0, sd), mpmath.linspace(0, 12 * sd, 9))

    def matrix(self, points):
        points = [mpmath.mpf(x) for x in points]
        embeddings, double_mean = [self.embedding(x) for x in points], self.double_mean()
        return [
            [self.profile(x - y) - mx * my / double_mean for y, my in zip(points, embeddings, strict=True)]
            for x, mx in zip(points, embeddings, strict=True)
        ]

    def mean_variance(self):
        return self.profile(0) - self.mean(lambda s: self.embedding(s) ** 2) / self.double_mean()


class MpmathRBFOracle(MpmathOracle):
    """The RBF kernel, whose integrals are closed forms."""

    def __init__(self, measure, lengthscale):
        self.lengthscale = mpmath.mpf(lengthscale)
        super().__init__(measure, lambda r: mpmath.exp(-(r**2) / 2 / self.lengthscale**2))

    def embedding(self, x):
        if isinstance(self.measure, Uniform):
            root = mpmath.sqrt(2) * self.lengthscale
            difference = mpmath.erf((self.high - x) / root) - mpmath.erf((self.low - x) / root)
            return self.lengthscale * mpmath.sqrt(mpmath.pi / 2) / (self.high - self.low) * difference
        if isinstance(self.measure, Normal):
            variance = self.lengthscale**2 + self.sd**2
            return self.lengthscale / mpmath.sqrt(variance) * mpmath.exp(-((x - self.centre) ** 2) / 2 / variance)
        return super().embedding(x)

    def double_mean(self):
        if isinstance(self.measure, Uniform):
            width = (self.high - self.low) / self.lengthscale
            area = width * mpmath.sqrt(mpmath.pi / 2) * mpmath.erf(width / mpmath.sqrt(2))
            return 2 / width**2 * (area + mpmath.expm1(-(width**2) / 2))
        if isinstance(self.measure, Normal):
            return self.lengthscale / mpmath.sqrt(self.lengthscale**2 + 2 * self.sd**2)
        return super().double_mean()


def relative_error(computed, exact):
    """The largest error relative to sqrt(k0(x, x) k0(y, y)), the bound on a covariance."""
    scale = [mpmath.sqrt(exact[i][i]) for i in range(len(exact))]
    return max(
        float(abs(value - exact[i][j]) / (scale[i] * scale[j]))
        for i, row in enumerate(computed.tolist())
        for j, value in enumerate(row)
    )


def diagonal_error(computed, exact):
    return max(float(abs(value / exact[i][i] - 1)) for i, value in enumerate(computed.tolist()))


@functools.lru_cache
def exact_rbf(name, lengthscale, points):
    with mpmath.workdps(50):
        oracle = MpmathRBFOracle(MEASURES[name](), lengthscale)
        return oracle.matrix(points)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengthscale", LENGTHSCALES)
@pytest.mark.parametrize("name", MEASURES)
def test_rbf_is_accurate_from_short_to_long_lengthscales(name, lengthscale, dtype):
    measure = MEASURES[name]()
    lengthscale = torch.tensor(lengthscale).item()  # a number that float32 holds
    x = torch.tensor([0.0, 1e-3, 0.25, 0.499, measure.mean.item(), 0.51, 0.8, 1.0, 1.3, -2.0]).to(dtype)
    exact = exact_rbf(name, lengthscale, tuple(x.float().tolist()))
    x = x.float().to(dtype).unsqueeze(-1)
    kernel = ANOVAKernel(set_lengthscale(RBFKernel(), lengthscale), measure, normalize=False).to(dtype)
    matrix, diagonal = dense(kernel, x).detach(), kernel(x, diag=True).detach()
    assert matrix.dtype == diagonal.dtype == dtype
    assert bool((matrix.diagonal() > 0).all())
    assert bool((diagonal > 0).all())
    assert relative_error(matrix, exact) < (1e-5 if dtype == torch.float32 else 1e-12)
    assert diagonal_error(diagonal, exact) < (1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("lengthscale", [0.05, 0.24, 0.3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("name", MEASURES)
def test_rbf_at_many_rows_is_that_at_each(name, lengthscale):
    """Without gradients, factors at many rows come from a table; with gradients, they are evaluated in each row."""
    kernel = ANOVAKernel(set_lengthscale(RBFKernel().double(), lengthscale), MEASURES[name]())
    x, z = torch.linspace(-1, 2, 20001, dtype=torch.float64).unsqueeze(-1), torch.rand(5, 1, dtype=torch.float64)
    matrix, variances = dense(kernel, z, x).detach(), [kernel(part, diag=True).detach() for part in (z, x)]
    bound = (variances[0].unsqueeze(-1) * variances[1]).sqrt()
    with torch.no_grad():
        assert ((dense(kernel, z, x) - matrix).abs() < 2e-13 * bound).all()
        # Near the centre, variances fall to 1e-4 of their mean, to which errors are relative in a table.
        torch.testing.assert_close(kernel(x, diag=True), variances[1], rtol=2e-13, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"lengthscale={case['lengthscale']:.2g}")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-8)])
def test_rbf_agrees_with_the_reference_values(case, dtype, tolerance):
    # Relative to sqrt(k0(x, x) k0(y, y)), which at lengthscale 84 is some 2e-5. Float32 cannot hold the positions and
    # the lengthscale, and near the centre rounding those alone may exceed the tolerance: it is the arithmetic that is
    # tested, so the reference is moved to the rounded inputs by the difference of two values of the float64 kernel.
    def kernel(measure):
        return ANOVAKernel(set_lengthscale(RBFKernel().double(), case["lengthscale"]), measure, normalize=False)

    pair = torch.tensor([[case["x"]], [case["y"]]], dtype=torch.float64)
    normal = case["normal"]
    for measure, value in (
        (Uniform(0.0, 1.0), case["uniform01"]),
        (Normal(normal["mean"], normal["sd"]), normal["value"]),
    ):
        double = kernel(measure)
        exact = dense(double, pair)
        bound = (exact[0, 0] * exact[1, 1]).sqrt()
        if dtype == torch.float64:
            assert abs(exact[0, 1].item() - value) < tolerance * bound
        else:
            single = ANOVAKernel(set_lengthscale(RBFKernel(), case["lengthscale"]), measure, normalize=False)
            moved = copy.deepcopy(single).double()
            computed, expected = dense(single, pair.float())[0, 1], dense(moved, pair.float().double())[0, 1]
            assert computed.dtype == torch.float32
            assert abs(computed.item() - (value + (expected - exact[0, 1]).item())) < tolerance * bound
        if isinstance(measure, Uniform):
            assert abs(exact[0, 0].item() / case["uniform01_diagonal_at_x"] - 1) < 1e-8


@pytest.mark.parametrize("lengthscale", [0.05, 0.28, 1.0, 100.0])
@pytest.mark.parametrize("name", MEASURES)
def test_rbf_is_normalised_to_unit_mean_variance(name, lengthscale):
    with mpmath.workdps(30):
        mean_variance = MpmathRBFOracle(MEASURES[name](), lengthscale).mean_variance()
    x = torch.tensor([[0.1], [0.5], [0.7]], dtype=torch.float64)
    base_kernel = set_lengthscale(RBFKernel().double(), lengthscale)
    raw = dense(ANOVAKernel(base_kernel, MEASURES[name](), normalize=False), x)
    torch.testing.assert_close(
        dense(ANOVAKernel(base_kernel, MEASURES[name]()), x), raw / float(mean_variance), rtol=1e-9, atol=1e-12
    )


def matern(nu, lengthscale):
    def profile(r):
        z = mpmath.sqrt(2 * nu) * abs(r) / lengthscale
        return {0.5: 1, 1.5: 1 + z, 2.5: 1 + z + z**2 / 3}[nu] * mpmath.exp(-z)

    return set_lengthscale(MaternKernel(nu=nu), lengthscale), profile


def rational_quadratic(lengthscale):
    kernel = set_lengthscale(RQKernel(), lengthscale)
    kernel.register_constraint("raw_alpha", Positive(transform=lambda x: x, inv_transform=lambda x: x))
    kernel.initialize(raw_alpha=1.5)
    return kernel, lambda r: (1 + r**2 / (3 * mpmath.mpf(lengthscale) ** 2)) ** mpmath.mpf(-1.5)


def periodic(lengthscale):
    kernel = set_lengthscale(PeriodicKernel(), lengthscale)
    kernel.register_constraint("raw_period_length", Positive(transform=lambda x: x, inv_transform=lambda x: x))
    kernel.initialize(raw_period_length=0.375)
    return kernel, lambda r: mpmath.exp(-2 * mpmath.sin(mpmath.pi * r / 0.375) ** 2 / lengthscale)


GENERAL = {
    "matern12-short": lambda: matern(0.5, 2.0**-6),
    "matern12-long": lambda: matern(0.5, 64.0),
    "matern32-middle": lambda: matern(1.5, 0.25),
    "matern52-short": lambda: matern(2.5, 2.0**-6),
    "matern52-long": lambda: matern(2.5, 64.0),
    "rq-short": lambda: rational_quadratic(2.0**-6),
    "rq-long": lambda: rational_quadratic(64.0),
    "periodic": lambda: periodic(0.5),
}


@pytest.mark.parametrize("base", GENERAL)
@pytest.mark.parametrize("name", MEASURES)
def test_other_stationary_kernels_are_accurate(name, base):
    base_kernel, profile = GENERAL[base]()
    measure = MEASURES[name]()
    points = [0.0, 0.25, 0.5, 0.8125, 1.5]
    with mpmath.workdps(25):
        exact = MpmathOracle(measure, profile).matrix(points)
    x = torch.tensor(points).unsqueeze(-1)
    num_nodes = 256 if base == "periodic" else 48  # eleven periods within the reach of the normal distribution
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        kernel = ANOVAKernel(copy.deepcopy(base_kernel), measure, False, num_quadrature_nodes=num_nodes).to(dtype)
        matrix, diagonal = dense(kernel, x.to(dtype)).detach(), kernel(x.to(dtype), diag=True).detach()
        assert matrix.dtype == dtype
        assert bool((diagonal > 0).all())
        assert relative_error(matrix, exact) < tolerance
        assert diagonal_error(diagonal, exact) < tolerance


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("base_kernel", [RBFKernel(), MaternKernel(), PeriodicKernel(), RBFKernel() * CosineKernel()])
@pytest.mark.parametrize("name", MEASURES)
def test_components_integrate_to_zero(name, base_kernel, normalize):
    num_nodes = 48 if isinstance(base_kernel, (RBFKernel, MaternKernel)) else 128
    kernel = ANOVAKernel(copy.deepcopy(base_kernel), MEASURES[name](), normalize, num_nodes).double()
    x = torch.linspace(-0.5, 1.5, 9, dtype=torch.float64)
    measure = MEASURES[name]()
    nodes, weights = measure.split_quadrature(x, 128)
    nodes = nodes.expand(9, -1)
    values = dense(kernel, x.reshape(9, 1, 1), nodes.unsqueeze(-1)).squeeze(-2)
    assert (values * weights).sum(-1).abs().max() < 1e-10 * values.abs().max()
    nodes, weights = measure.quadrature(128)
    mean_variance = (kernel(nodes.unsqueeze(-1), diag=True) * weights).sum()
    assert mean_variance > 0
    if normalize:
        assert mean_variance.item() == pytest.approx(1.0, abs=1e-9)


def test_too_few_nodes_for_a_periodic_kernel_are_refused():
    base_kernel = PeriodicKernel()
    base_kernel.period_length, base_kernel.lengthscale = 0.1, 0.5
    x = torch.rand(3, 1)
    with pytest.raises(ValueError, match=r"nodes=48 is too few .* period_length 0\.1 .* at least 12[01],"):
        dense(ANOVAKernel(base_kernel, Uniform(0.0, 1.0)), x)
    with pytest.raises(ValueError, match="CosineKernel with period_length"):
        cosine_kernel = CosineKernel()
        cosine_kernel.period_length = 0.01
        dense(ANOVAKernel(RBFKernel() * cosine_kernel, Normal(0.0, 1.0)), x)
    assert dense(ANOVAKernel(base_kernel, Uniform(0.0, 1.0), num_quadrature_nodes=128), x).shape == (3, 3)
    assert dense(ANOVAKernel(base_kernel, Empirical([0.0, 0.3, 1.0])), x).shape == (3, 3)


def test_long_lengthscales_tend_to_a_linear_function():
    kernel = ANOVAKernel(set_lengthscale(RBFKernel(), 1e8), Uniform(0.0, 1.0))
    x = torch.rand(5, 1)
    expected = (x - 0.5) @ (x - 0.5).mT * 12  # the variance of the input is 1 / 12
    torch.testing.assert_close(dense(kernel, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lengthscale", [0.01, 0.3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("base", [RBFKernel, MaternKernel, RQKernel])
@pytest.mark.parametrize("name", MEASURES)
def test_far_inputs_have_finite_values_and_gradients(name, base, lengthscale):
    base_kernel = set_lengthscale(base(), lengthscale)
    kernel = ANOVAKernel(base_kernel, MEASURES[name](), normalize=False)
    x = torch.tensor([[0.5], [0.2], [1e6], [-1e6], [1e30], [5.0], [40.0], [41.0], [1e6 + 1]]).requires_grad_()
    matrix, diagonal = dense(kernel, x), kernel(x, diag=True)
    for value in (matrix, diagonal):
        gradients = torch.autograd.grad(value.sum(), [x, base_kernel.raw_lengthscale], retain_graph=True)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in (value, *gradients))
    assert bool((diagonal > 0).all())
    # Millions of lengthscales away from the measure the centring has no effect.
    if lengthscale <= 1e4:
        torch.testing.assert_close(
            matrix[2, 8], dense(base_kernel.double(), x[[2]].double(), x[[8]].double())[0, 0].float()
        )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("lengthscale", [0.05, 0.2, 0.7, 8.0])
@pytest.mark.parametrize("base", [RBFKernel, MaternKernel, RQKernel])
@pytest.mark.parametrize("name", MEASURES)
def test_gradients_of_inputs_and_hyperparameters(name, base, lengthscale, normalize):
    kernel = ANOVAKernel(base().double(), MEASURES[name](), normalize=normalize, num_quadrature_nodes=24).double()
    parameter_name = "base_kernel.raw_lengthscale"
    kernel.base_kernel.lengthscale = lengthscale
    raw = kernel.base_kernel.raw_lengthscale.detach().clone().requires_grad_()
    x1 = torch.tensor([[0.1], [0.55], [1.4]], dtype=torch.float64, requires_grad=True)
    x2 = torch.tensor([[0.12], [0.9]], dtype=torch.float64, requires_grad=True)

    class Evaluate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = kernel

        def forward(self, x1, x2, diag):
            if diag:
                return self.kernel.forward(x1[:2], x2, diag=True)
            return self.kernel.forward(x1, x2)

    module = Evaluate()

    def evaluate(raw, x1, x2, diag=False):
        return torch.func.functional_call(module, {f"kernel.{parameter_name}": raw}, (x1, x2, diag))

    # Entries go down to l^-4: the numerical derivative is taken of the matrix relative to its largest entry.
    scale = evaluate(raw, x1, x2).abs().max().item()
    for diag in (False, True):
        assert torch.autograd.gradcheck(
            lambda *inputs, diag=diag: evaluate(*inputs, diag) / scale,
            (raw, x1, x2),
            eps=1e-5,
            atol=1e-5,
            rtol=1e-4,
            fast_mode=True,
        )


@pytest.mark.parametrize("batch_shapes", [((), ()), ((2,), (2,)), ((2,), ()), ((3, 1), (2,))])
def test_the_hand_written_backward_is_that_of_the_plain_function(batch_shapes):
    generator = torch.Generator().manual_seed(1)
    input_batch, parameter_batch = batch_shapes
    shapes = [
        (*input_batch, 3, 1),
        (*input_batch, 1, 4),
        (*parameter_batch, 1, 1),
        (*parameter_batch, 1, 1),
        (*torch.broadcast_shapes(input_batch, parameter_batch), 3, 1),
        (*torch.broadcast_shapes(input_batch, parameter_batch), 1, 4),
        (*torch.broadcast_shapes(input_batch, parameter_batch), 3, 2),
        (*torch.broadcast_shapes(input_batch, parameter_batch), 2, 4),
    ]
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    inputs[2] = -inputs[2].abs()
    inputs = [tensor.requires_grad_() for tensor in inputs]
    torch.testing.assert_close(_RBFANOVAMatrix.apply(*inputs), rbf_anova_matrix(*inputs))
    assert torch.autograd.gradcheck(_RBFANOVAMatrix.apply, inputs)
    assert torch.autograd.gradgradcheck(_RBFANOVAMatrix.apply, inputs)


def test_float32_gradients_are_those_of_float64():
    x1, x2 = torch.rand(4, 20, 1), torch.rand(4, 30, 1)
    weights = torch.randn(4, 20, 30)
    base_kernel = RBFKernel(batch_shape=torch.Size([4]))
    base_kernel.lengthscale = torch.tensor([0.05, 0.2, 1.0, 5.0]).reshape(4, 1, 1)
    single = ANOVAKernel(base_kernel, Uniform(0.0, 1.0))
    double = copy.deepcopy(single).double()
    (dense(single, x1, x2) * weights).sum().backward()
    (dense(double, x1.double(), x2.double()) * weights.double()).sum().backward()
    expected = double.base_kernel.raw_lengthscale.grad.float()
    torch.testing.assert_close(single.base_kernel.raw_lengthscale.grad, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("base", [RBFKernel, MaternKernel])
@pytest.mark.parametrize("name", MEASURES)
def test_float64_inputs_give_float64_results_on_float32_parameters(name, base):
    # With the identity for softplus, which GPyTorch evaluates in the dtype of the parameters.
    single = ANOVAKernel(set_lengthscale(base(), 0.3), MEASURES[name]()).float()
    double = copy.deepcopy(single).double()
    x = torch.rand(6, 1, dtype=torch.float64)
    torch.testing.assert_close(single.forward(x, x), double.forward(x, x), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(single(x, diag=True), double(x, diag=True), rtol=1e-13, atol=1e-13)
    assert single.forward(x, x).dtype == torch.float64
    assert single.forward(x.float(), x.float()).dtype == torch.float32


def test_components_in_a_batch_are_the_components_alone():
    lengthscales, lows, highs = [0.1, 0.7, 20.0], [0.0, -3.0, 5.0], [1.0, 1.0, 7.0]
    base_kernel = set_lengthscale(RBFKernel(batch_shape=torch.Size([3])), torch.tensor(lengthscales).reshape(3, 1, 1))
    kernel = ANOVAKernel(base_kernel, Uniform(torch.tensor(lows), torch.tensor(highs)))
    x1, x2 = torch.rand(2, 3, 4, 1), torch.rand(2, 3, 5, 1)
    matrix, diagonal = dense(kernel, x1, x2), kernel(x1, diag=True)
    assert matrix.shape == torch.Size([2, 3, 4, 5])
    for component in range(3):
        alone = ANOVAKernel(
            set_lengthscale(RBFKernel(), lengthscales[component]), Uniform(lows[component], highs[component])
        )
        torch.testing.assert_close(matrix[:, component], dense(alone, x1[:, component], x2[:, component]))
        torch.testing.assert_close(diagonal[:, component], alone(x1[:, component], diag=True))
    shared = dense(kernel, x1[0, 0])
    assert shared.shape == torch.Size([3, 4, 4])


@pytest.mark.parametrize("lengthscale", [0.2, 3.0])
def test_products_of_kernels_are_orthogonal_to_both_main_effects(lengthscale):
    batch_shape = torch.Size([2])

    def factor(column):
        base_kernel = RBFKernel(batch_shape=batch_shape, active_dims=[column])
        base_kernel.lengthscale = lengthscale
        return ANOVAKernel(base_kernel, Uniform(torch.zeros(2), torch.tensor([1.0, 2.0])))

    kernel = (factor(0) * factor(1)).double()
    high = torch.tensor([1.0, 2.0], dtype=torch.float64).reshape(2, 1, 1)
    nodes, weights = Uniform(0.0, 1.0).quadrature(16)
    grid = torch.cartesian_prod(nodes, nodes) * high  # (2, 32^2, 2)
    x = torch.tensor([[0.1, 0.3], [0.9, 0.6]], dtype=torch.float64) * high
    covariance = dense(kernel, x, grid).unflatten(-1, (32, 32))
    for axis in (-1, -2):
        integral = covariance.movedim(axis, -1) @ weights
        assert integral.abs().max() < 1e-12
    variance = kernel(grid, diag=True).unflatten(-1, (32, 32)) @ weights @ weights
    torch.testing.assert_close(variance, torch.ones(2, dtype=torch.float64))


def test_a_scale_inside_scales_the_unnormalised_kernel():
    for base_kernel in (RBFKernel(batch_shape=torch.Size([2])), MaternKernel(batch_shape=torch.Size([2]))):
        scaled = ScaleKernel(base_kernel, batch_shape=torch.Size([2]))
        scaled.outputscale = torch.tensor([0.5, 3.0])
        x = torch.rand(2, 5, 1)
        inside = dense(ANOVAKernel(scaled, Uniform(0.0, 1.0), normalize=False), x)
        outside = dense(ANOVAKernel(base_kernel, Uniform(0.0, 1.0), normalize=False), x)
        torch.testing.assert_close(inside, outside * torch.tensor([0.5, 3.0]).reshape(2, 1, 1))


def test_a_scale_outside_indexes_with_the_kernel():
    base_kernel = RBFKernel(batch_shape=torch.Size([3]))
    base_kernel.lengthscale = torch.tensor([0.1, 0.5, 2.0]).reshape(3, 1, 1)
    kernel = ScaleKernel(ANOVAKernel(base_kernel, Uniform(torch.zeros(3), 1.0)), batch_shape=torch.Size([3]))
    x = torch.rand(3, 4, 1)
    torch.testing.assert_close(dense(kernel[2], x[2]), dense(kernel, x)[2])
    torch.testing.assert_close(kernel(x)[1, :2].to_dense(), dense(kernel, x)[1, :2])


def test_copies_after_a_backward_pass_are_equal():
    kernel = ANOVAKernel(RBFKernel(lengthscale_constraint=Interval(0.01, 10.0)), Empirical([0.0, 0.5, 0.6]))
    x = torch.rand(5, 1)
    dense(kernel, x).sum().backward()
    torch.testing.assert_close(dense(copy.deepcopy(kernel), x), dense(kernel, x))
    torch.testing.assert_close(
        dense(pickle.loads(pickle.dumps(ANOVAKernel(RBFKernel(), Uniform(0, 1)))), x).shape, (5, 5)
    )


def test_changed_hyperparameters_take_effect_at_once():
    kernel = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0)).eval()
    x = torch.rand(5, 1)
    before = dense(kernel, x)
    kernel.base_kernel.lengthscale = 0.1
    assert (dense(kernel, x) - before).abs().max() > 0.1


def test_trace_mode_uses_plain_operations():
    kernel = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0))
    x = torch.rand(5, 1)
    with gpytorch.settings.trace_mode(), torch.no_grad():
        torch.testing.assert_close(kernel.forward(x, x), dense(kernel, x))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("name", "base"), [*((name, RBFKernel) for name in MEASURES), ("uniform", MaternKernel)])
def test_evaluation_compiles_without_graph_breaks(name, base):
    kernel = ANOVAKernel(base(batch_shape=torch.Size([2])), MEASURES[name]())
    x1, x2 = torch.rand(2, 3, 1), torch.rand(2, 4, 1)
    compiled = torch.compile(lambda a, b: kernel.forward(a, b), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x1, x2), kernel.forward(x1, x2))


def test_exact_gp_trains_on_a_sum_of_components():
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    y = torch.sin(6 * x[:, 0]) + x[:, 1]

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0, 1), active_dims=[0])) + ScaleKernel(
                ANOVAKernel(MaternKernel(), Uniform(0, 1), active_dims=[1])
            )

        def forward(self, inputs):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("construct", "error", "message"),
    [
        (lambda: ANOVAKernel(torch.nn.Linear(1, 1), Uniform(0, 1)), TypeError, "base_kernel must be a gpytorch Kernel"),
        (lambda: ANOVAKernel(RBFKernel(), (0, 1)), TypeError, "measure must be a Measure .* got tuple"),
        (lambda: ANOVAKernel(LinearKernel(), Uniform(0, 1)), ValueError, "LinearKernel is not; use RBFKernel"),
        (lambda: ANOVAKernel(RBFKernel(ard_num_dims=2), Uniform(0, 1)), ValueError, "ard_num_dims=2"),
        (lambda: ANOVAKernel(RBFKernelGrad(), Uniform(0, 1)), ValueError, "RBFKernelGrad has several"),
        (lambda: ANOVAKernel(ScaleKernel(RBFKernel()), Uniform(0, 1)), ValueError, "put it outside"),
        (
            lambda: ANOVAKernel(RBFKernel(batch_shape=torch.Size([6])), Uniform(torch.zeros(5), 1.0)),
            ValueError,
            r"Uniform has batch shape \(5,\), which does not cover base_kernel's batch shape \(6,\)",
        ),
        (lambda: ANOVAKernel(RBFKernel(), Uniform(0, 1), active_dims=[0, 1]), ValueError, r"one column, got \[0, 1\]"),
        (lambda: ANOVAKernel(RBFKernel(active_dims=[0]), Uniform(0, 1), active_dims=[1]), ValueError, "given both"),
        (
            lambda: ANOVAKernel(RBFKernel(active_dims=[0]) * RBFKernel(active_dims=[1]), Uniform(0, 1)),
            ValueError,
            "parts with active_dims",
        ),
        (lambda: ANOVAKernel(RBFKernel(), Uniform(0, 1), num_quadrature_nodes=0), ValueError, "at least 1, got 0"),
        (
            lambda: dense(ANOVAKernel(RBFKernel(), Uniform(0, 1)), torch.rand(4, 2)),
            ValueError,
            "one column, but x has 2",
        ),
    ],
)
def test_invalid_arguments_are_named(construct, error, message):
    with pytest.raises(error, match=message):
        construct()


def test_last_dim_is_batch_names_the_replacement():
    kernel = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="unsqueeze"):
        kernel.forward(torch.rand(4, 1), torch.rand(4, 1), last_dim_is_batch=True)
