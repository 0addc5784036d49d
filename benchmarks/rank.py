"""
Claim: block + low-rank precision needs a small rank that grows slowly with the number of components; the paper's
low-rank precision needs one direction for each that the data determine, and is worse than mean-field below that.

Additive models of plain RBF kernels on inputs that share latent factors, Gaussian noise, hyperparameters known. The
optimal posterior is found in closed form, and each family is set to its fit of it. Printed is what the fit loses:
the Kullback-Leibler divergence to the optimum, in nats, which is the difference of their ELBOs.

    python benchmarks/rank.py [--json FILE]
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import gpytorch
import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.mlls import CollapsedELBO, GaussianOptimum
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.warnings import RankWarning

RANKS = (0, 16, 32, 64, 128, 256)
LENGTHSCALE, NOISE, OWN_SHARE = 0.3, 0.25, 0.3


class Setting(NamedTuple):
    num_components: int
    num_rows: int
    num_factors: int
    num_inducing: int


SETTINGS = (Setting(8, 5000, 2, 14), Setting(25, 10000, 5, 16), Setting(50, 20000, 5, 16))


def draw(setting: Setting, own_share: float = OWN_SHARE) -> tuple[Tensor, Tensor]:
    """
    Inputs that are uniform each and depend on shared factors, and a sum of sines with noise.

    :param own_share: Weight of what an input does not share, between 0 and 1.
    """
    torch.manual_seed(0)
    factors = torch.randn(setting.num_rows, setting.num_factors)
    loadings = torch.nn.functional.normalize(torch.randn(setting.num_factors, setting.num_components), dim=0)
    own = torch.randn(setting.num_rows, setting.num_components)
    x = torch.special.ndtr((1 - own_share**2) ** 0.5 * factors @ loadings + own_share * own)
    return x, torch.sin(6 * x).mean(-1) + NOISE**0.5 * torch.randn(setting.num_rows)


def make_predictor(setting: Setting) -> AdditivePredictor:
    size = torch.Size([setting.num_components])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale = LENGTHSCALE
    kernel.outputscale = torch.ones(size)
    columns = [[index] for index in range(setting.num_components)]
    return AdditivePredictor(ComponentGroup(kernel, columns, regular_grid(0.0, 1.0, setting.num_inducing)))


def gap(model: AdditiveGP, optimum: GaussianOptimum) -> float:
    """KL of the fit to the optimum of the same mean: (tr(P S) - Q - log|P| - log|S|) / 2."""
    strategy = model.variational_strategy
    strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    covariance = strategy.variational_distribution.lazy_covariance_matrix
    trace = (optimum.precision * covariance.to_dense()).sum()
    logdets = torch.linalg.slogdet(optimum.precision).logabsdet + covariance.logdet()
    return (0.5 * (trace - len(optimum.mean) - logdets)).item()


@torch.no_grad()
def measure(setting: Setting) -> dict[str, dict[str, float]]:
    predictor, (x, y) = make_predictor(setting), draw(setting)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    optimum = CollapsedELBO(likelihood, AdditiveGP(predictor, "coupled")).optimum(x, y)
    ranks = [rank for rank in RANKS if rank <= predictor.num_inducing_total]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # what it warns of is the result
        return {
            family: {str(rank): gap(AdditiveGP(predictor, family, rank), optimum) for rank in ranks}
            for family in ("block_low_rank", "low_rank")
        }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = script_parser(__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    settings = (Setting(3, 300, 1, 8),) if options.quick else SETTINGS
    results = []
    with default_dtype(torch.float64):
        for setting in settings:
            gaps = measure(setting)
            results.append({**setting._asdict(), "gaps": gaps})
            ranks = list(gaps["low_rank"])
            rows = [[family, *(f"{value:.2f}" for value in found.values())] for family, found in gaps.items()]
            print(
                f"\nC = {setting.num_components}, N = {setting.num_rows}, {setting.num_factors} latent factors, "
                f"{setting.num_inducing} inducing points each: nats lost"
            )
            print_table(["rank (0: mean-field, prior)", *ranks], rows)
    result = {"environment": environment, "results": results}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
