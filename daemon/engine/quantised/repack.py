"""From the tensors of AWQ, GPTQ, compressed tensors, FP8, MXFP4 and NVFP4 to rows of blocks.

A block's numbers are worth scale * (number - zero), in float32. Where numbers are integers of 8
bits at most and scales are narrower than float32 this is exact, and so it is what the formats'
own tools compute before they round: AWQ's and GPTQ's round the product to float16, compressed
tensors' to the type of the scales. Rounded the same way, ours are theirs bit for bit. Where scales
are float32, both are the same product, rounded once.

Weights are brought over in strips of rows, so that a layer's numbers never stand unpacked as a
whole.
"""

from collections.abc import Callable

import torch

from daemon.models.formats import FP4_GROUP, FP4_HEAD_BYTES, WeightFormat

Numbers = Callable[[int, int], torch.Tensor]
"""uint8 [rows, K]: the numbers of some rows, from the first to before the last."""

_HEAD_BYTES = 8
_STRIP_ELEMENTS = 1 << 21
_AWQ_ORDER = ((0, 2), (4, 6), (1, 3), (5, 7))
"""Rows, of eight, whose numbers are the low and high halves of each byte of a word of AWQ's."""


def blocks_of(
    form: WeightFormat,
    numbers: Numbers,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    in_pairs: bool = False,
) -> torch.Tensor:
    """uint8 [N, bytes of a row] of numbers, and of `scales` and `zeros` float32 [N, blocks].

    Where numbers of 4 bits are `in_pairs`, `numbers` gives uint8 [rows, K / 2], neighbours in each
    byte, the first in its low half.
    """
    rows, count = scales.shape
    made = torch.empty(rows, count, form.block_bytes, dtype=torch.uint8)
    heads = made.view(torch.float32)
    heads[:, :, 0], heads[:, :, 1] = scales, zeros
    strip = max(8, _STRIP_ELEMENTS // (count * form.block_len) // 8 * 8)
    for first in range(0, rows, strip):
        last = min(first + strip, rows)
        cut = numbers(first, last).reshape(last - first, count, -1)
        if in_pairs:
            cut = _halves_apart(cut)
        elif form.name.startswith("int4"):
            low, high = cut.chunk(2, 2)
            cut = low | (high << 4)
        made[first:last, :, _HEAD_BYTES:] = cut
    return made.view(rows, -1)


def mxfp4_blocks(pairs: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """uint8 [N, bytes of a row] of numbers in pairs uint8 [N, blocks, 16], the first in the low
    half byte, and of exponents uint8 [N, blocks].
    """
    return torch.cat((scales.unsqueeze(2), _halves_apart(pairs)), 2).flatten(1)


def fp4_blocks(
    form: WeightFormat, pairs: torch.Tensor, scales: torch.Tensor, factor: float, divisor: float
) -> torch.Tensor:
    """uint8 [N, bytes of a row] of numbers in pairs uint8 [N, K / 2], the first in the low half
    byte, and of scales uint8 [N, K / 16], all of them times `factor` / `divisor`.
    """
    rows, count = len(pairs), 2 * pairs.shape[1] // form.block_len
    made = torch.zeros(rows, count, form.block_bytes, dtype=torch.uint8)
    heads = made.view(torch.float32)
    heads[:, :, 0], heads[:, :, 1] = factor, divisor
    of_block = form.block_len // FP4_GROUP
    made[:, :, _HEAD_BYTES : _HEAD_BYTES + of_block] = scales.view(rows, count, of_block)
    strip = max(1, _STRIP_ELEMENTS // pairs.shape[1])
    for first in range(0, rows, strip):
        some = pairs[first : first + strip]
        packed = _halves_apart(some.reshape(len(some), -1, 16))
        made[first : first + strip, :, FP4_HEAD_BYTES:] = packed.view(len(some), count, -1)
    return made.view(rows, -1)


def _halves_apart(pairs: torch.Tensor) -> torch.Tensor:
    """uint8 [N, runs, B] of numbers in pairs, neighbours in each byte: the first half of a run's
    numbers are the low halves of bytes, the second the high ones.

    A byte of either half of a run makes two bytes at once: of their four numbers in a word of 16
    bits the middle ones change places.
    """
    first, second = (half.to(torch.int16) for half in pairs.chunk(2, 2))
    words = second.bitwise_left_shift_(8).bitwise_or_(first)
    swapped = torch.bitwise_right_shift(words, 4, out=first).bitwise_xor_(words)
    swapped.bitwise_and_(0x00F0)
    words.bitwise_xor_(swapped).bitwise_xor_(swapped.bitwise_left_shift_(4))
    return words.view(torch.uint8)


def nibbles(words: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 8 * words] of int32 [n, words], the lowest half byte first."""
    return opened(bytes_in(words))


def opened(pairs: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 2 * B] of numbers in pairs uint8 [n, B], the first in the low half byte."""
    return torch.stack((pairs & 15, pairs >> 4), 2).flatten(1)


def bytes_in(words: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 4 * words] of int32 [n, words], the lowest byte first."""
    return words.contiguous().view(torch.uint8)


def awq_rows(words: torch.Tensor) -> torch.Tensor:
    """uint8 [8 * words, n] of int32 [n, words]: half bytes in the order that AWQ gives them."""
    packed = transposed(bytes_in(words))
    found = torch.empty(len(packed) // 4, 8, packed.shape[1], dtype=torch.uint8)
    for byte, (low, high) in enumerate(_AWQ_ORDER):
        found[:, low] = packed[byte::4] & 15
        found[:, high] = packed[byte::4] >> 4
    return found.flatten(0, 1)


def transposed(table: torch.Tensor) -> torch.Tensor:
    """A dense [m, n] as a dense [n, m]: torch is fast at this where it is given all of a table."""
    return table.T.contiguous()


def group_order(groups: torch.Tensor, group: int) -> torch.Tensor | None:
    """int32 [K]: the columns, those of the first group first; None: they are so already.

    `groups` int [K] has the group of each column; none below zero means that there are none.
    Raises ValueError where a group has another number of columns than `group`.
    """
    if bool((groups < 0).all()):
        return None
    expected = torch.arange(len(groups)) // group
    if torch.equal(groups.long(), expected):
        return None
    found, order = groups.long().sort(stable=True)
    if not torch.equal(found, expected):
        raise ValueError(f"its columns are not in groups of {group}")
    return order.int()


def spread(grid: torch.Tensor, rows: int, group_rows: int, starts: torch.Tensor) -> torch.Tensor:
    """float32 [N, blocks]: of a grid [down, across], what each block of each row has.

    `starts` int64 [blocks] has the grid's column for each block.
    """
    wide = grid.float()[:, starts]
    if len(wide) == 1:
        return wide.expand(rows, -1)
    return wide if group_rows < 2 else wide.repeat_interleave(group_rows, 0)[:rows]
