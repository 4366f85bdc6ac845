"""Drives a Core with model workers, as the runtime would, and checks its laws after every event."""

from dataclasses import replace

import numpy as np

from daemon.core.core import Core
from daemon.core.values.actions import (
    Action,
    CancelSend,
    Deliver,
    Finished,
    Rejected,
    Send,
    Started,
    Submit,
    Wake,
    WakeAt,
)
from daemon.core.values.events import (
    POLICY_NAMES,
    Abort,
    BudgetChosen,
    Configured,
    CopiesDone,
    DrainBegun,
    Event,
    Finish,
    InstanceConfig,
    PolicyChosen,
    Predicted,
    Reconfigured,
    RequestArrived,
    Resumed,
    StepDone,
    Tick,
    WorkerLost,
    WorkerReady,
)
from daemon.core.values.limits import limits_of
from daemon.memory.hashing import chain_hashes, split_hashes
from daemon.state.batch import Batch
from daemon.state.request import FinishReason, State, request_of, sequence_id
from daemon.state.role import Role
from daemon.wire.columns import int32, int64
from tests.core.laws import check_laws, check_nothing_left
from tests.core.model_worker import ModelWorker, Truth
from tests.core.movers import Movers


def configured(
    policy: str = "sarathi", instances: int = 1, stages: int = 1, **changes: object
) -> Configured:
    """A small daemon's configuration."""
    names = tuple(InstanceConfig(chr(97 + i), Role.MIXED, "cpu", stages) for i in range(instances))
    fields: dict[str, object] = {
        "block_size": 4,
        "max_running": 8,
        "max_batch_tokens": 32,
        "prefill_chunk": 16,
        "max_waiting": 1000,
        "max_len": 128,
        "prefix_cache": True,
        "depth": 1,
        "policy_names": POLICY_NAMES,
    }
    return Configured(0.0, names, policy, **{**fields, **changes})  # type: ignore[arg-type]


