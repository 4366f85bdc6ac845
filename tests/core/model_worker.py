"""A worker without a model: it keeps the tokens in the blocks and reads each row's history back.

The next token is a function of the history that the row *attends to*, so a block that two
sequences share by mistake, or that was given away too early, shows as a wrong token. Swap copies
end when the driver says so; until then what they bring is poison, and what they read must stay.
"""

import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from daemon.memory.layout import row_blocks
from daemon.state.batch import Batch
from daemon.wire.columns import Int32, int32

VOCABULARY = 50
POISON = -7


def next_token(sequence: int, history: Int32) -> int:
    """The token after a history; streams of one request differ by their seeds."""
    return zlib.crc32(history.tobytes(), sequence) % VOCABULARY


@dataclass
class Truth:
    """A sequence's prompt and the answer it must get."""

    sequence: int
    tokens: list[int]

    def upto(self, length: int) -> Int32:
        while len(self.tokens) < length:
            self.tokens.append(next_token(self.sequence, int32(self.tokens)))
        return int32(self.tokens[:length])


@dataclass
class Executed:
    """A step that was computed and not answered yet."""

    batch: Batch
    tokens: list[int]  # of the sampled rows
    named: dict[int, set[tuple[int, int]]] = field(default_factory=dict)  # block -> residences
    written: set[int] = field(default_factory=set)  # blocks


@dataclass
class Copies:
    """The swap copies of one plan, on their way."""

    step: int
    outs: list[tuple[int, int, Int32]]  # device block, host block, what it held
    ins: list[tuple[int, int]]  # host block, device block


