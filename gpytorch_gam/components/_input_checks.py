"""Checks that components can read their inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .component_group import ComponentGroup
from .levels import Levels, listed


def check_one_kind(groups: Sequence[ComponentGroup]) -> None:
    """Groups may be built from tensors of any dtype and device, but must be used in a single one."""
    dtype = groups[0].inducing_points.dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the model is in {dtype}; use float32 or float64: model.float() or model.double()")
    kinds = {(group.inducing_points.dtype, group.inducing_points.device) for group in groups}
    if len(kinds) > 1:
        raise ValueError(
            f"the inducing points of the groups differ in dtype or device, {sorted(map(str, kinds))}: "
            "convert the whole model with model.to(...)"
        )
    for group in groups:
        parameter = next(group.kernel.parameters(), None)
        if parameter is not None and parameter.dtype != dtype:
            raise ValueError(
                f"the kernel of components {list(group.names)} is {parameter.dtype}, but the inducing points are "
                f"{dtype}: convert the whole model with model.to({dtype})"
            )


def check_kind(x: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Inputs must be dense, and have the dtype and the device of the model."""
    if x.layout != torch.strided:
        raise ValueError(f"x has layout {x.layout}: pass x.to_dense()")
    if not x.is_floating_point():
        raise ValueError(f"x has dtype {x.dtype}, but the model computes in {dtype}: pass x.to({dtype})")
    if x.device != device:
        raise ValueError(f"x is on {x.device}, but the model is on {device}: move one of them with .to(...)")
    if x.dtype != dtype:
        raise ValueError(
            f"x has dtype {x.dtype}, but the inducing points have {dtype}: pass x.to({dtype}) or convert the model "
            "(for float64: model.double())"
        )


def check_shape(groups: Sequence[ComponentGroup], x: Tensor) -> None:
    """Inputs must have rows, and the columns that the components read."""
    if x.dim() < 2:
        raise ValueError(
            f"x must have shape (*batch, n, D), got {tuple(x.shape)}: pass x.unsqueeze(-1) if it is one column, and "
            "x.unsqueeze(0) if it is one row (a DataLoader makes batches of rows)"
        )
    for group in groups:
        if group.max_column >= x.shape[-1]:
            raise ValueError(
                f"columns (or by) of components {list(group.names)} name column {group.max_column}, but x has "
                f"{x.shape[-1]} columns"
            )
    if x.shape[-2] == 0 or (x.numel() == 0 and x.shape[-1] > 0):
        raise ValueError(f"x is empty, shape {tuple(x.shape)}: it needs at least one row")


def check_columns_finite(groups: Sequence[ComponentGroup], x: Tensor) -> None:
    """Columns that are read must not hold infinity, nor NaN unless they may be missing."""
    finite, optional, needed = torch.isfinite(x), set[int](), set[int]()
    for group in groups:
        (optional if group.missing == "marginal" else needed).update(group.columns.flatten().tolist())
    multipliers = {column for group in groups for column in group.multiplier_columns if column is not None}
    bad = {column: ~finite[..., column] for column in needed | multipliers}
    bad |= {column: x[..., column].isinf() for column in optional - needed - multipliers}
    counts = {column: int(rows.sum()) for column, rows in sorted(bad.items())}
    culprits = [column for column, count in counts.items() if count]
    if not culprits:
        return
    rows = int(torch.stack([bad[column] for column in culprits]).any(0).sum())
    listing = ", ".join(f"column {column} ({_rows(counts[column])})" for column in culprits)
    may_be_missing = any(x[..., column].isnan().any() for column in culprits if column not in multipliers)
    raise ValueError(
        f"x has NaN or infinity in {rows} of {_rows(finite[..., 0].numel())}: {listing}; drop or impute them"
        + (', or declare the components missing="marginal"' if may_be_missing else "")
    )


def check_means_finite(means: Tensor) -> None:
    """The prior means ``(*batch, P, n)`` must be finite in all rows."""
    bad = ~torch.isfinite(means).all(-2)
    if bad.any():
        raise ValueError(
            f"the mean module is NaN or infinite in {int(bad.sum())} of {_rows(bad.numel())}, where it reads missing "
            "values of x; give it columns without, or impute them"
        )


def check_levels(groups: Sequence[ComponentGroup], x: Tensor) -> None:
    """Columns of categories must hold their levels, unless these allow unseen ones."""
    names: dict[tuple[int, Levels], list[str]] = {}
    for group in groups:
        for column, levels in group.levels.items():
            if not levels.allows_unseen:
                names.setdefault((column, levels), []).extend(group.names_reading(column))
    found = [_unseen(x[..., column], column, levels, readers) for (column, levels), readers in names.items()]
    problems = [problem for problem in found if problem is not None]
    if problems:
        raise ValueError(f"x has {'; and '.join(problems)}; drop these rows, or use a term that allows new levels")


def _unseen(values: Tensor, column: int, levels: Levels, names: list[str]) -> str | None:
    """A message on the values of a column of x that are none of the levels, or None; NaN counts as missing."""
    single = values.float().contiguous()  # the precision in which level kernels compare
    codes = torch.tensor(sorted(levels.codes), dtype=torch.float32, device=values.device)
    nearest = codes[torch.searchsorted(codes, single).clamp_(max=len(codes) - 1)]
    unseen = (nearest != single) & ~values.isnan()
    if not unseen.any():
        return None
    strangers = [value.item() for value in values[unseen].unique()]  # within torch.func.grad, tolist fails in torch 2.6
    what, verb = ("level", "is") if len(strangers) == 1 else ("levels", "are")
    shown = listed(strangers) if len(strangers) > 1 else listed(strangers).strip("[]")
    component = "component" if len(names) == 1 else "components"
    return (
        f"{what} {shown} in {_rows(int(unseen.sum()))} of column {column} "
        f"({component} {', '.join(map(repr, names))}), which {verb} none of its levels {levels.describe()}"
    )


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"
