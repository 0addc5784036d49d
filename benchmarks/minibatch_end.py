"""
Claim: a fit by minibatches ends by itself, with the posterior within a nat of its optimum and the hyperparameters
within five nats of theirs.

Friedman's function of ten columns that are multiples of 1/200, so that bins lose nothing, in Gaussian noise or as
labels with a probit link; a constant and ten smooth effects of 16 points. `fit` by minibatches of 1000 rows, with its
defaults, reads the rows from memory; `fit` by bins gives the maximum, and the optimum of the posterior at the
hyperparameters of the other. Printed: why the fit ended, its epochs, passes and seconds, the nats that it says are
open, and by how many its bound falls short of those two.

    python benchmarks/minibatch_end.py [--sizes 1e5 1e6] [--responses gaussian labels] [--json FILE]
"""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from friedman_anova import friedman

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.likelihoods import BinomialLikelihood
from gpytorch_gam.terms import constant, smooth

NUM_COLUMNS, NUM_VALUES = 10, 200
RESPONSES = ("gaussian", "labels")


def draw(num_rows: int, response: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randint(NUM_VALUES + 1, (num_rows, NUM_COLUMNS)).double() / NUM_VALUES
    truth = friedman(x)
    if response == "gaussian":
        return x, truth + torch.randn_like(truth)
    return x, ((truth - 14.0) / 5.0 + torch.randn_like(truth) > 0).double()


def make_model(x: Tensor, response: str) -> tuple[AdditiveGP, Likelihood]:
    terms = [constant(), smooth(list(range(NUM_COLUMNS)), x)]
    likelihood = GaussianLikelihood() if response == "gaussian" else BinomialLikelihood("probit")
    return AdditiveGP(AdditivePredictor(*terms)).double(), likelihood.double()


def run(num_rows: int, response: str) -> dict[str, Any]:
    x, y = draw(num_rows, response)
    best = fit(*make_model(x, response), (x, y), method="bins")
    model, likelihood = make_model(x, response)
    start = time.process_time()
    found = fit(model, likelihood, (x, y), method="minibatches")
    seconds = time.process_time() - start
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    optimum = fit(copy.deepcopy(model), likelihood, (x, y), method="bins")
    return {
        "rows": num_rows,
        "response": response,
        "stopped": found.stopped,
        "epochs": len(found.history),
        "passes": found.passes,
        "seconds": seconds,
        "open": found.open,
        "gradient": found.gradient,
        "bound": found.bound,
        "below_optimum": optimum.bound - found.bound,
        "below_maximum": best.bound - found.bound,
        "open_of_bins": best.open,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", type=lambda text: int(float(text)), default=[100_000])
    parser.add_argument("--responses", nargs="+", choices=RESPONSES, default=list(RESPONSES))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    sizes, responses = ([3000], RESPONSES[:1]) if options.quick else (options.sizes, options.responses)
    found = [run(num_rows, response) for num_rows in sizes for response in responses]
    print_table(
        ["rows", "responses", "epochs", "passes", "seconds", "open", "below optimum", "below maximum", "ended because"],
        [
            [
                f"{one['rows']:,}",
                one["response"],
                str(one["epochs"]),
                str(one["passes"]),
                f"{one['seconds']:.0f}",
                f"{one['open']:.3f}",
                f"{one['below_optimum']:.3f}",
                f"{one['below_maximum']:.2f}",
                one["stopped"],
            ]
            for one in found
        ],
    )
    result = {"environment": environment, "fits": found}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
