"""GPyTorch's own conformance tests, run on the likelihoods of one predictor and of several."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.test.base_likelihood_test_case import BaseLikelihoodTestCase
from torch.distributions import Distribution

import gpytorch_gam.likelihoods
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    NegativeBinomialMeanDispersionLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    RowwiseLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    StudentTLocationScaleLikelihood,
    ZeroInflatedPoissonLikelihood,
)

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


class JointLikelihoodTestCase(BaseLikelihoodTestCase):
    """Inputs are (5, P) and responses (5); otherwise GPyTorch's."""

    num_predictors = 2

    def _create_conditional_input(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randn(*batch_shape, 5, self.num_predictors)

    def _create_marginal_input(self, batch_shape: torch.Size = NO_BATCH) -> MultitaskMultivariateNormal:
        size = 5 * self.num_predictors
        root = 0.1 * torch.randn(*batch_shape, size, size)
        covariance = root @ root.mT + 0.1 * torch.eye(size)
        return MultitaskMultivariateNormal(torch.randn(*batch_shape, 5, self.num_predictors), covariance)

    def _test_conditional(self, batch_shape: torch.Size) -> None:
        output = self.create_likelihood()(self._create_conditional_input(batch_shape))
        assert isinstance(output, Distribution)
        assert output.sample().shape == (*batch_shape, 5)

    def _test_marginal(self, batch_shape: torch.Size) -> None:
        likelihood, dist = self.create_likelihood(), self._create_marginal_input(batch_shape)
        output = likelihood(dist)
        assert isinstance(output, Distribution)
        assert output.sample().shape == (*batch_shape, 5)
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(30000):
            default = Likelihood.marginal(likelihood, dist)
        self.assertAllClose(self.summary(default).mean(0), self.summary(output), rtol=0.1, atol=0.1)

    @staticmethod
    def summary(output: Distribution) -> torch.Tensor:
        return output.mean


class TestGaussianLocationScale(JointLikelihoodTestCase, unittest.TestCase):
    seed = 1

    def create_likelihood(self) -> GaussianLocationScaleLikelihood:
        return GaussianLocationScaleLikelihood()


class TestStudentTLocationScale(JointLikelihoodTestCase, unittest.TestCase):
    seed = 2

    def create_likelihood(self) -> StudentTLocationScaleLikelihood:
        return StudentTLocationScaleLikelihood()


class TestNegativeBinomialMeanDispersion(JointLikelihoodTestCase, unittest.TestCase):
    seed = 3

    def create_likelihood(self) -> NegativeBinomialMeanDispersionLikelihood:
        return NegativeBinomialMeanDispersionLikelihood()

    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randint(0, 5, (*batch_shape, 5)).float()


class TestSoftmax(JointLikelihoodTestCase, unittest.TestCase):
    seed = 4
    num_predictors = 6

    def create_likelihood(self) -> SoftmaxLikelihood:
        return SoftmaxLikelihood(num_classes=6)

    def _create_targets(self, batch_shape: torch.Size = NO_BATCH) -> torch.Tensor:
        return torch.randint(0, 6, (*batch_shape, 5))

    @staticmethod
    def summary(output: Distribution) -> torch.Tensor:
        return output.probs


def test_every_public_likelihood_is_tested() -> None:
    cases = [value for value in globals().values() if inspect.isclass(value) and issubclass(value, unittest.TestCase)]
    tested = {type(case("test_nonbatch").create_likelihood()) for case in cases}
    public = [getattr(gpytorch_gam.likelihoods, name) for name in gpytorch_gam.likelihoods.__all__]
    missing = {cls for cls in public if inspect.isclass(cls) and issubclass(cls, Likelihood)} - tested
    assert not missing, f"no conformance test for {missing}"


# pytest would collect the abstract bases as well
del OnePredictorTestCase, CountTestCase, BinaryTestCase, JointLikelihoodTestCase
