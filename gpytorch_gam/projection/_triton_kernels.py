r"""
The Triton kernels of :class:`~gpytorch_gam.projection.triton_projection.TritonProjection`.

They evaluate the kernel matrix a tile at a time and never store it. Three things decide their form:

- Tensor cores multiply numbers with ten bits of mantissa. For the accuracy of float32, operands are taken apart into
  two such numbers, and three of the four products are summed. The sum is formed for one tile and then added to the
  total: tensor cores round towards zero, which would show in a sum over all components or rows.
- Operands of 32 bits come from shared memory with the contracted dimension contiguous. Only the left one may be in
  registers, and that is the tile of the kernel matrix.
- With :math:`G = V V^\top`, the second part of :math:`\bar K = W \bar H + G K \,\mathrm{diag}(2 \bar q)` looks like
  the first one, and so do the products :math:`K \bar H^\top` and :math:`K (K \,\mathrm{diag}(2 \bar q))^\top`, of
  which the latter times V is the gradient of the block weights.
"""

import triton
import triton.language as tl

# Values of LocalShape.
RBF = tl.constexpr(0)
CENTRED_RBF = tl.constexpr(1)
MATERN12 = tl.constexpr(2)
MATERN32 = tl.constexpr(3)
MATERN52 = tl.constexpr(4)
MATERN12_DEVIATION = tl.constexpr(5)
MATERN32_DEVIATION = tl.constexpr(6)
MATERN52_DEVIATION = tl.constexpr(7)
PERIODIC = tl.constexpr(8)
PERIODIC_DEVIATION = tl.constexpr(9)

# Bits of the gradients that are wanted of a factor, in the order of its fields.
WANTS_Z = tl.constexpr(1)
WANTS_X = tl.constexpr(2)
WANTS_LOG_SCALE = tl.constexpr(4)
WANTS_RATE = tl.constexpr(8)
WANTS_OFFSET_Z = tl.constexpr(16)
WANTS_OFFSET_X = tl.constexpr(32)
WANTS_LEFT = tl.constexpr(64)
WANTS_RIGHT = tl.constexpr(128)

# Functions of the inducing points: z, offset_z, left (two).
NUM_COLUMNS = tl.constexpr(4)
# Sums over the rows for each inducing point: for the gradients of z, log_scale, rate, offset_z, left (two) of two
# factors, and for the last column of the shared weights.
FACTOR_SUMS = tl.constexpr(6)
LAST_SUM = tl.constexpr(12)
NUM_SUMS = tl.constexpr(13)

_LOG2_E = tl.constexpr(1.4426950408889634)
_ONE_BY_PI = tl.constexpr(0.3183098861837907)
# Pi in three parts; multiples of the first two are exact.
_PI_1 = tl.constexpr(3.140625)
_PI_2 = tl.constexpr(9.67502593994140625e-4)
_PI_3 = tl.constexpr(1.5099579909783764e-7)

# Coefficients of series, that of the highest power first: (exp(x) - 1 - x) / x^2,
_EXPM1 = tl.constexpr((1 / 362880, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2))
# ((1 + t) exp(-t) - 1) / t^2 and ((1 + t + t^2 / 3) exp(-t) - 1) / t^2,
_MATERN32 = tl.constexpr(
    (-1 / 43545600, 1 / 3991680, -1 / 403200, 1 / 45360, -1 / 5760, 1 / 840, -1 / 144, 1 / 30, -1 / 8, 1 / 3, -1 / 2)
)
_MATERN52 = tl.constexpr(
    (
        *(143 / 261534873600, -120 / 18681062400, 99 / 1437004800, -80 / 119750400, 1 / 172800, -1 / 22680),
        *(1 / 3456, -1 / 630, 1 / 144, -1 / 45, 1 / 24, 0.0, -1 / 6),
    )
)
# sin(u) / u and cos(u), in powers of u^2.
_SIN = tl.constexpr((1 / 6227020800, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0))
_COS = tl.constexpr((-1 / 87178291200, 1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -1 / 2, 1.0))


