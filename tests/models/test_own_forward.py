"""A model's own ``forward``: a mean that it adds, and what it gives its predictor, are those of the posterior."""

from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.mlls import VariationalELBO
from linear_operator import to_linear_operator
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, AdditiveVariationalStrategy
from gpytorch_gam import BlockLowRankPrecisionVariationalDistribution as Block
from gpytorch_gam.diagnostics import HyperparameterUncertainty, concurvity, sobol_indices
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import Epoch, fit, initialize_posterior, polish
from gpytorch_gam.training.fitting import method_of_fit
from gpytorch_gam.variational import FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy
from gpytorch_gam.warnings import ConstantColumnWarning, DependentColumnsWarning, OverfittingWarning
from tests.problems import fit_by_bins

# Means of the inducing variables start at random, with a standard deviation of .001.
AT_FIRST = 0.02

Forward = Callable[[Any, Tensor], Any]


def rows(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * noise


def predictor(mean: gpytorch.means.Mean | None = None) -> AdditivePredictor:
    return AdditivePredictor(smooth([0, 1], low=0.0, high=1.0, num_inducing=6), constant(), mean=mean).double()


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sigmoid()).double()


class Own(AdditiveGP):
    """With a mean module and a network of its own."""

    def __init__(self, forward: Forward, of: AdditivePredictor | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        super().__init__(predictor() if of is None else of, **options)
        self.mean_module = gpytorch.means.LinearMean(2).double()
        self.network, self.own_forward = network(), forward
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.own_forward(self, x)


@pytest.mark.filterwarnings("ignore:the fit has not arrived", "ignore:what these", "ignore:the inputs that forward")
def test_a_fit_of_more_weights_than_rows_can_bear_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MAX_STEPS", "_MAX_PASSES", "_MAX_ROUNDS"):  # how it ends does not matter here
        monkeypatch.setattr(f"gpytorch_gam.training._profile_bound.{limit}", 1)
    x, y = rows(60)
    model = with_weights()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    options = {"num_epochs": 1, "polish_passes": 0}
    with pytest.warns(OverfittingWarning, match="45 parameters beside those of its terms.* on 60 rows") as given:
        found = fit(model, likelihood, [(x, y)], **options)
    assert given[0].filename == __file__ and any("weight decay" in each for each in found.messages)
    few = Own(with_both)  # 9 parameters, on 60 rows
    fit(few, likelihood, [(x, y)], **options)


def with_weights() -> Own:
    """A network of so many weights that fits take it for one."""
    model = Own(with_network)
    layers = (torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2), torch.nn.Sigmoid())
    model.network = torch.nn.Sequential(*layers).double()
    return model


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.OverfittingWarning", "ignore:what these components leave")
def test_weights_of_a_network_take_small_steps_and_stay_in_the_search_at_the_end() -> None:
    x, y = rows()
    model, likelihood = with_weights(), gaussian()
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    after: dict[str, Tensor] = {}

    def keep(epoch: Epoch) -> None:
        if epoch.number == 1:
            after.update({name: parameter.detach().clone() for name, parameter in model.named_parameters()})

    found = fit(model, likelihood, (x, y), num_epochs=1, num_held_back=0, lr=0.04, callback=keep)
    of_network = [name for name in first if name.startswith("network")]
    for name in of_network:  # Adam's first step has the size of the rate
        assert 0 < (after[name] - first[name]).abs().max() <= 0.3 * 0.04 * 1.001
        assert torch.equal(model.get_parameter(name), after[name])
    assert found.evaluations > 1


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.OverfittingWarning")
@pytest.mark.parametrize("method", ["rows", "minibatches"])
def test_a_network_that_gives_the_same_features_to_all_rows_is_warned_of(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpytorch_gam.training._settling._NUM_STEPS", 8)
    x, y = rows()
    model = with_weights()
    torch.nn.init.zeros_(model.network[2].weight)
    model.network.requires_grad_(False)
    with pytest.warns(ConstantColumnWarning, match="to 'x0', 'x1' are almost constant") as given:
        found = fit(model, gaussian(), (x, y), method=method)
    assert not found.converged and found.open < 0.05 and given[0].filename == __file__


def test_rows_of_another_dtype_are_named_where_the_network_fails() -> None:
    x, y = rows(5)
    model, message = Own(with_network), "forward fails: .*float32 on cpu, but the model is torch.float64.*: convert one"
    for use in (model, lambda rows: fit(model, gaussian(), (rows, y.float()), method="rows")):
        with pytest.raises(ValueError, match=message):
            use(x.float())


def test_a_model_inside_another_module_is_found() -> None:
    class Wrap(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.gp = network(), AdditiveGP(predictor())

    with pytest.raises(TypeError, match="got Wrap: pass the GP inside it, its gp, with the inputs that reach it"):
        NaturalGradient(Wrap(), num_data=5)


def test_networks_are_fitted_by_minibatches_unless_rows_are_asked_for() -> None:
    x, y = rows()
    model = with_weights()
    assert method_of_fit(model, gaussian(), (x, y)) == "minibatches"
    model.network.requires_grad_(False)
    assert method_of_fit(model, gaussian(), (x, y)) == "rows"
    assert method_of_fit(Own(with_network), gaussian(), (x, y)) == "rows"  # a projection of a few weights


def with_constant(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) + 50


def with_mean(model: Own, x: Tensor) -> MultivariateNormal:
    return model.mean_module(x) + model.predictor(x)


def with_network(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(model.network(x))


def with_both(model: Own, x: Tensor) -> MultivariateNormal:
    return model.mean_module(x) + model.predictor(model.network(x))


def gaussian() -> gpytorch.likelihoods.GaussianLikelihood:
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.1
    return likelihood


def fitted(model: AdditiveGP, seed: int = 0) -> AdditiveGP:
    """A posterior that says something, at whatever the model reads."""
    x, y = rows(seed=seed)
    polish(model, gaussian(), [(x, y)], max_passes=2)
    return model.eval()


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------- the mean


def test_a_constant_of_forward_is_in_the_posterior() -> None:
    x, _ = rows()
    model = Own(with_constant)
    for mode in (model.train, model.eval):
        mode()
        assert_close(model(x).mean, torch.full((80,), 50.0).double(), AT_FIRST)
    with gpytorch.settings.skip_posterior_variances():
        assert_close(model(x).mean, torch.full((80,), 50.0).double(), AT_FIRST)


def test_training_finds_an_offset_of_forward() -> None:
    x, y = rows()
    model, likelihood = Own(with_mean), gaussian()
    polish(model, likelihood, [(x, y + 50)])
    far = VariationalELBO(likelihood, model, num_data=80)(model.train()(x), y + 50)
    model.mean_module.bias.data.fill_(50.0)
    polish(model, likelihood, [(x, y + 50)])
    near = VariationalELBO(likelihood, model, num_data=80)(model.train()(x), y + 50)
    assert near > far + 1  # nats a row: the mean takes up what the components cannot
    assert (model.eval()(x).mean - y - 50).std() < 0.3


def test_gradients_reach_mean_and_network() -> None:
    x, y = rows()
    model = Own(with_both)
    initialize_posterior(model, gaussian(), x, y)
    for mode in (model.train, model.eval):
        mode()
        model.zero_grad()
        (-VariationalELBO(gaussian(), model, num_data=80)(model(x), y)).backward()
        for module in (model.mean_module, model.network):
            assert all(parameter.grad.abs().max() > 0 for parameter in module.parameters())


@pytest.mark.parametrize("natural", [False, True], ids=["adam", "natural"])
def test_a_fit_is_that_with_the_mean_in_the_predictor(natural: bool) -> None:
    x, y = rows()
    inside = AdditiveGP(predictor(gpytorch.means.LinearMean(2).double())).double()
    outside = Own(with_mean)
    inside.predictor.means[0].load_state_dict(outside.mean_module.state_dict())
    means = inside.predictor.means.parameters(), outside.mean_module.parameters()
    for model, parameters in zip((inside, outside), means, strict=True):
        likelihood = gaussian()
        initialize_posterior(model, likelihood, x, y)
        posterior = (
            NaturalGradient(model, num_data=80)
            if natural
            else torch.optim.Adam(list(model.variational_parameters()), lr=0.05)
        )
        adam = torch.optim.Adam([*parameters, *model.predictor.groups.parameters()], lr=0.05)
        mll = VariationalELBO(likelihood, model.train(), num_data=80)
        for step in range(4):
            adam.zero_grad(), posterior.zero_grad()
            batch = slice(40 * (step % 2), 40 * (step % 2) + 40)
            (-mll(model(x[batch]), y[batch])).backward()
            posterior.step()
            adam.step()
        if natural:
            posterior.remove()
        model.eval()
    assert_close(outside.mean_module.weights, inside.predictor.means[0].weights)
    assert_close(outside(x).mean, inside(x).mean)
    assert_close(outside(x).variance, inside(x).variance)


def plus_on_the_left(model: Own, x: Tensor) -> MultivariateNormal:
    return model.mean_module(x) + model.predictor(x)


def plus_on_the_right(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) + model.mean_module(x)


def minus(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) - (-model.mean_module(x))


def from_moments(model: Own, x: Tensor) -> MultivariateNormal:
    prior = model.predictor(x)
    return MultivariateNormal(model.mean_module(x) + prior.mean, prior.lazy_covariance_matrix)


def of_an_equal_covariance(model: Own, x: Tensor) -> MultivariateNormal:
    prior = model.predictor(x)
    dense = to_linear_operator(prior.covariance_matrix)
    return MultivariateNormal(model.mean_module(x) + prior.mean, dense)


@pytest.mark.parametrize("forward", [plus_on_the_left, plus_on_the_right, minus, from_moments, of_an_equal_covariance])
def test_ways_to_write_a_mean(forward: Forward) -> None:
    x, _ = rows(20)
    model = Own(forward)
    expected = model.mean_module(x)
    for found in (model.eval()(x), model(x, prior=True), model.train()(x)):
        assert_close(found.mean, expected, AT_FIRST)


# ---------------------------------------------------------------------- the inputs


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field", "coupled"])
def test_a_network_of_forward_is_that_of_the_data(family: str) -> None:
    x, y = rows()
    own, plain = Own(with_network, family=family), AdditiveGP(predictor(), family=family).double()
    inputs = own.network(x).detach()
    polish(own, gaussian(), [(x, y)], max_passes=2)
    polish(plain, gaussian(), [(inputs, y)], max_passes=2)
    for mode in ("train", "eval"):
        found, expected = getattr(own, mode)()(x), getattr(plain, mode)()(inputs)
        assert_close(found.mean, expected.mean)
        assert_close(found.variance, expected.variance)
    assert_close(own(x).covariance_matrix, plain(inputs).covariance_matrix)
    assert_close(own(x, prior=True).covariance_matrix, plain(inputs, prior=True).covariance_matrix)
    strategy = own.variational_strategy
    assert_close(strategy.features(x), plain.variational_strategy.features(inputs))
    assert_close(strategy.predictor_moments(x).covariance, plain.variational_strategy.predictor_moments(inputs)[1])


def test_components_and_predictions_are_those_at_what_forward_reads() -> None:
    x, _ = rows()
    own = fitted(Own(with_both))
    plain, inputs, mean = AdditiveGP(own.predictor).double(), own.network(x).detach(), own.mean_module(x)
    plain.variational_strategy.load_state_dict(own.variational_strategy.state_dict())
    plain.eval()
    found, expected = own.components(x), plain.components(inputs)
    assert_close(found.variance, expected.variance)
    assert_close(found.mean, expected.mean)
    assert_close(found.full_cross_covariance(), expected.full_cross_covariance())
    assert_close(found.prior_means.squeeze(-2), mean)
    assert_close(found.distribution.mean, own(x).mean)
    for over in ((None, None), (x[:9], inputs[:9])):
        centred = found.centred(over[0]), expected.centred(over[1])
        assert_close(centred[0].variance, centred[1].variance)
    prediction = own.predict(x, chunk_size=7)
    assert_close(prediction.mean, own(x).mean)
    assert_close(prediction.variance, own(x).variance)
    assert_close(prediction.component_mean, expected.mean)
    assert_close(own.predict(x, components=False, exclude="constant").mean, mean + expected.mean[:2].sum(0))
    assert_close(own.predict(x, components=False).mean, own(x).mean)
    torch.manual_seed(3)
    draws = own.components(x[:5]).sample(torch.Size([2])).total
    torch.manual_seed(3)
    assert_close(draws, plain.components(inputs[:5]).sample(torch.Size([2])).total)


def test_the_collapsed_bound_reads_what_forward_does() -> None:
    x, y = rows()
    own, likelihood = Own(with_both), gaussian()
    plain, inputs = AdditiveGP(own.predictor).double(), own.network(x).detach()
    found = CollapsedELBO(likelihood, own)(x, y)
    assert_close(found, CollapsedELBO(likelihood, plain)(inputs, y - own.mean_module(x)))
    found.backward()
    assert own.network[0].weight.grad.abs().max() > 0
    own.train()
    history = polish(own, likelihood, [(x, y)])
    optimum = CollapsedELBO(likelihood, own).optimum(x, y).bound
    assert history[-1] <= optimum + 1e-6 and history[-1] > optimum - 1
    assert own.training and own.network.training


def test_diagnostics_read_what_forward_does() -> None:
    x, _ = rows(60)
    own = fitted(Own(with_both))
    plain, inputs = AdditiveGP(own.predictor).double(), own.network(x).detach()
    plain.variational_strategy.load_state_dict(own.variational_strategy.state_dict())
    with pytest.warns(DependentColumnsWarning, match="Keep columns with a component of their own out") as given:
        found_by_own = concurvity(own, x)
    assert given[0].filename == __file__
    assert_close(found_by_own.estimate, concurvity(plain.eval(), inputs).estimate)
    torch.manual_seed(0)
    found = sobol_indices(own, x, num_samples=4)
    parts = own.components(x)
    torch.manual_seed(0)
    draws = parts.sample(torch.Size([4]))
    total = draws.total + own.mean_module(x)
    expected = draws.components.var(-1, correction=0) / total.var(-1, correction=0).unsqueeze(-1)
    assert_close(found.share, expected.mean(0))


def test_hyperparameter_uncertainty_reads_what_forward_does() -> None:
    x, y = rows(40)
    predictor = AdditivePredictor(smooth(0, low=0.0, high=1.0, num_inducing=4), constant())
    own, likelihood = Own(with_network, predictor), gaussian()
    own.predictor.groups[0].kernel.requires_grad_(False)
    plain, inputs = AdditiveGP(own.predictor).double(), own.network(x).detach()
    fit(plain, likelihood, (inputs, y))
    own.variational_strategy.load_state_dict(plain.variational_strategy.state_dict())
    found = own.predict(x, hyperparameters=HyperparameterUncertainty(own, likelihood, (x, y)))
    expected = plain.predict(inputs, hyperparameters=HyperparameterUncertainty(plain, likelihood, (inputs, y)))
    assert_close(found.mean, expected.mean, 1e-8)
    assert_close(found.variance, expected.variance, 1e-8)


# ---------------------------------------------------------------------- several predictors, batches, site strategies


def test_several_predictors() -> None:
    x, _ = rows(10)
    both = AdditivePredictor(
        smooth(0, low=0.0, high=1.0, num_inducing=5), smooth(1, low=0.0, high=1.0, num_inducing=5, predictor=1)
    ).double()
    shift = torch.tensor([3.0, -2.0]).double()
    model = Own(lambda model, x: model.predictor(model.network(x)) + shift, both)
    for mode in (model.train, model.eval):
        mode()
        assert_close(model(x).mean, shift.expand(10, 2), AT_FIRST)
    assert_close(model(x, prior=True).mean, shift.expand(10, 2), AT_FIRST)
    assert_close(model.predict(x).mean, model(x).mean)
    assert_close(model(x).covariance_matrix, AdditiveGP(both).double().eval()(model.network(x)).covariance_matrix, 1e-3)


def test_batches_of_models() -> None:
    x, _ = rows(10)
    shape = torch.Size([3])
    model = Own(lambda model, x: model.predictor(model.network(x)) + model.own_means(x), batch_shape=shape)
    model.own_means = gpytorch.means.ConstantMean(batch_shape=shape).double()
    model.own_means.constant.data.copy_(torch.arange(3.0))
    for mode in (model.train, model.eval):
        mode()
        assert_close(model(x).mean, torch.arange(3.0).double()[:, None].expand(3, 10), AT_FIRST)
        assert model(x).variance.shape == (3, 10)


@pytest.mark.parametrize("strategy", [FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy])
def test_strategies_tied_to_the_data(strategy: type) -> None:
    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, data: Tensor, network: torch.nn.Module) -> None:
            super().__init__(strategy(self, predictor(), data))
            self.network = network

        def forward(self, x: Tensor) -> MultivariateNormal:
            return self.variational_strategy.predictor(self.network(x)) + 2

    (x, y), layer = rows(30), network()
    own, plain = Model(x, layer), Model(layer(x).detach(), torch.nn.Identity())
    for model in (own, plain):
        model.variational_strategy.fit_sites(gaussian(), y)
        model.eval()
    inputs = layer(x).detach()
    # Solves with ill-conditioned kernel matrices magnify the last digits of the network's outputs.
    assert_close(own(x).mean, plain(inputs).mean, 1e-8)
    assert_close(own(x).variance, plain(inputs).variance, 1e-8)
    assert_close(own.variational_strategy.kl_divergence(), plain.variational_strategy.kl_divergence(), 1e-8)
    expected = plain.variational_strategy.components(inputs)
    assert_close(own.variational_strategy.components(x).variance, expected.variance, 1e-8)


# ---------------------------------------------------------------------- what is refused


def calls_nothing(model: Own, x: Tensor) -> MultivariateNormal:
    return MultivariateNormal(x[:, 0], torch.eye(len(x)).double())


def scales(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) * 2


def jitters(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x).add_jitter(0.1)


def adds_two(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) + model.predictor(model.network(x))


def drops_rows(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x[:3])


def returns_a_tensor(model: Own, x: Tensor) -> Tensor:
    return model.predictor(x).mean


def adds_a_column(model: Own, x: Tensor) -> MultivariateNormal:
    return x[:, :1] + model.predictor(x)


def replaces_by_a_column(model: Own, x: Tensor) -> MultivariateNormal:
    prior = model.predictor(x)
    return MultivariateNormal(prior.mean + x[:, :1], prior.lazy_covariance_matrix)


def is_not_finite(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x) + (x[:, 0] / 0)


def gives_too_few_columns(model: Own, x: Tensor) -> MultivariateNormal:
    return model.predictor(x[:, :1])


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (calls_nothing, ValueError, "Own.forward does not call the predictor"),
        (scales, ValueError, "Own.forward returns another covariance"),
        (jitters, ValueError, "Own.forward returns another covariance"),
        (adds_two, ValueError, "calls the predictor 2 times"),
        (drops_rows, ValueError, "over 3 rows for 6 of x"),
        (returns_a_tensor, TypeError, "must return a gpytorch MultivariateNormal, got Tensor"),
        (adds_a_column, ValueError, r"cannot add a tensor of shape \(6, 1\) to a prior of shape \(6,\)"),
        (replaces_by_a_column, ValueError, r"batch shape \(6,\) for a model and inputs of batch shape \(\)"),
        (is_not_finite, ValueError, "the mean that Own.forward returns is NaN or infinite in 6 of 6 rows"),
        (gives_too_few_columns, ValueError, "name column 1, but x has 1 columns"),
    ],
)
def test_what_forward_may_not_do(forward: Forward, error: type[Exception], message: str) -> None:
    x, _ = rows(6)
    model = Own(forward).eval()
    for use in (model, model.predict, model.components, model.variational_strategy.features, model.train()):
        with pytest.raises(error, match=message):
            use(x)


