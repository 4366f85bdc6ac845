"""The CPU kernels: paged decode attention and what surrounds it, in float32.

Sums may be reordered (that is what makes them fast), nothing is approximated. A kernel does one
item of a call, whose arguments `a` are integers: sizes, and addresses of arrays whose rows lie
next to each other unless a stride is given. `daemon.engine.cpu.calls` writes the calls.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np
from numba import cfunc, types

from daemon.engine.cpu.attention_dots import HEAD_DIMS, POSITIONS, score_rows, soften, weigh_rows
from daemon.engine.cpu.kernels_8bit import attend_8bit_item, store_8bit_item
from daemon.engine.cpu.kernels_edit import edit_item
from daemon.engine.cpu.kernels_linear import in_turn_item, linear_item
from daemon.engine.cpu.kernels_sample import draw_item
from daemon.engine.cpu.numeric import TOKENS_AT_ONCE, capped, exactly
from daemon.engine.cpu.numeric import exactly as _exactly
from daemon.engine.cpu.numeric import exp as _exp
from daemon.engine.cpu.numeric import inner as _inner
from daemon.engine.cpu.numeric import item as _item
from daemon.engine.cpu.team import (
    CALL_WIDTH,
    call_item,
    count_up,
    float_pointer,
    int32_pointer,
    int64_pointer,
    read_now,
)

LINEAR, NORM, ROTATE, STORE, ATTEND, SILU_MUL = range(6)
STORE_INT8, STORE_FP8, ATTEND_INT8, ATTEND_FP8 = range(6, 10)
IN_TURN, EDIT, SAMPLE, ADVANCE = range(10, 14)
GELU_MUL, SCALE, CAP = range(14, 17)
"""The opcodes."""

BY_ADDRESS = 32
"""The opcode of a kernel that is compiled by itself: its address is the first argument."""

VALUES_AT_ONCE = 64
"""Positions whose values all heads of a group are weighed with while they lie near."""

SHARES = 4
"""Divisor: a thread takes this part of its own share of the remaining items at once."""

_SPINS = 4000
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@exactly
def advance_item(a, item):
    """A row's place, one token further.

    lens, offsets int32 [T], block size, width of tables, groups of layers: int64 [G, 2], addresses
    of tables int32 [T, width] and blocks int32 [T], G, kinds of angles: int64 [K, 5], addresses of
    cosines and sines float32 [positions, rotary_dim], those of the row float32 [T, rotary_dim],
    twice, and rotary_dim, K.
    """
    lens, block_size = int32_pointer(a[4]), a[6]
    position = lens[item]
    lens[item] = position + 1
    int32_pointer(a[5])[item] = position % block_size
    groups, kinds = int64_pointer(a[8]), int64_pointer(a[10])
    for group in range(a[9]):
        table = int32_pointer(groups[2 * group])
        blocks = int32_pointer(groups[2 * group + 1])
        blocks[item] = table[item * a[7] + position // block_size]
    for kind in range(a[11]):
        width = kinds[5 * kind + 4]
        cosines, sines = float_pointer(kinds[5 * kind]), float_pointer(kinds[5 * kind + 1])
        cos, sin = float_pointer(kinds[5 * kind + 2]), float_pointer(kinds[5 * kind + 3])
        for lane in range(width):
            cos[item * width + lane] = cosines[position * width + lane]
            sin[item * width + lane] = sines[position * width + lane]


@_inner
def _scores(query, pool, table, layout, scale, cap, scores, num_groups, head_dim):
    """Scores [groups, positions] of one sequence's queries over one key head; their maxima last."""
    length, block_stride, shift, block_size, row_stride, first = layout
    last = length - first
    for group in range(num_groups):
        scores[group, last] = -np.inf
    for position in range(first, length):
        block = table[position // block_size]
        at = block * block_stride + shift + (position % block_size) * row_stride
        for group in range(num_groups):
            total = np.float32(0.0)
            for lane in range(head_dim):
                total += query[group * head_dim + lane] * pool[at + lane]
            total = capped(total, scale, cap)
            scores[group, position - first] = total
            scores[group, last] = max(scores[group, last], total)


@_inner
def _weigh(pool, table, layout, scores, sinks, output, num_groups, head_dim):
    """Softmax of `scores`, and the values weighed by it into `output` [groups, head_dim].

    `sinks`: the address of a score more for each group, without a value; 0: there is none.
    """
    length, block_stride, shift, block_size, row_stride, first = layout
    last = length - first
    for group in range(num_groups):
        most = scores[group, last]
        if sinks != 0:
            most = max(most, float_pointer(sinks)[group])
        total = np.float32(0.0)
        for index in range(last):
            weight = _exp(scores[group, index] - most)
            scores[group, index] = weight
            total += weight
        if sinks != 0:
            total += _exp(float_pointer(sinks)[group] - most)
        scores[group, last] = np.float32(1.0) / total
        for lane in range(head_dim):
            output[group * head_dim + lane] = np.float32(0.0)
    for position in range(first, length):
        block = table[position // block_size]
        at = block * block_stride + shift + (position % block_size) * row_stride
        for group in range(num_groups):
            weight = scores[group, position - first]
            for lane in range(head_dim):
                output[group * head_dim + lane] += weight * pool[at + lane]
    for group in range(num_groups):
        norm = scores[group, last]
        for lane in range(head_dim):
            output[group * head_dim + lane] *= norm


@_inner
def _addresses(pool, table, layout, rows):
    """The address of each position's keys; those past the last are the last one's."""
    length, block_stride, shift, block_size, row_stride, first = layout
    for begin in range(first - first % block_size, length, block_size):
        at = pool + 4 * (table[begin // block_size] * block_stride + shift)
        for offset in range(max(first - begin, 0), min(block_size, length - begin)):
            rows[begin + offset - first] = at + 4 * offset * row_stride
    for index in range(length - first, len(rows)):
        rows[index] = rows[length - first - 1]


@_inner
def _score(head_dim, query, rows, scores):
    if head_dim == 64:
        score_rows(64, query, rows, scores)
    elif head_dim == 128:
        score_rows(128, query, rows, scores)
    elif head_dim == 256:
        score_rows(256, query, rows, scores)
    else:
        score_rows(512, query, rows, scores)


@_exactly
def _soften(scores, count, scale):
    soften(scores, count, scale)


@_inner
def _weigh_some(head_dim, rows, shift, weights, count, output):
    if head_dim == 64:
        weigh_rows(64, rows, shift, weights, count, output)
    elif head_dim == 128:
        weigh_rows(128, rows, shift, weights, count, output)
    elif head_dim == 256:
        weigh_rows(256, rows, shift, weights, count, output)
    else:
        weigh_rows(512, rows, shift, weights, count, output)


@_inner
def _cap_scores(scores, count, scale, cap):
    """Scale and cap `count` scores at an address."""
    numbers = float_pointer(scores)
    for index in range(count):
        numbers[index] = capped(numbers[index], scale, cap)


@_inner
def _attend_in_vectors(query, pool, table, layout, rule, output, num_groups, head_dim):
    """Attention of one row and key head of `HEAD_DIMS`; `query`, `pool`, `output` are addresses.

    Rows of values lie one block's rows of keys behind those of the keys. All groups share the rows
    of a few positions while these lie in the nearest cache. `rule`: scale, cap, address of sinks.
    """
    scale, cap, sinks = rule
    count, block_size, row_stride = layout[0] - layout[5], layout[3], layout[4]
    scored = count if sinks == 0 else count + 1
    padded = -(-scored // POSITIONS) * POSITIONS
    rows = np.empty(padded, np.int64)
    _addresses(pool, table, layout, rows)
    scores = np.empty(num_groups * padded, np.float32)
    shift, size_bytes = 4 * block_size * row_stride, 4 * head_dim
    # Addresses are asked in the loops, so that both arrays live as long as these do.
    for first in range(0, padded, POSITIONS):
        rows_at, scores_at = rows.ctypes.data + 8 * first, scores.ctypes.data + 4 * first
        for group in range(num_groups):
            at = scores_at + 4 * group * padded
            _score(head_dim, query + group * size_bytes, rows_at, at)
    for group in range(num_groups):
        at = scores.ctypes.data + 4 * group * padded
        by = scale
        if cap != np.float32(0.0):
            _cap_scores(at, padded, scale, cap)
            by = np.float32(1.0)
        if sinks != 0:
            for index in range(count, padded):
                float_pointer(at)[index] = float_pointer(sinks)[group] / by
        _soften(at, scored, by)
    for lane in range(num_groups * head_dim):
        float_pointer(output)[lane] = np.float32(0.0)
    for first in range(0, count, VALUES_AT_ONCE):
        some = min(VALUES_AT_ONCE, count - first)
        rows_at, scores_at = rows.ctypes.data + 8 * first, scores.ctypes.data + 4 * first
        for group in range(num_groups):
            at = scores_at + 4 * group * padded
            _weigh_some(head_dim, rows_at, shift, at, some, output + group * size_bytes)


@_item
def _attend_item(a, item):
    """Attention of one row of one token, and of one key head with the query heads that share it.

    query, its row stride, pool, the layer's shift, block stride, block size, tables int32
    [B, width], width, tokens int32 [B] (rows of query and output), lens int32 [B], kv heads,
    groups, head_dim, scale and cap float32 [2], output [T, kv heads * groups * head_dim], window,
    sinks float32 [kv heads * groups] or 0.
    """
    num_heads, num_groups, head_dim = a[14], a[15], a[16]
    head, row = divmod(item, a[2] // num_heads)  # rows of one sequence find its head's KV near
    scale, cap = float_pointer(a[17])[0], float_pointer(a[17])[1]
    token = np.int64(int32_pointer(a[12])[row])
    length = np.int64(int32_pointer(a[13])[row])
    first = max(length - a[19], 0) if a[19] else np.int64(0)
    width = num_groups * head_dim
    query = a[4] + 4 * (token * a[5] + head * width)
    output = a[18] + 4 * (token * num_heads + head) * width
    table = int32_pointer(a[10] + 4 * row * a[11])
    sinks = a[20] + 4 * head * num_groups if a[20] else np.int64(0)
    row_stride = num_heads * head_dim
    shift = a[7] + head * head_dim
    layout = (length, a[8], shift, a[9], row_stride, first)
    if head_dim in HEAD_DIMS:
        rule = (scale, cap, sinks)
        _attend_in_vectors(query, a[6], table, layout, rule, output, num_groups, head_dim)
        return
    pool, query, output = float_pointer(a[6]), float_pointer(query), float_pointer(output)
    scores = np.empty((num_groups, length - first + 1), np.float32)
    values = (length, a[8], shift + a[9] * row_stride, a[9], row_stride, first)
    _scores(query, pool, table, layout, scale, cap, scores, num_groups, head_dim)
    _weigh(pool, table, values, scores, sinks, output, num_groups, head_dim)


@_item
def _store_item(a, item):
    """Write keys and values of some tokens to their pages.

    keys, values, their row stride, pool, the layer's shift, block stride, rows from keys to values,
    blocks int32 [T], offsets int32 [T], T, width (kv heads * head_dim).
    """
    pool, blocks, offsets = float_pointer(a[7]), int32_pointer(a[11]), int32_pointer(a[12])
    width = a[14]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[13])):
        at = blocks[token] * a[9] + a[8] + offsets[token] * width
        key = float_pointer(a[4] + 4 * token * a[6])
        value = float_pointer(a[5] + 4 * token * a[6])
        for lane in range(width):
            pool[at + lane] = key[lane]
            pool[at + a[10] * width + lane] = value[lane]


@_item
def _rotate_item(a, item):
    """Rotary positions in place, over the first heads of some rows.

    states, their row stride, T, heads, their head stride, rotary_dim, cos, sin [T, rotary_dim].
    """
    num_heads, head_stride, half = a[7], a[8], a[9] // 2
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[6])):
        cos = float_pointer(a[10] + 8 * token * half)
        sin = float_pointer(a[11] + 8 * token * half)
        for head in range(num_heads):
            states = float_pointer(a[4] + 4 * (token * a[5] + head * head_stride))
            for lane in range(half):
                low, high = states[lane], states[lane + half]
                states[lane] = low * cos[lane] - high * sin[lane]
                states[lane + half] = high * cos[lane + half] + low * sin[lane + half]


@_item
def _norm_item(a, item):
    """`output` = RMS norm of `states` * weight, over some rows of `width`; in place is allowed.

    Row r lies at (r // together) * stride + (r % together) * width, in states and output alike.
    With `added` (its address not 0, dense) states += added comes first, and states keeps the sum;
    with a weight for it states += the RMS norm of added.
    states, stride, together, added, number of rows, width, weight, epsilon float32 [1], output,
    its stride, weight of added or 0, its epsilon.

    A row's factor is rounded once: its error is that of the whole row, and all that follows.
    """
    together, width = a[6], a[9]
    weight, epsilon = float_pointer(a[10]), float_pointer(a[11])[0]
    first = item * TOKENS_AT_ONCE
    for row in range(first, min(first + TOKENS_AT_ONCE, a[8])):
        group, inside = row // together, (row % together) * width
        states = float_pointer(a[4] + 4 * (group * a[5] + inside))
        output = float_pointer(a[12] + 4 * (group * a[13] + inside))
        if a[7] != 0:
            added = float_pointer(a[7] + 4 * row * width)
            if a[14] != 0:
                of_added = float_pointer(a[14])
                total = np.float64(0.0)
                for lane in range(width):
                    total += np.float64(added[lane]) * np.float64(added[lane])
                norm = np.float32(1.0 / np.sqrt(total / width + float_pointer(a[15])[0]))
                for lane in range(width):
                    states[lane] += of_added[lane] * (added[lane] * norm)
            else:
                for lane in range(width):
                    states[lane] += added[lane]
        total = np.float64(0.0)
        for lane in range(width):
            total += np.float64(states[lane]) * np.float64(states[lane])
        norm = np.float32(1.0 / np.sqrt(total / width + epsilon))
        for lane in range(width):
            output[lane] = weight[lane] * (states[lane] * norm)


@_item
def _silu_mul_item(a, item):
    """`output` [T, width] = silu(first half) * second half of `states` [T, 2 * width].

    states, T, width, output; items run over tokens and stretches of columns.
    """
    num_tokens, width = a[5], a[6]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, num_tokens)):
        gate = float_pointer(a[4] + 8 * token * width)
        up = float_pointer(a[4] + 4 * (2 * token + 1) * width)
        output = float_pointer(a[7] + 4 * token * width)
        for lane in range(width):
            value = gate[lane]
            output[lane] = value / (np.float32(1.0) + _exp(-value)) * up[lane]


