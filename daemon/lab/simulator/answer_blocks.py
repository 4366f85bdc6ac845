"""The hashes of blocks that answers fill, from a journal, as the runtime gives them to the Core."""

from collections.abc import Mapping
from collections.abc import Sequence as Listing
from typing import NamedTuple

from daemon.wire.columns import Int32, Int64, int32, int64


class NamedBlocks(NamedTuple):
    """Blocks as in `StepDone`: their sequences, their indices in these, and their hashes."""

    sequences: Int64
    at: Int32
    hashes: bytes


NO_BLOCKS = NamedBlocks(int64(), int32(), b"")


class AnswerBlocks:
    """The blocks that were filled since the last answer of a step, as the journal names them."""

    def __init__(self, hashes: Mapping[tuple[int, int], bytes], block_size: int) -> None:
        """`hashes` by sequence and index of the block."""
        self._hashes, self._block_size = hashes, block_size
        self._lengths: dict[int, int] = {}  # of prompt and answer so far
        self._filled: list[tuple[int, int]] = []
        self.newest = NO_BLOCKS  # to be told with the next answer

    def started(self, sequence: int, length: int) -> None:
        """Note a sequence and its prompt's length."""
        self._lengths.setdefault(sequence, length)

    def delivered(self, sequences: Listing[int]) -> None:
        """Note the tokens of a step; a sequence with several is named once for each."""
        for sequence in sequences:
            length = self._lengths[sequence] = self._lengths[sequence] + 1
            block = sequence, length // self._block_size - 1
            if length % self._block_size == 0 and block in self._hashes:
                self._filled.append(block)

    def hash(self, living: Mapping[int, object]) -> None:
        """Name what was filled, but for sequences that have ended."""
        filled = [block for block in self._filled if block[0] in living]
        self._filled = []
        self.newest = NO_BLOCKS
        if filled:
            sequences, at = zip(*filled, strict=True)
            digests = b"".join([self._hashes[block] for block in filled])
            self.newest = NamedBlocks(int64(sequences), int32(at), digests)
