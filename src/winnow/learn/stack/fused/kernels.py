"""Triton kernels for chains of pointwise and depthwise convolutions with batch normalisation, of a cohort of clients.

Activations are rows [K, N, C]: a client's samples and positions one after another, channels last. What a convolution
makes is kept as it is, and normalised (scale, shift, rectifier) by whatever reads it, so that a tensor is written once
and read once. Sums over rows are left as one partial result a block, and added up by a kernel of their own in a fixed
order: the same input gives the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _rectified(values, scale, shift, RELU: tl.constexpr):
    values = values * scale + shift
    if RELU:
        values = tl.maximum(values, 0.0)
    return values


@triton.jit
def _store_moments(values, inside, partial, at, channels, C, width):
    """A block's mean and its sum of squared deviations, by channel, of the rows inside."""
    keep = inside.to(tl.float32)[:, None]
    count = tl.maximum(tl.sum(inside.to(tl.float32), 0), 1.0)
    mean = tl.sum(values * keep, 0) / count
    away = (values - mean[None, :]) * keep
    tl.store(partial + at * 2 * width + channels, mean, mask=channels < C)
    tl.store(partial + at * 2 * width + width + channels, tl.sum(away * away, 0), mask=channels < C)


@triton.jit
def pointwise_forward(
    x, scale, shift, weight, y, partial,
    N, C, C_OUT, x_row, x_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """y = W·x, and the moments of each block of y."""
    block, client = tl.program_id(0), tl.program_id(2).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUT + tl.arange(0, OUT)
    inside = rows < N
    sums = tl.zeros((ROWS, OUT), tl.float32)
    for start in range(0, C, IN):
        ins = start + tl.arange(0, IN)
        known = ins < C
        seen = tl.load(
            x + (client * N + rows)[:, None] * x_row + x_start + ins[None, :],
            mask=inside[:, None] & known[None, :],
            other=0.0,
        )
        if NORMAL:
            factor = tl.load(scale + client * C + ins, mask=known, other=0.0)
            offset = tl.load(shift + client * C + ins, mask=known, other=0.0)
            seen = _rectified(seen, factor[None, :], offset[None, :], RELU)
        kernel = tl.load(
            weight + (client * C_OUT + outs)[None, :] * C + ins[:, None],
            mask=known[:, None] & (outs < C_OUT)[None, :],
            other=0.0,
        )
        sums += tl.dot(seen, kernel, input_precision=PRECISION)
    there = inside[:, None] & (outs < C_OUT)[None, :]
    tl.store(y + (client * N + rows)[:, None] * C_OUT + outs[None, :], sums, mask=there)
    _store_moments(sums, inside, partial, client * tl.num_programs(0) + block, outs, C_OUT, C_OUT)


@triton.jit
def depthwise_forward(
    x, scale, shift, weight, y, partial,
    N_IN, N, C, H, W, HO, WO, x_row, x_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y = each channel of x with a kernel of its own, and the moments of each block of y."""
    block, client = tl.program_id(0), tl.program_id(2).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known, inside = channels < C, rows < N
    across, down, sample = rows % WO, (rows // WO) % HO, rows // (WO * HO)
    factor = tl.zeros((CHANNELS,), tl.float32)
    offset = tl.zeros((CHANNELS,), tl.float32)
    if NORMAL:
        factor = tl.load(scale + client * C + channels, mask=known, other=0.0)
        offset = tl.load(shift + client * C + channels, mask=known, other=0.0)
    sums = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tap in tl.static_range(HIGH * WIDE):
        i = down * STRIDE + tap // WIDE - PAD
        j = across * STRIDE + tap % WIDE - PAD
        within = inside & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        seen = tl.load(
            x + (client * N_IN + (sample * H + i) * W + j)[:, None] * x_row + x_start + channels[None, :],
            mask=within[:, None] & known[None, :],
            other=0.0,
        )
        if NORMAL:
            seen = _rectified(seen, factor[None, :], offset[None, :], RELU)
            seen = tl.where(within[:, None], seen, 0.0)
        kernel = tl.load(weight + (client * C + channels) * HIGH * WIDE + tap, mask=known, other=0.0)
        sums += seen * kernel[None, :]
    tl.store(y + (client * N + rows)[:, None] * C + channels[None, :], sums, mask=inside[:, None] & known[None, :])
    _store_moments(sums, inside, partial, client * tl.num_programs(0) + block, channels, C, C)


@triton.jit
def finish_moments(
    partial, gamma, beta, running_mean, running_var, tracked, mean_out, inverse_out, scale, shift,
    N, C, blocks, block_rows, epsilon, momentum,
    BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Scale and shift of a batch normalisation from the moments of all blocks; its running statistics move."""
    client = tl.program_id(0)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channels < C
    mean = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, blocks, BLOCKS):
        each = start + tl.arange(0, BLOCKS)
        count = tl.minimum(tl.maximum(N - each * block_rows, 0), block_rows).to(tl.float32)
        at = (client * blocks + each)[:, None] * 2 * C + channels[None, :]
        means = tl.load(partial + at, mask=(each < blocks)[:, None] & known[None, :], other=0.0)
        mean += tl.sum(means * count[:, None], 0)
    mean = mean / N
    squares = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, blocks, BLOCKS):
        each = start + tl.arange(0, BLOCKS)
        count = tl.minimum(tl.maximum(N - each * block_rows, 0), block_rows).to(tl.float32)
        here = (each < blocks)[:, None] & known[None, :]
        at = (client * blocks + each)[:, None] * 2 * C + channels[None, :]
        away = tl.load(partial + at, mask=here, other=0.0) - mean[None, :]
        within = tl.load(partial + at + C, mask=here, other=0.0)
        squares += tl.sum(tl.where(here, within + away * away * count[:, None], 0.0), 0)
    inverse = 1.0 / tl.sqrt(squares / N + epsilon)
    own = client * C + channels
    factor = tl.load(gamma + own, mask=known, other=0.0) * inverse
    tl.store(mean_out + own, mean, mask=known)
    tl.store(inverse_out + own, inverse, mask=known)
    tl.store(scale + own, factor, mask=known)
    tl.store(shift + own, tl.load(beta + own, mask=known, other=0.0) - mean * factor, mask=known)
    old_mean = tl.load(running_mean + own, mask=known, other=0.0)
    old_var = tl.load(running_var + own, mask=known, other=0.0)
    tl.store(running_mean + own, old_mean + momentum * (mean - old_mean), mask=known)
    tl.store(running_var + own, old_var + momentum * (squares / (N - 1) - old_var), mask=known)
    if tl.program_id(1) == 0:
        tl.store(tracked + client, tl.load(tracked + client) + 1)