@_item
def _gelu_mul_item(a, item):
    """As `_silu_mul_item`, with gelu as approximated by tanh in place of silu."""
    num_tokens, width = a[5], a[6]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, num_tokens)):
        gate = float_pointer(a[4] + 8 * token * width)
        up = float_pointer(a[4] + 4 * (2 * token + 1) * width)
        output = float_pointer(a[7] + 4 * token * width)
        for lane in range(width):
            value = gate[lane]
            # x * (1 + tanh(z)) / 2 = x * sigmoid(2 z)
            power = np.float32(2.0 * 0.7978845608028654) * (
                value + np.float32(0.044715) * value * value * value
            )
            output[lane] = value / (np.float32(1.0) + _exp(-power)) * up[lane]


@_item
def _scale_item(a, item):
    """`states` [T, width] *= a number. states, T, width, the number float32 [1]."""
    factor = float_pointer(a[7])[0]
    first = item * TOKENS_AT_ONCE
    for token in range(first, min(first + TOKENS_AT_ONCE, a[5])):
        states = float_pointer(a[4] + 4 * token * a[6])
        for lane in range(a[6]):
            states[lane] *= factor


@_item
def _cap_item(a, item):
    """Some of N numbers, capped in place. numbers, N, how many an item has, cap float32 [1]."""
    numbers, cap = float_pointer(a[4]), float_pointer(a[7])[0]
    first = item * a[6]
    for index in range(first, min(first + a[6], a[5])):
        numbers[index] = capped(numbers[index], np.float32(1.0), cap)


