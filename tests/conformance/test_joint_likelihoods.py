"""GPyTorch's own conformance tests, run on the likelihoods of several predictors."""

from __future__ import annotations

import unittest

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.test.base_likelihood_test_case import BaseLikelihoodTestCase
from torch.distributions import Distribution

import gpytorch_gam.likelihoods
from gpytorch_gam.likelihoods.gaussian_location_scale_likelihood import GaussianLocationScaleLikelihood
from gpytorch_gam.likelihoods.joint_likelihood import _JointLikelihood
from gpytorch_gam.likelihoods.negative_binomial_mean_dispersion_likelihood import (
    NegativeBinomialMeanDispersionLikelihood,
)
from gpytorch_gam.likelihoods.softmax_likelihood import SoftmaxLikelihood
from gpytorch_gam.likelihoods.student_t_location_scale_likelihood import StudentTLocationScaleLikelihood


class JointLikelihoodTestCase(BaseLikelihoodTestCase):
    """Inputs are (5, P) and responses (5); otherwise GPyTorch's."""

    num_predictors = 2

    def _create_conditional_input(self, batch_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
        return torch.randn(*batch_shape, 5, self.num_predictors)

    def _create_marginal_input(self, batch_shape: torch.Size = torch.Size()) -> MultitaskMultivariateNormal:  # noqa: B008
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

    def _create_targets(self, batch_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
        return torch.randint(0, 5, (*batch_shape, 5)).float()


class TestSoftmax(JointLikelihoodTestCase, unittest.TestCase):
    seed = 4
    num_predictors = 6

    def create_likelihood(self) -> SoftmaxLikelihood:
        return SoftmaxLikelihood(num_classes=6)

    def _create_targets(self, batch_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
        return torch.randint(0, 6, (*batch_shape, 5))

    @staticmethod
    def summary(output: Distribution) -> torch.Tensor:
        return output.probs


def test_every_likelihood_of_several_predictors_is_tested() -> None:
    public = (getattr(gpytorch_gam.likelihoods, name) for name in gpytorch_gam.likelihoods.__all__)
    classes = {value for value in public if isinstance(value, type) and issubclass(value, _JointLikelihood)}
    tested = {case.create_likelihood.__annotations__["return"] for case in JointLikelihoodTestCase.__subclasses__()}
    assert {value.__name__ for value in classes} == tested