@triton.jit
def normalised_copy(
    x, scale, shift, out,
    N, C, x_row, x_start, out_row, out_start, out_step,
    NORMAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Rows, normalised or as they are, into every so many channels of others."""
    client = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channels < C
    here = (rows < N)[:, None] & known[None, :]
    values = tl.load(x + (client * N + rows)[:, None] * x_row + x_start + channels[None, :], mask=here, other=0.0)
    if NORMAL:
        factor = tl.load(scale + client * C + channels, mask=known, other=0.0)
        offset = tl.load(shift + client * C + channels, mask=known, other=0.0)
        values = _rectified(values, factor[None, :], offset[None, :], RELU)
    tl.store(out + (client * N + rows)[:, None] * out_row + out_start + channels[None, :] * out_step, values, mask=here)


@triton.jit
def _through_norm(slope, values, scale, shift, mean, inverse, client, channels, known, C, RELU: tl.constexpr):
    """A slope behind a rectifier and what was normalised: the slope before it, and the normalised values."""
    own = client * C + channels
    if RELU:
        factor = tl.load(scale + own, mask=known, other=0.0)
        offset = tl.load(shift + own, mask=known, other=0.0)
        slope = tl.where(values * factor[None, :] + offset[None, :] > 0, slope, 0.0)
    centre = tl.load(mean + own, mask=known, other=0.0)
    steep = tl.load(inverse + own, mask=known, other=0.0)
    return slope, (values - centre[None, :]) * steep[None, :]


@triton.jit
def _store_slope_sums(slope, normal, partial, at, channels, known, C):
    tl.store(partial + at * 2 * C + channels, tl.sum(slope, 0), mask=known)
    tl.store(partial + at * 2 * C + C + channels, tl.sum(slope * normal, 0), mask=known)


@triton.jit
def normalised_copy_backward(
    slopes, x, scale, shift, mean, inverse, out, partial,
    N, C, slope_row, slope_start, slope_step, out_row, out_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The slope of every so many channels; of what was normalised, before the rectifier, with its sums."""
    block, client = tl.program_id(0), tl.program_id(2).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channels < C
    here = (rows < N)[:, None] & known[None, :]
    at = (client * N + rows)[:, None]
    slope = tl.load(slopes + at * slope_row + slope_start + channels[None, :] * slope_step, mask=here, other=0.0)
    if NORMAL:
        values = tl.load(x + at * C + channels[None, :], mask=here, other=0.0)
        slope, normal = _through_norm(slope, values, scale, shift, mean, inverse, client, channels, known, C, RELU)
        _store_slope_sums(slope, normal, partial, client * tl.num_programs(0) + block, channels, known, C)
    tl.store(out + at * out_row + out_start + channels[None, :], slope, mask=here)


@triton.jit
def finish_slopes(
    partial, gamma, mean, inverse, gamma_slope, beta_slope, coefficients,
    N, C, blocks, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Slopes of γ and β, and (a, b, c) with which the slope of what is normalised is a·slope + b·value + c."""
    client = tl.program_id(0)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channels < C
    total = tl.zeros((CHANNELS,), tl.float32)
    product = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, blocks, BLOCKS):
        each = start + tl.arange(0, BLOCKS)
        here = (each < blocks)[:, None] & known[None, :]
        at = (client * blocks + each)[:, None] * 2 * C + channels[None, :]
        total += tl.sum(tl.load(partial + at, mask=here, other=0.0), 0)
        product += tl.sum(tl.load(partial + at + C, mask=here, other=0.0), 0)
    own = client * C + channels
    centre, steep = tl.load(mean + own, mask=known, other=0.0), tl.load(inverse + own, mask=known, other=0.0)
    a = tl.load(gamma + own, mask=known, other=0.0) * steep
    b = -a * steep * product / N
    tl.store(gamma_slope + own, product, mask=known)
    tl.store(beta_slope + own, total, mask=known)
    first = client * 3 * C + channels
    tl.store(coefficients + first, a, mask=known)
    tl.store(coefficients + first + C, b, mask=known)
    tl.store(coefficients + first + 2 * C, -a * total / N - b * centre, mask=known)


@triton.jit
def _input_slope(
    slope, x, scale, shift, mean, inverse, out, partial, at, here, block, client, channels, known,
    C, x_row, x_start, out_row, out_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """What both convolutions do with the slope of their input."""
    if NORMAL:
        values = tl.load(x + at * x_row + x_start + channels[None, :], mask=here, other=0.0)
        slope, normal = _through_norm(slope, values, scale, shift, mean, inverse, client, channels, known, C, RELU)
        slope = tl.where(here, slope, 0.0)
        if ADD:
            slope += tl.load(out + at * out_row + out_start + channels[None, :], mask=here, other=0.0)
        _store_slope_sums(slope, normal, partial, client * tl.num_programs(0) + block, channels, known, C)
    elif ADD:
        slope += tl.load(out + at * out_row + out_start + channels[None, :], mask=here, other=0.0)
    tl.store(out + at * out_row + out_start + channels[None, :], slope, mask=here)


@triton.jit
def pointwise_backward_input(
    slopes, y, coefficients, weight, x, scale, shift, mean, inverse, out, partial,
    N, C, C_OUT, x_row, x_start, out_row, out_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    block, client = tl.program_id(0), tl.program_id(2).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    ins = tl.program_id(1) * IN + tl.arange(0, IN)
    known, inside = ins < C, rows < N
    at = (client * N + rows)[:, None]
    sums = tl.zeros((ROWS, IN), tl.float32)
    for start in range(0, C_OUT, OUT):
        outs = start + tl.arange(0, OUT)
        there = outs < C_OUT
        first = coefficients + client * 3 * C_OUT + outs
        a = tl.load(first, mask=there, other=0.0)
        b = tl.load(first + C_OUT, mask=there, other=0.0)
        c = tl.load(first + 2 * C_OUT, mask=there, other=0.0)
        slope = tl.load(slopes + at * C_OUT + outs[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        value = tl.load(y + at * C_OUT + outs[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        slope = slope * a[None, :] + value * b[None, :] + c[None, :]
        kernel = tl.load(
            weight + (client * C_OUT + outs)[:, None] * C + ins[None, :],
            mask=there[:, None] & known[None, :],
            other=0.0,
        )
        sums += tl.dot(slope, kernel, input_precision=PRECISION)
    _input_slope(
        sums, x, scale, shift, mean, inverse, out, partial, at, inside[:, None] & known[None, :], block, client,
        ins, known, C, x_row, x_start, out_row, out_start, NORMAL, RELU, ADD,
    )  # fmt: skip


@triton.jit
def depthwise_backward_input(
    slopes, y, coefficients, weight, x, scale, shift, mean, inverse, out, partial,
    N_IN, N, C, H, W, HO, WO, x_row, x_start, out_row, out_start,
    NORMAL: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Rows are those of the input."""
    block, client = tl.program_id(0), tl.program_id(2).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known, inside = channels < C, rows < N_IN
    across, down, sample = rows % W, (rows // W) % H, rows // (W * H)
    first = coefficients + client * 3 * C + channels
    a = tl.load(first, mask=known, other=0.0)
    b = tl.load(first + C, mask=known, other=0.0)
    c = tl.load(first + 2 * C, mask=known, other=0.0)
    sums = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tap in tl.static_range(HIGH * WIDE):
        i, j = down + PAD - tap // WIDE, across + PAD - tap % WIDE
        hit = inside & (i >= 0) & (j >= 0) & (i % STRIDE == 0) & (j % STRIDE == 0)
        i, j = i // STRIDE, j // STRIDE
        hit = hit & (i < HO) & (j < WO)
        at = (client * N + (sample * HO + i) * WO + j)[:, None] * C + channels[None, :]
        slope = tl.load(slopes + at, mask=hit[:, None] & known[None, :], other=0.0)
        value = tl.load(y + at, mask=hit[:, None] & known[None, :], other=0.0)
        slope = tl.where(hit[:, None], slope * a[None, :] + value * b[None, :] + c[None, :], 0.0)
        sums += slope * tl.load(weight + (client * C + channels) * HIGH * WIDE + tap, mask=known, other=0.0)[None, :]
    _input_slope(
        sums, x, scale, shift, mean, inverse, out, partial, (client * N_IN + rows)[:, None],
        inside[:, None] & known[None, :], block, client, channels, known, C, x_row, x_start, out_row, out_start,
        NORMAL, RELU, ADD,
    )  # fmt: skip


@triton.jit
def pointwise_backward_weight(
    slopes, y, coefficients, x, scale, shift, partial,
    N, C, C_OUT, x_row, x_start, share,
    NORMAL: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """A share of the rows' part in the kernels' slope, [K, shares, C_OUT, C]."""
    tiles = tl.cdiv(C, IN)
    outs = tl.program_id(0) // tiles * OUT + tl.arange(0, OUT)
    ins = tl.program_id(0) % tiles * IN + tl.arange(0, IN)
    part, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    there, known = outs < C_OUT, ins < C
    first = coefficients + client * 3 * C_OUT + outs
    a = tl.load(first, mask=there, other=0.0)
    b = tl.load(first + C_OUT, mask=there, other=0.0)
    c = tl.load(first + 2 * C_OUT, mask=there, other=0.0)
    factor = tl.zeros((IN,), tl.float32)
    offset = tl.zeros((IN,), tl.float32)
    if NORMAL:
        factor = tl.load(scale + client * C + ins, mask=known, other=0.0)
        offset = tl.load(shift + client * C + ins, mask=known, other=0.0)
    sums = tl.zeros((OUT, IN), tl.float32)
    for start in range(0, share, ROWS):
        rows = part * share + start + tl.arange(0, ROWS)
        inside = rows < N
        at = (client * N + rows)[:, None]
        slope = tl.load(slopes + at * C_OUT + outs[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        value = tl.load(y + at * C_OUT + outs[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        slope = tl.where(inside[:, None], slope * a[None, :] + value * b[None, :] + c[None, :], 0.0)
        seen = tl.load(x + at * x_row + x_start + ins[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        if NORMAL:
            seen = _rectified(seen, factor[None, :], offset[None, :], RELU)
        sums += tl.dot(tl.trans(slope), seen, input_precision=PRECISION)
    at = (client * tl.num_programs(1) + part) * C_OUT + outs
    tl.store(partial + at[:, None] * C + ins[None, :], sums, mask=there[:, None] & known[None, :])


@triton.jit
def depthwise_backward_weight(
    slopes, y, coefficients, x, scale, shift, partial,
    N_IN, N, C, H, W, HO, WO, x_row, x_start, share,
    NORMAL: tl.constexpr, RELU: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TAPS: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A share of the rows' part in the kernels' slope, [K, shares, C, taps]."""
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    known = channels < C
    taps = tl.arange(0, TAPS)
    first = coefficients + client * 3 * C + channels
    a = tl.load(first, mask=known, other=0.0)
    b = tl.load(first + C, mask=known, other=0.0)
    c = tl.load(first + 2 * C, mask=known, other=0.0)
    factor = tl.zeros((CHANNELS,), tl.float32)
    offset = tl.zeros((CHANNELS,), tl.float32)
    if NORMAL:
        factor = tl.load(scale + client * C + channels, mask=known, other=0.0)
        offset = tl.load(shift + client * C + channels, mask=known, other=0.0)
    sums = tl.zeros((TAPS, CHANNELS), tl.float32)
    for start in range(0, share, ROWS):
        rows = part * share + start + tl.arange(0, ROWS)
        inside = rows < N
        across, down, sample = rows % WO, (rows // WO) % HO, rows // (WO * HO)
        at = (client * N + rows)[:, None] * C + channels[None, :]
        here = inside[:, None] & known[None, :]
        slope = tl.load(slopes + at, mask=here, other=0.0)
        value = tl.load(y + at, mask=here, other=0.0)
        slope = tl.where(here, slope * a[None, :] + value * b[None, :] + c[None, :], 0.0)
        for tap in tl.static_range(HIGH * WIDE):
            i = down * STRIDE + tap // WIDE - PAD
            j = across * STRIDE + tap % WIDE - PAD
            within = inside & (i >= 0) & (i < H) & (j >= 0) & (j < W)
            seen = tl.load(
                x + (client * N_IN + (sample * H + i) * W + j)[:, None] * x_row + x_start + channels[None, :],
                mask=within[:, None] & known[None, :],
                other=0.0,
            )
            if NORMAL:
                seen = _rectified(seen, factor[None, :], offset[None, :], RELU)
                seen = tl.where(within[:, None], seen, 0.0)
            sums += tl.where(taps[:, None] == tap, tl.sum(slope * seen, 0)[None, :], 0.0)
    at = ((client * tl.num_programs(1) + part) * C + channels)[None, :] * HIGH * WIDE + taps[:, None]
    tl.store(partial + at, sums, mask=(taps < HIGH * WIDE)[:, None] & known[None, :])
