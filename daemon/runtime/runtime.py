"""The asyncio driver of the Core: events come in from processes and timers, actions go out.

Nothing is decided here: each action is carried out by one line.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from daemon.config.schema import SchedulerConfig
from daemon.core.core import Core
from daemon.core.values.actions import (
    CancelSend,
    Deliver,
    Emptied,
    Finished,
    FlipShown,
    Noted,
    Rejected,
    RoleGiven,
    Send,
    Started,
    Submit,
    Wake,
    WakeAt,
)
from daemon.core.values.events import (
    BudgetChosen,
    Configured,
    CopiesDone,
    DrainBegun,
    Event,
    FlipOrdered,
    InstanceDrained,
    InstanceGivenUp,
    InstanceResumed,
    MigrationOrdered,
    PlacementChosen,
    PolicyChosen,
    Reconfigured,
    Resumed,
    RolesChosen,
    StepDone,
    Tick,
    WorkerLost,
    WorkerReady,
)
from daemon.journal.writer import JournalWriter
from daemon.protocol.worker import (
    Copied,
    EndLink,
    NewLink,
    NodeDoor,
    Plan,
    Ready,
    Reply,
    StartTransfer,
)
from daemon.runtime.api_link import ApiLink
from daemon.runtime.links import LinkBroker
from daemon.runtime.lookup import offers
from daemon.runtime.plans import Planner
from daemon.runtime.power import PowerCaps
from daemon.runtime.rank_links import PairLinks
from daemon.runtime.recent_steps import RecentSteps
from daemon.runtime.token_store import NO_BLOCKS, TokenStore
from daemon.state.role import Role
from daemon.wire.columns import int32, no_cells

log = logging.getLogger(__name__)

_LEAST_DELAY_S = 0.001
"""Shortest delay of a timer: the loop counts milliseconds, so a shorter one would ring at once, and
again until its time has come."""
_MOST_FLIPS = 8
"""Flips whose first work is awaited, at most: the Core looks at no more."""
_NO_REPLY = Reply(-1, int32(), no_cells(), 0.0, 0.0)
"""The reply of every event but a step's end: there is no token to deliver."""


class ToWorkers(msgspec.Struct, frozen=True):
    """The ways to reach an instance's worker; each takes the instance's index first."""

    plan: Callable[[int, Plan], None]
    start_transfer: Callable[[int, StartTransfer], None]
    cancel_transfer: Callable[[int, int], None]  # a transfer
    link: Callable[[int, int, NewLink, int | None], None]  # a rank, perhaps with a descriptor
    end_link: Callable[[int, int, EndLink], None]  # of a rank
    hangs: Callable[[int, str], None]  # end it, and why
    is_stopped: Callable[[int], bool]  # by a signal
    wake: Callable[[int], None]  # start it, where its instance was asleep
    pairs: PairLinks  # the links of their ranks
    door: Callable[[int], NodeDoor | None] = lambda _instance: None  # of its host on a node