def test_the_joint_covariance_of_predictors_has_one_order() -> None:
    both = AdditivePredictor(smooth(0, low=0.0, high=1.0), constant(predictor=1)).double()

    def forward(model: Own, x: Tensor) -> MultivariateNormal:
        prior = model.predictor(x)
        return MultitaskMultivariateNormal(prior.mean + 1, prior.lazy_covariance_matrix)

    with pytest.raises(ValueError, match="pass interleaved=False"):
        Own(forward, both)(rows(5)[0])


def test_discretised_fits_take_a_forward_that_is_the_predictor_alone() -> None:
    class Plain(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            of = predictor()
            super().__init__(AdditiveVariationalStrategy(self, of, Block(of.group_shapes, rank=4).double()))

        def forward(self, x: Tensor) -> MultivariateNormal:
            return self.variational_strategy.predictor(x)

    data = [rows(200)]
    with pytest.raises(
        NotImplementedError, match=r"Own\.forward gives its predictor other inputs than x, or adds a mean"
    ):
        fit_by_bins(Own(with_network), gaussian(), data)
    with pytest.raises(NotImplementedError, match="adds a mean"):
        fit_by_bins(Own(with_constant), gaussian(), data)
    own, ready = Plain(), AdditiveGP(predictor(), rank=4).double()
    expected = fit_by_bins(ready, gaussian(), data)
    assert fit_by_bins(own, gaussian(), data) == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------------- further arguments


@pytest.mark.parametrize("name", ["offset", "misspelt"])
def test_arguments_that_nobody_reads_are_refused(name: str) -> None:
    x, _ = rows(5)
    model = AdditiveGP(predictor()).double()
    message = rf"takes no argument '{name}'.*mll\(model\(x\), y, offset=...\)"
    for use in (model, model.eval(), model.components, model.predict, lambda x, **kw: model(x, prior=True, **kw)):
        with pytest.raises(TypeError, match=message):
            use(x, **{name: x[:, 0]})
    with pytest.raises(TypeError, match=message):
        Own(with_mean)(x, **{name: x[:, 0]})
    with pytest.raises(TypeError, match=name):
        model.predictor(x, **{name: x[:, 0]})


def test_arguments_of_forward_reach_it() -> None:
    class Shifted(AdditiveGP):
        def forward(self, x: Tensor, shift: float | Tensor = 0.0) -> MultivariateNormal:
            return self.predictor(x) + shift

    x, _ = rows(5)
    model = Shifted(predictor()).double()
    for found in (model(x, shift=2.0), model.eval()(x, shift=2.0), model(x, prior=True, shift=2.0)):
        assert_close(found.mean, torch.full((5,), 2.0).double(), AT_FIRST)
    assert_close(model.predict(x, shift=2.0).mean, torch.full((5,), 2.0).double(), AT_FIRST)
    assert_close(model.components(x, shift=2.0).prior_means, torch.full((1, 5), 2.0).double())
    assert_close(model(x, shift=x[:, 0]).mean, x[:, 0], AT_FIRST)
    with pytest.raises(TypeError, match=r"predict goes through the rows in chunks and cannot cut \['shift'\]"):
        model.predict(x, shift=x[:, 0])
