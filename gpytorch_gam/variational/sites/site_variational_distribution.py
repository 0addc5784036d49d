"""The parameters of a Gaussian posterior that is tied to the rows of the training data."""

from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational._variational_distribution import _VariationalDistribution
from torch import Tensor

from gpytorch_gam import _checks as checks


class SiteVariationalDistribution(_VariationalDistribution):
    r"""
    A weight :math:`\alpha_n` and a root precision :math:`\Lambda_n` for each of N rows of training data: the 2N
    parameters of the two systems of Adam, Durrande and John (2018) that are tied to the data (sections 4 and 4.1).

    In the posterior, row n acts as a Gaussian observation ("site") of the predictor with precision :math:`\Lambda_n^2`;
    the sign of :math:`\Lambda_n` has no meaning. The posterior also depends on the kernels, which belong to the
    strategy: :class:`TiedAdditiveVariationalStrategy` or :class:`FullAdditiveVariationalStrategy`, which make this
    distribution themselves.

    :param num_data: Number N of rows.
    :param batch_shape: Batch shape of independent models.
    :param mean_init_std: Standard deviation of the initial weights around zero.
    :param init_scale: Initial root precision; positive, since the gradient at :math:`\Lambda_n = 0` vanishes.
    :raises ValueError: If ``num_data`` is not a positive integer, or ``init_scale`` not positive.

    :ivar site_weights: The weights :math:`\boldsymbol\alpha`, ``(*batch, N)``.
    :ivar site_scales: The root precisions :math:`\Lambda`, ``(*batch, N)``.
    """

    site_weights: Tensor
    site_scales: Tensor

    def __init__(
        self,
        num_data: int,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 (GPyTorch's own default)
        mean_init_std: float = 1e-3,
        init_scale: float = 1e-2,
    ) -> None:
        checks.integer("num_data", num_data, least=1)
        checks.number("mean_init_std", mean_init_std, least=0)
        checks.number("init_scale", init_scale, above=0)  # the bound has no gradient where scales are zero
        super().__init__(num_data, batch_shape=torch.Size(batch_shape), mean_init_std=mean_init_std)
        self.init_scale = init_scale
        weights = mean_init_std * torch.randn(self.shape())
        self.register_parameter("site_weights", torch.nn.Parameter(weights))
        self.register_parameter("site_scales", torch.nn.Parameter(torch.full(self.shape(), float(init_scale))))

    @property
    def num_data(self) -> int:
        """The number of rows of the training data."""
        return self.num_inducing_points

    def forward(self) -> MultivariateNormal:
        """Raises a NotImplementedError: without kernels the sites define no distribution."""
        raise NotImplementedError(
            "a SiteVariationalDistribution holds weights and precisions of data rows, which give a distribution only "
            "together with the kernels: use strategy.variational_distribution of the strategy that owns it"
        )

    @torch.no_grad()
    def initialize_variational_distribution(self, prior_dist: MultivariateNormal) -> None:
        """Set the weights to noise of ``mean_init_std`` and the scales to ``init_scale``, which is nearly the prior."""
        self.site_weights.normal_(0.0, self.mean_init_std)
        self.site_scales.fill_(self.init_scale)
