"""An instance as placement sees it, computed on demand."""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from typing import Any, Generic, TypeVar

import numpy as np

from daemon.core.instance import Instance
from daemon.placement.base import LoadHere, Members, Newcomer
from daemon.scheduler.load_sums import is_heavy
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int32, int32

LOOK = 256
"""Most sequences of a queue that are looked at one by one."""

OVERRUN = 4
"""An answer longer than was likely is taken to go on for this fraction (1 / OVERRUN) of its tokens.
"""


Value = TypeVar("Value")


class Kept(Generic[Value]):
    """A value that is computed on its first use: `functools.cached_property` without its lock,
    which takes as long as most of these sums.
    """

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self._work = work

    def __get__(self, view: object, owner: type) -> Value:
        """Compute the value, and set it as an attribute, which is found before this."""
        value = self._work(view)
        setattr(view, self._work.__name__, value)
        return value


class InstanceView:
    """One instance, valid until its queue, its slots or its coming sequences change. Values cached
    here depend on nothing else; blocks also come and go between.
    """

    def __init__(self, home: Instance, coming: Listing[Sequence] = ()) -> None:
        """`coming`: the sequences that run elsewhere and will go on here."""
        self._home, self._coming = home, coming
        self._scheduler = scheduler = home.scheduler
        self.instance = home.index
        self.role = home.role
        self.step_time = scheduler.step_time
        self.capacity_tokens = scheduler.kv.capacity_tokens
        self.num_pending_tokens = scheduler.waiting.num_uncomputed_tokens

    @property
    def wait_s(self) -> float:
        """Predicted time to compute what waits."""
        pending = self.num_pending_tokens
        return self.step_time.prefill_s(pending) if pending else 0.0

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences without one, those on their way to it included."""
        return len(self._scheduler.waiting) + len(self._coming)

    @property
    def max_running(self) -> int:
        """Its slots."""
        return self._home.limits.max_running

    @property
    def step_tokens(self) -> int:
        """The token budget of a step."""
        return self._home.step_tokens

    @property
    def kv_share(self) -> float:
        """The share of its blocks that is held or reserved."""
        kv = self._scheduler.kv
        total = kv.pool.num_blocks
        return (kv.pool.num_held + kv.reservations.num_unheld) / total if total else 1.0

    @property
    def free_tokens(self) -> int:
        """Tokens of the pool that are neither held nor reserved."""
        kv = self._scheduler.kv
        return kv.num_unreserved * kv.block_size

    @Kept
    def saturating_tokens(self) -> int:
        """Prompt tokens that keep the device busy alone; at most those of a step."""
        return self.step_time.saturating_tokens(self.step_tokens)

    @Kept
    def load(self) -> LoadHere:
        """All sequences that run, wait, or are on their way."""
        slots, queue = self._scheduler.slots, self._scheduler.waiting
        running, waiting = slots.sums, queue.sums
        num = slots.num_running + len(queue)
        prompts = running.prompt_tokens + waiting.prompt_tokens
        likely = running.likely_tokens + waiting.likely_tokens
        heavy = running.num_heavy + waiting.num_heavy
        for sequence in self._coming:
            num += 1
            prompts += sequence.num_prompt_tokens
            likely += sequence.likely_length
            heavy += is_heavy(sequence.num_prompt_tokens, sequence.likely_length)
        if self.role is Role.PREFILL:
            likely = prompts + num
        return LoadHere(num, prompts, likely, heavy)

    @Kept
    def beyond(self) -> int:
        """Tokens that answers longer than was likely have beyond that, and will yet have."""
        if self.role is Role.PREFILL:
            return 0
        table = self._scheduler.slots
        order = table.order()
        late = order[table.known[order] >= table.likely_end[order]]
        if not late.size:
            return 0
        ahead = (table.delivered[late] - table.prompt[late]) // OVERRUN + 1
        return int(np.add.reduce(table.known[late] - table.likely_end[late] + ahead))

    @Kept
    def context(self) -> int:
        """Computed tokens of running sequences."""
        table = self._scheduler.slots
        return int(np.add.reduce(table.computed[table.order()]))

    @property
    def shared_tokens(self) -> int:
        """Tokens of `context` that are counted again for each further owner of their blocks."""
        kv, order = self._scheduler.kv, self._scheduler.slots.order()
        num_twice = int(np.add.reduce(kv.table.held[order])) - kv.pool.num_held
        return max(0, num_twice) * kv.block_size

    @Kept
    def prompt_left(self) -> int:
        """Tokens that running prompts still have to compute."""
        table = self._scheduler.slots
        order = table.order()
        pending = table.known[order] - table.computed[order]
        return int(np.add.reduce(pending[pending > 1]))

    @Kept
    def members(self) -> Members:
        """The running sequences."""
        table = self._scheduler.slots
        order = table.order()
        known = table.known[order]
        outputs = table.delivered[order] - table.prompt[order]
        first_s = table.first_s[order]
        first_s[first_s < 0.0] = np.inf
        if self.role is Role.PREFILL:
            return Members(known, np.ones_like(known), outputs, first_s)
        ahead = table.likely_end[order] - known
        left = np.where(ahead > 0, ahead, outputs // OVERRUN + 1).astype(np.int32)
        return Members(known, left, outputs, first_s)

    @Kept
    def queued(self) -> tuple[Int32, Int32]:
        """(known tokens, steps until the likely end) of the first sequences in its queue, and of
        those on their way.
        """
        known, likely = self._scheduler.waiting.columns(LOOK)
        if self._coming:
            known = np.append(
                known, int32([sequence.num_known_tokens for sequence in self._coming])
            )
            likely = np.append(likely, int32([sequence.likely_length for sequence in self._coming]))
        if self.role is Role.PREFILL:
            return known, np.ones_like(known)
        return known, np.maximum(likely - known, 1)

    def cached_tokens(self, newcomer: Newcomer) -> int:
        """The newcomer's tokens whose KV is there."""
        kv = self._scheduler.kv
        if not kv.caches_prefixes or not newcomer.hashes:
            return 0
        useful = (newcomer.num_tokens - 1) // kv.block_size
        return len(kv.pool.cache.match(newcomer.hashes[:useful])) * kv.block_size
