"""Who has a slot and memory on one instance: sequences are seated, give way, and leave."""

import numpy as np

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import DEFER
from daemon.request import State
from daemon.scheduler.moves import Moves
from daemon.scheduler.place import Place
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.queue import WaitingQueue
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.starvation import Starvation
from daemon.scheduler.trust import Trust
from daemon.sequence import Sequence
from daemon.story import What
from daemon.wire.columns import Slots

PROMOTED_SHARE = 1 / 3
"""Of the blocks, for those who were promoted. FastServe's promotion alone can thrash: where more
arrives than is served everybody starves, and all memory goes to moving them in and out."""


class Seats:
    """The waiting queue, the slots and the memory, under one policy.

    `step` is the newest plan that was made; what happens here belongs to the plan after it.
    """

    def __init__(
        self, instance: int, policy: Policy, max_running: int, kv: KVCache, residency: Residency
    ) -> None:
        self.instance = instance
        self.policy = policy
        self.kv = kv
        self.residency = residency
        self.pace = StepTimeModel()
        self.slots = SlotTable(max_running)
        self.waiting = WaitingQueue()
        self.starvation = Starvation(instance)
        self.starve_s = 0.3  # FastServe's alpha; may change while it runs
        self.promoted: list[Sequence] = []
        self.trust = Trust()
        self.started: list[tuple[Sequence, int]] = []  # (seated first time, cached tokens)
        self.moves = Moves()
        self.step = 0
        self.now = 0.0
        self.num_promised = 0  # blocks that are coming, and that decodes of this plan wait for
        self.left: list[int] = []
        self.joined: list[int] = []

    def take_moves(self) -> Moves:
        """What was counted since the last call."""
        taken, self.moves = self.moves, Moves()
        return taken

    def take_started(self) -> list[tuple[Sequence, int]]:
        """Those that were seated for the first time since the last call, with cached tokens."""
        taken, self.started = self.started, []
        return taken

    # The order

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence that waits or was preempted."""
        sequence.instance = self.instance
        sequence.waiting_since_s = now
        sequence.rank = self.policy.rank(sequence, self.pace)
        self.waiting.push(sequence)
        if self.policy.promotes:
            self._watch(sequence)

    def meet(self, sequence: Sequence, now: float) -> None:
        """Queue one that is new here."""
        self.expect(sequence)
        self.policy.enter(sequence, self.pace)
        self.add(sequence, now)

    def expect(self, sequence: Sequence) -> None:
        """Expect what was predicted, if predictions are to be trusted; a doubled one stays."""
        if not self.trust.holds:
            sequence.expected_tokens, sequence.high_tokens = -1, 0
        elif sequence.expected_tokens < 0:
            sequence.expected_tokens = sequence.predicted_tokens

    def foretold(self, sequence: Sequence) -> None:
        """Its prediction has come: it may move in the order."""
        if sequence.slot >= 0:
            self._look_at(sequence)
        self._expect_anew(sequence)
        self.policy.foretold(sequence)
        self._rerank(sequence)

    def _expect_anew(self, sequence: Sequence) -> None:
        """Forget what this policy or another one made of its prediction."""
        sequence.expected_tokens = -1
        self.expect(sequence)

    def choose(self, policy: Policy) -> None:
        """Order everybody by another policy."""
        self.policy = policy
        self.starvation = Starvation(self.instance)
        for slot in self.slots.order().tolist():
            sequence = self.slots.member(slot)
            self._look_at(sequence)
            self._expect_anew(sequence)
            policy.enter(sequence, self.pace)
            self._rerank(sequence)
        for sequence in sorted(self.waiting.take_all(), key=lambda one: one.waiting_since_s):
            sequence.expected_tokens = -1
            self.meet(sequence, sequence.waiting_since_s)

    def promote(self) -> None:
        """Let the policy promote those that starve, while the promoted leave enough to others."""
        while (sequence := self.starvation.first(self.now)) is not None:
            if self._num_promoted_blocks() >= PROMOTED_SHARE * self.kv.pool.num_blocks:
                return
            self.policy.promote(sequence, self.pace)
            self.promoted.append(sequence)
            sequence.story.add(self.now, What.PROMOTED, sequence.level)
            self._rerank(sequence)

    def starve_after(self, starve_s: float) -> None:
        """Change alpha, for those who wait already too."""
        self.starve_s = starve_s
        self.starvation = Starvation(self.instance)
        if self.policy.promotes:
            for sequence in self.waiting:
                self._watch(sequence)

    def _watch(self, sequence: Sequence) -> None:
        patience_s = self.policy.patience_s(sequence, self.starve_s, self.pace)
        starves_at_s = sequence.waiting_since_s + patience_s
        self.starvation.watch(sequence, starves_at_s, len(self.waiting))

    def _num_promoted_blocks(self) -> int:
        """Blocks that those who were promoted, and still are, hold or come to fetch."""
        self.promoted = [
            one
            for one in self.promoted
            if one.promoted and one.instance == self.instance and one.state is not State.FINISHED
        ]
        return sum(self.kv.blocks_for(one.num_known_tokens) for one in self.promoted)

    def review(self) -> None:
        """Let the policy look again at those that reached the count it named."""
        table, order = self.slots, self.slots.order()
        for slot in order[table.known[order] >= table.review_at[order]].tolist():
            sequence = table.member(slot)
            self._look_at(sequence)
            num_output_tokens = int(table.known[slot]) - sequence.num_prompt_tokens
            level = sequence.level
            self.policy.review(sequence, num_output_tokens, self.pace)
            if sequence.level > level:
                sequence.story.add(self.now, What.DEMOTED, sequence.level)
            self._rerank(sequence)

    def _rerank(self, sequence: Sequence) -> None:
        """Put one where the policy now wants it."""
        if sequence.slot >= 0:
            sequence.rank = self._seated_rank(sequence)
            self.slots.review_at[sequence.slot] = sequence.review_at
            self.slots.place(sequence.slot, sequence.rank)
        else:
            self.waiting.remove(sequence)
            sequence.rank = self.policy.rank(sequence, self.pace)
            self.waiting.push(sequence)

    def _look_at(self, sequence: Sequence) -> None:
        """Bring a running sequence's own count of tokens up to date."""
        delivered = int(self.slots.delivered[sequence.slot])
        sequence.num_output_tokens = delivered - sequence.num_prompt_tokens

    def _seated_rank(self, sequence: Sequence) -> float:
        """Its place among those that run: seconds left count from now on."""
        rank = self.policy.rank(sequence, self.pace)
        return rank + self.now if self.policy.counts_down else rank

    def may_displace(self, sequence: Sequence) -> bool:
        """Whether there is anybody whose place this one may take."""
        return bool(self._victims(sequence, 1))

    def _victims(self, sequence: Sequence, num_blocks: int) -> list[int]:
        """The last slots in the order that together give so many blocks, if this one may have
        their places; none if they give fewer, or if the host has no room for what they hold: to
        compute it all again costs more than a place is worth. Who leaves anyway is left alone.
        """
        if not self.policy.displaces or self.residency.mode == DEFER:
            return []
        room = self.residency.host_room()
        # Seconds left differ by a step at least: less is an error of the pace, and no gain.
        shift = self.now + self.pace.mean_s if self.policy.counts_down else 0.0
        found = []
        for slot in map(int, self.slots.order()[::-1]):
            member = self.slots.member(slot)
            if self.slots.leaves(slot):
                continue
            if sequence.rank + shift >= member.rank or member is sequence.leader:
                return []
            if slot in self.joined:  # this plan gave it its place; ranks change with the pace
                return []
            held = int(self.kv.table.held[slot])
            room -= held - len(member.residence.host_blocks)
            if room < 0:
                return []
            found.append(slot)
            num_blocks -= max(self.kv.num_own(slot), int(self.slots.full))
            if num_blocks <= 0:
                return found
        return []

    # Seating

    @property
    def forming(self) -> bool:
        """Whether nobody who runs has got more than the first token: a gang may still grow."""
        order = self.slots.order()
        return bool((self.slots.known[order] <= self.slots.fed_until[order] + 1).all())

    def place_of(self, sequence: Sequence) -> Place:
        """Where its computed tokens would come from, and the blocks it would take."""
        kv = self.kv
        reserve = sequence.limit if self.policy.reserve_limit else sequence.num_known_tokens
        num_blocks = kv.blocks_for(reserve)
        leader = self._leader_slot(sequence)
        if leader >= 0:
            shared = sequence.num_prompt_tokens - 1
            return Place(leader, [], shared, num_blocks, shared // kv.block_size)
        matched = kv.match(sequence)
        num_cached = len(matched) * kv.block_size
        parked = sequence.residence.parked_tokens
        if parked > num_cached:
            return Place(-1, matched, parked, num_blocks, len(matched), returns=True)
        return Place(-1, matched, num_cached, num_blocks, len(matched))

    def _leader_slot(self, sequence: Sequence) -> int:
        """The slot of the running stream whose computed prompt this one can share, or -1."""
        leader = sequence.leader
        if leader is None or leader.slot < 0 or leader.instance != self.instance:
            return -1
        if self.residency.is_returning(leader):
            return -1
        computed = self.slots.computed[leader.slot] >= sequence.num_prompt_tokens
        fresh = not sequence.num_output_tokens and not sequence.residence.parked_tokens
        return leader.slot if computed and fresh else -1

    def make_room(self, sequence: Sequence, place: Place) -> bool:
        """Displace others if the policy says so; whether a slot and the blocks are there.

        Nobody is preempted to obtain what comes anyway, but for what lacks beyond it.
        """
        lacking = self._lacking(place)
        if lacking <= 0 and not self.slots.full:
            return True
        leaving = self.slots.leaving()
        if lacking > 0:
            beyond = lacking - self.coming(leaving) + self.kv.pool.fenced_among(place.matched)
        else:
            beyond = 0 if leaving.size else 1  # a slot is all that it lacks
        if beyond <= 0:
            return False
        for slot in self._victims(sequence, beyond):
            self.preempt(slot, What.GAVE_WAY, sequence.id)
        return not self.slots.full and self._lacking(place) <= 0

    def coming(self, leaving: Slots) -> int:
        """Blocks that nobody is promised and that come without anybody giving way: fenced ones,
        and those that only the `leaving` have.
        """
        num_held = sum(self.kv.num_own(slot) for slot in leaving.tolist())
        return self.kv.pool.num_fenced + num_held - self.num_promised

    @property
    def num_spare(self) -> int:
        """Blocks that those who run keep from newcomers."""
        return max(1, self.kv.pool.num_blocks // 100)

    def _lacking(self, place: Place) -> int:
        """Blocks that a place needs and nobody has to spare, or <= 0; those that run keep a few."""
        spare = self.num_spare if self.slots.num_running else 0
        return self.kv.lacking(place.matched, place.num_blocks - place.num_reusable + spare)

    def take_in(self, sequence: Sequence) -> int:
        """The slot of one that runs, or that there is or can be made room for; else -1."""
        if sequence.slot >= 0:
            return sequence.slot
        place = self.place_of(sequence)
        return self.seat(sequence, place) if self.make_room(sequence, place) else -1

    def seat(self, sequence: Sequence, place: Place) -> int:
        """Give it a slot and its blocks; its slot."""
        self.waiting.remove(sequence)
        sequence.rank = self._seated_rank(sequence)
        slot = self.slots.join(sequence, place.num_shared_tokens)
        if place.leader >= 0:
            self.kv.fork(place.leader, slot, place.num_shared_tokens, place.num_blocks)
            self.slots.last_step[place.leader] = self.step + 1
        else:
            self.kv.admit(slot, place.matched, place.num_blocks)
        sequence.move(State.RUNNING)
        sequence.num_sealed_blocks = place.num_reusable
        self.joined.append(slot)
        fetched = len(place.matched) if place.returns else -1
        self.residency.seat(sequence, self.kv, fetched, self.step + 1, self.now)
        self.moves.swaps_in += place.returns
        what, by = (What.FETCHED if place.returns else What.SEATED), -1
        if place.leader >= 0:
            what, by = What.SHARED, self.slots.member(place.leader).id
        sequence.story.add(self.now, what, place.num_shared_tokens, by)
        if place.returns and not self.residency.is_returning(sequence):  # its first step awaits it
            sequence.story.add(self.now, What.RESTORED)
        if not sequence.started:
            sequence.started = True
            self.started.append((sequence, place.num_shared_tokens))
        return slot

    def seal(self, slot: int) -> None:
        """Offer a running sequence's full blocks to others, unless they are still on their way."""
        sequence = self.slots.member(slot)
        if not self.residency.is_returning(sequence):
            self.kv.seal(sequence, int(self.slots.computed[slot]))

    def settle(self, slots: list[int], chunks: list[int]) -> None:
        """Offer the blocks that these chunks of prompts fill: later steps may share them."""
        for slot, count in zip(slots, chunks, strict=True):
            self.slots.member(slot).story.add(self.now, What.CHUNK, count)
            self.seal(slot)

    # Leaving

    def grow_by_force(self, slots: Slots) -> list[int]:
        """One block for each of these slots, in order. Where there is none, one of those that are
        coming is promised to it; once all are, the last in the order gives way, itself if it is
        that. Those who wait for what was promised are returned.
        """
        table = self.slots
        waiting: list[int] = []
        coming = self.coming(table.leaving()) - self.kv.pool.num_fenced
        for slot in slots.tolist():
            while table.members[slot] is not None:
                if self.kv.pool.num_available:
                    self.kv.grow_each(np.array([slot]))
                    break
                if coming + self.kv.pool.num_fenced > len(waiting):
                    waiting.append(slot)
                    break
                victim = next(one for one in map(int, table.order()[::-1]) if not table.leaves(one))
                self.preempt(victim, What.OUT_OF_BLOCKS, table.member(slot).id)
        self.num_promised += len(waiting)
        return waiting

    def preempt(self, slot: int, why: str | None, by: int = -1) -> None:
        """Give up a running sequence's place to the sequence `by`, or since its worker is gone
        (`why` None); what is not kept of its KV is computed again.
        """
        table = self.slots
        sequence = table.member(slot)
        num_computed = int(table.computed[slot])
        num_valid = min(num_computed, int(table.delivered[slot]) - 1)
        self.seal(slot)
        if why is None:
            self.residency.forget(sequence)
        else:
            again_s = self.pace.prefill_s if self.policy.prefill_alone else self.pace.chunk_s
            self.residency.park(sequence, num_valid, table, self.kv, self.step + 1, again_s)
        self._vacate([slot])
        parked = sequence.residence.parked_tokens
        self.moves.preemptions += 1
        self.moves.swaps_out += parked > 0
        lost = max(0, num_computed - parked)
        self.moves.recomputed_tokens += lost
        sequence.preemptions += 1
        sequence.recomputed_tokens += lost
        if sequence.num_output_tokens:
            sequence.preemptions_after_first += 1
        if why is not None:
            sequence.story.add(self.now, why, parked, by)
        sequence.move(State.PREEMPTED)
        self.add(sequence, self.now)

    def retire(self, slots: list[int]) -> list[Sequence]:
        """These sequences have ended: empty their slots; the sequences."""
        for slot in slots:
            self.seal(slot)
            self.residency.forget(self.slots.member(slot))
        return self._vacate(slots)

    def _vacate(self, slots: list[int]) -> list[Sequence]:
        """Empty these slots, their blocks in one go; the sequences that had them."""
        table = self.slots
        last_step = max(int(table.last_step[slot]) for slot in slots)
        self.kv.release_each(slots, last_step)
        for slot in slots:
            if slot in self.joined:
                self.joined.remove(slot)
            else:
                self.left.append(slot)
        return [table.leave(slot) for slot in slots]
