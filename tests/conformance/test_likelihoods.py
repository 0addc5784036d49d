"""GPyTorch's own conformance tests, run on the likelihoods of one predictor."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.test.base_likelihood_test_case import BaseLikelihoodTestCase

import gpytorch_gam.likelihoods
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    RowwiseLikelihood,
    StudentTLikelihood,
    ZeroInflatedPoissonLikelihood,
)

from . import test_joint_likelihoods

NO_BATCH = torch.Size()


class OnePredictorTestCase(BaseLikelihoodTestCase):
    """Predictors are less spread out than GPyTorch's, whose Monte Carlo means of exponentials would be useless."""

    seed = 1

    def _create_marginal_input(self, batch_shape: torch.Size = NO_BATCH) -> MultivariateNormal:
        root = 0.1 * torch.randn(*batch_shape, 5, 5)
        return MultivariateNormal(0.5 * torch.randn(*batch_shape, 5), root @ root.mT + 0.03 * torch.eye(5))


class CountTestCase(OnePredictorTestCase):
    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randint(0, 5, (*batch_shape, 5)).float()


class BinaryTestCase(OnePredictorTestCase):
    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randint(0, 2, (*batch_shape, 5)).float()


class TestPoisson(CountTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return PoissonLikelihood()


class TestNegativeBinomial(CountTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return NegativeBinomialLikelihood()


class TestZeroInflatedPoisson(CountTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return ZeroInflatedPoissonLikelihood()


class TestBinomialLogit(BinaryTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return BinomialLikelihood()


class TestBinomialProbit(BinaryTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return BinomialLikelihood("probit")


class TestGamma(OnePredictorTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return GammaLikelihood()

    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.rand(*batch_shape, 5) + 0.2


class TestOrdinal(OnePredictorTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return OrdinalLikelihood(4)

    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randint(0, 4, (*batch_shape, 5)).float()

    def _test_marginal(self, batch_shape: torch.Size) -> None:
        # Classes have no mean: probabilities instead.
        likelihood, dist = self.create_likelihood(), self._create_marginal_input(batch_shape)
        output = likelihood(dist)
        assert output.sample().shape == dist.sample().shape
        with gpytorch.settings.num_likelihood_samples(30000):
            default = Likelihood.marginal(likelihood, dist)
        self.assertAllClose(default.probs.mean(0), output.probs, rtol=0.05, atol=0.01)


class TestQuantile(OnePredictorTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return QuantileLikelihood(0.3)


class TestStudentT(OnePredictorTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return StudentTLikelihood()


class TestRowwiseGaussian(OnePredictorTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())


class TestRowwiseBernoulli(BinaryTestCase, unittest.TestCase):
    def create_likelihood(self, **kwargs: Any) -> Likelihood:
        return RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())


def test_every_public_likelihood_is_tested() -> None:
    tested = set()
    for module in (inspect.getmodule(test_every_public_likelihood_is_tested), test_joint_likelihoods):
        for case in vars(module).values():
            if inspect.isclass(case) and issubclass(case, unittest.TestCase):
                tested.add(type(case("test_nonbatch").create_likelihood()))
    public = [getattr(gpytorch_gam.likelihoods, name) for name in gpytorch_gam.likelihoods.__all__]
    missing = {cls for cls in public if inspect.isclass(cls) and issubclass(cls, Likelihood)} - tested
    assert not missing, f"no conformance test for {missing}"


# pytest would collect the abstract bases as well
del OnePredictorTestCase, CountTestCase, BinaryTestCase
