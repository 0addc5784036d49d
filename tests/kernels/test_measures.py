import copy
import math
import pickle

import mpmath
import pytest
import torch

from gpytorch_gam.kernels import Empirical, Measure, Normal, Uniform

MEASURES = [
    Uniform(-1.0, 2.0),
    Normal(0.5, 0.7),
    Empirical([0.0, 0.1, 0.5, 0.55, 2.0], [1.0, 2.0, 0.0, 1.0, 0.5]),
]
IDS = ["Uniform", "Normal", "Empirical"]


def rbf(x, y, lengthscale):
    return torch.exp(-0.5 * ((x - y) / lengthscale) ** 2)


@pytest.mark.parametrize("measure", MEASURES, ids=IDS)
def test_quadrature_gives_the_first_two_moments(measure):
    nodes, weights = measure.quadrature(20)
    assert nodes.dtype == weights.dtype == torch.float64
    torch.testing.assert_close(weights.sum(-1), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close((weights * nodes).sum(-1), measure.mean)
    variance = (weights * (nodes - measure.mean) ** 2).sum(-1)
    torch.testing.assert_close(variance.sqrt(), measure.standard_deviation)


@pytest.mark.parametrize("measure", MEASURES[:2], ids=IDS[:2])
def test_split_quadrature_integrates_a_kink_at_the_split(measure):
    x = torch.tensor([-50.0, -1.0, 0.3, 2.0, 50.0], dtype=torch.float64)
    nodes, weights = measure.split_quadrature(x, 40)
    value = ((nodes - x[:, None]).abs() * weights).sum(-1)
    if isinstance(measure, Uniform):
        inside = ((x + 1) ** 2 + (2 - x) ** 2) / 6
        expected = torch.where((x >= -1) & (x <= 2), inside, (x - 0.5).abs())
    else:
        z = (x - 0.5) / 0.7
        density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        expected = 0.7 * (2 * density + z * torch.erf(z / math.sqrt(2)))
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("measure", MEASURES, ids=IDS)
@pytest.mark.parametrize("lengthscale", [0.02, 0.5, 0.9, 2.0, 300.0])
def test_rbf_integrals_agree_with_dense_quadrature(measure, lengthscale):
    lengthscale = torch.tensor([lengthscale], dtype=torch.float64)
    nodes, weights = measure.quadrature(600)  # whose weights have rounding errors of 1e-13
    x = torch.linspace(-3.0, 4.0, 23, dtype=torch.float64)
    constants, embedding, remainder = measure.rbf_integrals(x, lengthscale)
    assert all(map(torch.equal, constants, measure.rbf_constants(lengthscale)))
    assert all(map(torch.equal, (embedding, remainder), measure.rbf_embedding(x, lengthscale)))
    torch.testing.assert_close(embedding, rbf(x[:, None], nodes, lengthscale) @ weights, rtol=1e-10, atol=1e-14)
    double_mean = weights @ rbf(nodes[:, None], nodes, lengthscale) @ weights
    torch.testing.assert_close(constants.double_mean, double_mean[None], rtol=1e-10, atol=0.0)
    if bool(measure.is_long(lengthscale)):
        factor_mean = (weights @ rbf(nodes, measure.mean, lengthscale))[None]
        torch.testing.assert_close(constants.factor_mean, factor_mean)
        factor = rbf(x, measure.mean, lengthscale)
        torch.testing.assert_close(remainder, embedding - factor_mean * factor, rtol=1e-6, atol=2e-13)
        torch.testing.assert_close(constants.remainder, double_mean - factor_mean**2, rtol=1e-6, atol=2e-13)


@pytest.mark.parametrize("scale", [1e2, 1e6])
@pytest.mark.parametrize("measure", MEASURES, ids=IDS)
def test_remainders_keep_their_digits_at_long_lengthscales(measure, scale):
    # They are of order l^-4: some 1e-9 and 1e-25 of the terms of which they are differences.
    lengthscale = scale * measure.standard_deviation[None]
    x = measure.mean + torch.linspace(-2.0, 2.0, 5, dtype=torch.float64) * measure.standard_deviation
    _, remainder = measure.rbf_embedding(x, lengthscale)
    nodes, weights = (tensor.tolist() for tensor in measure.quadrature(24))
    with mpmath.workdps(60):
        total = mpmath.fsum(weights)
        weights = [weight / total for weight in weights]
        mean = mpmath.fsum(w * s for w, s in zip(weights, nodes, strict=True))
        length = mpmath.mpf(lengthscale.item())
        offsets = [(s - mean) / length for s in nodes]
        factors = [w * mpmath.exp(-s * s / 2) for w, s in zip(weights, offsets, strict=True)]

        def integral(y):
            return mpmath.fsum(f * mpmath.expm1(y * s) for f, s in zip(factors, offsets, strict=True))

        double = mpmath.fsum(f * integral(s) for f, s in zip(factors, offsets, strict=True))
        scaled = [(mpmath.mpf(value) - mean) / length for value in x.tolist()]
        exact = [float(mpmath.exp(-y * y / 2) * integral(y)) for y in scaled]
    torch.testing.assert_close(measure.rbf_constants(lengthscale).remainder.item(), float(double), rtol=1e-11, atol=0.0)
    tolerance = 1e-11 * max(map(abs, exact))
    torch.testing.assert_close(remainder, torch.tensor(exact, dtype=torch.float64), rtol=1e-9, atol=tolerance)


@pytest.mark.parametrize("lengthscale", [0.01, 0.3, 5.0, 12.0, 1e3, 1e6])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_means_keep_their_digits_at_every_lengthscale(nu, lengthscale):
    measure, rate = Uniform(-1.0, 2.0), math.sqrt(2 * nu) / lengthscale
    polynomial = {0.5: (1, 0, 0), 1.5: (1, 1, 0), 2.5: (1, 1, mpmath.mpf(1) / 3)}[nu]

    def deviation(s, x):
        t = rate * abs(mpmath.mpf(x) - s)
        return (polynomial[0] + polynomial[1] * t + polynomial[2] * t**2) * mpmath.exp(-t) - 1

    points = [-3.0, -1.0, 0.25, 2.0, 7.0]
    with mpmath.workdps(40):
        expected = [
            float(mpmath.quad(lambda s, x=x: deviation(s, x), sorted({-1, min(max(x, -1), 2), 2}), maxdegree=10) / 3)
            for x in points
        ]
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    actual = measure.matern_deviation(x, torch.tensor([rate], dtype=torch.float64), nu)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=0)
    (slope,) = torch.autograd.grad(actual.sum(), x)
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("lengthscale", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_means_over_atoms_are_those_of_the_sums(nu, lengthscale):
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randn(3, 20, dtype=torch.float64, generator=generator)
    atoms[:, 5:8] = atoms[:, :1]  # ties, in no order
    measure = Empirical(atoms, torch.rand(20, dtype=torch.float64, generator=generator))
    far = torch.tensor([[-1e6, 1e6]], dtype=torch.float64).expand(3, -1)
    x = torch.cat([atoms, 2 * torch.randn(3, 30, dtype=torch.float64, generator=generator), far], -1)
    x[:, -5:-3] = atoms[0, :2]
    rates = math.sqrt(2 * nu) / (lengthscale * torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float64))
    x.requires_grad_(), rates.requires_grad_()

    distance = (rates.unsqueeze(-1) * (x.unsqueeze(-1) - measure.atoms.unsqueeze(-2))).abs()
    near = distance.clamp(max=50.0)  # beyond which the kernel is zero
    polynomial = {0.5: 0 * near, 1.5: near, 2.5: near + near**2 / 3}[nu]
    # The digits of 1 - k at short distances are those of expm1.
    deviation = polynomial + (1 + polynomial) * torch.expm1(-near)
    expected = (deviation * measure.weights.unsqueeze(-2)).sum(-1)
    actual = measure.matern_deviation(x, rates, nu)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=0)

    others = (slice(1, None), slice(20, None)) if nu == 0.5 else ...  # where the kernel has no kink
    wanted, found = (torch.autograd.grad(each.sum(), (x, rates)) for each in (expected, actual))
    torch.testing.assert_close(found[0][others], wanted[0][others], rtol=1e-10, atol=1e-14 * rates.max().item())
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-10, atol=1e-13)
    one = measure[1].matern_deviation(x[1], rates[1], nu)
    torch.testing.assert_close(one, actual[1], rtol=1e-14, atol=0)


