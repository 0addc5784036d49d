import copy
import pickle

import mpmath
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    RBFKernel,
    RBFKernelGrad,
    RFFKernel,
    RQKernel,
    ScaleKernel,
)

from gpytorch_gam.kernels import (
    ANOVAKernel,
    CentredKernel,
    CentredLinearKernel,
    Empirical,
    LevelKernel,
    OrdinalKernel,
    Uniform,
)

LEVELS = torch.tensor([3.0, -1.0, 0.1, 7.0, 2.0])
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0], dtype=torch.float64)


def points(num_points=20, num_columns=2, batch_shape=()):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*batch_shape, num_points, num_columns, dtype=torch.float64, generator=generator)


def weights(num_points=20):
    return torch.rand(num_points, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def identity_constraint(kernel, name="raw_lengthscale", value=1.0):
    """An identity in place of the softplus, so that the parameter is the number given."""
    kernel.register_constraint(name, Positive(transform=lambda x: x, inv_transform=lambda x: x))
    return kernel.initialize(**{name: value})


def dense_oracle(base, x, y, points, weights, normalize=True):
    """Conditioning by the algebra of joint normal distributions: of f(x), f(y) and the mean, in one matrix."""
    everything = torch.cat([x, y, points], -2)
    joint = base(everything, everything.clone()).to_dense()
    n, m = len(x), len(x) + len(y)
    mean = torch.cat([torch.zeros(m, dtype=x.dtype), weights / weights.sum()])
    with_mean, variance = joint @ mean, mean @ joint @ mean
    conditioned = joint - torch.outer(with_mean, with_mean) / variance
    scale = mean @ conditioned.diagonal() if normalize else 1.0
    return conditioned[:n, n:m] / scale


BASES = {
    "levels": lambda: LevelKernel(active_dims=(0,)),
    "RBF": lambda: RBFKernel().double(),
    "ARD": lambda: RBFKernel(ard_num_dims=2).double(),
    "Matern": lambda: MaternKernel(nu=2.5).double(),
    "of another column": lambda: RQKernel(active_dims=(1,)).double(),
    "sum": lambda: (RBFKernel(active_dims=(0,)) + ScaleKernel(MaternKernel(nu=1.5, active_dims=(1,)))).double(),
    "product": lambda: (RBFKernel(active_dims=(0,)) * MaternKernel(nu=1.5, active_dims=(1,))).double(),
    "linear": lambda: LinearKernel().double(),
    "lines": lambda: CentredLinearKernel(3.0, 2.0, active_dims=(1,)) + CentredLinearKernel(0.0, 1.0, active_dims=(0,)),
}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", BASES)
def test_it_is_the_base_conditioned_on_a_mean_of_zero(name, normalize):
    base, p, w = BASES[name](), points(), weights()
    if name == "levels":
        p = (4 * p).round()
    x, y = p[:6] + 0.25 * (name != "levels"), p[4:12]
    kernel = CentredKernel(base, p, w, normalize=normalize)
    expected = dense_oracle(base, x, y, p, w, normalize)
    # Two roundings of float64, and the differences of rows that GPyTorch expands to squares.
    torch.testing.assert_close(kernel(x, y).to_dense(), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(kernel(x, y[:6], diag=True), expected.diagonal(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", BASES)
def test_the_mean_over_the_points_is_zero_and_that_of_the_variance_one(name):
    base, p, w = BASES[name](), points(), weights()
    if name == "levels":
        p = (4 * p).round()
    x = torch.cat([p[:4], 3 * p[4:8] - 1, 100 * p[8:9]])
    kernel = CentredKernel(base, p, w)
    share = w / w.sum()
    scale = kernel(x, diag=True).sqrt()
    assert ((share @ kernel(p, x).to_dense()).abs() / scale).max() < 1e-12
    assert ((kernel(x, p).to_dense() @ share).abs() / scale).max() < 1e-12
    assert (share @ kernel(p, diag=True)).item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("num_levels", [2, 3, 50])
def test_levels_become_the_factor_that_sums_to_zero(num_levels):
    levels = torch.arange(float(num_levels), dtype=torch.float64) - 3
    kernel = CentredKernel(LevelKernel(), levels)
    x = levels.unsqueeze(-1)
    expected = (torch.eye(num_levels, dtype=x.dtype) - 1 / num_levels) * num_levels / (num_levels - 1)
    covariance = kernel(x).to_dense()
    torch.testing.assert_close(covariance, expected, rtol=1e-14, atol=1e-15)
    assert covariance.sum(-1).abs().max() < 1e-13
    # Without one level it is well conditioned: eigenvalues 1 / (L - 1) and L / (L - 1).
    eigenvalues = torch.linalg.eigvalsh(kernel(x[1:]).to_dense())
    assert eigenvalues.min().item() == pytest.approx(1 / (num_levels - 1), rel=1e-10)
    # The levels kept determine the one left out.
    left_out = kernel(x[:1], x[1:]).to_dense() @ torch.linalg.solve(
        kernel(x[1:]).to_dense(), torch.eye(len(x) - 1).double()
    )
    torch.testing.assert_close(left_out, -torch.ones_like(left_out), rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_are_recognised_in_both_precisions(dtype):
    kernel = CentredKernel(LevelKernel(), LEVELS.double(), WEIGHTS)
    share = WEIGHTS / WEIGHTS.sum()
    for x in (LEVELS.to(dtype), LEVELS.double(), torch.tensor(LEVELS.tolist(), dtype=dtype)):
        covariance = kernel(x.unsqueeze(-1)).to_dense()
        # Rounded at the end.
        assert (share @ covariance.double()).abs().max() < 2 * torch.finfo(covariance.dtype).eps


def test_a_single_and_a_double_fraction_are_one_point():
    kernel = CentredKernel(LevelKernel(), [0.1, 0.2, 0.3])
    expected = kernel(torch.tensor([[0.1], [0.2]], dtype=torch.float64)).to_dense()
    single = torch.tensor([[0.1], [0.2]])
    assert torch.equal(kernel(single).to_dense(), expected.float())
    assert torch.equal(kernel(single.double()).to_dense(), expected)


@pytest.mark.parametrize("lengthscale", [0.01, 0.3, 1.0, 10.0, 100.0])
def test_it_is_accurate_at_long_lengthscales_and_rounded_at_the_end(lengthscale):
    p = torch.linspace(0.0, 1.0, 9).unsqueeze(-1)
    kernel = CentredKernel(identity_constraint(RBFKernel(), value=lengthscale), p)
    with mpmath.workdps(50):
        l2 = 2 * mpmath.mpf(kernel.base_kernel.lengthscale.item()) ** 2
        column = [mpmath.mpf(value) for value in p.squeeze(-1).tolist()]
        base = mpmath.matrix([[mpmath.exp(-((a - b) ** 2) / l2) for b in column] for a in column])
        mean = [mpmath.fsum(base[i, :]) / 9 for i in range(9)]
        double_mean = mpmath.fsum(mean) / 9
        centred = base - mpmath.matrix([[a * b / double_mean for b in mean] for a in mean])
        variance = mpmath.fsum(centred[i, i] for i in range(9)) / 9
        entries = [[float(centred[i, j] / variance) for j in range(9)] for i in range(9)]
    exact = torch.tensor(entries, dtype=torch.float64)
    # The mean variance is one, and was .1 / lengthscale^2 of numbers near one: 1e-16 of these is 1e-11 at 100.
    assert (kernel(p.double()).to_dense() - exact).abs().max() < 1e-10
    covariance = kernel(p).to_dense()
    assert covariance.dtype == torch.float32
    torch.testing.assert_close(covariance.double(), exact, rtol=1.2e-7, atol=1e-10)


def test_the_points_may_be_those_of_an_empirical_measure():
    atoms, w = points(12, 1), weights(12)
    base = RBFKernel().double()
    x = torch.linspace(-1, 2, 7, dtype=torch.float64).unsqueeze(-1)
    one = CentredKernel(base, atoms, w)(x).to_dense()
    other = ANOVAKernel(base, Empirical(atoms.squeeze(-1), w))(x).to_dense()
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["RBF", "ARD", "Matern", "product"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_gradient_in_the_parameters_is_that_of_the_written_out_expression(name, normalize):
    p, w = points(), weights()
    x, y = points(5) + 0.1, points(4) * 2
    coefficients = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for evaluate in (
        lambda base: CentredKernel(base, p, w, normalize=normalize)(x, y).to_dense(),
        lambda base: dense_oracle(base, x, y, p, w, normalize),
    ):
        base = BASES[name]()
        (coefficients * evaluate(base)).sum().backward()
        gradients.append([parameter.grad for parameter in base.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("diag", [False, True])
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_in_lengthscale_and_inputs_are_those_of_differences(normalize, diag):
    p, w = points(6), weights(6)
    base = identity_constraint(MaternKernel(nu=2.5, batch_shape=torch.Size([2])).double())

    class Eager(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = CentredKernel(base, p, w, normalize=normalize)

        def forward(self, x, y):
            result = self.kernel(x, y, diag=diag)
            return result if diag else result.to_dense()

    eager = Eager()

    def covariance(lengthscale, x, y):
        return torch.func.functional_call(eager, {"kernel.base_kernel.raw_lengthscale": lengthscale}, (x, y))

    lengthscale = torch.tensor([[[0.4]], [[2.0]]], dtype=torch.float64)
    x, y = points(3, batch_shape=(2,)) + 0.3, points(3, batch_shape=(2,)) - 0.4
    assert torch.autograd.gradcheck(covariance, [tensor.requires_grad_() for tensor in (lengthscale, x, y)])


def test_parameters_in_single_precision_have_gradients_in_single_precision():
    kernel = ScaleKernel(CentredKernel(RBFKernel(ard_num_dims=2), points(), weights()))
    double = copy.deepcopy(kernel).double()
    x = points(7).float()
    kernel(x).to_dense()[0].sum().backward()
    double(x.double()).to_dense()[0].sum().backward()
    for single, exact in zip(kernel.parameters(), double.parameters(), strict=True):
        assert single.grad.dtype == torch.float32
        torch.testing.assert_close(single.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


class _Projection(Kernel):
    """Matrix products do not promote: it takes inputs of the dtype of its parameters only."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.tensor([[1.0, 0.3], [0.2, 2.0], [-1.0, 1.0]]))

    def forward(self, x1, x2, diag=False, **params):
        left, right = torch.tanh(x1 @ self.matrix.mT), torch.tanh(x2 @ self.matrix.mT)
        return (left * right).sum(-1) if diag else left @ right.mT


@pytest.mark.parametrize("base", [_Projection, lambda: RFFKernel(num_samples=20, num_dims=2)])
def test_kernels_that_do_not_promote_are_evaluated_in_double_precision_too(base):
    torch.manual_seed(0)
    base = base()
    p, x = points().float(), points(6).float() + 1
    kernel = CentredKernel(base, p, weights())
    covariance = kernel(x).to_dense()
    assert covariance.dtype == torch.float32
    exact = CentredKernel(copy.deepcopy(base).double(), p, weights())(x.double()).to_dense()
    torch.testing.assert_close(covariance, exact.float(), rtol=2e-7, atol=1e-7)
    covariance.sum().backward()
    for parameter in base.parameters():
        assert parameter.grad.abs().max() > 0 and parameter.grad.dtype == torch.float32


def test_other_errors_of_the_base_kernel_come_through():
    kernel = CentredKernel(_Projection().double(), points(5, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        kernel(points(4, 3)).to_dense()


@pytest.mark.parametrize(
    "base",
    [
        lambda p: CentredLinearKernel(p[:, 0].mean(), 1.0, active_dims=(0,)),
        lambda p: CentredKernel(RBFKernel().double(), p),
        lambda p: identity_constraint(CosineKernel(active_dims=(1,)).double(), "raw_period_length", 0.5),
    ],
)
def test_what_is_centred_already_stays(base):
    p = points(16)
    p[:, 1] = torch.arange(16) / 16  # one period
    base = base(p)
    kernel = CentredKernel(base, p)
    x = points(5) * 3
    scale = base(p, diag=True).mean()
    torch.testing.assert_close(kernel(x).to_dense() * scale, base(x).to_dense(), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(kernel(x.requires_grad_()).to_dense().sum(), [x, *kernel.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengthscale", [1e-3, 1e2, 1e5, 1e8])
@pytest.mark.parametrize("base", [RBFKernel, lambda: MaternKernel(nu=0.5), lambda: MaternKernel(nu=2.5), RQKernel])
def test_no_lengthscale_gives_a_negative_variance_or_nan(base, lengthscale, dtype):
    base = identity_constraint(base().to(dtype), value=lengthscale)
    kernel = CentredKernel(base, points(), weights())
    x = torch.cat([points(30), 1e3 * points(3), points(1) - 1e6]).to(dtype)
    variance = kernel(x, diag=True)
    assert torch.isfinite(variance).all() and (variance >= 0).all()
    covariance = kernel(x).to_dense()
    assert torch.isfinite(covariance).all() and (covariance.diagonal() >= 0).all()
    (covariance.sum() + variance.sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


@pytest.mark.parametrize("base", [RBFKernel, lambda: MaternKernel(nu=1.5)])
def test_a_row_far_away_costs_the_others_no_precision(base):
    kernel = CentredKernel(base(), points(), weights())
    x = torch.cat([points(6) + 0.1, torch.tensor([[1e12, -1e12]], dtype=torch.float64)])
    torch.testing.assert_close(kernel(points(4), x).to_dense()[:, :6], kernel(points(4), x[:6]).to_dense())
    variance = kernel(x, diag=True)
    torch.testing.assert_close(variance[:6], kernel(x[:6], diag=True))
    assert kernel(points(4), x[6:]).to_dense().abs().max() == 0


def test_nothing_is_left_of_a_line():
    kernel = CentredKernel(CentredLinearKernel(3.0, 2.0), points(20, 1))
    assert torch.equal(kernel(points(4, 1)).to_dense(), torch.zeros(4, 4, dtype=torch.float64))
    unscaled = CentredKernel(CentredLinearKernel(3.0, 2.0), points(20, 1), normalize=False)
    assert unscaled(points(4, 1)).to_dense().abs().max() < 1e-15


def test_no_clamp_hides_a_base_that_is_no_covariance():
    class Indefinite(Kernel):
        def forward(self, x1, x2, diag=False, **params):
            product = x1 * x2 if diag else x1 @ x2.mT
            return 1 - product.sum(-1) if diag else 1 - product

    p = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(-1)
    kernel = CentredKernel(Indefinite(), p, normalize=False)
    assert kernel(torch.full((1, 1), 2.0, dtype=torch.float64), diag=True).item() == pytest.approx(-4.0)


def test_a_product_with_a_kernel_of_another_column_is_an_interaction_without_main_effects():
    levels = torch.arange(4.0)
    smooth = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), active_dims=[0])
    factor = CentredKernel(LevelKernel(), levels, active_dims=[1])
    kernel = ScaleKernel(smooth * factor)
    nodes, node_weights = Uniform(0.0, 1.0).quadrature(20)
    x = torch.stack([torch.rand(6, generator=torch.Generator().manual_seed(0)), torch.arange(6.0) % 4], -1).double()

    def at(first, second):
        return torch.stack([first.expand_as(second), second], -1)

    over_levels = torch.stack(
        [kernel(at(torch.tensor(0.3).double(), levels[[i]].double()), x).to_dense() for i in range(4)]
    )
    assert over_levels.sum(0).abs().max() < 1e-12
    over_nodes = kernel(torch.stack([nodes, torch.ones_like(nodes)], -1), x).to_dense()
    assert (node_weights @ over_nodes).abs().max() < 1e-12
    expected = 0.6931471805599453 * smooth(x).to_dense() * factor(x).to_dense()
    torch.testing.assert_close(kernel(x).to_dense(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(kernel(x, diag=True), expected.diagonal(), rtol=1e-6, atol=0)


def test_the_base_may_be_a_product_over_several_columns():
    p = torch.cartesian_prod(torch.linspace(0, 1, 5), torch.arange(3.0))
    base = RBFKernel(active_dims=(0,)) * LevelKernel(active_dims=(1,))
    kernel = CentredKernel(base, p, active_dims=(3, 1))
    x = torch.zeros(7, 4)
    x[:, 3], x[:, 1] = torch.linspace(0, 1, 7), torch.arange(7.0) % 3
    expected = dense_oracle(base, x[:, [3, 1]].double(), x[:, [3, 1]].double(), p.double(), torch.ones(15).double())
    torch.testing.assert_close(kernel(x).to_dense(), expected.float(), rtol=1e-6, atol=1e-6)


BATCHES = {
    "of parameters": lambda: CentredKernel(
        MaternKernel(nu=1.5, batch_shape=torch.Size([3, 2])), points(), active_dims=(2, 1)
    ),
    "of points": lambda: CentredKernel(RBFKernel(), points(batch_shape=(3, 2)), weights(), active_dims=(2, 1)),
    "of weights": lambda: CentredKernel(
        RBFKernel(), points(), torch.stack([weights() ** k for k in range(6)]).reshape(3, 2, 20), active_dims=(2, 1)
    ),
    "of all, partly": lambda: CentredKernel(
        RBFKernel(batch_shape=torch.Size([2])) * RQKernel(batch_shape=torch.Size([3, 1]), active_dims=(0,)),
        points(batch_shape=(3, 1)),
        weights().expand(1, 20),
        active_dims=(2, 1),
    ),
    "inside of scales": lambda: CentredKernel(
        ScaleKernel(
            ScaleKernel(MaternKernel(active_dims=(1,), batch_shape=torch.Size([2]))), batch_shape=torch.Size([3, 1])
        ),
        points(),
        normalize=False,
        active_dims=(2, 1),
    ),
    "of a sum": lambda: CentredKernel(
        CentredKernel(RBFKernel(batch_shape=torch.Size([2])), points())
        + ANOVAKernel(RBFKernel(batch_shape=torch.Size([3, 1])), Uniform(0.0, 1.0), active_dims=(1,)),
        points(5) + 1,
        active_dims=(2, 1),
    ),
    "of ordinals": lambda: CentredKernel(
        OrdinalKernel([0.0, 1.0, 2.0], batch_shape=torch.Size([3, 2]), active_dims=(1,))
        * CentredLinearKernel(torch.tensor([0.5, -0.5]), 1.0, active_dims=(0,)),
        (2 * points()).round(),
        active_dims=(2, 1),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_indexed_and_expanded(name):
    kernel = BATCHES[name]()
    for i, parameter in enumerate(kernel.parameters()):
        parameter.data = torch.linspace(-1.0, 1.0, parameter.numel()).reshape(parameter.shape) + 0.1 * i
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    num_batch = len(kernel.batch_shape)
    assert kernel.batch_shape in ((3, 2), (2,))
    kernel = kernel if num_batch == 2 else kernel.expand_batch(3, 2)
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randint(3, (n, 3), generator=generator).double() / (1 if "ord" in name else 3) for n in (5, 3))
    covariance = kernel(x, y).to_dense()
    assert covariance.shape == (3, 2, 5, 3)
    assert not torch.allclose(covariance[0, 0], covariance[2, 1])
    tight = {"rtol": 1e-12, "atol": 1e-13}
    torch.testing.assert_close(kernel[..., 1](x, y).to_dense(), covariance[:, 1], **tight)
    for index in [(2, 0), 1, (slice(0, 3, 2),), (torch.tensor([2, 0]), torch.tensor([1, 1])), (slice(None), 0)]:
        indexed = kernel[index]
        assert indexed.batch_shape == covariance[index].shape[:-2]
        torch.testing.assert_close(indexed(x, y).to_dense(), covariance[index], **tight)
        torch.testing.assert_close(
            indexed.expand_batch(4, *indexed.batch_shape)(x, y).to_dense()[3], covariance[index], **tight
        )
    torch.testing.assert_close(kernel(x, y)[2, 1].to_dense(), covariance[2, 1], **tight)
    torch.testing.assert_close(
        kernel(x.expand(3, 2, 5, 3), diag=True), kernel(x).to_dense().diagonal(dim1=-2, dim2=-1), **tight
    )
    torch.testing.assert_close(kernel(x).diagonal(), kernel(x).to_dense().diagonal(dim1=-2, dim2=-1), **tight)
    # The inputs may have the batch dimensions, too, and then the points are broadcast.
    shifted = x + torch.arange(6.0).reshape(3, 2, 1, 1).double()
    torch.testing.assert_close(kernel(shifted, y).to_dense()[1, 0], kernel[1, 0](shifted[1, 0], y).to_dense(), **tight)
    for key, value in BATCHES[name]().state_dict().items():
        assert before[key].shape == value.shape  # not modified


def test_as_many_components_as_rows_or_points_are_not_confused():
    p = points(3, batch_shape=(3,))
    kernel = CentredKernel(RBFKernel(batch_shape=torch.Size([3])), p)
    kernel.base_kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0]).reshape(3, 1, 1)
    x = points(3)
    expected = torch.stack([kernel[i](x).to_dense() for i in range(3)])
    torch.testing.assert_close(kernel(x).to_dense(), expected)
    torch.testing.assert_close(kernel(x.expand(3, 3, 2), diag=True), expected.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("size", [0, 1])
def test_few_rows(size):
    kernel = CentredKernel(RBFKernel(), points())
    x = points(size).float()
    assert kernel(x).to_dense().shape == (size, size)
    assert kernel(x, diag=True).shape == (size,)
    assert kernel(points(4).float(), x).to_dense().shape == (4, size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": [[0.0, torch.nan], [1.0, 0.0]]}, "points must be finite"),
        ({"points": torch.zeros(0, 2)}, "points of CentredKernel must have shape"),
        ({"points": 1.0}, "points of CentredKernel must have shape"),
        ({"points": torch.ones(4, 2)}, "two or more distinct points with positive weight"),
        (
            {"points": torch.tensor([[[0.0], [1.0]], [[1.0], [1.0]]])},
            "two or more distinct points with positive weight",
        ),
        ({"points": [0.0, 1.0, 2.0], "weights": [0.0, 1.0, 0.0]}, "two or more distinct points with positive weight"),
        ({"points": [0.0, 1.0], "weights": [0.0, 0.0]}, "two or more distinct points with positive weight"),
        ({"points": [0.0, 1.0], "weights": [2.0, -1.0]}, "CentredKernel: weights must not be negative, got -1"),
        ({"points": [0.0, 1.0], "weights": [1.0, torch.inf]}, "weights must be finite"),
        ({"weights": [1.0, 2.0]}, "weights must have one value for each of the 4 points"),
        ({"weights": 1.0}, "weights must have one value for each of the 4 points"),
        ({"points": torch.rand(2, 4, 2), "weights": torch.ones(3, 4)}, "does not broadcast with that of points"),
        ({"points": torch.rand(3, 4, 2)}, "does not broadcast with that of base_kernel"),
        ({"base_kernel": ScaleKernel(RBFKernel())}, "has an outputscale, which normalize=True cancels"),
        ({"base_kernel": RBFKernel() * ScaleKernel(RBFKernel())}, "has an outputscale, which normalize=True cancels"),
        ({"base_kernel": RBFKernelGrad()}, "must have one output"),
        ({"base_kernel": RBFKernel(active_dims=(2,))}, r"active_dims \[2\], but points have 2 columns"),
        ({"active_dims": (0,)}, r"active_dims \[0\] must name as many columns as points have, 2"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(changes, message):
    arguments = {"base_kernel": RBFKernel(batch_shape=torch.Size([2])), "points": torch.rand(4, 2), **changes}
    with pytest.raises(ValueError, match=message):
        CentredKernel(**arguments)


def test_what_is_no_kernel_is_an_error():
    with pytest.raises(TypeError, match="base_kernel must be a gpytorch Kernel, got Uniform"):
        CentredKernel(Uniform(0.0, 1.0), points())


def test_a_measure_in_the_place_of_points_is_an_error():
    with pytest.raises(TypeError, match="such as those of a grid, got Uniform: a measure is for ANOVAKernel"):
        CentredKernel(RBFKernel(), Uniform(0.0, 1.0))


def test_inputs_with_other_columns_are_an_error():
    with pytest.raises(ValueError, match=r"x has 3 columns, but the points of CentredKernel have 2; choose"):
        CentredKernel(RBFKernel(), points())(torch.zeros(4, 3)).to_dense()
    with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="CentredKernel has no last_dim"):
        CentredKernel(RBFKernel(), points())(torch.zeros(4, 2), last_dim_is_batch=True).to_dense()


def test_a_scale_that_is_not_cancelled_may_be_inside():
    base = ScaleKernel(RBFKernel())
    base.outputscale = 4.0
    x = points(5)
    inside = CentredKernel(base, points(), normalize=False)(x).to_dense()
    outside = CentredKernel(base.base_kernel, points(), normalize=False)(x).to_dense()
    torch.testing.assert_close(inside, 4 * outside, rtol=1e-6, atol=0)  # the outputscale is set in float32


def test_the_base_kernel_is_not_stationary_any_more():
    assert RBFKernel().is_stationary and not CentredKernel(RBFKernel(), points()).is_stationary


def test_points_and_weights_travel_with_copies_pickles_and_states():
    kernel = CentredKernel(RBFKernel(), points(), weights())
    kernel.base_kernel.lengthscale = 0.4
    x = points(4)
    expected = kernel(x).to_dense()
    other = CentredKernel(RBFKernel(), points() + 1)
    other.load_state_dict(kernel.state_dict())
    for same in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(same(x).to_dense(), expected)
    # Converted to single precision and back, points and weights are rounded.
    torch.testing.assert_close(copy.deepcopy(kernel).float().double()(x).to_dense(), expected, rtol=1e-5, atol=1e-5)


def test_the_points_given_are_copied():
    p, w = points(), weights()
    kernel = CentredKernel(RBFKernel(), p, w)
    expected = kernel(p[:3].clone()).to_dense()
    x = p[:3].clone()
    p.zero_()
    w.zero_()
    assert torch.equal(kernel(x).to_dense(), expected)


def test_a_factor_does_not_wait_for_a_device():
    # Tensors without values cannot be asked for any.
    kernel = CentredKernel(LevelKernel(), LEVELS).to("meta")
    assert kernel(torch.zeros(4, 1, device="meta")).to_dense().shape == (4, 4)
