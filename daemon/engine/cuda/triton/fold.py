"""One tile of keys and values, folded into a running softmax: what all attention is made of.

The state of a softmax: `acc` [M, D] the weighted sum of values, `peak` [M] the largest score yet
and `total` [M] the sum of weights, both relative to `peak`; scores are logarithms to the base 2.

8-bit numbers are read as pairs, int16 [N, D / 2]: matrix units take operands of 16 bits from shared
memory, but single bytes only one by one. A pair is cut into its two numbers in registers, as
float16: the even columns of head_dim and the odd ones then are two products of half the width, and
`acc` is two halves. Keys' scales multiply the scores, values' scales the weights; their powers of
two are added to the scores already, as logarithms, and belong to the peak: so weights stay between
0 and 2, in float16's range, however small or large all values are. `total` leaves them out.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import triton
import triton.language as tl

from daemon.engine.cuda.triton.quantise import FP8_KIND, INT8_KIND, PLAIN_KIND

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
_LOG2_E = tl.constexpr(1.4426950408889634)
_TANH_RATE = tl.constexpr(-2.0 * 1.4426950408889634)
_LOWEST = tl.constexpr(-1e30)
"""A peak below every score."""
_FP8_UNIT = tl.constexpr(256.0)
"""The bits of an fp8 number in their places of a float16 mean 1 / 256 of it."""

_INT8_HALVES = tl.constexpr("""{
    .reg .b32 all, bias;
    xor.b32 all, $2, 0x80808080;
    mov.b32 bias, 0x64806480;
    prmt.b32 $0, all, 0x64646464, 0x4240;
    prmt.b32 $1, all, 0x64646464, 0x4341;
    sub.f16x2 $0, $0, bias;
    sub.f16x2 $1, $1, bias;
}""")
"""Behind the byte 0x64, n + 128 as a byte is the float16 1024 + n + 128: 0x6480, 1152, too much."""

_FP8_HALVES = tl.constexpr("""{
    .reg .b32 low, size, sign;
    shl.b32 size, $2, 7;
    shl.b32 sign, $2, 8;
    and.b32 size, size, 0x3f803f80;
    and.b32 sign, sign, 0x80008000;
    or.b32 low, size, sign;
    shr.b32 size, $2, 1;
    and.b32 sign, $2, 0x80008000;
    and.b32 size, size, 0x3f803f80;
    or.b32 $1, size, sign;
    mov.b32 $0, low;
}""")
"""Four bits of exponent and three of mantissa, moved to where a float16 has such bits."""


@triton.jit
def halves(pairs, KIND: tl.constexpr, PRODUCT: tl.constexpr):
    """The low and the high numbers of int16 pairs; of fp8 ones 1 / 256."""
    if _INTERPRETED:
        low, high = _plain_halves(pairs, KIND)
    elif KIND == INT8_KIND:
        low, high = tl.inline_asm_elementwise(
            _INT8_HALVES, "=r,=r,r", [pairs], (tl.float16, tl.float16), True, 2
        )
    else:
        low, high = tl.inline_asm_elementwise(
            _FP8_HALVES, "=r,=r,r", [pairs], (tl.float16, tl.float16), True, 2
        )
    return low.to(PRODUCT), high.to(PRODUCT)


@triton.jit
def _plain_halves(pairs, KIND: tl.constexpr):
    """The same without machine code, for the interpreter."""
    if KIND == INT8_KIND:
        low, high = ((pairs << 8) >> 8).to(tl.float16), (pairs >> 8).to(tl.float16)
    else:
        bits = pairs.to(tl.uint16, bitcast=True)
        low = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        high = (bits & 0x8000) | ((bits >> 1) & 0x3F80)
        low = low.to(tl.float16, bitcast=True)
        high = high.to(tl.float16, bitcast=True)
    return low, high


@triton.jit
def prepared_query(query, scale_log2, KIND: tl.constexpr, PRODUCT: tl.constexpr):
    """`query` [M, D] as `fold_tile` takes it: whole and a stand-in, or its even and odd columns."""
    if KIND == PLAIN_KIND:
        low = query.to(PRODUCT)
        high = low
    else:
        # Scaled before it is rounded: a large bfloat16 stays within float16's range.
        pairs = (query.to(tl.float32) * scale_log2).to(PRODUCT)
        low, high = tl.split(tl.reshape(pairs, [query.shape[0], query.shape[1] // 2, 2]))
    return low, high


@triton.jit
def new_softmax(ROWS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr):
    """Nothing folded yet: `acc` and its second half or a stand-in, `peak` and `total`."""
    if KIND == PLAIN_KIND:
        acc = tl.zeros([ROWS, DIM], tl.float32)
        more = tl.zeros([ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, DIM // 2], tl.float32)
        more = tl.zeros([ROWS, DIM // 2], tl.float32)
    # Not -inf: the first tile may lie in front of all that a row sees.
    return acc, more, tl.full([ROWS], _LOWEST, tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def attended(acc, more, total, KIND: tl.constexpr):
    """The mean of all values folded [M, D], float32."""
    if KIND == PLAIN_KIND:
        mean = acc / total[:, None]
    else:
        mean = tl.reshape(tl.join(acc, more), [acc.shape[0], 2 * acc.shape[1]])
        unit: tl.constexpr = _FP8_UNIT if KIND == FP8_KIND else 1.0
        mean = mean * (unit / total[:, None])
    return mean


@triton.jit
def _capped(scores, cap_log2):
    """cap * tanh(score / cap), by an exponential of what cannot overflow; both are logarithms."""
    shrunk = tl.exp2(tl.abs(scores) * (_TANH_RATE / cap_log2))
    size = cap_log2 * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(scores < 0.0, -size, size)


@triton.jit
def add_sinks(acc, more, peak, total, sinks_ptr, head, there, KIND: tl.constexpr):
    """A score more in each softmax, without a value: of each `head` [M] that is `there`."""
    sinks = tl.load(sinks_ptr + head, mask=there, other=float("-inf")).to(tl.float32) * _LOG2_E
    new_peak = tl.maximum(peak, sinks)
    fade = tl.exp2(peak - new_peak)
    acc *= fade[:, None]
    if KIND != PLAIN_KIND:
        more *= fade[:, None]
    return acc, more, new_peak, total * fade + tl.exp2(sinks - new_peak)


@triton.jit
def fold_tile(
    acc, more, peak, total, query, query_more, cache_ptr, scales_ptr, table_ptr,
    positions, stop, limits, window, stride_block, scale_stride_block, scale_log2, cap_log2,
    BLOCK_SIZE: tl.constexpr, TOKEN: tl.constexpr, VALUES: tl.constexpr,
    SCALE_VALUES: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, PRODUCT: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Fold keys and values at `positions` [N]; tokens lie TOKEN cells apart, values VALUES cells
    behind their keys, and the scales of values SCALE_VALUES behind those of keys.

    MASKED: positions from `stop` on are not read, and row m sees those below `limits[m]` only;
    WINDOWED: of these the last `window`. CAPPED: scores stay within -cap_log2 and cap_log2.
    """
    # Past the end the last token is read again, and masked by its position.
    there = tl.minimum(positions, stop - 1) if MASKED else positions
    there = there.to(tl.uint32, bitcast=True)
    blocks = tl.load(table_ptr + there // BLOCK_SIZE).to(tl.int64)
    offsets = (there % BLOCK_SIZE).to(tl.int32)
    # 64 bits: a pool of many gigabytes has more than 2 ** 31 elements.
    rows = blocks * stride_block + offsets * TOKEN
    keys = _load_rows(cache_ptr, rows, HEAD_DIM, DIM, KIND)
    if KIND == PLAIN_KIND:
        scores = tl.dot(query, tl.trans(keys.to(PRODUCT)), input_precision=PRECISION)
    else:
        low, high = halves(keys, KIND, PRODUCT)
        scores = tl.dot(query, tl.trans(low), input_precision=PRECISION)
        scores = tl.dot(query_more, tl.trans(high), scores, input_precision=PRECISION)
        scales_ptr += blocks * scale_stride_block + offsets
        unit: tl.constexpr = _FP8_UNIT if KIND == FP8_KIND else 1.0
        scores *= (tl.load(scales_ptr) * unit)[None, :]
    by = scale_log2
    if CAPPED:
        if KIND == PLAIN_KIND:
            scores *= scale_log2
        scores, by = _capped(scores, cap_log2), 1.0
    if MASKED:
        scores = tl.where(positions[None, :] < limits[:, None], scores, float("-inf"))
    if WINDOWED:
        scores = tl.where(positions[None, :] >= limits[:, None] - window, scores, float("-inf"))
    values = _load_rows(cache_ptr + VALUES, rows, HEAD_DIM, DIM, KIND)
    if KIND == PLAIN_KIND:
        acc, peak, total = _add_plain(acc, peak, total, scores, by, values, PRECISION, PRODUCT)
    else:
        scale = tl.load(scales_ptr + SCALE_VALUES)
        acc, more, peak, total = _add_8bit(
            acc, more, peak, total, scores, values, scale, KIND, PRECISION, PRODUCT
        )
    return acc, more, peak, total


@triton.jit
def _add_plain(
    acc, peak, total, scores, by, values, PRECISION: tl.constexpr, PRODUCT: tl.constexpr
):  # fmt: skip
    """Fold `values` [N, D] by `scores` [M, N], which times `by` are logarithms."""
    new_peak = tl.maximum(peak, tl.max(scores, 1) * by)
    weights = tl.exp2(scores * by - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    total = total * fade + tl.sum(weights, 1)
    weights = weights.to(values.dtype).to(PRODUCT)
    values = values.to(PRODUCT)
    acc = tl.dot(weights, values, acc * fade[:, None], input_precision=PRECISION)
    return acc, new_peak, total


@triton.jit
def _add_8bit(
    acc, more, peak, total, scores, values, scale,
    KIND: tl.constexpr, PRECISION: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Fold pairs of `values` [N, D / 2] with their `scale` [N] by `scores` [M, N]."""
    # A scale is a mantissa from 1 to 2 times a power of two, whose bits are its logarithm.
    exponent = scale.to(tl.int32, bitcast=True) >> 23
    without = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scores += (exponent - 127).to(tl.float32)[None, :]
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    total = total * fade + tl.sum(weights * without[None, :], 1)
    weights = (weights * (scale * without)[None, :]).to(PRODUCT)
    low, high = halves(values, KIND, PRODUCT)
    acc = tl.dot(weights, low, acc * fade[:, None], input_precision=PRECISION)
    more = tl.dot(weights, high, more * fade[:, None], input_precision=PRECISION)
    return acc, more, new_peak, total


@triton.jit
def _load_rows(
    cells_ptr, rows, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """Cells [N, DIM] from `rows` int64 [N] on, padded with 0; pairs [N, DIM / 2]."""
    width: tl.constexpr = HEAD_DIM if KIND == PLAIN_KIND else HEAD_DIM // 2
    padded: tl.constexpr = DIM if KIND == PLAIN_KIND else DIM // 2
    dims = tl.arange(0, padded)
    cells = cells_ptr + rows[:, None] + dims[None, :]
    if width == padded:
        loaded = tl.load(cells)
    else:
        loaded = tl.load(cells, mask=(dims < width)[None, :], other=0)
    return loaded
