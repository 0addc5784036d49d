"""Mixtures of components' posteriors against draws of models and sums over them."""

from __future__ import annotations

import pytest
import torch

from gpytorch_gam import AdditiveGP
from gpytorch_gam.effects import ComponentMixture, WeightedModels
from tests.problems import make_inputs, mixed_inputs, mixed_model

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def models() -> list[AdditiveGP]:
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = mixed_model().double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.variational_strategy.variational_params_initialized.fill_(1)
        found.append(model)
    return found


@pytest.fixture(scope="module")
def mixture() -> tuple[WeightedModels, list[AdditiveGP], torch.Tensor]:
    own = models()
    x = mixed_inputs(8).double()
    return WeightedModels([model.variational_strategy for model in own], WEIGHTS), own, x


def brute_force(means: list[torch.Tensor], covariances: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Moments of a mixture of normals of flat vectors, by second moments."""
    mean = sum(w * m for w, m in zip(WEIGHTS, means, strict=True))
    second = sum(w * (c + torch.outer(m, m)) for w, c, m in zip(WEIGHTS, covariances, means, strict=True))
    return mean, second - torch.outer(mean, mean)


@pytest.mark.parametrize("is_centred", [False, True])
def test_moments_are_those_of_the_mixture(mixture, is_centred: bool) -> None:
    both, own, x = mixture
    parts = [model.components(x) for model in own]
    found = both.components(x)
    if is_centred:
        over = mixed_inputs(20).double()
        parts, found = [part.centred(over) for part in parts], found.centred(over)
    num, size = found.mean.shape[-2:]
    full = [part.full_cross_covariance().flatten(2).flatten(0, 1).detach() for part in parts]
    mean, covariance = brute_force([part.mean.flatten().detach() for part in parts], full)
    tolerance = {"atol": 1e-9, "rtol": 1e-7}
    torch.testing.assert_close(found.mean.flatten(), mean, **tolerance)
    torch.testing.assert_close(found.variance.flatten(), covariance.diagonal(), **tolerance)
    torch.testing.assert_close(found.full_cross_covariance().flatten(2).flatten(0, 1), covariance, **tolerance)
    dense = covariance.view(num, size, num, size)
    own_blocks = dense.diagonal(dim1=0, dim2=2).movedim(-1, 0)
    torch.testing.assert_close(found.covariance(), own_blocks, **tolerance)
    in_rows = dense.diagonal(dim1=1, dim2=3).movedim(-1, 0)
    torch.testing.assert_close(found.cross_covariance(), in_rows, **tolerance)
    total_mean, total_variance = found.total()
    torch.testing.assert_close(total_mean, found.mean.sum(0), **tolerance)
    torch.testing.assert_close(total_variance, in_rows.sum((-2, -1)), **tolerance)
    moments = found.predictor_moments()
    torch.testing.assert_close(moments.mean[:, 0], total_mean + found.prior_means[0], **tolerance)
    lower, upper = found.confidence_region()
    torch.testing.assert_close(upper - lower, 2 * 1.96 * found.variance.sqrt(), **tolerance)


def test_one_component_by_its_name_is_that_of_all(mixture) -> None:
    both, _, x = mixture
    parts = both.components(x)
    name = parts.names[1]
    for one in (parts[name], both.components(x, name)):
        assert isinstance(one, ComponentMixture) and one.mean.shape == (8,)
        torch.testing.assert_close(one.mean, parts.mean[1])
        torch.testing.assert_close(one.variance, parts.variance[1])
        torch.testing.assert_close(one.covariance(), parts.covariance()[1])
        torch.testing.assert_close(one.full_cross_covariance(), parts.covariance()[1])
        torch.testing.assert_close(one.cross_covariance(), parts.variance[1])
    assert parts[list(parts.names[:2])].mean.shape == (2, 8)


def test_predictions_agree_with_components(mixture) -> None:
    both, own, x = mixture
    prediction, parts = both.predict(x, chunk_size=3), both.components(x)
    torch.testing.assert_close(prediction.mean, parts.predictor_moments().mean[:, 0])
    torch.testing.assert_close(prediction.variance, parts.predictor_moments().covariance[:, 0, 0])
    torch.testing.assert_close(prediction.component_variance, parts.variance)
    alone = both.predict(x, False, exclude=parts.names[0])
    assert alone.component_mean is None
    kept = parts[list(parts.names[1:])].predictor_moments()
    torch.testing.assert_close(alone.mean, kept.mean[:, 0])
    torch.testing.assert_close(own[0].predict(x, hyperparameters=both).variance, prediction.variance)
    torch.testing.assert_close(own[0].components(x, hyperparameters=both).variance, parts.variance)


def test_draws_have_the_moments_of_the_mixture(mixture) -> None:
    both, _, x = mixture
    torch.manual_seed(0)
    parts = both.components(x[:3])
    draws = parts.sample(torch.Size([4000, 5]))
    assert draws.components.shape == (4000, 5, *parts.mean.shape)
    deviation = parts.variance.sqrt()
    error = (draws.components.mean((0, 1)) - parts.mean) / deviation
    assert error.abs().max() < 5 / 20000**0.5
    spread = draws.components.flatten(0, 1).var(0) / parts.variance
    assert (spread - 1).abs().max() < 0.1  # of 20000 draws
    torch.testing.assert_close(draws.total, draws.components.sum(-2))
    assert parts.sample().components.shape == parts.mean.shape


def test_models_of_other_components_are_refused(mixture) -> None:
    both, _, _ = mixture
    from tests.problems import make_model

    other, x = make_model("block_low_rank", 2).eval(), make_inputs(4)
    for ask in (other.predict, other.components):
        with pytest.raises(ValueError, match="hyperparameters are those of a model with components"):
            ask(x, hyperparameters=both)
        with pytest.raises(TypeError, match="hyperparameters must be a HyperparameterUncertainty"):
            ask(x, hyperparameters=True)
