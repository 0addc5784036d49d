"""
Claim: the coupled posterior with a low-rank precision costs C^1, where the paper counts C^2; so does block + low-rank.

Measures how storage, KL divergence and marginals grow with the batch size N, the number of components C and the number
of inducing points M of each, for four families of q:

- mean-field: GPyTorch's batched ``CholeskyVariationalDistribution``;
- coupled covariance: GPyTorch's ``CholeskyVariationalDistribution`` over all Q = C M inducing variables;
- coupled precision: the paper's family, R = 32;
- block + low-rank precision, R = 32, blocks of full rank.

Storage is the number of variational parameters, exactly; KL and marginals (a forward call in train mode, means and
variances) are median times without gradients, in float32. Exponents are least-squares slopes of the logarithms over the
three largest sizes of a geometric range, the families of a range timed in turn. They are reported as they come: a fixed
overhead, or a term of lower order such as the kernel evaluation (N C M in every family), pulls a slope below its
asymptote; a working set that outgrows a cache pushes it above. On a machine that does other work, one thread gives the
steadiest slopes.

Beside them stand counts of operations. The paper (Adam, Durrande and John, 2018) is quoted for one entry, N C^2 M^2 for
the marginals of the coupled precision, at second hand: its table was not compared entry by entry. Every other count is
our own, of the algorithm as implemented. In particular KL divergences are those of whitened variables: the prior is the
identity, and the M^3 of an unwhitened mean-field KL (trace and log determinant of the prior) falls away.

    python benchmarks/complexity.py [--threads 1] [--device cuda] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from _common import (
    StockMeanField,
    add_common_arguments,
    additive_gp,
    interleaved_times,
    make_data,
    num_variational_parameters,
    prepare,
    print_table,
    write_json,
)
from gpytorch.models import ApproximateGP
from torch import Tensor

RANK = 32
FITTED_SIZES = 3


class Count(NamedTuple):
    """Leading operations, and the exponents of N, C and M at fixed R."""

    formula: str
    exponents: tuple[int, int, int]


class Sweep(NamedTuple):
    """A geometric range of one of N, C, M with the other two fixed, for some of the families."""

    quantity: str
    variable: str
    sizes: tuple[int, ...]
    fixed: dict[str, int]
    families: tuple[str, ...]

    def shape(self, size: int) -> dict[str, int]:
        return {**self.fixed, self.variable: size}


FAMILIES: dict[str, Callable[[int, int], ApproximateGP]] = {
    "mean-field": StockMeanField,
    "coupled covariance": lambda c, m: additive_gp(c, m, "coupled"),
    "coupled precision": lambda c, m: additive_gp(c, m, "low_rank", min(RANK, c * m)),
    "block + low-rank": lambda c, m: additive_gp(c, m, "block_low_rank", min(RANK, c * m)),
}
QUANTITIES = ("storage", "KL", "marginals")

OUR_COUNTS = {
    ("mean-field", "storage"): Count("C M^2", (0, 1, 2)),
    ("mean-field", "KL"): Count("C M^2", (0, 1, 2)),
    ("mean-field", "marginals"): Count("N C M^2 + C M^3", (1, 1, 2)),
    ("coupled covariance", "storage"): Count("C^2 M^2", (0, 2, 2)),
    ("coupled covariance", "KL"): Count("C^2 M^2", (0, 2, 2)),
    ("coupled covariance", "marginals"): Count("N C^2 M^2 + C^2 M^3", (1, 2, 2)),
    ("coupled precision", "storage"): Count("C M R", (0, 1, 1)),
    ("coupled precision", "KL"): Count("C M R^2", (0, 1, 1)),
    ("coupled precision", "marginals"): Count("N C M R + C M^3", (1, 1, 1)),
    ("block + low-rank", "storage"): Count("C M (M + R)", (0, 1, 2)),
    ("block + low-rank", "KL"): Count("C M^3 + C M R^2", (0, 1, 3)),
    ("block + low-rank", "marginals"): Count("N C M (M + R) + C M^3", (1, 1, 2)),
}
PAPER_COUNTS = {("coupled precision", "marginals"): Count("N C^2 M^2", (1, 2, 2))}

# KL divergences differ by orders of magnitude, so each family gets sizes of its own. Those that only read a matrix once
# are fitted where it exceeds 32 MiB: their times jump below that size, presumably because the C library then starts to
# return memory to the system after each use.
DEFAULT_SWEEPS = (
    Sweep("KL", "C", (2048, 2896, 4096), {"N": 1, "M": 64}, ("mean-field",)),
    Sweep("KL", "C", (64, 128, 256, 512, 1024), {"N": 1, "M": 64}, ("coupled precision",)),
    Sweep("KL", "C", (32, 64, 128, 256, 512), {"N": 1, "M": 64}, ("block + low-rank",)),
    Sweep("KL", "C", (91, 128, 181), {"N": 1, "M": 32}, ("coupled covariance",)),
    Sweep("KL", "M", (1024, 1448, 2048), {"N": 1, "C": 8}, ("mean-field",)),
    Sweep("KL", "M", (512, 1024, 2048, 4096, 8192), {"N": 1, "C": 8}, ("coupled precision",)),
    Sweep("KL", "M", (64, 128, 256, 512, 1024), {"N": 1, "C": 2}, ("block + low-rank",)),
    Sweep("KL", "M", (1448, 2048, 2896), {"N": 1, "C": 2}, ("coupled covariance",)),
    Sweep("marginals", "N", (2048, 4096, 8192, 16384, 32768), {"C": 8, "M": 32}, tuple(FAMILIES)),
    Sweep("marginals", "C", (4, 8, 16, 32, 64), {"N": 4096, "M": 16}, tuple(FAMILIES)),
    Sweep("marginals", "M", (32, 64, 128, 256, 512), {"N": 4096, "C": 2}, tuple(FAMILIES)),
)
QUICK_SWEEPS = (
    Sweep("KL", "C", (2, 4, 8), {"N": 1, "M": 8}, tuple(FAMILIES)),
    Sweep("KL", "M", (4, 8, 16), {"N": 1, "C": 3}, tuple(FAMILIES)),
    Sweep("marginals", "N", (64, 128, 256), {"C": 3, "M": 8}, tuple(FAMILIES)),
    Sweep("marginals", "C", (2, 4, 8), {"N": 128, "M": 8}, tuple(FAMILIES)),
    Sweep("marginals", "M", (4, 8, 16), {"N": 128, "C": 3}, tuple(FAMILIES)),
)


def make_task(quantity: str, model: ApproximateGP, x: Tensor) -> Callable[[], Tensor]:
    """The computation that is timed: the KL divergence, or means and variances of the predictor in each row."""
    strategy = model.variational_strategy

    @torch.no_grad()
    def divergence() -> Tensor:
        strategy._clear_cache()  # GPyTorch's own strategy remembers q
        return strategy.kl_divergence()

    @torch.no_grad()
    def marginals() -> Tensor:
        output = model(x)
        return output.mean + output.variance

    with torch.no_grad():
        model(x)  # the first call initialises q
    return divergence if quantity == "KL" else marginals


def run_sweep(sweep: Sweep, repeats: int, device: torch.device) -> dict[str, Any]:
    """Median seconds and numbers of variational parameters of the families at every size."""
    tasks, parameters = {}, {}
    for family in sweep.families:
        for size in sweep.sizes:
            shape = sweep.shape(size)
            model = FAMILIES[family](shape["C"], shape["M"]).to(device).train()
            x, _ = make_data(shape["C"], shape["N"], device)
            tasks[family, size] = make_task(sweep.quantity, model, x)
            parameters[family, size] = num_variational_parameters(model)
    times = interleaved_times(tasks, repeats, device)
    return {
        **sweep._asdict(),
        "seconds": {
            family: [statistics.median(times[family, size]) for size in sweep.sizes] for family in sweep.families
        },
        "parameters": {family: [parameters[family, size] for size in sweep.sizes] for family in sweep.families},
    }


def fitted_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope of log(value) against log(size) over the largest sizes."""
    log_sizes = [math.log(size) for size in sizes[-FITTED_SIZES:]]
    log_values = [math.log(value) for value in values[-FITTED_SIZES:]]
    return statistics.linear_regression(log_sizes, log_values).slope


