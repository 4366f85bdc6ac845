"""The order of one instance's sequences: queueing, ranks, reviews, promotion."""

from itertools import islice

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.ageing import Ageing
from daemon.scheduler.lengths import SeenLengths
from daemon.scheduler.nearing import Nearing
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.queue import WaitingQueue
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.start_bound import StartBound
from daemon.scheduler.starvation import Starvation
from daemon.scheduler.trust import PredictorTrust
from daemon.state.request import State
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import Slots

PROMOTED_SHARE = 1 / 3
"""The share of blocks for promoted sequences. FastServe's promotion alone can thrash: where more
arrives than is served all sequences starve, and all memory goes to moving them in and out."""

MARGIN = 1.5
"""Where costs are learned, one that displaces another costs so many times less: what is less sure
is not worth a pause."""

PRIORITY_S = 1e8
"""Where costs are learned, a better priority is worth so many seconds of age: more than all."""

RANKED_AT_ONCE = 64
RANKED_A_STEP = 16
"""Where all that wait are to be ranked anew, so many are at once, and so many before each step
after that: ranking ten thousand takes as long as many steps. The others stand behind those."""


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
        self.promoted: list[Sequence] = []  # with some that are no longer
        self.start_bound = StartBound(instance)
        self._starvation = Starvation(instance)
        self._nearing = Nearing(instance)
        self._strangers: set[int] = set()  # that wait, and that this policy has not seen yet

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
            self._watch(sequence)
        if self.policy.paces and not sequence.num_output_tokens:
            self.start_bound.watch(sequence, len(self.waiting))

    def observe_backlog(self, pool_tokens: int) -> None:
        """Note what first come first served would make one wait that comes now, where the pool
        holds so many tokens; 0: no worker is ready.
        """
        waiting = self.waiting
        if pool_tokens:
            steps, work = waiting.left_steps, waiting.left_work
            num_steps = max(work / pool_tokens, steps / self.slots.max_slots)
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
        waiting = sorted(self.waiting, key=lambda one: one.waiting_since_s)
        self._strangers = {one.id for one in waiting}
        self.waiting.unranked.clear()
        self.waiting.unrank(waiting)
        self.rank_some(now, RANKED_AT_ONCE)

    def rank_some(self, now: float, most: int = RANKED_A_STEP) -> None:
        """Rank so many of those that are to be ranked anew."""
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
        """Have the policy know a sequence that goes on before it was ranked anew."""
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
        """Let the policy look again at running sequences that reached the count it named."""
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
        """Its rank among those that run: where ranks count down, seconds left count from `now`."""
        if self._strangers:
            self._meet(sequence, now)
        policy = self.policy
        rank = self._rank(sequence) if policy.learns else policy.rank(sequence, self.step_time)
        return rank + now if policy.counts_down else rank

    def _rank(self, sequence: Sequence) -> float:
        """Its rank by the policy; where that learns, by what was learned."""
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
            told = sequence.num_prompt_tokens, sequence.predicted_tokens
            if self.trust.observe(*told, sequence.num_output_tokens):
                self._follow_trust(now)
        self.lengths.observe(sequence)
        # Ranks of one queue are of one scale: it stays until all have theirs.
        changed = self.ageing.observe(now - sequence.arrived_s, not self.waiting.unranked)
        if changed and self.policy.learns:
            self.waiting.unrank(list(self.waiting))
            self.rank_some(now, RANKED_AT_ONCE)

    def lead_s(self, sequence: Sequence, moves_s: float, now: float) -> float:
        """By how much a sequence that waits has to lead in rank one that it displaces, whose moves
        out and in take so long.
        """
        step_s = self.step_time.mean_s
        if self.policy.counts_down:
            return now + step_s  # a step less is an error of the model, and no gain
        if not self.policy.learns:
            return 0.0
        run_s = max(step_s, sequence.outlook.span_tokens * step_s)
        return self.ageing.lead_s(MARGIN + moves_s / run_s)

    def split_at_first_waiting(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(those that rank before the first that waits, those behind it) of these slots."""
        shift = now if self.policy.counts_down else 0.0
        behind = self.slots.rank[slots] > self.waiting.first.rank + shift
        return slots[~behind], slots[behind]

    def _rerank(self, sequence: Sequence, now: float) -> None:
        """Ask for a sequence's rank and move it there."""
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
        """Expect what was predicted, if predictions are to be trusted; a doubled one stays."""
        trusted = self.trust.holds(sequence.num_prompt_tokens)
        if not trusted:
            sequence.expected_tokens = -1
        elif sequence.expected_tokens < 0 or not sequence.trusted:
            sequence.expected_tokens = sequence.predicted_tokens
        sequence.trusted = trusted

    def _expect_anew(self, sequence: Sequence) -> None:
        """Forget what this policy or another one made of its prediction."""
        sequence.expected_tokens = -1
        self._expect(sequence)

    def _follow_trust(self, now: float) -> None:
        """Rank anew all whose predictions have gained or lost trust: no order has both sorts of
        ranks of one class of prompts. Costs that are learned need no trust.
        """
        if self.policy.learns:
            return
        running = [self.slots.member(slot) for slot in self.slots.order().tolist()]
        for one in filter(self._is_misjudged, running):
            self.on_prediction(one, now)
        self.waiting.unrank([one for one in self.waiting if self._is_misjudged(one)])
        self.rank_some(now, RANKED_AT_ONCE)

    def _is_misjudged(self, sequence: Sequence) -> bool:
        """Whether its prediction has gained or lost trust."""
        told = sequence.predicted_tokens >= 0
        return told and sequence.trusted != self.trust.holds(sequence.num_prompt_tokens)

    # Ranges of time

    def near(self, now: float) -> None:
        """Rank those anew whose ranges of time have just changed."""
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
        """Change alpha, also for sequences that wait already."""
        self.starve_s = starve_s
        self._starvation = Starvation(self.instance)
        if self.policy.promotes:
            for sequence in self.waiting:
                if sequence.id not in self._strangers:  # it has another policy's level
                    self._watch(sequence)

    def promote(self, kv: KVCache, now: float) -> None:
        """Let the policy promote those that starve, while the promoted leave enough to others."""
        while (sequence := self._starvation.first(now)) is not None:
            if self._num_promoted_blocks(kv) >= PROMOTED_SHARE * kv.pool.num_blocks:
                return
            self.policy.promote(sequence, self.step_time)
            self.promoted.append(sequence)
            sequence.story.add(now, What.PROMOTED, sequence.level)
            self._rerank(sequence, now)

    def _watch(self, sequence: Sequence) -> None:
        patience_s = self.policy.patience_s(sequence, self.starve_s, self.step_time)
        starves_at_s = sequence.waiting_since_s + patience_s
        self._starvation.watch(sequence, starves_at_s, len(self.waiting))

    def _num_promoted_blocks(self, kv: KVCache) -> int:
        """Blocks that those which were promoted, and still are, hold or will hold."""
        self.promoted = [
            one
            for one in self.promoted
            if one.promoted and one.instance == self.instance and one.state is not State.FINISHED
        ]
        return sum(kv.blocks_for(one.num_known_tokens) for one in self.promoted)