@triton.jit
def _polynomial(x, COEFFICIENTS: tl.constexpr, DEGREE: tl.constexpr):
    value = x * COEFFICIENTS[0] + COEFFICIENTS[1]
    for i in tl.static_range(2, DEGREE + 1):
        value = value * x + COEFFICIENTS[i]
    return value


@triton.jit
def _expm1(x):
    """exp(x) - 1, accurate to a few units in the last place."""
    near = x + x * x * _polynomial(x, _EXPM1, 7)
    return tl.where(tl.abs(x) < 0.5, near, tl.exp(x) - 1)


@triton.jit
def _matern_deviation(SHAPE: tl.constexpr, t):
    """p(t) exp(-t) - 1, by a series at short distances, where only terms of second order remain."""
    if SHAPE == MATERN12_DEVIATION:
        value = _expm1(-t)
    elif SHAPE == MATERN32_DEVIATION:
        value = tl.where(t < 1, t * t * _polynomial(t, _MATERN32, 10), (1 + t) * tl.exp(-t) - 1)
    else:
        value = tl.where(t < 1.5, t * t * _polynomial(t, _MATERN52, 12), (1 + t + t * t * (1 / 3)) * tl.exp(-t) - 1)
    return value


@triton.jit
def _remainder(x):
    """x minus the nearest multiple of pi."""
    multiple = tl.floor(x * _ONE_BY_PI + 0.5)
    return ((x - multiple * _PI_1) - multiple * _PI_2) - multiple * _PI_3


@triton.jit
def _squared_sine(x):
    remainder = _remainder(x)
    sine = remainder * _polynomial(remainder * remainder, _SIN, 6)
    return sine * sine


@triton.jit
def _sine_of_double(x):
    remainder = _remainder(x)
    square = remainder * remainder
    return 2 * remainder * _polynomial(square, _SIN, 6) * _polynomial(square, _COS, 7)


@triton.jit
def _local(SHAPE: tl.constexpr, difference, offset, log_scale, rate):
    """Values of the local part of a factor, and its exponential alone; the offset is used for CENTRED_RBF only."""
    if SHAPE == RBF or SHAPE == CENTRED_RBF:
        envelope = tl.exp2(difference * difference * (rate * _LOG2_E) + log_scale * _LOG2_E)
        if SHAPE == RBF:
            value = envelope
        else:
            value = -envelope * _expm1(-offset)
    elif SHAPE == PERIODIC or SHAPE == PERIODIC_DEVIATION:
        exponent = _squared_sine(difference) * rate
        envelope = tl.exp(exponent + log_scale)
        if SHAPE == PERIODIC:
            value = envelope
        else:
            value = tl.exp(log_scale) * _expm1(exponent)
    else:
        distance = tl.abs(difference) * rate
        envelope = tl.exp(log_scale - distance)
        if SHAPE == MATERN12:
            value = envelope
        elif SHAPE == MATERN32:
            value = envelope * (1 + distance)
        elif SHAPE == MATERN52:
            value = envelope * (1 + distance + distance * distance * (1 / 3))
        else:
            value = tl.exp(log_scale) * _matern_deviation(SHAPE, distance)
    return value, envelope


@triton.jit
def _slopes(SHAPE: tl.constexpr, difference, value, envelope, rate):
    """Derivatives of the local part with respect to the rate and the difference, but for CENTRED_RBF's offsets."""
    if SHAPE == RBF or SHAPE == CENTRED_RBF:
        along = value * difference
        by_rate = along * difference
        by_difference = along * (2 * rate)
    elif SHAPE == PERIODIC or SHAPE == PERIODIC_DEVIATION:
        by_rate = envelope * _squared_sine(difference)
        by_difference = envelope * rate * _sine_of_double(difference)
    else:
        absolute = tl.abs(difference)
        distance = absolute * rate
        if SHAPE == MATERN12 or SHAPE == MATERN12_DEVIATION:
            slope = -envelope
        elif SHAPE == MATERN32 or SHAPE == MATERN32_DEVIATION:
            slope = -envelope * distance
        else:
            slope = -envelope * (distance + distance * distance) * (1 / 3)
        by_rate = slope * absolute
        by_difference = slope * tl.where(difference < 0, -rate, tl.where(difference > 0, rate, 0.0))
    return by_rate, by_difference


