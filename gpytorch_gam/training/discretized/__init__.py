"""A fit on rounded columns, whose cost per step does not depend on the number of rows."""

from .column_bins import ColumnBins
from .discretized_fit import fit_discretized

__all__ = ["ColumnBins", "fit_discretized"]
