"""A fit on rounded columns, whose cost per step does not depend on the number of rows."""

from .column_bins import ColumnBins
from .column_ranges import ColumnRanges
from .fit_statistics import FitStatistics

__all__ = ["ColumnBins", "ColumnRanges", "FitStatistics"]
