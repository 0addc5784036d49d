"""Classes with one predictor each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical

from gpytorch_gam import _checks as checks

from ._joint_expectation import row_cholesky, standard_nodes
from .joint_likelihood import JointLikelihood
from .null_model import NullModel, Responses
from .predictor_likelihood import Values
from .response_checks import refuse_non_classes


class SoftmaxLikelihood(JointLikelihood):
    r"""
    Multi-class classification with one predictor a class,

    .. math::
        P(y = k \mid \rho) = \frac{e^{\rho_k}}{\sum_j e^{\rho_j}}, \qquad k = 0, \dots, K - 1.

    Unlike :class:`gpytorch.likelihoods.SoftmaxLikelihood` it mixes no weights into the predictors, so that components
    keep their meaning, and takes expectations under the joint Gaussian of a row:
    :math:`m_y - E \log \sum_j e^{\rho_j}`.

    **Identifiability.** The likelihood depends only on differences of predictors. What the classes have in common is
    determined by the prior alone: posterior effects of the classes nearly sum to zero where priors are alike, and the
    joint posterior of the components contains the uncertainty of that. Read differences between classes
    (``parts.cross_covariance()`` has the covariances for their bands), not effects alone.

    The expectation runs over the K - 1 differences to the last class: by Gauss-Hermite rules of 32 and 20 x 20 nodes
    for two and three classes, by 512 quasi-Monte Carlo points with exact first two moments for more. With five classes
    whose predictors have standard deviations of 0.3, 0.6 and 1 the errors are 3e-5, 3e-4 and 1e-3 nats.

    Each group of the model names the class to which it belongs: ``ComponentGroup(..., predictor=k)``. Row-wise
    arguments: ``offset`` of shape ``(n, K)`` (one of shape ``(n)`` is added to class 0), and ``weights``.

    :param num_classes: Number K of classes, two or more; responses are integers from 0 to K - 1.
    :raises TypeError: If ``num_classes`` is no integer.
    :raises ValueError: If ``num_classes`` is less than two.
    """

    def __init__(self, num_classes: int) -> None:
        num_classes = checks.integer("num_classes", num_classes, least=2)
        super().__init__()
        self.num_predictors = num_classes

    @property
    def num_classes(self) -> int:
        """The number K of classes."""
        return self.num_predictors

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_classes(type(self).__name__, y, self.num_classes)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        differences, log_weights = _difference_nodes(mean, covariance)
        expected = _log_normaliser(differences) @ log_weights.exp()
        return _chosen(mean - mean[..., -1:], y) - expected

    def _log_marginal(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        return _chosen(self._marginal(mean, covariance, values).logits, y)

    def _marginal(self, mean: Tensor, covariance: Tensor, values: Values) -> Categorical:
        differences, log_weights = _difference_nodes(mean, covariance)
        log_last = log_weights - _log_normaliser(differences)  # (*batch, n, nodes)
        log_probs = torch.cat([differences + log_last.unsqueeze(-2), log_last.unsqueeze(-2)], dim=-2)
        return Categorical(logits=log_probs.logsumexp(-1), validate_args=False)

    def _conditional(self, predictors: Tensor, values: Values) -> Categorical:
        return Categorical(logits=predictors, validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        logits = responses.counts(self.num_classes).log()
        return NullModel((logits - logits.mean()).tolist(), [1.0] * self.num_classes, {})


def _difference_nodes(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes ``(*batch, n, K - 1, nodes)`` of the differences to the last predictor, and log weights ``(nodes,)``."""
    rows = covariance[..., :-1, :] - covariance[..., -1:, :]
    root = row_cholesky(rows[..., :-1] - rows[..., -1:])
    nodes, log_weights = standard_nodes(mean.shape[-1] - 1, mean.dtype, mean.device)
    return (mean[..., :-1] - mean[..., -1:]).unsqueeze(-1) + root @ nodes.mT, log_weights


def _log_normaliser(differences: Tensor) -> Tensor:
    r""":math:`\log(1 + \sum_k e^{d_k})`. The sum runs over a dimension that is not the last, which is faster."""
    largest = differences.detach().amax(-2).clamp_min(0.0)
    return largest + ((differences - largest.unsqueeze(-2)).exp().sum(-2) + (-largest).exp()).log()


def _chosen(values: Tensor, y: Tensor) -> Tensor:
    """The values ``(..., n, K)`` of the observed classes ``(..., n)``, integers in any dtype."""
    return values.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