def test_normal_measures_have_no_closed_forms_for_matern_kernels():
    assert Normal(0.0, 1.0).matern_deviation(torch.zeros(1).double(), torch.ones(1).double(), 1.5) is None


def test_a_measure_without_closed_forms_needs_only_moments_and_nodes():
    class Triangular(Measure):
        def __init__(self):
            super().__init__()
            self.register_buffer("width", torch.tensor(1.0, dtype=torch.float64))

        mean = property(lambda self: torch.zeros_like(self.width))
        standard_deviation = property(lambda self: self.width / math.sqrt(6.0))

        def quadrature(self, num_nodes):
            nodes, weights = Uniform(-1.0, 1.0).quadrature(num_nodes)
            return nodes, weights * 2 * (1 - nodes.abs())

    lengthscale = torch.tensor([0.5], dtype=torch.float64)
    measure = Triangular()
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    nodes, weights = measure.quadrature(200)
    embedding, remainder = measure.rbf_embedding(x, lengthscale)
    torch.testing.assert_close(embedding, rbf(x[:, None], nodes, lengthscale) @ weights)
    assert bool((remainder[[0, 1, 3, 4]] > 0).all())


@pytest.mark.parametrize("measure", MEASURES, ids=IDS)
def test_measures_copy_pickle_and_convert(measure):
    for other in (copy.deepcopy(measure), pickle.loads(pickle.dumps(measure))):
        torch.testing.assert_close(other.mean, measure.mean)
    single = copy.deepcopy(measure).float()
    assert all(buffer.dtype == torch.float32 for buffer in single.buffers())
    assert single.mean.dtype == torch.float64
    assert not list(measure.parameters())
    torch.testing.assert_close(
        single.quadrature(40)[1].sum(-1), torch.ones((), dtype=torch.float64), rtol=0.0, atol=1e-6
    )


