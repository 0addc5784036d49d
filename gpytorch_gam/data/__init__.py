"""Batches of rows from files that are larger than memory."""

from .memory_mapped_batches import MemoryMappedBatches
from .parquet_batches import ParquetBatches

__all__ = ["MemoryMappedBatches", "ParquetBatches"]
