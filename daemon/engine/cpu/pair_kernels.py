"""The CPU kernels of products with weights of bfloat16, which are read as they lie in memory.

Compiled and called as those of `quantised_kernels`.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

from functools import cache

from daemon.engine.cpu.dots import TILE, stack
from daemon.engine.cpu.pair_dots import split_row, tile_pairs
from daemon.engine.cpu.quantised_kernels import COLUMNS_AT_ONCE, ITEM, place, write

_ADDRESSES_BYTES = 8 * TILE
_SUMS_BYTES = 4 * TILE * TILE


@cache
def split():
    """The kernel that brings a token's states into the order that pairs are multiplied in.

    states [T, K], K, output [T, K].
    """

    @ITEM
    def item(a, token):
        split_row(a[5] + 4 * token * a[6], a[6], a[7] + 4 * token * a[6])

    return item


@cache
def floats_together():
    """The kernel of a float product of all tokens at once: rows stay in the nearest cache.

    weight, bytes of a row, N, K, states [T, K] in the order of pairs, T, output, its stride,
    bias [N] or 0.
    """

    @ITEM
    def item(a, number):
        rows, tokens, sums = stack(_ADDRESSES_BYTES), stack(_ADDRESSES_BYTES), stack(_SUMS_BYTES)
        first = number * COLUMNS_AT_ONCE
        last = min(first + COLUMNS_AT_ONCE, a[7])
        for column in range(first, last, TILE):
            place(rows, a[5], column, last, a[6])
            columns = (column, min(column + TILE, last))
            for token in range(0, a[10], TILE):
                place(tokens, a[9], token, a[10], 4 * a[8])
                ahead = TILE * a[6] if token == 0 else 0
                here = min(a[10] - token, TILE)
                if here == 1:
                    tile_pairs(1, rows, ahead, tokens, a[8], sums)
                elif here == 2:
                    tile_pairs(2, rows, ahead, tokens, a[8], sums)
                else:
                    tile_pairs(TILE, rows, ahead, tokens, a[8], sums)
                for index in range(here):
                    write(a, sums + 4 * TILE * index, token + index, columns, True)

    return item
