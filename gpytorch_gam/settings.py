"""Settings of how things are computed, as context managers in the manner of :mod:`gpytorch.settings`."""

from __future__ import annotations

from typing import Any

from linear_operator.settings import _value_context


class _choice(_value_context):
    """A setting with a few named values."""

    _choices: tuple[str, ...] = ()

    def __init__(self, value: Any) -> None:
        if value not in self._choices:
            raise ValueError(f"{type(self).__name__} takes one of {list(self._choices)}, got {value!r}")
        super().__init__(value)


class fused_projection(_choice):
    """
    How the projections of kernel rows are computed, which is where the work of training and prediction lies.

    - ``"auto"``: the fastest that knows the kernel. On a CUDA device Triton kernels if triton is installed and the
      model is in float32, otherwise blocks of rows in plain torch; the plain path for kernels that neither knows.
    - ``"triton"``: Triton kernels wherever they can be used at all, also in Triton's interpreter on a CPU.
    - ``"blockwise"``: never Triton.
    - ``"off"``: the plain path, which holds the kernel matrix of all components and rows, and its gradient.

    Results differ by rounding only. (Default: ``"auto"``.)
    """

    _choices = ("auto", "triton", "blockwise", "off")
    _global_value = "auto"


class tensor_core_precision(_choice):
    """
    Precision of the matrix products of the Triton kernels.

    - ``"tf32x3"``: three products of tensor cores, as accurate as float32.
    - ``"tf32"``: one product with ten bits of mantissa: faster, with errors of about 1e-3 in values and gradients.
    - ``"bf16"``: operands rounded to eight bits of mantissa, sums in float32: errors of about 1e-2.

    It does not touch PyTorch's own matrix products. (Default: ``"tf32x3"``.)
    """

    _choices = ("tf32x3", "tf32", "bf16")
    _global_value = "tf32x3"
