"""Bars that show how far a fit is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .fit_result import Epoch


def progress_bar(steps: Iterable[int] | None, description: str) -> Any:
    """tqdm's bar of steps, whose number is not known without them; an ImportError without tqdm."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm(steps, desc=description)


@contextmanager
def steps_shown(callback: Callable[[Epoch], Any] | None, is_wanted: bool) -> Iterator[Callable[[Epoch], Any] | None]:
    """The callback, and with it the bound after each step in a bar if that is wanted."""
    if not is_wanted:
        yield callback
        return
    with progress_bar(None, "steps") as bar:

        def show(step: Epoch) -> None:
            bar.set_postfix(bound=f"{step.elbo:.2f}", refresh=False)
            bar.update()
            if callback is not None:
                callback(step)

        yield show