@_item
def _do_item(a, item):
    opcode = a[3]
    if opcode == LINEAR:
        linear_item(a, item)
    elif opcode == IN_TURN:
        in_turn_item(a, item)
    elif opcode == NORM:
        _norm_item(a, item)
    elif opcode == ROTATE:
        _rotate_item(a, item)
    elif opcode == STORE:
        _store_item(a, item)
    elif opcode == ATTEND:
        _attend_item(a, item)
    elif opcode in (STORE_INT8, STORE_FP8):
        store_8bit_item(a, item, opcode == STORE_FP8)
    elif opcode in (ATTEND_INT8, ATTEND_FP8):
        attend_8bit_item(a, item, opcode == ATTEND_FP8)
    elif opcode == EDIT:
        edit_item(a, item)
    elif opcode == SAMPLE:
        draw_item(a, item)
    elif opcode == ADVANCE:
        advance_item(a, item)
    elif opcode == GELU_MUL:
        _gelu_mul_item(a, item)
    elif opcode == SCALE:
        _scale_item(a, item)
    elif opcode == CAP:
        _cap_item(a, item)
    elif opcode == BY_ADDRESS:
        call_item(a[4], a, item)
    else:
        _silu_mul_item(a, item)


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def run_program(arguments):
    """Run a program on each thread of a team: `arguments` are the table's address and number of
    calls, and the number of threads.

    A thread takes several items that lie side by side while many are left: what one of them has
    fetched ahead is the next one's.
    """
    shares = SHARES * arguments[2]
    for index in range(arguments[1]):
        address = arguments[0] + 8 * CALL_WIDTH * index
        a, done = int64_pointer(address), int64_pointer(address + 8)
        num_items = a[2]
        while True:
            some = max((num_items - read_now(a)) // shares, 1)
            first = count_up(a, some)
            last = min(first + some, num_items)
            if first >= last:
                break
            for item in range(first, last):
                _do_item(a, item)
            count_up(done, last - first)
        spins = 0
        while read_now(done) < num_items:
            spins += 1
            # The thread with the last items may be waiting for this core.
            if spins > _SPINS:
                _sched_yield()
