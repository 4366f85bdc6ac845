"""Decode admission: whether tokens still to be generated have room (TetriInfer, section 3.4).

A running sequence takes a further block for each few tokens. From the predictions of all running
sequences and the newcomer, a rule counts the blocks they will take until a later time; the newcomer
is admitted if that many are available. Nothing is reserved: a block is free until a token needs it.
Without a trusted prediction a sequence counts with its limit.
"""

import numpy as np

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.future_peak import FuturePeak, future_peak
from daemon.scheduler.order import Order
from daemon.scheduler.padded_ends import LIKELY_SHARE, PaddedEnds
from daemon.scheduler.policies.base import NOTHING
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import NEVER, Sequence
from daemon.wire.columns import Int32, Slots, int32

GREEDY = "greedy"
RESERVE_STATIC = "reserve_static"
RESERVE_DYNAMIC = "reserve_dynamic"
RESERVE_PEAK = "reserve_peak"

DECODE_ADMISSIONS = (GREEDY, RESERVE_STATIC, RESERVE_DYNAMIC, RESERVE_PEAK)
"""The rules: room for the newcomer's present tokens; for its whole length and those of all running
sequences; for what all of these, the newcomer included, hold when the first of them ends, just
before its blocks come back; for the most that all hold together until the newcomer ends, given what
others give back before."""


class DecodeAdmission:
    """The rule of one instance."""

    def __init__(self, rule: str, order: Order) -> None:
        self._rule = rule
        self.is_greedy = rule == GREEDY
        self._order = order
        self._ends = PaddedEnds(order)

    def room(self, slots: Slots, kv: KVCache) -> "DecodeRoom | PeakRoom | None":
        """The expected blocks of the sequences in these slots; None: the rule leaves no room for
        them, or the policy's reservations do.
        """
        if self._rule == GREEDY or self._order.policy.reserves != NOTHING:
            return None
        if self._rule == RESERVE_PEAK:
            self._ends.renew(slots)
            return PeakRoom(self._order, self._ends.of(slots), slots, kv)
        return DecodeRoom(self._rule, self._order.slots, slots, kv)

    def admits(
        self, sequence: Sequence, matched: list[int], num_reusable: int, kv: KVCache
    ) -> bool:
        """Whether the blocks that the rule asks for are available, where a sequence would find
        `num_reusable` of its own, the `matched` ones in the cache among them.
        """
        if self._rule == GREEDY:
            return True
        room = self.room(self._order.slots.order(), kv)
        return room is None or kv.num_lacking(matched, room.num_needed(sequence, num_reusable)) <= 0


class DecodeRoom:
    """The blocks that sequences together are expected to take, by one rule."""

    def __init__(self, rule: str, table: SlotTable, slots: Slots, kv: KVCache) -> None:
        """The sequences in `slots` of the table run."""
        self._rule = rule
        self._kv = kv
        self._known = table.known[slots]
        self._ends = np.maximum(table.predicted_end[slots], self._known + 1)
        self._held = kv.charged[slots]

    def num_needed(self, sequence: Sequence, num_reusable: int) -> int:
        """Blocks that have to be available to admit a sequence that would find `num_reusable` of
        its own; 0: it is alone, or no token to come needs one.
        """
        known, end = sequence.num_known_tokens, sequence.predicted_length
        if not self._known.size or sequence.limit - known <= 1:
            return 0
        ahead = NEVER
        if self._rule == RESERVE_DYNAMIC:
            ahead = min(end - known, int((self._ends - self._known).min()))
        grown = self._blocks(np.minimum(self._ends - self._known, ahead) + self._known)
        num_taken = int((grown - self._held).clip(0).sum())
        own = int(self._blocks(int32([known + min(end - known, ahead)]))[0])
        return num_taken + own - num_reusable

    def add(self, sequence: Sequence, num_blocks: int) -> None:
        """Add a running sequence that holds `num_blocks`."""
        known = sequence.num_known_tokens
        self._known = np.append(self._known, np.int32(known))
        self._ends = np.append(self._ends, np.int32(max(sequence.predicted_length, known + 1)))
        self._held = np.append(self._held, np.int32(num_blocks))

    def _blocks(self, num_tokens: Int32) -> Int32:
        return self._kv.blocks_of(num_tokens)


class PeakRoom:
    """The most blocks that sequences together are expected to hold, where each is padded by the
    error of predictions.
    """

    def __init__(self, order: Order, ends: Int32, slots: Slots, kv: KVCache) -> None:
        """The sequences in `slots` run, and are expected to end at these lengths."""
        self._lengths = order.lengths
        self._kv = kv
        self._known = order.slots.known[slots]
        self._left = np.maximum(ends - self._known, 1)
        self._num_held = int(kv.charged[slots].sum())
        self._peak: FuturePeak | None = None

    def num_needed(self, sequence: Sequence, num_reusable: int) -> int:
        """Blocks that have to be available to admit a sequence that would find `num_reusable` of
        its own; 0: it is alone, or no token to come needs one.
        """
        known = sequence.num_known_tokens
        if not self._known.size or sequence.limit - known <= 1:
            return 0
        if self._peak is None:
            self._peak = future_peak(self._known, self._left, self._kv)
        (peak,) = self._peak.with_each(int32([known]), int32([self._left_of(sequence)]))
        num_pages = int(peak)
        if not self._kv.has_windows:
            block = self._kv.block_size
            half_blocks = (self._known.size + 1) * block // 2  # begun blocks are half full
            num_pages = -(-(num_pages + half_blocks) // block)
        return num_pages - self._num_held - num_reusable

    def add(self, sequence: Sequence, num_blocks: int) -> None:
        """Add a running sequence that holds `num_blocks`."""
        self._known = np.append(self._known, np.int32(sequence.num_known_tokens))
        self._left = np.append(self._left, np.int32(self._left_of(sequence)))
        self._num_held += num_blocks
        self._peak = None

    def _left_of(self, sequence: Sequence) -> int:
        age = sequence.num_output_tokens
        return self._lengths.padded(sequence, age, LIKELY_SHARE) - age