def test_numbers_keep_float64_precision_and_tensors_keep_their_dtype():
    assert Uniform(0.1, 0.9).low.item() == 0.1
    assert Normal(torch.zeros(3), torch.ones(3)).sd.dtype == torch.float32
    assert Uniform(0, 1).batch_shape == torch.Size([])


def test_batch_shapes_broadcast_expand_and_index():
    measure = Uniform(torch.zeros(3, 1), torch.tensor([1.0, 2.0]))
    assert measure.batch_shape == torch.Size([3, 2])
    assert measure[:, 1].high.tolist() == [2.0, 2.0, 2.0]
    assert measure[..., 0].batch_shape == torch.Size([3])
    assert measure.batch_shape == torch.Size([3, 2])
    empirical = Empirical(torch.arange(8.0).reshape(2, 4))
    assert empirical.batch_shape == torch.Size([2])
    assert empirical[1].atoms.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert empirical[..., 1].atoms.shape == torch.Size([4])
    assert empirical.expand(torch.Size([5, 2])).atoms.shape == torch.Size([5, 2, 4])
    assert Empirical(torch.arange(3.0), torch.ones(2, 3)).batch_shape == torch.Size([2])


def test_empirical_normalises_its_weights():
    measure = Empirical([0.0, 1.0], [1.0, 3.0])
    assert measure.weights.tolist() == [0.25, 0.75]
    assert measure.mean.item() == 0.75


def test_thinned_data_keep_their_mean_and_most_of_their_spread():
    data = torch.randn(3, 1001, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    measure = Empirical.from_data(data, num_atoms=50)
    assert measure.atoms.shape == torch.Size([3, 50])
    torch.testing.assert_close(measure.mean, data.mean(-1))
    ratio = measure.standard_deviation / data.std(-1)
    assert bool(((ratio > 0.9) & (ratio < 1.001)).all())
    torch.testing.assert_close(Empirical.from_data(data[:, :20], num_atoms=50).atoms, data[:, :20])


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: Uniform(1.0, 1.0), "Uniform: low must be below high, got low=1.0"),
        (lambda: Uniform(torch.zeros(2), torch.tensor([1.0, -1.0])), "low must be below high"),
        (lambda: Uniform(0.0, math.inf), "Uniform: high must be finite, got inf"),
        (lambda: Uniform(torch.zeros(2), torch.ones(3)), r"low has shape \(2,\), high has shape \(3,\)"),
        (lambda: Normal(0.0, 0.0), "Normal: sd must be positive, got 0.0"),
        (lambda: Normal(math.nan, 1.0), "Normal: mean must be finite, got nan"),
        (lambda: Empirical(1.0), "two or more values"),
        (lambda: Empirical([1.0, 1.0]), "two or more distinct values"),
        (lambda: Empirical([0.0, 1.0], [1.0, 0.0]), "two or more distinct values"),
        (lambda: Empirical([0.0, 1.0], [1.0, -1.0]), "weights must not be negative"),
        (lambda: Empirical([0.0, 1.0], [0.0, 0.0]), "weights must have a positive sum"),
        (lambda: Empirical([0.0, 1.0], [1.0]), "one value for each of the 2 atoms"),
        (lambda: Empirical(torch.randn(2, 4), torch.ones(3, 4)), "does not broadcast"),
        (lambda: Empirical([0.0, math.nan]), "Empirical: atoms must be finite"),
        (lambda: Empirical.from_data(torch.randn(9), num_atoms=1), "num_atoms must be at least 2, got 1"),
    ],
)
def test_invalid_arguments_are_named(construct, message):
    with pytest.raises(ValueError, match=message):
        construct()