class ModelWorker:
    """One instance's worker: blocks, block table, last tokens, and the host's blocks."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_slots: int,
        max_len: int,
        num_host_blocks: int = 0,
        windows: tuple[int, ...] = (0,),
        state_pages: int = 0,
    ) -> None:
        """`windows` of groups of layers: each has a part of a block table's row; behind these are
        `state_pages` of the sequence's states, each of which tells all tokens before it.
        """
        self.block_size = block_size
        self.host = np.full((num_host_blocks, block_size), -1, np.int32)
        self.copies: deque[Copies] = deque()
        self.ended: deque[tuple[int, int, int]] = deque()  # (step, blocks out, in), not told yet
        self.contents = np.full((num_blocks, block_size), -1, np.int32)
        self.windows = windows
        self.max_blocks = row_blocks(max_len, block_size)
        self.state_pages = state_pages
        num_cells = self.max_blocks * len(windows) + state_pages
        self.table = np.full((max_slots, num_cells), -1, np.int32)
        self.sequence: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.joins = 0
        self.residence: dict[int, tuple[int, int]] = {}  # slot -> (sequence, join number)
        self.pending: list[Executed] = []

    def submit(self, batch: Batch, truths: dict[int, Truth], known: dict[int, list[int]]) -> None:
        """Compute a step as daemon/state/batch.py says; check all that a real worker relies on."""
        self._seat(batch)
        self._change_table(batch)
        self._order_copies(batch)
        done = Executed(batch, [])
        self._copy(batch, done)
        self._check_drafts(batch, known)
        rows = list(
            zip(
                batch.slots.tolist(),
                batch.starts.tolist(),
                batch.counts.tolist(),
                batch.samples.tolist(),
                batch.fed.tolist(),
                strict=True,
            )
        )
        for slot, start, count, _, fed in rows:
            self._write(done, slot, start, self._inputs(slot, start, count, fed, known))
        for slot, start, count, sample, _ in rows:
            self._carry_on(done, slot, (start, start + count), truths)
            self._attend(done, slot, (start, start + count), sample, truths)
        if batch.times > 1:
            self._compute_again(done, truths)
        self.pending.append(done)

    def _compute_again(self, done: Executed, truths: dict[int, Truth]) -> None:
        """The further times of a step of decodes; its tokens come row by row."""
        batch, drawn = done.batch, [done.tokens]
        assert (batch.counts == 1).all() and batch.samples.all() and not batch.fed.any()
        for time in range(1, batch.times):
            done.tokens = []
            starts = (batch.starts + time).tolist()
            for slot, start in zip(batch.slots.tolist(), starts, strict=True):
                self._write(done, slot, start, [self.last[slot]])
                self._carry_on(done, slot, (start, start + 1), truths)
                self._attend(done, slot, (start, start + 1), 1, truths)
            drawn.append(done.tokens)
        done.tokens = [row[time] for row in zip(*drawn, strict=True) for time in range(batch.times)]

    def cut(self, step: Executed, ended: np.ndarray) -> list[int]:
        """Answer a step of several times with fewer tokens of those rows [R] that have `ended`; how
        many each has.
        """
        times, tokens = step.batch.times, step.tokens
        fewer = [1 + (step.batch.step + row) % times for row in range(len(ended))]
        counts: list[int] = np.where(ended, fewer, times).tolist()
        step.tokens = [
            token
            for row, count in enumerate(counts)
            for token in tokens[row * times : row * times + count]
        ]
        return counts

    def redraw(self, step: Executed, counts: list[int], truths: dict[int, Truth]) -> list[int]:
        """Answer a step with so many tokens of each sampled row, as far as its blocks hold their
        KV; how many they are. Nothing else is in flight.
        """
        batch, drawn, said = step.batch, list[int](), list[int]()
        sampled = batch.samples.astype(bool)
        ends = (batch.starts + batch.counts)[sampled].tolist()
        for slot, end, asked in zip(batch.slots[sampled].tolist(), ends, counts, strict=True):
            room = self._held(slot) * self.block_size - end
            count = min(asked, room + 1)
            tokens = truths[self.sequence[slot]].upto(end + count).tolist()
            self._write(step, slot, end, tokens[end:-1])
            self.last[slot] = tokens[-1]
            drawn += tokens[end:]
            said.append(count)
        step.tokens = drawn
        return said

    def _states(self, slot: int) -> Int32:
        """The pages of a slot's states; a view."""
        row: Int32 = self.table[slot, self.max_blocks * len(self.windows) :]
        return row

    def _held(self, slot: int) -> int:
        """The blocks of a slot's tokens, those that windows have passed included."""
        return 1 + int((self._row(slot, 0) >= 0).nonzero()[0].max(initial=-1))

    def _row(self, slot: int, group: int) -> Int32:
        """The blocks of one group of layers; a view."""
        row: Int32 = self.table[slot, group * self.max_blocks : (group + 1) * self.max_blocks]
        return row

    def _check_drafts(self, batch: Batch, known: dict[int, list[int]]) -> None:
        """Drafts are behind a row's newest token, alone in flight, and have blocks to go to."""
        if not batch.drafts.size:
            return
        assert batch.drafts.size == batch.slots.size and not self.pending
        for row in batch.drafts.nonzero()[0].tolist():
            slot, start = int(batch.slots[row]), int(batch.starts[row])
            assert batch.counts[row] == batch.samples[row] == 1
            assert start + 1 == len(known[self.sequence[slot]]), "a draft behind unknown tokens"
            end = start + 1 + int(batch.drafts[row])
            held = self._held(slot)
            assert end <= held * self.block_size, "a draft has no block"

    def drafted(self, step: Executed, accepted: list[int]) -> list[int]:
        """How many tokens each sampled row of a step with drafts draws, if of its drafts so many
        are accepted at most.
        """
        drafts = step.batch.drafts[step.batch.samples.astype(bool)].tolist()
        return [1 + min(pair) for pair in zip(drafts, accepted, strict=True)]

    def _seat(self, batch: Batch) -> None:
        for slot in batch.left_slots.tolist():
            del self.sequence[slot], self.residence[slot]
            self.last.pop(slot, None)
            self.table[slot] = -1
        for slot, sequence in zip(
            batch.joined_slots.tolist(), batch.joined_sequences.tolist(), strict=True
        ):
            assert slot not in self.sequence, f"slot {slot} is taken"
            self.joins += 1
            self.sequence[slot] = sequence
            self.residence[slot] = (sequence, self.joins)

    def _change_table(self, batch: Batch) -> None:
        cells = list(zip(batch.table_slots.tolist(), batch.table_indices.tolist(), strict=True))
        assert len(set(cells)) == len(cells), "a table cell is written twice in one step"
        assert all(slot in self.sequence for slot, _ in cells), "a change of a vacant slot"
        for group, window in enumerate(self.windows):  # what a window has passed, others may take
            if window:
                rows = self.table[:, group * self.max_blocks : (group + 1) * self.max_blocks]
                rows[np.isin(rows, batch.table_blocks)] = -1
        self.table[batch.table_slots, batch.table_indices] = batch.table_blocks

    def _order_copies(self, batch: Batch) -> None:
        """Start a plan's swap copies; those that its step awaits end at once."""
        outs = list(zip(batch.out_blocks.tolist(), batch.out_places.tolist(), strict=True))
        ins = list(zip(batch.in_places.tolist(), batch.in_blocks.tolist(), strict=True))
        assert len({place for _, place in outs}) == len(outs), "a host block is written twice"
        assert len({block for _, block in ins}) == len(ins), "a block is brought twice"
        flying = {place for one in self.copies for _, place, _ in one.outs}
        flying |= {place for one in self.copies for place, _ in one.ins}
        assert not flying & {place for _, place in outs}, "a host block is written while in use"
        for _, block in ins:
            for step in self.pending:
                assert block not in step.named, "a block is brought while a step names it"
            self.contents[block] = POISON
        kept = [(block, place, self.contents[block].copy()) for block, place in outs]
        for block, _, content in kept:
            assert POISON not in content, f"block {block} goes out before it came in"
        if outs or ins:
            self.copies.append(Copies(batch.step, kept, ins))
        while self.copies and self.copies[0].step <= batch.awaits:
            self.end_copies()

    def end_copies(self) -> None:
        """The oldest plan's copies end."""
        ended = self.copies.popleft()
        for block, place, content in ended.outs:
            assert np.array_equal(self.contents[block], content), "written while it was copied"
            self.host[place] = content
        for place, block in ended.ins:
            self.contents[block] = self.host[place]
        self.ended.append((ended.step, len(ended.outs), len(ended.ins)))

    def _copy(self, batch: Batch, done: Executed) -> None:
        sources, targets = batch.copy_sources.tolist(), batch.copy_targets.tolist()
        assert len(set(targets)) == len(targets)
        assert not set(sources) & set(targets)
        for block in targets:
            owners = [slot for slot in self.sequence if block in self.table[slot]]
            # A snapshot of states is in no slot's row.
            fits = len(owners) == 1 or (self.state_pages and not owners)
            assert fits, "a copy's target has one owner"
            owner = self.residence[owners[0]] if owners else (-1, batch.step)
            self._claim(done, block, owner)
        for block in sources:
            done.named.setdefault(block, set())
        self.contents[targets] = self.contents[sources]

    def _inputs(
        self, slot: int, start: int, count: int, fed: int, known: dict[int, list[int]]
    ) -> list[int]:
        if fed:
            tokens = known[self.sequence[slot]]
            assert start + count <= len(tokens), "a plan names tokens that nobody knows"
            return tokens[start : start + count]
        assert count == 1, "only its own last token is known to the worker"
        return [self.last[slot]]

    def _write(self, done: Executed, slot: int, start: int, tokens: list[int]) -> None:
        for position, token in enumerate(tokens, start):
            for group in range(len(self.windows)):
                block = int(self._row(slot, group)[position // self.block_size])
                assert block >= 0, f"slot {slot} has no block for position {position}"
                self._claim(done, block, self.residence[slot])
                self.contents[block, position % self.block_size] = token

    def _carry_on(
        self, done: Executed, slot: int, span: tuple[int, int], truths: dict[int, Truth]
    ) -> None:
        """The states of a slot are those of all tokens before a `span`, and then of its end; a
        sequence's first are not read.
        """
        start, end = span
        sequence = self.sequence[slot]
        for number, page in enumerate(self._states(slot).tolist()):
            assert page >= 0, f"slot {slot} lacks the page {number} of its states"
            if start:
                expected = self._state_of(truths[sequence].upto(start), number)
                assert np.array_equal(self.contents[page], expected), (
                    f"sequence {sequence} goes on at {start} from a state of other tokens"
                )
            self._claim(done, page, self.residence[slot])
            self.contents[page] = self._state_of(truths[sequence].upto(end), number)

    def _state_of(self, tokens: Int32, number: int) -> Int32:
        """A page of the states behind these tokens."""
        told = zlib.crc32(tokens.tobytes()) >> 1, tokens.size, number
        return int32([*told, *[-2] * (self.block_size - len(told))])

    def _claim(self, done: Executed, block: int, residence: tuple[int, int]) -> None:
        """A block that is written is named by no other residence in steps not yet answered."""
        for step in [*self.pending, done]:
            others = step.named.get(block, {residence}) - {residence}
            assert not others, f"block {block} is written while step {step.batch.step} names it"
        done.named.setdefault(block, set()).add(residence)
        done.written.add(block)

    def _attend(
        self,
        done: Executed,
        slot: int,
        span: tuple[int, int],
        sample: int,
        truths: dict[int, Truth],
    ) -> None:
        """The queries of a `span` see the sequence's own tokens, as far as windows go."""
        start, end = span
        sequence = self.sequence[slot]
        expected = truths[sequence].upto(end)
        for group, window in enumerate(self.windows):
            first = max(0, start + 1 - window) if window else 0
            block = first // self.block_size
            blocks = self._row(slot, group)[block : -(-end // self.block_size)]
            assert (blocks >= 0).all(), f"sequence {sequence} sees what it does not hold"
            for number in blocks.tolist():
                done.named.setdefault(number, set()).add(self.residence[slot])
            begin = block * self.block_size
            seen = self.contents[blocks].reshape(-1)[first - begin : end - begin]
            assert np.array_equal(seen, expected[first:]), (
                f"sequence {sequence} attends to other tokens"
            )
        if sample:
            self.last[slot] = next_token(sequence, expected)
            done.tokens.append(self.last[slot])
