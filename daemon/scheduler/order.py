"""The order of one instance's sequences: queueing, ranks, reviews, promotion, rooms."""

from itertools import islice

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.ageing import Ageing
from daemon.scheduler.lengths import SeenLengths
from daemon.scheduler.nearing import Nearing
from daemon.scheduler.policies.base import PREDICTION, Policy
from daemon.scheduler.queue import WaitingQueue
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.start_bound import StartBound
from daemon.scheduler.starvation import Starvation
from daemon.scheduler.trust import PredictorTrust
from daemon.state.request import State
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import Slots

MARGIN = 1.5
"""The factor in cost by which a sequence must lead another to preempt it, where costs are learned:
a smaller lead is not worth a pause."""

PRIORITY_S = 1e8
"""The worth of a priority in seconds of age, where costs are learned: more than any age."""

RANKED_AT_ONCE = 64
RANKED_A_STEP = 16
"""Waiting sequences that are ranked anew at once, and before each later step, where all are to be:
ranking ten thousand takes as long as many steps. The others stand behind."""


class Order:
    """The order of running and waiting sequences under one policy.

    It ranks, queues and promotes them. It gives no sequence a slot or a block.
    """

    def __init__(self, instance: int, policy: Policy, slots: SlotTable) -> None:
        self.instance = instance
        self.policy = policy
        self.slots = slots
        self.waiting = WaitingQueue()
        self.step_time = StepTimeModel()
        self.trust = PredictorTrust()
        self.lengths = SeenLengths()
        self.ageing = Ageing()
        self.starve_s = 0.3  # FastServe's alpha; may change while it runs
        self.promoted: list[Sequence] = []  # some no longer are
        self.start_bound = StartBound(instance)
        self._starvation = Starvation(instance)
        self._nearing = Nearing(instance)
        self._strangers: set[int] = set()  # waiting, and new to this policy

    # Queueing

    def enqueue(self, sequence: Sequence, since_s: float, now: float) -> None:
        """Queue a sequence that is new here and waits since `since_s`."""
        if self._strangers:
            self._strangers.discard(sequence.id)
        self._expect(sequence)
        self.policy.enter(sequence, self.step_time)
        self._watch_time(sequence, now)
        self.requeue(sequence, since_s)

    def requeue(self, sequence: Sequence, since_s: float) -> None:
        """Queue a sequence that the policy knows; it waits since `since_s`."""
        sequence.instance = self.instance
        sequence.waiting_since_s = since_s
        sequence.rank = self._rank(sequence)
        self.waiting.push(sequence)
        if self.policy.promotes:
            self._watch(sequence, sequence.waiting_since_s)
        if self.policy.paces and not sequence.num_output_tokens:
            self.start_bound.watch(sequence, len(self.waiting))

    def observe_backlog(self, kv: KVCache) -> None:
        """Note the wait of an arrival now under first come first served, if a worker is ready."""
        waiting = self.waiting
        if kv.pool.num_blocks:
            steps, work = waiting.left_steps, waiting.left_work
            num_steps = max(kv.pool_share(work, steps), steps / self.slots.max_slots)
            backlog_s = self.step_time.drain_s(
                num_steps, steps, work, waiting.num_uncomputed_tokens
            )
            self.start_bound.observe(backlog_s)

    # Ranks

    def set_policy(self, policy: Policy, now: float) -> None:
        """Rank all sequences by another policy."""
        self.policy = policy
        self._starvation = Starvation(self.instance)
        self._nearing = Nearing(self.instance)
        self.start_bound.forget_waiting()
        for slot in self.slots.order().tolist():
            sequence = self.slots.member(slot)
            self._count_outputs(sequence)
            self._expect_anew(sequence)
            policy.enter(sequence, self.step_time)
            self._watch_time(sequence, now)
            self._rerank(sequence, now)
        waiting = sorted(self.waiting, key=lambda sequence: sequence.waiting_since_s)
        self._strangers = {sequence.id for sequence in waiting}
        self.waiting.unranked.clear()
        self.waiting.unrank(waiting)
        self.rank_some(now, RANKED_AT_ONCE)

    def rank_some(self, now: float, most: int = RANKED_A_STEP) -> None:
        """Rank at most `most` of the sequences that are to be ranked anew."""
        unranked = self.waiting.unranked
        for sequence in list(islice(unranked.values(), most)):
            if sequence.id in self._strangers:
                self.waiting.remove(sequence)
                sequence.expected_tokens = -1
                self.enqueue(sequence, sequence.waiting_since_s, now)
                continue
            if not self.policy.learns and self._is_misjudged(sequence):
                self._expect_anew(sequence)
                self.policy.on_prediction(sequence)
                self._watch_time(sequence, now)
            self.waiting.remove(sequence)
            sequence.rank = self._rank(sequence)
            self.waiting.push(sequence)
        if not unranked:
            self._strangers.clear()

    def _meet(self, sequence: Sequence, now: float) -> None:
        """Enter a sequence into the policy that goes on before it was ranked anew."""
        if sequence.id in self._strangers:
            self._strangers.discard(sequence.id)
            self._expect_anew(sequence)
            self.policy.enter(sequence, self.step_time)
            self._watch_time(sequence, now)

    def on_prediction(self, sequence: Sequence, now: float) -> None:
        """Rank a sequence whose prediction has come."""
        if sequence.slot >= 0:
            self._count_outputs(sequence)
        elif sequence.id in self._strangers:
            self.waiting.remove(sequence)
            self.enqueue(sequence, sequence.waiting_since_s, now)
        self._expect_anew(sequence)
        self.policy.on_prediction(sequence)
        self._watch_time(sequence, now)
        self._rerank(sequence, now)

    def review(self, now: float) -> None:
        """Let the policy review running sequences that reached their `review_at`."""
        table = self.slots
        (due,) = (table.known >= table.review_at).nonzero()
        if not due.size:
            return
        known, delivered = table.known[due].tolist(), table.delivered[due].tolist()
        for slot, num_known, num_delivered in zip(due.tolist(), known, delivered, strict=True):
            sequence = table.member(slot)
            sequence.num_output_tokens = num_delivered - sequence.num_prompt_tokens
            level = sequence.level
            self.policy.review(sequence, num_known - sequence.num_prompt_tokens, self.step_time)
            if sequence.level > level:
                sequence.story.add(now, What.DEMOTED, sequence.level)
            sequence.rank = self.running_rank(sequence, now)
            table.set_rank(slot, sequence)

    def running_rank(self, sequence: Sequence, now: float) -> float:
        """Its rank among running sequences: where ranks count down, seconds count from `now`."""
        if self._strangers:
            self._meet(sequence, now)
        policy = self.policy
        rank = self._rank(sequence) if policy.learns else policy.rank(sequence, self.step_time)
        return rank + now if policy.counts_down else rank

    def _rank(self, sequence: Sequence) -> float:
        """Its rank by the policy; where that learns, by the learned lengths."""
        if not self.policy.learns:
            return self.policy.rank(sequence, self.step_time)
        if sequence.slot < 0:
            sequence.outlook, sequence.left = self.lengths.expected(sequence)
        else:
            sequence.outlook = self.lengths.outlook(sequence)
        cost = self.policy.rank(sequence, self.step_time)
        return self.ageing.rank(cost, sequence) + PRIORITY_S * sequence.priority

    def on_ended(self, sequence: Sequence, now: float) -> None:
        """Learn from an answer that ended."""
        if sequence.predicted_tokens >= 0:
            prompt, predicted = sequence.num_prompt_tokens, sequence.predicted_tokens
            if self.trust.observe(prompt, predicted, sequence.num_output_tokens):
                self._follow_trust(now)
        self.lengths.observe(sequence)
        # All ranks of a queue have one scale: it stays until all have theirs.
        changed = self.ageing.observe(now - sequence.arrived_s, not self.waiting.unranked)
        if changed and self.policy.learns:
            self.waiting.unrank(list(self.waiting))
            self.rank_some(now, RANKED_AT_ONCE)

    def lead_s(self, sequence: Sequence, moves_s: float, now: float) -> float:
        """The lead in rank that a waiting sequence needs to preempt one whose copies out and in
        take `moves_s`.
        """
        step_s = self.step_time.mean_s
        if self.policy.counts_down:
            return now + step_s  # a lead of less than a step is within the model's error
        if not self.policy.learns:
            return 0.0
        run_s = max(step_s, sequence.outlook.span_tokens * step_s)
        return self.ageing.lead_s(MARGIN + moves_s / run_s)

    def split_at_first_waiting(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(slots that rank before the first waiting sequence, slots behind it)."""
        shift = now if self.policy.counts_down else 0.0
        behind = self.slots.rank[slots] > self.waiting.first.rank + shift
        return slots[~behind], slots[behind]

    def _rerank(self, sequence: Sequence, now: float) -> None:
        """Renew a sequence's rank and move it there."""
        if sequence.slot >= 0:
            sequence.rank = self.running_rank(sequence, now)
            self.slots.set_rank(sequence.slot, sequence)
        else:
            self.waiting.remove(sequence)
            sequence.rank = self._rank(sequence)
            self.waiting.push(sequence)

    def _count_outputs(self, sequence: Sequence) -> None:
        """Bring a running sequence's own count of tokens up to date."""
        delivered = int(self.slots.delivered[sequence.slot])
        sequence.num_output_tokens = delivered - sequence.num_prompt_tokens

    def _expect(self, sequence: Sequence) -> None:
        """Expect the predicted length, if predictions are trusted; a doubled one stays."""
        trusted = self.trust.holds(sequence.num_prompt_tokens)
        if not trusted:
            sequence.expected_tokens = -1
        elif sequence.expected_tokens < 0 or not sequence.trusted:
            sequence.expected_tokens = sequence.predicted_tokens
        sequence.trusted = trusted

    def _expect_anew(self, sequence: Sequence) -> None:
        """Expect the predicted length anew, whatever a policy made of it."""
        sequence.expected_tokens = -1
        self._expect(sequence)

    def _follow_trust(self, now: float) -> None:
        """Rank anew all sequences whose predictions have gained or lost trust: no order mixes both
        sorts of ranks in a class of prompts. Learned costs need no trust.
        """
        if self.policy.learns:
            return
        running = [self.slots.member(slot) for slot in self.slots.order().tolist()]
        for sequence in filter(self._is_misjudged, running):
            self.on_prediction(sequence, now)
        self.waiting.unrank(list(filter(self._is_misjudged, self.waiting)))
        self.rank_some(now, RANKED_AT_ONCE)

    def _is_misjudged(self, sequence: Sequence) -> bool:
        """Whether its prediction has gained or lost trust."""
        is_predicted = sequence.predicted_tokens >= 0
        return is_predicted and sequence.trusted != self.trust.holds(sequence.num_prompt_tokens)

    # Ranges of time

    def near(self, now: float) -> None:
        """Rank sequences anew whose ranges of time have just changed."""
        for sequence in self._nearing.changed(now):
            if sequence.slot >= 0:
                sequence.rank = self.running_rank(sequence, now)
                self.slots.move(sequence.slot, sequence.rank)
            else:
                self._rerank(sequence, now)

    def _watch_time(self, sequence: Sequence, now: float) -> None:
        if self.policy.nears:
            begin_by_s = self.policy.begin_by_s(sequence, self.step_time)
            num_here = self.slots.num_running + len(self.waiting)
            self._nearing.watch(sequence, begin_by_s, now, num_here)

    # Starvation

    def set_starve_s(self, starve_s: float) -> None:
        """Change alpha, for waiting sequences too."""
        self.starve_s = starve_s
        self._starvation = Starvation(self.instance)
        if self.policy.promotes:
            for sequence in self.waiting:
                if sequence.id not in self._strangers:  # it has another policy's level
                    self._watch(sequence, sequence.waiting_since_s)

    def promote(self, kv: KVCache, now: float) -> None:
        """Let the policy promote starving sequences, while the promoted leave enough to others."""
        while (sequence := self._starvation.first(now)) is not None:
            most_blocks = self.policy.promoted_share * kv.pool.num_blocks
            if self._num_promoted_blocks(kv) >= most_blocks:
                return
            self._starvation.drop_first()
            self.policy.promote(sequence, self.step_time)
            sequence.story.add(now, What.PROMOTED, sequence.level)
            self._rerank(sequence, now)
            if sequence.promoted:
                self.promoted.append(sequence)
            else:  # it rose by some queues, and may starve there
                self._watch(sequence, now)

    def _watch(self, sequence: Sequence, since_s: float) -> None:
        starves_at_s = since_s + self.policy.patience_s(sequence, self.starve_s, self.step_time)
        self._starvation.watch(sequence, starves_at_s, len(self.waiting))

    def _num_promoted_blocks(self, kv: KVCache) -> int:
        """Blocks that sequences still promoted hold or will hold."""
        self.promoted = [
            sequence
            for sequence in self.promoted
            if sequence.promoted
            and sequence.instance == self.instance
            and sequence.state is not State.FINISHED
        ]
        return sum(kv.blocks_for(sequence.num_known_tokens) for sequence in self.promoted)


class PredictedRoom:
    """Whether the room of answers is to be decided, and whether any could be admitted."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._slots = order.slots
        self._settled: tuple[int, ...] = ()  # as `_state`, when none could be admitted

    def waits(self, slot: int, kv: KVCache) -> bool:
        """Whether the slot lacks a reservation for its answer."""
        return self._order.policy.reserves == PREDICTION and not kv.reservations.has(slot)

    def is_open(self, kv: KVCache) -> bool:
        """Whether room is to be decided: sequences with slots wait for it, were predicted anew, or
        have borrowed some, or it is short, so that late ones have to leave.
        """
        if self._order.policy.reserves != PREDICTION:
            return False
        slots, reserved = self._slots, kv.reservations.num_slots
        if slots.reranked or reserved != slots.num_running or len(kv.lending):
            return True
        return kv.pool.num_available < slots.num_running // 4

    @property
    def _state(self) -> tuple[int, ...]:
        slots = self._slots
        return slots.departures, slots.num_running, self._order.waiting.num_changes

    def settle(self) -> None:
        """Note that none can be admitted before a sequence comes, leaves, or is predicted anew."""
        self._settled = self._state

    @property
    def settled(self) -> bool:
        """Whether that still holds."""
        return self._settled == self._state and not self._slots.reranked

    def unsettle(self) -> None:
        """Forget that none can be admitted, as the memory is another one."""
        self._settled = ()