def fit_exponents(sweeps: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Exponents in N, C and M by family and quantity; storage and KL do not see the data."""
    fitted: dict[tuple[str, str], dict[str, float]] = {
        (family, quantity): {} if quantity == "marginals" else {"N": 0.0}
        for family in FAMILIES
        for quantity in QUANTITIES
    }
    for sweep in sweeps:
        for family in sweep["families"]:
            quantity, variable, sizes = sweep["quantity"], sweep["variable"], sweep["sizes"]
            fitted[family, quantity][variable] = fitted_exponent(sizes, sweep["seconds"][family])
            if quantity == "KL":
                fitted[family, "storage"][variable] = fitted_exponent(sizes, sweep["parameters"][family])
    return fitted


def make_records(fitted: dict[tuple[str, str], dict[str, float]]) -> list[dict[str, Any]]:
    """One record for each family and quantity: fitted exponents, our count, and the paper's where it was checked."""
    return [
        {
            "family": family,
            "quantity": quantity,
            "fitted": exponents,
            "our_count": _as_dict(OUR_COUNTS[family, quantity]),
            "paper_count": _as_dict(PAPER_COUNTS.get((family, quantity))),
        }
        for (family, quantity), exponents in fitted.items()
    ]


def _as_dict(count: Count | None) -> dict[str, Any] | None:
    return None if count is None else {"formula": count.formula, **dict(zip("NCM", count.exponents, strict=True))}


def print_sweep(sweep: dict[str, Any]) -> None:
    fixed = " ".join(f"{name}={value}" for name, value in sweep["fixed"].items() if value > 1)
    print(f"\n{sweep['quantity']} over {sweep['variable']}, {fixed}: milliseconds")
    rows = [[family, *(f"{1e3 * time:.2f}" for time in times)] for family, times in sweep["seconds"].items()]
    print_table(["family", *(f"{sweep['variable']}={size}" for size in sweep["sizes"])], rows)


def print_records(records: Sequence[dict[str, Any]]) -> None:
    print(f"\nfitted exponents over the {FITTED_SIZES} largest sizes, in brackets those of our count")
    rows = []
    for record in records:
        ours, paper = record["our_count"], record["paper_count"]
        cells = [
            f"0 ({ours[name]})"
            if name == "N" and record["quantity"] != "marginals"
            else f"{record['fitted'][name]:.2f} ({ours[name]})"
            for name in "NCM"
        ]
        rows.append([record["family"], record["quantity"], *cells, ours["formula"], paper["formula"] if paper else "-"])
    print_table(["family", "quantity", "N", "C", "M", "our count", "paper's count"], rows)
    print(
        "paper's count: the one entry we can quote, at second hand; - means not looked up, not that the paper has none"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Growth of storage, KL divergence and marginals with N, C and M.")
    add_common_arguments(parser, repeats=5)
    arguments = parser.parse_args(argv)
    device, environment = prepare(arguments)
    print(f"float32, no gradients, R={RANK}, medians of {arguments.repeats} interleaved rounds")

    sweeps = []
    for sweep in QUICK_SWEEPS if arguments.quick else DEFAULT_SWEEPS:
        sweeps.append(run_sweep(sweep, arguments.repeats, device))
        print_sweep(sweeps[-1])
    records = make_records(fit_exponents(sweeps))
    print_records(records)
    write_json(
        arguments.json, {"environment": environment, "repeats": arguments.repeats, "sweeps": sweeps, "records": records}
    )


if __name__ == "__main__":
    main()