class Driver(Movers):
    """A Core, its workers, and what a client would have seen."""

    def __init__(
        self,
        config: Configured,
        num_blocks: int = 0,
        step_s: float = 0.001,
        num_host_blocks: int = 0,
        copy_block_s: float = 1e-5,
        token_s: float = 0.0,
        most_times: int = 1,
        windows: tuple[int, ...] = (0,),
        state_pages: int = 0,
    ) -> None:
        self.windows, self.state_pages = windows, state_pages
        self.kinds: tuple[str, ...] = ()  # of these groups; empty: named by their windows
        self.most_times = most_times
        self.num_host_blocks = num_host_blocks
        self.copy_block_s = copy_block_s
        self.token_s = token_s
        self.config = config
        self.most_waiting = config.max_waiting  # the highest bound that there was
        self.core = Core(config)
        self.now = 0.0
        self.step_s = step_s
        self.events: list[Event] = []
        self.actions: list[list[Action]] = []
        self.workers: dict[int, ModelWorker] = {}
        self.truths: dict[int, Truth] = {}
        self.known: dict[int, list[int]] = {}  # prompt and delivered tokens
        self.alive: dict[int, int] = {}  # sequence -> max_tokens
        self.filled: list[tuple[int, int, bytes]] = []  # (sequence, index, hash) of a full block
        self.ended: dict[int, FinishReason] = {}
        self.started: set[int] = set()
        self.woken: list[int] = []
        self.rejected: dict[int, Rejected] = {}
        self.wake_at_s = float("inf")
        self.requests = 0
        self.prompt_lengths: list[int] = []
        self.num_tokens = 0  # delivered
        self.since_s: dict[int, float] = {}  # who waits in a queue, and since when
        super().__init__()
        if num_blocks:
            for instance in range(len(config.instances)):
                if not config.instances[instance].wakes_in_s:
                    self.ready(instance, num_blocks)

    # What happens to the Core

    def ready(self, instance: int, num_blocks: int, forward_tokens: int = 0) -> None:
        config = self.config
        max_running = self.core.instances[instance].limits.max_running
        num_host_blocks = self.num_host_blocks
        self.workers[instance] = ModelWorker(
            num_blocks,
            config.block_size,
            max_running,
            config.max_len,
            num_host_blocks,
            self.windows,
            self.state_pages,
        )
        self.handle(
            WorkerReady(
                self.now,
                instance,
                num_blocks,
                1,
                self.step_s,
                num_host_blocks,
                self.copy_block_s,
                self.token_s,
                most_times=self.most_times,
                windows=self.windows if any(self.windows) or self.state_pages else (),
                kinds=self.kinds,
                state_pages=self.state_pages,
                forward_tokens=forward_tokens,
            )
        )

    def lose(self, instance: int, blamed: bool = False, late: bool = False) -> None:
        """A worker dies; `late`: the others' ends of its links have not noticed yet."""
        self.workers.pop(instance, None)
        self.falling = [one for one in self.falling if one[2] != instance]
        for one in self.sendings.values():
            one.ends -= {instance}
        self.clear_sendings()
        self.handle(WorkerLost(self.now, instance, blamed))
        for source, target in sorted(one for one in self.links if instance in one):
            link = self.links.pop((source, target))
            other = target if source == instance else source
            if other in self.workers:
                self.falling.append((source, target, other, link))
        if not late:
            self.fall()

    def arrive(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        n: int = 1,
        priority: int = 0,
        prompt_cost: int = 1,
        deadline_s: float = 0.0,
        slo_scale: float = 0.0,
    ) -> int:
        request = self.requests
        self.requests += 1
        self.prompt_lengths.append(len(prompt))
        for index in range(n):
            sequence = sequence_id(request, index)
            self.truths[sequence] = Truth(sequence, list(prompt))
            self.known[sequence] = list(prompt)
            self.alive[sequence] = max_tokens
        hashes = chain_hashes(prompt, self.config.block_size)
        counts = len(prompt), max_tokens, n, priority
        due = deadline_s, slo_scale
        self.handle(RequestArrived(self.now, request, *counts, hashes, prompt_cost, *due))
        return request

    def answer(
        self,
        instance: int = 0,
        stops: frozenset[int] = frozenset(),
        fails: frozenset[int] = frozenset(),
        counts: tuple[int, ...] = (),
        offers: tuple[int, ...] = (),
        step_s: float = 0.0,
    ) -> bool:
        """Answer the oldest step of an instance; rows numbered in `stops` end, others fail. Of
        its rows `counts` are drawn, in turn, where their blocks hold so many; empty: one each. Of
        one that drafts they are the accepted ones, and `offers` what they could draft next.
        """
        worker = self.workers.get(instance)
        if worker is None or not worker.pending:
            return False
        step = worker.pending[0]
        times = step.batch.times
        reasons = np.zeros(len(step.tokens) // times, np.uint8)
        for rows, reason in ((stops, FinishReason.STOP), (fails, FinishReason.ERROR)):
            reasons[[row for row in rows if row < reasons.size]] = reason
        drawn: list[int] = []
        if times > 1:
            drawn = worker.cut(step, reasons != 0)
        elif counts:
            asked = [max(counts[i % len(counts)], int(why != 0)) for i, why in enumerate(reasons)]
            if step.batch.drafts.size:
                asked = worker.drafted(step, asked)
            drawn = worker.redraw(step, asked, self.truths)
        told = int32([offers[i % len(offers)] for i in range(reasons.size)] if offers else [])
        step_s = times * (step_s or self.step_s)
        self.now += step_s
        self.answered = step
        worker.pending.pop(0)
        blocks = (
            int64([sequence for sequence, _, _ in self.filled]),
            int32([index for _, index, _ in self.filled]),
            b"".join(block_hash for _, _, block_hash in self.filled),
        )
        self.filled.clear()
        answered = reasons, step_s, int32(drawn), told, *blocks
        self.handle(StepDone(self.now, instance, step.batch.step, *answered))
        return True

    def copied(self, instance: int = 0) -> bool:
        """The oldest swap copies of an instance end."""
        worker = self.workers.get(instance)
        if worker is None or not (worker.copies or worker.ended):
            return False
        if not worker.ended:
            worker.end_copies()
        step, num_out, num_in = worker.ended.popleft()
        out_s, in_s = num_out * self.copy_block_s, num_in * self.copy_block_s
        self.handle(CopiesDone(self.now, instance, step, num_out, out_s, num_in, in_s))
        return True

    def choose(self, policy: str, instance: int = -1) -> None:
        self.handle(PolicyChosen(self.now, policy, instance))

    def choose_budget(self, tokens: int, instance: int = -1) -> None:
        self.handle(BudgetChosen(self.now, tokens, instance))

    def seal(self, sequence: int) -> None:
        """Give the next answer the hashes of the blocks that the sequence's answer has filled."""
        live = self.core.sequences.get(sequence)
        if live is not None:
            hashes = split_hashes(chain_hashes(self.known[sequence], self.config.block_size))
            first = len(live.hashes)
            self.filled += [(sequence, first + i, one) for i, one in enumerate(hashes[first:])]

    def predict(self, request: int, num_tokens: int) -> None:
        self.handle(Predicted(self.now, request, num_tokens))

    def finish(self, sequence: int) -> None:
        self.handle(Finish(self.now, sequence))

    def abort(self, request: int) -> None:
        self.handle(Abort(self.now, request))

    def drain(self) -> None:
        self.handle(DrainBegun(self.now))

    def resume(self) -> None:
        self.handle(Resumed(self.now))

    def reconfigure(self, max_waiting: int, starve_s: float) -> None:
        self.most_waiting = max(self.most_waiting, max_waiting)
        self.handle(Reconfigured(self.now, max_waiting, starve_s))

    def tick(self) -> None:
        """Let the time come that the Core asked for."""
        if self.wake_at_s != float("inf"):
            self.now = max(self.now, self.wake_at_s)
            self.wake_at_s = float("inf")
        self.handle(Tick(self.now))

    def settle(self, rounds: int = 5000) -> None:
        """Answer steps until nothing is in flight; fails if that never comes."""
        self.fall()
        for _ in range(rounds):
            answered = [self.answer(instance) for instance in list(self.workers)]
            answered += [self.copied(instance) for instance in list(self.workers)]
            answered += [self.land_all()]
            if not any(answered):
                return
            if self.wake_at_s <= self.now + self.step_s:
                self.tick()
        raise AssertionError("the Core never comes to rest")

    # What the Core does

    def handle(self, event: Event) -> list[Action]:
        self.events.append(event)
        actions = self.core.handle(event)
        self.actions.append(actions)
        for action in actions:
            self._take(action)
        self.check()
        return actions

    def _take(self, action: Action) -> None:
        if isinstance(action, Submit):
            self._submit(action)
        elif isinstance(action, Send):
            assert action.transfer not in self.numbers, "a number is used again"
            self.numbers.add(action.transfer)
            if action.layered:
                self.layered.append(action)
            else:
                self.send(action)
        elif isinstance(action, CancelSend):
            assert action.transfer in self.numbers
        elif isinstance(action, Deliver):
            self._deliver(action)
        elif isinstance(action, Finished):
            self._end(action.sequence, FinishReason(action.reason))
        elif isinstance(action, Started):
            assert action.sequence in self.alive and action.sequence not in self.started
            self.started.add(action.sequence)
        elif isinstance(action, Rejected):
            self.rejected[action.request] = action
            for sequence in [one for one in self.alive if request_of(one) == action.request]:
                del self.alive[sequence]
        elif isinstance(action, Wake):
            assert action.instance not in self.workers
            self.woken.append(action.instance)
        elif isinstance(action, WakeAt):
            self.wake_at_s = action.time_s

    def _submit(self, action: Submit) -> None:
        batch = action.batch
        worker = self.workers[batch.instance]
        instance = self.core.instances[batch.instance]
        limits = limits_of(instance.config, self.config)
        assert len(worker.pending) < instance.depth, "more steps in flight than the depth"
        by_device = instance.role is Role.PREFILL and instance.forward_tokens
        if by_device and instance.config.budget_is_own:
            limits = replace(limits, max_batch_tokens=instance.step_tokens)
            if instance.config.chunk_is_own:
                limits = replace(limits, prefill_chunk=instance.step_tokens)
        assert batch.num_tokens <= batch.times * limits.max_batch_tokens
        swaps = batch.out_blocks.size or batch.in_blocks.size
        assert batch.num_tokens or swaps or (self.state_pages and batch.copy_targets.size)
        assert batch.slots.size <= limits.max_running
        assert len(set(batch.slots.tolist())) == batch.slots.size, "a slot is in a batch twice"
        whole = instance.scheduler.policy.whole_prompts
        longest = limits.max_batch_tokens if whole else limits.prefill_chunk
        assert (batch.counts > 0).all() and (batch.counts <= longest).all()
        if self.config.instances[batch.instance].stages > 1:
            self._check_stages(batch)
        worker.submit(batch, self.truths, self.known)
        for send in self.layered:  # they go with the step that follows them
            assert send.source == batch.instance
            self.send(send)
        self.layered.clear()
        assert {worker.sequence[slot] for slot in batch.slots.tolist()} <= self.alive.keys()

    def _check_stages(self, batch: Batch) -> None:
        """A stage cannot use a token that a later stage has still to draw."""
        fed_back = set(batch.slots[batch.fed == 0].tolist())
        for step in self.workers[batch.instance].pending:
            assert not fed_back & set(step.batch.slots.tolist()), "a sequence in two stages"

    def _deliver(self, action: Deliver) -> None:
        assert len(set(action.rows.tolist())) == action.rows.size
        for row, sequence, reason in zip(
            action.rows.tolist(), action.sequences.tolist(), action.reasons.tolist(), strict=True
        ):
            tokens = self.known[sequence]
            assert sequence in self.alive, "a token for a sequence that has ended"
            if reason == FinishReason.ERROR:  # whatever was drawn is no token
                self._end(sequence, FinishReason.ERROR)
                continue
            expected = self.truths[sequence].upto(len(tokens) + 1)[-1]
            assert self.answered.tokens[row] == expected, "a token out of its order"
            tokens.append(int(expected))
            self.num_tokens += 1
            if reason:
                self._end(sequence, FinishReason(reason))

    def _end(self, sequence: int, reason: FinishReason) -> None:
        max_tokens = self.alive.pop(sequence)
        num_outputs = self.num_outputs(sequence)
        assert num_outputs <= max_tokens
        assert (num_outputs == max_tokens) or reason is not FinishReason.LENGTH
        self.ended[sequence] = reason

    def num_outputs(self, sequence: int) -> int:
        return len(self.known[sequence]) - self.prompt_lengths[request_of(sequence)]

    # The laws

    def check(self) -> None:
        """Every law that can be seen from outside and inside, at this moment."""
        core = self.core
        assert core.sequences.keys() == self.alive.keys()
        preempted = sum(s.state is State.PREEMPTED for s in core.sequences.values())
        relocated = sum(isinstance(event, WorkerLost) for event in self.events[-1:])
        if not relocated:
            assert core.num_waiting <= self.most_waiting + preempted
        check_laws(core)
        self.check_transfers()
        self._check_counts()
        self._check_waits()

    def _check_counts(self) -> None:
        """Everybody counts once, as what it ended by, and each token once."""
        counters, causes = self.core.counters, list(self.ended.values())
        finished = causes.count(FinishReason.STOP) + causes.count(FinishReason.LENGTH)
        assert counters.finished == finished
        assert counters.failed == causes.count(FinishReason.ERROR)
        assert counters.aborted == causes.count(FinishReason.ABORT)
        assert counters.output_tokens == self.num_tokens
        assert counters.prediction_count <= finished and counters.tpot_count <= finished

    def _check_waits(self) -> None:
        """One waits from when it came or lost its slot until it is seated, wherever it waits."""
        before, self.since_s = self.since_s, {}
        for instance in self.core.instances:
            for one in instance.scheduler.waiting:
                assert one.waiting_since_s in (self.now, before.get(one.id, self.now))
                self.since_s[one.id] = one.waiting_since_s

    def check_nothing_left(self) -> None:
        """Everything came back: the daemon is as it was before the first request."""
        assert not self.alive
        check_nothing_left(self.core)
