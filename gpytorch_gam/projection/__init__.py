"""Sums over components of projected kernels at the rows of a batch: plain, in chunks, and in Triton."""
