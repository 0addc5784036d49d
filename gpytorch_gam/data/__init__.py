"""Rows of data: from files larger than memory, with arguments of the likelihood, or without a response."""

from .memory_mapped_batches import MemoryMappedBatches
from .missing_responses import RowsWithResponse, drop_missing
from .parquet_batches import ParquetBatches
from .row_dataset import RowDataset

__all__ = ["MemoryMappedBatches", "ParquetBatches", "RowDataset", "RowsWithResponse", "drop_missing"]
