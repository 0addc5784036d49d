"""
Generalized additive models of data frames, each from a file to a picture in a few lines: wages (a normal response),
deaths in Chicago (counts with a trend in time) and bicycles (counts at five stations, with a daily cycle that differs
at weekends).

Run: python examples/gam_quickstart.py --data ../shared/data
The files are wage.csv (R package ISLR), chicago.csv (gamair) and bicycles.csv; figures are written to out/.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from _style import argument_parser, save_figure, set_style, write_json

from gpytorch_gam.gam import GAMRegressor


def wage(folder: Path, quick: bool) -> GAMRegressor:
    data = pd.read_csv(folder / "wage.csv", nrows=300 if quick else None)
    return GAMRegressor("wage ~ s(age) + s(year) + f(education) + f(jobclass) + f(maritl)").fit(data)


def chicago(folder: Path, quick: bool) -> GAMRegressor:
    data = pd.read_csv(folder / "chicago.csv", nrows=300 if quick else None)
    data = data.dropna(subset=["pm10median", "o3median", "tmpd"])
    formula = "death ~ s(time) + s(tmpd) + s(o3median) + s(pm10median)"
    return GAMRegressor(formula, family="negative_binomial").fit(data)


def bicycles(folder: Path, quick: bool) -> GAMRegressor:
    data = pd.read_csv(folder / "bicycles.csv").dropna()
    data = data.sample(min(300 if quick else 4000, len(data)), random_state=0)
    data["hour"], data["day"] = data.time.str[:2].astype(int), pd.to_datetime(data.date)
    data["weekend"] = (data.day.dt.day_of_week >= 5).map({True: "weekend", False: "workday"})
    hours = "s(hour, period=24, by=weekend) + f(weekend)"
    formula = f"count ~ {hours} + s(day) + s(average_temperature) + f(station_name)"
    return GAMRegressor(formula, family="negative_binomial").fit(data)


SETS: dict[str, Callable[[Path, bool], GAMRegressor]] = {"wage": wage, "chicago": chicago, "bicycles": bicycles}


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with the files")
    options = parser.parse_args()
    missing = [name for name in SETS if not (options.data / f"{name}.csv").exists()]
    if missing:
        sys.exit(f"{options.data} lacks {', '.join(f'{name}.csv' for name in missing)}: say where they are with --data")
    set_style()
    numbers: dict[str, Any] = {}
    for name, fit in SETS.items():
        started = time.perf_counter()
        gam = fit(options.data, options.quick)
        figure = gam.plot()
        seconds = time.perf_counter() - started
        print(f"\n{name}, {seconds:.1f} s from file to picture\n{gam.summary()}")
        save_figure(figure, options.out / f"gam_{name}.png")
        numbers[name] = {
            "seconds": seconds,
            "deviance_explained": gam.deviance_explained_,
            "bound": gam.result_.bound if gam.result_ else None,
            "terms": gam.terms_,
        }
    write_json(numbers, options.json)


if __name__ == "__main__":
    main()