class OrderedFlip(msgspec.Struct, frozen=True, eq=False):
    """A change of role, and the event that its first work was sent or there is none."""

    number: int  # 0: none yet
    shown: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Runtime:
    """One Core with its token ids, its timer and the links that carry out its actions.

    `api` takes the actions about requests, `workers` those for workers.
    """

    def __init__(
        self,
        config: Configured,
        store: TokenStore,
        journal: JournalWriter | None,
        api: ApiLink,
        workers: ToWorkers,
        power: PowerCaps | None = None,
        prompt_lookup: bool = False,
    ) -> None:
        self.core = Core(config)
        self.prompt_lookup = prompt_lookup  # whether to look for drafts
        self._api = api
        self._store = store
        self._filled = NO_BLOCKS  # blocks that the Core is told of with the next reply
        self.last_step_s = -1.0
        self.empty = asyncio.Event()  # set when draining and no sequence is left
        self._journal = journal
        self._workers = workers
        self._power = power
        self._roles = [instance.role for instance in config.instances]
        self._newest_flips = [OrderedFlip(0) for _ in config.instances]
        self._flips: dict[int, OrderedFlip] = {}  # flips whose first work is still to come
        # Steps that have not answered, of each instance, in order.
        self._flying: list[deque[Submit]] = [deque() for _ in config.instances]
        ends = workers.hangs, workers.is_stopped, workers.end_link, workers.pairs, workers.door
        self.links = LinkBroker(workers.link, self.dispatch, *ends)
        self._planners = [Planner(store) for _ in config.instances]
        self.recent_steps = [RecentSteps() for _ in config.instances]
        self._timer: asyncio.TimerHandle | None = None
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Submit: self._submit,
            Send: lambda action: workers.start_transfer(action.source, self.links.order(action)),
            CancelSend: lambda action: workers.cancel_transfer(action.source, action.transfer),
            Started: api.started,
            Finished: api.finished,
            Rejected: api.rejected,
            WakeAt: self._wake_at,
            Wake: lambda action: workers.wake(action.instance),
            RoleGiven: self._role_given,
            FlipShown: self._flip_shown,
            Noted: self._noted,
            Emptied: lambda _: self.empty.set(),
        }

    def dispatch(self, event: Event, reply: Reply = _NO_REPLY) -> None:
        """Journal an event, let the Core handle it, and carry out its actions in order.

        `reply` has the tokens of a finished step; neither the journal nor the Core sees them.
        """
        if self._journal is not None:
            self._journal.append(event)
        for action in self.core.handle(event):
            if isinstance(action, Deliver):
                self._store.append(action.sequences, reply.tokens[action.rows])
                self._api.deliver(action, reply)
            else:
                self._carry_out[type(action)](action)
        if self._journal is not None:
            self._journal.maintain(self.core, event.now)

    def flush_journal(self) -> None:
        """Write the events that the journal holds back: none may come that would have it do so."""
        if self._journal is not None:
            self._journal.flush(time.monotonic())

    @property
    def journal_dropped(self) -> int:
        """Events that the journal misses."""
        return self._journal.num_dropped if self._journal is not None else 0

    def worker_ready(self, instance: int, ready: Ready) -> None:
        """An instance's worker can compute."""
        self._planners[instance] = Planner(self._store)
        self._flying[instance].clear()
        now = time.monotonic()
        self.dispatch(
            WorkerReady(
                now=now,
                instance=instance,
                num_blocks=ready.num_blocks,
                block_bytes=ready.block_bytes,
                step_s=ready.step_s,
                num_host_blocks=ready.num_host_blocks,
                copy_block_s=ready.copy_block_s,
                token_s=ready.token_s,
                forward_tokens=ready.forward_tokens,
                row_s=ready.row_s,
                same_until=ready.same_until,
                most_times=ready.most_times,
                windows=ready.windows,
                kinds=ready.kinds,
                state_pages=ready.state_pages,
            )
        )
        self.links.ready(instance)

    def worker_lost(self, instance: int, blamed: bool) -> None:
        """An instance's worker is gone; `blamed`: its computation may be the cause."""
        self.links.lost(instance)
        self.dispatch(WorkerLost(time.monotonic(), instance, blamed))

    def given_up(self, instance: int) -> None:
        """An instance's lost worker is not started again."""
        self.dispatch(InstanceGivenUp(time.monotonic(), instance))

    def reply(self, instance: int, reply: Reply) -> None:
        """A worker answered a plan."""
        self.last_step_s = now = time.monotonic()
        flying = self._flying[instance]
        offered = int32()
        if flying and flying[0].batch.step == reply.step:
            flown = flying.popleft()
            self._measure(instance, flown, reply, now)
            if self.prompt_lookup and self.core.instances[instance].may_draft:
                offered = offers(self._store, flown.sequences, reply)
        self._api.prompt_logprobs(reply.prompts)
        filled = self._filled
        self.dispatch(
            StepDone(
                now,
                instance,
                reply.step,
                reply.reasons,
                reply.elapsed_s,
                counts=reply.counts,
                offers=offered,
                filled=filled.sequences,
                filled_at=filled.at,
                hashes=filled.hashes,
            ),
            reply,
        )
        self._filled = self._store.hash_filled()  # the next step is on its way: nothing waits

    def copied(self, instance: int, copied: Copied) -> None:
        """A worker's swap copies are done."""
        self.dispatch(
            CopiesDone(
                now=time.monotonic(),
                instance=instance,
                step=copied.step,
                num_out=copied.num_out,
                out_s=copied.out_s,
                num_in=copied.num_in,
                in_s=copied.in_s,
            )
        )

    def choose_policy(self, policy: str, instance: int = -1) -> None:
        """Change the policy of an instance, or of all (-1)."""
        self.dispatch(PolicyChosen(time.monotonic(), policy, instance))
        where = f" on {self.core.config.instances[instance].name}" if instance >= 0 else ""
        log.info("the policy is %s now%s", policy, where)

    def choose_budget(self, tokens: int, instance: int = -1) -> None:
        """Change the token budget of the steps of an instance, or of all (-1)."""
        self.dispatch(BudgetChosen(time.monotonic(), tokens, instance))
        where = f" on {self.core.config.instances[instance].name}" if instance >= 0 else ""
        text = f"up to {tokens} tokens" if tokens else "filled as configured"
        log.info("steps are %s now%s", text, where)

    def choose_placement(self, placement: str) -> None:
        """Change the placement policy."""
        self.dispatch(PlacementChosen(time.monotonic(), placement))
        log.info("the placement is %s now", placement)

    def reconfigure(self, scheduler: SchedulerConfig) -> None:
        """Apply other limits, as far as they can change while requests run."""
        self.dispatch(
            Reconfigured(
                time.monotonic(),
                max_waiting=scheduler.max_waiting,
                starve_s=scheduler.starve_s,
                max_pause_s=scheduler.max_pause_s,
                handoff=scheduler.handoff,
                pair=scheduler.pair,
                mixed_pool=scheduler.mixed_pool,
            )
        )

    def flip(self, instance: int, role: Role) -> OrderedFlip:
        """Give an instance another role; returns its newest flip."""
        self.dispatch(FlipOrdered(time.monotonic(), instance, role))
        return self._newest_flips[instance]

    def choose_roles(self, mode: str) -> None:
        """Turn automatic roles on or off."""
        self.dispatch(RolesChosen(time.monotonic(), mode))

    def migrate(self, sequence: int, instance: int) -> None:
        """Migrate a sequence to another instance."""
        self.dispatch(MigrationOrdered(time.monotonic(), sequence, instance))

    def drain_instance(self, instance: int) -> None:
        """Migrate everything away from an instance."""
        self.dispatch(InstanceDrained(time.monotonic(), instance))

    def resume_instance(self, instance: int) -> None:
        """Use an instance again."""
        self.dispatch(InstanceResumed(time.monotonic(), instance))

    def drain(self) -> None:
        """Take no new requests."""
        self.dispatch(DrainBegun(time.monotonic()))

    def resume(self) -> None:
        """Take requests again."""
        self.empty.clear()
        self.dispatch(Resumed(time.monotonic()))

    def close(self) -> None:
        """Stop the timers and finish the journal."""
        self.links.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close(time.monotonic())

    def _measure(self, instance: int, flown: Submit, reply: Reply, now: float) -> None:
        """Give a finished step's durations to the statistics and the power governor."""
        once = flown.work.once
        elapsed_s = reply.elapsed_s / flown.work.times
        for _ in range(flown.work.times):
            self.recent_steps[instance].add(now, elapsed_s)
            if self._power is not None:
                self._power.step(instance, elapsed_s, once.num_decodes, once.num_tokens)

    def _role_given(self, action: RoleGiven) -> None:
        self._roles[action.instance] = action.role
        flip = OrderedFlip(action.flip)
        self._newest_flips[action.instance] = self._flips[action.flip] = flip
        for old in list(self._flips)[:-_MOST_FLIPS]:
            del self._flips[old]
        if self._power is not None:
            self._power.set_roles(self._roles)

    def _flip_shown(self, action: FlipShown) -> None:
        if flip := self._flips.pop(action.flip, None):
            flip.shown.set()

    def _noted(self, action: Noted) -> None:
        log.info("%s", action.text)
        if self._journal is not None:
            self._journal.note(time.monotonic(), action.text)

    def _submit(self, action: Submit) -> None:
        batch = action.batch
        self._flying[batch.instance].append(action)
        self._workers.plan(batch.instance, self._planners[batch.instance].plan(batch))

    def _wake_at(self, action: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = action.time_s - time.monotonic()
        delay_s = max(delay_s, _LEAST_DELAY_S) if delay_s > 0.0 else 0.0
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.dispatch(Tick(time.monotonic()))
