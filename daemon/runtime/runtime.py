"""The asyncio driver of the Core: events come in from processes and timers, actions go out.

Nothing here decides anything: each action has one line that carries it out.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from daemon.config.schema import SchedulerConfig
from daemon.core.actions import Deliver, Finished, Rejected, Started, Submit, WakeAt
from daemon.core.core import Core
from daemon.core.events import (
    Configured,
    Copied,
    Drain,
    Event,
    PolicyChosen,
    Reconfigured,
    Resumed,
    StepDone,
    Tick,
    WorkerLost,
    WorkerReady,
)
from daemon.journal.writer import JournalWriter
from daemon.protocol.worker import Copied as WorkerCopied
from daemon.protocol.worker import Plan, Ready, Reply
from daemon.runtime.api_link import ApiLink
from daemon.runtime.plans import Planner
from daemon.runtime.token_store import TokenStore


class Runtime:
    """One Core, its token ids, its timer, and the links that its actions go to.

    `send_plan(instance, plan)` hands a plan to the instance's worker.
    """

    def __init__(
        self,
        config: Configured,
        store: TokenStore,
        journal: JournalWriter | None,
        send_plan: Callable[[int, Plan], None],
    ) -> None:
        self.core = Core(config)
        self.api: ApiLink | None = None
        self._store = store
        self.last_step_s = -1.0
        self.empty = asyncio.Event()  # once draining: nothing lives any more
        self._journal = journal
        self._send_plan = send_plan
        self._planners = [Planner(store) for _ in config.instances]
        self._timer: asyncio.TimerHandle | None = None
        self._reply: Reply | None = None
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Submit: self._submit,
            Deliver: self._deliver,
            Started: self._started,
            Finished: self._finished,
            Rejected: self._rejected,
            WakeAt: self._wake_at,
        }

    def dispatch(self, event: Event) -> None:
        """Journal an event, let the Core handle it, and do what it asks, in order."""
        if self._journal is not None:
            self._journal.append(event)
        for action in self.core.handle(event):
            self._carry_out[type(action)](action)
        if self._journal is not None:
            self._journal.maintain(self.core, event.now)
        if self.core.draining and not self.core.sequences:
            self.empty.set()

    @property
    def journal_dropped(self) -> int:
        """Events that the journal misses."""
        return self._journal.num_dropped if self._journal is not None else 0

    def worker_ready(self, instance: int, ready: Ready) -> None:
        """An instance's worker can compute."""
        self._planners[instance] = Planner(self._store)
        now = time.monotonic()
        self.dispatch(
            WorkerReady(
                now,
                instance,
                ready.num_blocks,
                ready.block_bytes,
                ready.step_s,
                ready.num_host_blocks,
                ready.copy_block_s,
                ready.token_s,
            )
        )

    def worker_lost(self, instance: int, blamed: bool) -> None:
        """An instance's worker is gone; whether what it computed may be to blame."""
        self.dispatch(WorkerLost(time.monotonic(), instance, blamed))

    def reply(self, instance: int, reply: Reply) -> None:
        """A worker answered a plan."""
        self._reply = reply
        self.last_step_s = now = time.monotonic()
        if self.api is not None:
            self.api.prompt_logprobs(reply.prompts)
        self.dispatch(StepDone(now, instance, reply.step, reply.reasons, reply.elapsed_s))
        self._reply = None

    def copied(self, instance: int, copied: WorkerCopied) -> None:
        """A worker's swap copies are done."""
        now = time.monotonic()
        counts = copied.num_out, copied.out_s, copied.num_in, copied.in_s
        self.dispatch(Copied(now, instance, copied.step, *counts))

    def choose_policy(self, policy: str) -> None:
        """Rank every sequence, those to come included, by another policy: one of POLICIES."""
        self.dispatch(PolicyChosen(time.monotonic(), policy))

    def reconfigure(self, scheduler: SchedulerConfig) -> None:
        """Keep to other limits, as far as they can change while requests run."""
        limits = scheduler.max_waiting, scheduler.starve_s
        self.dispatch(Reconfigured(time.monotonic(), *limits))

    def drain(self) -> None:
        """Take no new requests."""
        self.dispatch(Drain(time.monotonic()))

    def resume(self) -> None:
        """Take requests again."""
        self.empty.clear()
        self.dispatch(Resumed(time.monotonic()))

    def close(self) -> None:
        """Stop the timer and finish the journal."""
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close(time.monotonic())

    def _submit(self, action: Submit) -> None:
        batch = action.batch
        self._send_plan(batch.instance, self._planners[batch.instance].plan(batch))

    def _deliver(self, action: Deliver) -> None:
        reply = self._reply
        if reply is None:
            raise RuntimeError("the Core delivered tokens that no worker sent")
        self._store.append(action.sequences, reply.tokens[action.rows])
        self._link().deliver(action, reply)

    def _started(self, action: Started) -> None:
        self._link().started(action)

    def _finished(self, action: Finished) -> None:
        self._link().finished(action)

    def _rejected(self, action: Rejected) -> None:
        self._link().rejected(action)

    def _link(self) -> ApiLink:
        """The one API process that has requests here."""
        if self.api is None:
            raise RuntimeError("a request lives without an API process")
        return self.api

    def _wake_at(self, action: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, action.time_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.dispatch(Tick(time.monotonic()))