@triton.jit
def _load_columns(columns, FACTOR: tl.constexpr, component, points, num_components, PADDED_M: tl.constexpr):
    """Functions of some inducing points: z, offset and left."""
    size = num_components * PADDED_M
    pointers = columns + (FACTOR * NUM_COLUMNS * size + component * PADDED_M) + points
    return tl.load(pointers), tl.load(pointers + size), tl.load(pointers + 2 * size), tl.load(pointers + 3 * size)


@triton.jit
def _load_rows(
    SHAPE: tl.constexpr,
    HAS_PRODUCT: tl.constexpr,
    x,
    x_stride,
    offset,
    offset_stride,
    right,
    right_stride,
    component,
    rows,
    num_rows,
):
    """Functions of some rows: x, offset and right. In the place of what a factor lacks stands x."""
    is_row = rows < num_rows
    x_rows = tl.load(x + component * x_stride + rows, mask=is_row, other=0.0)
    offset_rows = x_rows
    if SHAPE == CENTRED_RBF:
        offset_rows = tl.load(offset + component * offset_stride + rows, mask=is_row, other=0.0)
    right_0 = x_rows
    right_1 = x_rows
    if HAS_PRODUCT:
        pointers = right + component * right_stride + rows
        right_0 = tl.load(pointers, mask=is_row, other=0.0)
        right_1 = tl.load(pointers + num_rows, mask=is_row, other=0.0)
    return x_rows, offset_rows, right_0, right_1


@triton.jit
def _load_scalars(scalars, FACTOR: tl.constexpr, component, num_components):
    """The logarithm of the scale and the rate."""
    pointer = scalars + 2 * FACTOR * num_components + component
    return tl.load(pointer), tl.load(pointer + num_components)


@triton.jit
def _factor_tile(
    SHAPE: tl.constexpr, HAS_PRODUCT: tl.constexpr, POINTS_AXIS: tl.constexpr, columns, rows, scalars, zero=None
):
    """
    A tile of a factor, inducing points by rows or rows by inducing points, in the layout of ``zero``: values, those of
    the local part, its exponential alone, and the difference of the inputs.
    """
    rows_axis: tl.constexpr = 1 - POINTS_AXIS
    difference = tl.expand_dims(columns[0], rows_axis) - tl.expand_dims(rows[0], POINTS_AXIS)
    if zero is not None:
        difference += zero
    offset = tl.expand_dims(columns[1], rows_axis) * tl.expand_dims(rows[1], POINTS_AXIS)
    value, envelope = _local(SHAPE, difference, offset, scalars[0], scalars[1])
    total = value
    if HAS_PRODUCT:
        total += tl.expand_dims(columns[2], rows_axis) * tl.expand_dims(rows[2], POINTS_AXIS)
        total += tl.expand_dims(columns[3], rows_axis) * tl.expand_dims(rows[3], POINTS_AXIS)
    return total, value, envelope, difference


