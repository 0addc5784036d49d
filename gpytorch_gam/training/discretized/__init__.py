"""A fit on rounded columns, whose cost per step does not depend on the number of rows."""

from .column_levels import ColumnLevels
from .discretized_fit import fit_discretized

__all__ = ["ColumnLevels", "fit_discretized"]
