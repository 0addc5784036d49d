"""A fit on rounded columns, whose cost per step does not depend on the number of rows."""

from .column_bins import ColumnBins
from .column_ranges import ColumnRanges
from .discretized_fit import fit_discretized
from .fit_statistics import FitStatistics

__all__ = ["ColumnBins", "ColumnRanges", "FitStatistics", "fit_discretized"]
