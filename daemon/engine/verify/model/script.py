"""The script of a trial: sequences in company, their lengths, chunks and positions. Pure numpy.

Sequences of the first wave are as they will be served: several at once, prompts whole and in uneven
chunks across the borders of blocks, then decodes, alone and together. Those of the second are short
and lie far out: their first token has a position beyond those that the cache holds, so that a
model's treatment of positions is tested around every threshold that its configuration names, at the
cost of a few tokens. Attention sees the same tokens on both sides of the comparison.

Compiled steps take positions from places. So they are compared with the same forward uncompiled,
behind the longest context that there is room for, whose blocks are all one block.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from daemon.wire.columns import Int64

_NAMES = re.compile(r"position|window(?!_layers)|chunk|floor_scale|seq_len|context")
"""Fields of a configuration whose numbers may be thresholds of positions."""
_FAR_TOKENS = 9
_FAR_CHUNK = 5
_MOST_FAR = 6
_CPU_WORK, _GPU_WORK = 3e10, 1e13
"""Parameters times tokens of a forward pass that a trial may take."""
_LEAST_TOKENS, _MOST_TOKENS = 48, 256


class TrialRoom(NamedTuple):
    """The pool and the limits that a trial has."""

    block_size: int  # tokens
    num_blocks: int
    max_slots: int
    max_len: int  # tokens of the longest sequence
    max_batch_tokens: int
    vocab_size: int
    state_blocks: int = 0  # as many pages as a sequence's states take, at least

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can be served."""
        return min(self.max_len, (self.num_blocks - self.state_blocks) * self.block_size)


class WaveSequence(NamedTuple):
    """One sequence of a wave."""

    slot: int
    tokens: Int64  # [n]
    first: int  # position of its first token
    counts: tuple[int, ...]  # tokens that each of its steps computes; they add up to n
    begins: int  # the step of the wave in which its first chunk is computed


class Wave(NamedTuple):
    """Sequences that hold slots and blocks together."""

    sequences: tuple[WaveSequence, ...]

    @property
    def shifted(self) -> bool:
        """Whether positions are others than places in the cache, which compiled steps forbid."""
        return any(sequence.first for sequence in self.sequences)

    @property
    def num_steps(self) -> int:
        """Steps until the last of them is done."""
        return max(sequence.begins + len(sequence.counts) for sequence in self.sequences)


def budget_tokens(num_params: int, on_gpu: bool, rounds: bool) -> int:
    """Tokens that a trial of a model may compute: fewer of a large one, all layers of each.

    Fewer too where serving `rounds`, since all is then computed unrounded as well.
    """
    work = (_GPU_WORK if on_gpu else _CPU_WORK) / (2 if rounds else 1)
    return max(_LEAST_TOKENS, min(_MOST_TOKENS, int(work / max(num_params, 1))))


def thresholds(fields: Any, longest: int) -> list[int]:
    """Positions below `longest` at which a configuration says that something may change."""
    found = {value for value in _numbers(fields) if 1 < value < longest}
    return sorted(found)


def renamed(wave: Wave, vocabulary: Int64) -> Wave:
    """The wave for a model whose token i is `vocabulary[i]`, which rises and has all tokens."""
    return Wave(
        tuple(
            sequence._replace(tokens=np.searchsorted(vocabulary, sequence.tokens))
            for sequence in wave.sequences
        )
    )


def num_blocks(wave: Wave, block_size: int, state_blocks: int) -> int:
    """Blocks that a wave's sequences hold together, with `state_blocks` of each."""
    lengths = (len(sequence.tokens) for sequence in wave.sequences)
    return sum(-(-length // block_size) + state_blocks for length in lengths)


def write(room: TrialRoom, budget: int, borders: Iterable[int], avoid: int | None) -> list[Wave]:
    """The waves of a trial of `budget` tokens and the `borders` beyond; no token is `avoid`."""
    chooser = np.random.default_rng(20)
    near = list(_near(room, budget))
    longest = max(sum(counts) for counts in near)
    far = list(_far(room, borders, longest))
    tried = [(0, counts) for counts in near]
    waves = [*_waves(room, tried, chooser, avoid)]
    return [*waves, *_waves(room, [(first, _cut_far()) for first in far], chooser, avoid)]


def _near(room: TrialRoom, budget: int) -> Iterator[tuple[int, ...]]:
    """Chunks of sequences from position 0 on: the longest first."""
    block = min(room.block_size, budget // 4)
    longest = room.longest
    decodes = min(6, block)
    prompt = max(1, min(budget // 2, longest - decodes))
    uneven = (block - 1, 2, block + 1, block // 2, 1)
    yield _counts(prompt, uneven, min(decodes, longest - prompt), room)
    whole = min(block, longest)
    yield _counts(whole, (whole,), min(4, longest - whole), room)
    yield _counts(1, (1,), min(7, longest - 1), room)


def _counts(prompt: int, cuts: tuple[int, ...], decodes: int, room: TrialRoom) -> tuple[int, ...]:
    """Chunks of a prompt by `cuts` and then as long as may be, and single tokens behind it."""
    counts, left = list[int](), prompt
    for cut in cuts:
        counts.append(max(0, min(cut, left, room.max_batch_tokens)))
        left -= counts[-1]
    while left:
        counts.append(min(left, room.max_batch_tokens))
        left -= counts[-1]
    return (*(count for count in counts if count), *[1] * decodes)


def _far(room: TrialRoom, borders: Iterable[int], covered: int) -> Iterator[int]:
    """First positions of sequences around each border, and of one that ends where serving does."""
    last = room.longest - _FAR_TOKENS
    firsts = {min(border - _FAR_CHUNK + 1, last) for border in borders}
    far = sorted(first for first in {*firsts, last} if first + _FAR_TOKENS > covered and first > 0)
    yield from far[-_MOST_FAR:]


def _cut_far() -> tuple[int, ...]:
    return (_FAR_CHUNK, *[1] * (_FAR_TOKENS - _FAR_CHUNK))


def _waves(
    room: TrialRoom,
    tried: list[tuple[int, tuple[int, ...]]],
    chooser: np.random.Generator,
    avoid: int | None,
) -> Iterator[Wave]:
    """As many sequences at a time as slots and blocks allow."""
    sequences, blocks_left = list[WaveSequence](), room.num_blocks
    for first, counts in tried:
        length = sum(counts)
        blocks = -(-length // room.block_size) + room.state_blocks
        if sequences and (len(sequences) == room.max_slots or blocks > blocks_left):
            yield Wave(tuple(sequences))
            sequences, blocks_left = [], room.num_blocks
        slot = room.max_slots - 1 - len(sequences)  # no row has its own number
        tokens = _tokens(length, room.vocab_size, chooser, avoid)
        sequences.append(WaveSequence(slot, tokens, first, counts, len(sequences)))
        blocks_left -= blocks
    if sequences:
        yield Wave(tuple(sequences))


def _tokens(count: int, vocab_size: int, chooser: np.random.Generator, avoid: int | None) -> Int64:
    tokens = chooser.integers(0, vocab_size, count)
    if avoid is not None and vocab_size > 1:
        tokens[tokens == avoid] = (avoid + 1) % vocab_size
    return tokens


def _numbers(fields: Any, name: str = "") -> Iterator[int]:
    """Whole numbers of a configuration whose name, or that of what holds them, speaks of length."""
    if isinstance(fields, dict):
        for key, value in fields.items():
            yield from _numbers(value, str(key))
    elif isinstance(fields, int) and not isinstance(fields, bool) and _NAMES.search(name):
        yield fields
