"""Classes with a predictor each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments

from ._joint_expectation import row_cholesky, standard_nodes
from .joint_likelihood import _JointLikelihood
from .null_model import NullModel, Responses
from .row_arguments import refuse_rows


class SoftmaxLikelihood(_JointLikelihood):
    r"""
    Multi-class classification with one predictor a class,

    .. math::
        P(y = k \mid \rho) = \frac{e^{\rho_k}}{\sum_j e^{\rho_j}}, \qquad k = 0, \dots, K - 1.

    Unlike :class:`gpytorch.likelihoods.SoftmaxLikelihood` it mixes no weights into the predictors, so that components
    keep their meaning, and takes expectations under the joint Gaussian of a row:
    :math:`m_y - E \log \sum_j e^{\rho_j}`.

    **Identifiability.** Only differences of predictors enter. What the classes have in common is left to the prior,
    which shares it out: posterior effects of the classes nearly sum to zero where priors are alike, and the joint
    posterior of the components says how far that is uncertain. Read differences between classes
    (``parts.cross_covariance()`` has what their bands need), not effects alone.

    The expectation runs over the K - 1 differences to the last class: by Gauss-Hermite rules of 32 and 20 x 20 nodes
    for two and three classes, by 512 quasi-Monte Carlo points with exact first two moments for more. With five classes
    whose predictors have standard deviations of 0.3, 0.6 and 1 these are off by 3e-5, 3e-4 and 1e-3 nats.

    Groups of the model say which class they belong to: ``ComponentGroup(..., predictor=k)``. Row-wise: ``offset`` of
    shape ``(n, K)`` (one of shape ``(n)`` belongs to class 0), and ``weights``.

    :param num_classes: Number K of classes, two or more; responses are integers from 0 to K - 1.
    :raises ValueError: If ``num_classes`` is no integer above one.
    """

    def __init__(self, num_classes: int) -> None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
        super().__init__(num_predictors=num_classes)

    @property
    def num_classes(self) -> int:
        """Number K of classes."""
        return self.num_predictors

    def _check_values(self, observations: Tensor) -> None:
        refuse_rows(
            type(self).__name__,
            observations,
            lambda y: (y < 0) | (y >= self.num_classes) | (y != y.long()),
            "values that are no classes",
            f"classes are the integers 0 to {self.num_classes - 1}",
        )

    def _expected_log_prob(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        differences, log_weights = difference_nodes(moments)
        expected = log_normaliser(differences) @ log_weights.exp()
        return chosen(moments.mean - moments.mean[..., -1:], observations) - expected

    def _log_marginal(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        return chosen(self._marginal(moments).logits, observations)

    def _marginal(self, moments: PredictorMoments, **row: Tensor) -> Categorical:
        differences, log_weights = difference_nodes(moments)
        log_last = log_weights - log_normaliser(differences)  # (*batch, n, nodes)
        log_probs = torch.cat([differences + log_last.unsqueeze(-2), log_last.unsqueeze(-2)], dim=-2)
        return Categorical(logits=log_probs.logsumexp(-1), validate_args=False)

    def _parameters_given(self, predictors: Tensor, **row: Tensor) -> tuple[Tensor, ...]:
        return (predictors,)

    @staticmethod
    def _conditional(*parameters: Tensor) -> Categorical:
        return Categorical(logits=parameters[0], validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        logits = responses.counts(self.num_classes).log()
        return NullModel((logits - logits.mean()).tolist(), [1.0] * self.num_classes, {})


def difference_nodes(moments: PredictorMoments) -> tuple[Tensor, Tensor]:
    """
    Nodes of the differences between the predictors and the last of them.

    :param moments: Mean ``(*batch, n, K)`` and covariance ``(*batch, n, K, K)``.
    :return: Differences ``(*batch, n, K - 1, nodes)`` and log weights ``(nodes,)``.
    """
    mean, covariance = moments
    rows = covariance[..., :-1, :] - covariance[..., -1:, :]
    root = row_cholesky(rows[..., :-1] - rows[..., -1:])
    nodes, log_weights = standard_nodes(mean.shape[-1] - 1, mean.dtype, mean.device)
    return (mean[..., :-1] - mean[..., -1:]).unsqueeze(-1) + root @ nodes.mT, log_weights


def log_normaliser(differences: Tensor) -> Tensor:
    r"""
    :math:`\log(1 + \sum_k e^{d_k})`. The sum runs over a dimension that is not the last, which is faster.

    :param differences: ``(*batch, n, K - 1, nodes)``.
    :return: ``(*batch, n, nodes)``.
    """
    largest = differences.detach().amax(-2).clamp_min(0.0)
    return largest + ((differences - largest.unsqueeze(-2)).exp().sum(-2) + (-largest).exp()).log()


def chosen(values: Tensor, observations: Tensor) -> Tensor:
    """
    The values of the observed classes.

    :param values: ``(..., n, K)``.
    :param observations: ``(*batch, n)``, integers in any dtype; batch shapes broadcast.
    """
    shape = torch.broadcast_shapes(values.shape[:-1], observations.shape)
    index = observations.long().expand(shape).unsqueeze(-1)
    return values.expand(*shape, -1).gather(-1, index).squeeze(-1)