@triton.jit
def _rounded(x):
    """The nearest number with ten bits of mantissa, which tensor cores take as it is."""
    bits = x.to(tl.int32, bitcast=True) + 4096
    return (bits & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _parts(x, PRECISION: tl.constexpr):
    """Two numbers for tensor cores whose sum is x; the second is used for tf32x3 only."""
    if PRECISION == "bf16":
        large = x.to(tl.bfloat16)
        small = large
    else:
        large = _rounded(x)
        small = x - large
    return large, small


@triton.jit
def _load_parts(large, small, offsets, PRECISION: tl.constexpr):
    large_tile = tl.load(large + offsets)
    small_tile = large_tile
    if PRECISION == "tf32x3":
        small_tile = tl.load(small + offsets)
    return large_tile, small_tile


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    """The matrix product, in float32, of numbers that :func:`_parts` has split."""
    if PRECISION == "bf16":
        product = tl.dot(left[0], right[0])
    elif PRECISION == "tf32":
        product = tl.dot(left[0], right[0], input_precision="tf32")
    else:
        product = tl.dot(left[1], right[0], input_precision="tf32")
        product = tl.dot(left[0], right[1], product, input_precision="tf32")
        product = tl.dot(left[0], right[0], product, input_precision="tf32")
    return product


@triton.jit
def _transposed(parts):
    return tl.trans(parts[0]), tl.trans(parts[1])


@triton.jit
def forward_kernel(
    shared_out,
    squares_out,
    shared_large,
    shared_small,
    last,
    block_large,
    block_small,
    columns,
    scalars,
    x_0,
    x_stride_0,
    offset_0,
    offset_stride_0,
    right_0,
    right_stride_0,
    x_1,
    x_stride_1,
    offset_1,
    offset_stride_1,
    right_1,
    right_stride_1,
    multiplier,
    multiplier_stride,
    num_rows,
    num_components,
    num_shared,
    num_columns,
    components_per_program,
    SHAPE_0: tl.constexpr,
    SHAPE_1: tl.constexpr,
    PRODUCT_0: tl.constexpr,
    PRODUCT_1: tl.constexpr,
    HAS_MULTIPLIER: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_LAST: tl.constexpr,
    HAS_BLOCK: tl.constexpr,
    PADDED_SHARED: tl.constexpr,
    PADDED_BLOCK: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_S: tl.constexpr,
    TILE_R: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """
    Projections of some components at some rows, for a tile of ``num_columns`` columns of the shared and block weights.
    Weights are ``(C, columns, inducing points)``, padded by zeros; ``last`` is the last shared one,
    ``(C, inducing points)``. H, from the first column of the tile on, goes to ``shared_out``,
    ``(programs, num_shared, num_rows)``, and q to ``squares_out``, ``(programs, num_rows)``: partial results of the
    programs that share rows.
    """
    padded_m: tl.constexpr = NUM_TILES * TILE_M
    rows = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    part = tl.program_id(1).to(tl.int64)
    start = part * components_per_program
    num_own = tl.minimum(components_per_program, num_components - start).to(tl.int32)
    of_shared = tl.arange(0, TILE_S)
    of_block = tl.arange(0, TILE_R)

    shared_total = tl.zeros((TILE_N, TILE_S), tl.float32)
    last_total = tl.zeros((TILE_N, TILE_M), tl.float32)
    squares_total = tl.zeros((TILE_N,), tl.float32)
    projected = tl.zeros((TILE_N, TILE_R), tl.float32)
    # One loop over both, for the weights of the next step to be on their way during this one.
    for step in range(num_own * NUM_TILES):
        component = start + step // NUM_TILES
        tile = step % NUM_TILES
        scalars_0 = _load_scalars(scalars, 0, component, num_components)
        rows_0 = _load_rows(
            SHAPE_0,
            PRODUCT_0,
            x_0,
            x_stride_0,
            offset_0,
            offset_stride_0,
            right_0,
            right_stride_0,
            component,
            rows,
            num_rows,
        )
        if SHAPE_1 >= 0:
            scalars_1 = _load_scalars(scalars, 1, component, num_components)
            rows_1 = _load_rows(
                SHAPE_1,
                PRODUCT_1,
                x_1,
                x_stride_1,
                offset_1,
                offset_stride_1,
                right_1,
                right_stride_1,
                component,
                rows,
                num_rows,
            )
        if HAS_MULTIPLIER:
            multiplier_rows = tl.load(
                multiplier + component * multiplier_stride + rows, mask=rows < num_rows, other=0.0
            )
        points = tile * TILE_M + tl.arange(0, TILE_M)
        columns_0 = _load_columns(columns, 0, component, points, num_components, padded_m)
        kernel, _, _, _ = _factor_tile(SHAPE_0, PRODUCT_0, 1, columns_0, rows_0, scalars_0)
        if SHAPE_1 >= 0:
            columns_1 = _load_columns(columns, 1, component, points, num_components, padded_m)
            factor, _, _, _ = _factor_tile(SHAPE_1, PRODUCT_1, 1, columns_1, rows_1, scalars_1)
            kernel *= factor
        if HAS_MULTIPLIER:
            kernel *= multiplier_rows[:, None]
        if HAS_LAST:
            last_points = tl.load(last + component * padded_m + points)
            last_total += kernel * last_points[None, :]
        kernel_parts = _parts(kernel, PRECISION)
        if HAS_SHARED:
            start_of = component * (PADDED_SHARED * padded_m)
            offsets = of_shared[None, :] * padded_m + points[:, None]
            weights = _load_parts(shared_large + start_of, shared_small + start_of, offsets, PRECISION)
            shared_total += _product(kernel_parts, weights, PRECISION)
        if HAS_BLOCK:
            start_of = component * (PADDED_BLOCK * padded_m)
            offsets = of_block[None, :] * padded_m + points[:, None]
            weights = _load_parts(block_large + start_of, block_small + start_of, offsets, PRECISION)
            projected += _product(kernel_parts, weights, PRECISION)
            if tile == NUM_TILES - 1:
                squares_total += tl.sum(projected * projected, 1)
                projected = tl.zeros((TILE_N, TILE_R), tl.float32)

    is_row = rows < num_rows
    first = part * num_shared
    if HAS_SHARED:
        pointers = shared_out + (first + of_shared[None, :]) * num_rows + rows[:, None]
        tl.store(pointers, shared_total, mask=is_row[:, None] & (of_shared < num_columns)[None, :])
    if HAS_LAST:
        tl.store(shared_out + (first + num_shared - 1) * num_rows + rows, tl.sum(last_total, 1), mask=is_row)
    if HAS_BLOCK:
        tl.store(squares_out + part * num_rows + rows, squares_total, mask=is_row)


@triton.jit
def _store_row_gradients(
    WANTED: tl.constexpr,
    x_out,
    offset_out,
    right_out,
    row,
    num_rows,
    rows,
    columns,
    product_grad,
    by_difference,
    by_offset,
):
    """Store sums over the inducing points, the gradients of functions of the rows."""
    is_row = rows < num_rows
    start = row * num_rows
    if WANTS_X & WANTED:
        tl.store(x_out + start + rows, -tl.sum(by_difference, 0), mask=is_row)
    if WANTS_OFFSET_X & WANTED:
        tl.store(offset_out + start + rows, tl.sum(by_offset * columns[1][:, None], 0), mask=is_row)
    if WANTS_RIGHT & WANTED:
        tl.store(right_out + 2 * start + rows, tl.sum(product_grad * columns[2][:, None], 0), mask=is_row)
        tl.store(right_out + 2 * start + num_rows + rows, tl.sum(product_grad * columns[3][:, None], 0), mask=is_row)


@triton.jit
def _added_sums(WANTED: tl.constexpr, sums, rows, product_grad, weighted, by_rate, by_difference, by_offset):
    """Add sums over rows, the gradients of functions of the inducing points and of scalars."""
    of_z, of_log_scale, of_rate, of_offset, of_left_0, of_left_1 = sums
    if WANTS_Z & WANTED:
        of_z += tl.sum(by_difference, 1)
    if WANTS_LOG_SCALE & WANTED:
        of_log_scale += tl.sum(weighted, 1)
    if WANTS_RATE & WANTED:
        of_rate += tl.sum(by_rate, 1)
    if WANTS_OFFSET_Z & WANTED:
        of_offset += tl.sum(by_offset * rows[1][None, :], 1)
    if WANTS_LEFT & WANTED:
        of_left_0 += tl.sum(product_grad * rows[2][None, :], 1)
        of_left_1 += tl.sum(product_grad * rows[3][None, :], 1)
    return of_z, of_log_scale, of_rate, of_offset, of_left_0, of_left_1


@triton.jit
def _store_sums(WANTED: tl.constexpr, out, stride, sums):
    if WANTS_Z & WANTED:
        tl.store(out, sums[0])
    if WANTS_LOG_SCALE & WANTED:
        tl.store(out + stride, sums[1])
    if WANTS_RATE & WANTED:
        tl.store(out + 2 * stride, sums[2])
    if WANTS_OFFSET_Z & WANTED:
        tl.store(out + 3 * stride, sums[3])
    if WANTS_LEFT & WANTED:
        tl.store(out + 4 * stride, sums[4])
        tl.store(out + 5 * stride, sums[5])


@triton.jit
def backward_kernel(
    shared_out,
    block_out,
    sums_out,
    x_out_0,
    offset_out_0,
    right_out_0,
    x_out_1,
    offset_out_1,
    right_out_1,
    multiplier_out,
    grad_shared,
    grad_last,
    grad_squares,
    shared_large,
    shared_small,
    last,
    gram_large,
    gram_small,
    columns,
    scalars,
    x_0,
    x_stride_0,
    offset_0,
    offset_stride_0,
    right_0,
    right_stride_0,
    x_1,
    x_stride_1,
    offset_1,
    offset_stride_1,
    right_1,
    right_stride_1,
    multiplier,
    multiplier_stride,
    num_rows,
    num_components,
    num_columns,
    rows_per_program,
    SHAPE_0: tl.constexpr,
    SHAPE_1: tl.constexpr,
    PRODUCT_0: tl.constexpr,
    PRODUCT_1: tl.constexpr,
    WANTED_0: tl.constexpr,
    WANTED_1: tl.constexpr,
    WANTS_MULTIPLIER: tl.constexpr,
    WANTS_SHARED: tl.constexpr,
    WANTS_BLOCK: tl.constexpr,
    HAS_MULTIPLIER: tl.constexpr,
    HAS_LAST: tl.constexpr,
    HAS_BLOCK: tl.constexpr,
    NUM_TILES: tl.constexpr,
    NUM_SHARED_TILES: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_S: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """
    The gradients of a tile of inducing points of a component from some rows. Programs of axis 0 are the tiles of the
    components, those of axis 1 share the rows. A gradient that has more than one tile for a program is accumulated in
    memory, otherwise in registers; no other program adds to the same place.

    ``shared_out`` is the gradient of W, ``(programs, C, inducing points, columns)``, ``block_out`` that of V before a
    product with V, ``(programs, C, inducing points, inducing points)``, and ``sums_out`` is
    ``(programs, NUM_SUMS, C, inducing points)``. Gradients of the rows, ``x_out_0`` and those after it, are
    ``(tiles, C, num_rows)`` or ``(tiles, C, 2, num_rows)``. ``shared_large`` is W, ``(C, inducing points, columns)``,
    whose columns but the last are ``num_columns``; ``gram_large`` is V V^T, ``(C, inducing points, inducing points)``.
    All are padded by zeros.
    """
    wants_kernel: tl.constexpr = WANTED_0 != 0 or WANTED_1 != 0 or WANTS_MULTIPLIER
    padded_m: tl.constexpr = NUM_TILES * TILE_M
    padded_s: tl.constexpr = NUM_SHARED_TILES * TILE_S
    component = (tl.program_id(0) // NUM_TILES).to(tl.int64)
    own_tile = tl.program_id(0) % NUM_TILES
    part = tl.program_id(1).to(tl.int64)
    points = own_tile * TILE_M + tl.arange(0, TILE_M)
    of_tile = tl.arange(0, TILE_M)
    of_shared = tl.arange(0, TILE_S)
    # Places of the first of the own inducing points in arrays (C, inducing points) and (programs, C, inducing points).
    own_row = component * padded_m + own_tile * TILE_M
    out_row = part * num_components * padded_m + own_row
    to_shared = of_tile[:, None] * padded_s + of_shared[None, :]
    to_block = of_tile[:, None] * padded_m + of_tile[None, :]

    scalars_0 = _load_scalars(scalars, 0, component, num_components)
    columns_0 = _load_columns(columns, 0, component, points, num_components, padded_m)
    nothing = tl.zeros((TILE_M,), tl.float32)
    sums_0 = (nothing, nothing, nothing, nothing, nothing, nothing)
    sums_1 = sums_0
    last_sum = nothing
    if SHAPE_1 >= 0:
        scalars_1 = _load_scalars(scalars, 1, component, num_components)
        columns_1 = _load_columns(columns, 1, component, points, num_components, padded_m)
    if HAS_LAST:
        last_points = tl.load(last + own_row + of_tile)
    shared_total = tl.zeros((TILE_M, TILE_S), tl.float32)
    block_total = tl.zeros((TILE_M, TILE_M), tl.float32)
    shared_large += own_row * padded_s
    shared_small += own_row * padded_s
    gram_large += own_row * padded_m
    gram_small += own_row * padded_m
    if NUM_SHARED_TILES == 1 and wants_kernel:
        weights = _load_parts(shared_large, shared_small, to_shared, PRECISION)
    if HAS_BLOCK and NUM_TILES == 1 and wants_kernel:
        gram = _load_parts(gram_large, gram_small, to_block, PRECISION)

    row_start = tl.program_id(1) * rows_per_program
    row_stop = tl.minimum(row_start + rows_per_program, num_rows)
    for row in range(row_start, row_stop, TILE_N):
        rows = row + tl.arange(0, TILE_N)
        is_row = rows < num_rows
        rows_0 = _load_rows(
            SHAPE_0,
            PRODUCT_0,
            x_0,
            x_stride_0,
            offset_0,
            offset_stride_0,
            right_0,
            right_stride_0,
            component,
            rows,
            num_rows,
        )
        kernel, _, _, _ = _factor_tile(SHAPE_0, PRODUCT_0, 0, columns_0, rows_0, scalars_0)
        if SHAPE_1 >= 0:
            rows_1 = _load_rows(
                SHAPE_1,
                PRODUCT_1,
                x_1,
                x_stride_1,
                offset_1,
                offset_stride_1,
                right_1,
                right_stride_1,
                component,
                rows,
                num_rows,
            )
            factor, _, _, _ = _factor_tile(SHAPE_1, PRODUCT_1, 0, columns_1, rows_1, scalars_1)
            kernel *= factor
        if HAS_MULTIPLIER:
            multiplier_rows = tl.load(multiplier + component * multiplier_stride + rows, mask=is_row, other=0.0)
            kernel *= multiplier_rows[None, :]
        kernel_parts = _parts(kernel, PRECISION)

        grad = tl.zeros((TILE_M, TILE_N), tl.float32)
        for shared_tile in range(NUM_SHARED_TILES):
            of_columns = shared_tile * TILE_S + of_shared
            grad_tile = tl.load(
                grad_shared + of_columns[:, None].to(tl.int64) * num_rows + rows[None, :],
                mask=(of_columns < num_columns)[:, None] & is_row[None, :],
                other=0.0,
            )
            grad_parts = _parts(grad_tile, PRECISION)
            if wants_kernel:
                if NUM_SHARED_TILES != 1:
                    weights = _load_parts(shared_large, shared_small, to_shared + shared_tile * TILE_S, PRECISION)
                grad += _product(weights, grad_parts, PRECISION)
            if WANTS_SHARED:
                product = _product(kernel_parts, _transposed(grad_parts), PRECISION)
                if NUM_SHARED_TILES == 1:
                    shared_total += product
                else:
                    tl.atomic_add(
                        shared_out + out_row * padded_s + to_shared + shared_tile * TILE_S, product, sem="relaxed"
                    )
        if HAS_LAST:
            grad_last_rows = tl.load(grad_last + rows, mask=is_row, other=0.0)
            if wants_kernel:
                grad += last_points[:, None] * grad_last_rows[None, :]
        if HAS_BLOCK:
            doubled = 2 * tl.load(grad_squares + rows, mask=is_row, other=0.0)
            for tile in range(NUM_TILES):
                other = kernel
                if NUM_TILES > 1:
                    other_points = tile * TILE_M + of_tile
                    other_columns = _load_columns(columns, 0, component, other_points, num_components, padded_m)
                    other, _, _, _ = _factor_tile(SHAPE_0, PRODUCT_0, 0, other_columns, rows_0, scalars_0)
                    if SHAPE_1 >= 0:
                        other_columns = _load_columns(columns, 1, component, other_points, num_components, padded_m)
                        factor, _, _, _ = _factor_tile(SHAPE_1, PRODUCT_1, 0, other_columns, rows_1, scalars_1)
                        other *= factor
                    if HAS_MULTIPLIER:
                        other *= multiplier_rows[None, :]
                other_parts = _parts(other * doubled[None, :], PRECISION)
                if wants_kernel:
                    if NUM_TILES > 1:
                        gram = _load_parts(gram_large, gram_small, to_block + tile * TILE_M, PRECISION)
                    grad += _product(gram, other_parts, PRECISION)
                if WANTS_BLOCK:
                    product = _product(kernel_parts, _transposed(other_parts), PRECISION)
                    if NUM_TILES == 1:
                        block_total += product
                    else:
                        tl.atomic_add(block_out + out_row * padded_m + to_block + tile * TILE_M, product, sem="relaxed")

        # The kernel again, in the layout of its gradient: for the matrix products it had to be in another one, and to
        # keep what its derivatives need would take more registers than there are.
        zero = 0 * grad
        values_0, local_0, envelope_0, difference_0 = _factor_tile(
            SHAPE_0, PRODUCT_0, 0, columns_0, rows_0, scalars_0, zero
        )
        unscaled = values_0
        if SHAPE_1 >= 0:
            values_1, local_1, envelope_1, difference_1 = _factor_tile(
                SHAPE_1, PRODUCT_1, 0, columns_1, rows_1, scalars_1, zero
            )
            unscaled *= values_1
        if HAS_LAST and WANTS_SHARED:
            if HAS_MULTIPLIER:
                grad_last_rows *= multiplier_rows
            last_sum += tl.sum(unscaled * grad_last_rows[None, :], 1)
        if WANTS_MULTIPLIER:
            pointers = multiplier_out + (own_tile * num_components + component) * num_rows + rows
            tl.store(pointers, tl.sum(grad * unscaled, 0), mask=is_row)
        if HAS_MULTIPLIER:
            grad *= multiplier_rows[None, :]
        row_of_rows = own_tile * num_components + component
        if WANTED_0 != 0:
            grad_0 = grad
            if SHAPE_1 >= 0:
                grad_0 = grad * values_1
            weighted = grad_0 * local_0
            by_offset = grad_0 * envelope_0 - weighted
            by_rate, by_difference = _slopes(SHAPE_0, difference_0, local_0, envelope_0, scalars_0[1])
            by_rate *= grad_0
            by_difference *= grad_0
            sums_0 = _added_sums(WANTED_0, sums_0, rows_0, grad_0, weighted, by_rate, by_difference, by_offset)
            _store_row_gradients(
                WANTED_0,
                x_out_0,
                offset_out_0,
                right_out_0,
                row_of_rows,
                num_rows,
                rows,
                columns_0,
                grad_0,
                by_difference,
                by_offset,
            )
        if WANTED_1 != 0:
            grad_1 = grad * values_0
            weighted = grad_1 * local_1
            by_offset = grad_1 * envelope_1 - weighted
            by_rate, by_difference = _slopes(SHAPE_1, difference_1, local_1, envelope_1, scalars_1[1])
            by_rate *= grad_1
            by_difference *= grad_1
            sums_1 = _added_sums(WANTED_1, sums_1, rows_1, grad_1, weighted, by_rate, by_difference, by_offset)
            _store_row_gradients(
                WANTED_1,
                x_out_1,
                offset_out_1,
                right_out_1,
                row_of_rows,
                num_rows,
                rows,
                columns_1,
                grad_1,
                by_difference,
                by_offset,
            )

    if WANTS_SHARED and NUM_SHARED_TILES == 1:
        tl.store(shared_out + out_row * padded_s + to_shared, shared_total)
    if WANTS_BLOCK and NUM_TILES == 1:
        tl.store(block_out + out_row * padded_m + to_block, block_total)
    stride = num_components * padded_m
    sums_pointers = sums_out + part * NUM_SUMS * stride + own_row + of_tile
    _store_sums(WANTED_0, sums_pointers, stride, sums_0)
    _store_sums(WANTED_1, sums_pointers + FACTOR_SUMS * stride, stride, sums_1)
    if WANTS_SHARED and HAS_LAST:
        tl.store(sums_pointers + LAST_SUM * stride, last_sum)
