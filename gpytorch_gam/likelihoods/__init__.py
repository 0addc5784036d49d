"""
Likelihoods that GPyTorch lacks, all with row-wise offsets and weights.

Those of one predictor are for counts (:class:`PoissonLikelihood`, :class:`NegativeBinomialLikelihood`,
:class:`ZeroInflatedPoissonLikelihood`), successes among trials (:class:`BinomialLikelihood`), positive numbers
(:class:`GammaLikelihood`), ordered classes (:class:`OrdinalLikelihood`), outliers (:class:`StudentTLikelihood`) and
quantiles (:class:`QuantileLikelihood`). :class:`RowwiseLikelihood` gives offsets and weights to GPyTorch's own.

Those of several predictors take expectations under the joint normal distribution of these:
:class:`GaussianLocationScaleLikelihood`, :class:`StudentTLocationScaleLikelihood`,
:class:`NegativeBinomialMeanDispersionLikelihood` and :class:`SoftmaxLikelihood`.
"""

from .binomial_likelihood import BinomialLikelihood
from .gamma_likelihood import GammaLikelihood
from .gaussian_location_scale_likelihood import GaussianLocationScaleLikelihood
from .negative_binomial_likelihood import NegativeBinomialLikelihood
from .negative_binomial_mean_dispersion_likelihood import NegativeBinomialMeanDispersionLikelihood
from .ordinal_likelihood import OrdinalLikelihood
from .poisson_likelihood import PoissonLikelihood
from .quantile_likelihood import QuantileLikelihood
from .rowwise_likelihood import RowwiseLikelihood
from .softmax_likelihood import SoftmaxLikelihood
from .student_t_likelihood import StudentTLikelihood
from .student_t_location_scale_likelihood import StudentTLocationScaleLikelihood
from .zero_inflated_poisson_likelihood import ZeroInflatedPoissonLikelihood

__all__ = [
    "BinomialLikelihood",
    "GammaLikelihood",
    "GaussianLocationScaleLikelihood",
    "NegativeBinomialLikelihood",
    "NegativeBinomialMeanDispersionLikelihood",
    "OrdinalLikelihood",
    "PoissonLikelihood",
    "QuantileLikelihood",
    "RowwiseLikelihood",
    "SoftmaxLikelihood",
    "StudentTLikelihood",
    "StudentTLocationScaleLikelihood",
    "ZeroInflatedPoissonLikelihood",
]
