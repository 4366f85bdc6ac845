"""An instance as placement sees it, computed on demand."""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from typing import Any, Generic, TypeVar

import numpy as np

from daemon.core.instance.instance import Instance
from daemon.placement.base import LoadHere, Members, Newcomer
from daemon.scheduler.future_peak import future_peak
from daemon.scheduler.queue import HEAVY_TOKENS, is_heavy
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
        self.capacity_tokens = home.kv.capacity_tokens
        self.num_pending_tokens = scheduler.waiting.num_uncomputed_tokens

    @property
    def wait_s(self) -> float:
        """Predicted time to compute what waits."""
        pending = self.num_pending_tokens
        return self.step_time.prefill_s(pending) if pending else 0.0

    def begins_in_s(self, newcomer: Newcomer) -> float:
        """Predicted time until a newcomer begins here: all that waits takes its turns in memory and
        slots, after the first of the running sequences has ended, where both are taken.
        """
        members, (queued, left) = self.members, self.queued
        tokens = int(members.known.sum()) + int(queued.sum()) + newcomer.likely_length
        num = members.known.size + queued.size
        if num < self.max_running and self.pool_share(tokens, num + 1) <= 1.0:
            return self.wait_s
        work, turns = float(((queued + left / 2.0) * left).sum()), float(left.sum())
        steps = max(self.pool_share(work, turns), turns / self.max_running)
        steps += float(members.left.min()) if members.left.size else 0.0
        return max(self.wait_s, steps * self.step_time.mean_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits or comes here."""
        return not (self.num_running or self.num_waiting)

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
        kv = self._home.kv
        total = kv.pool.num_blocks
        return (kv.pool.num_held + kv.reservations.num_unheld) / total if total else 1.0

    def has_room(self, num_tokens: int, num_cached: int = 0) -> bool:
        """Whether a sequence of `num_tokens`, of which so many are cached, has room beside all that
        runs and waits there, in blocks that are neither held nor reserved.
        """
        num_waiting = len(self._scheduler.waiting)
        return self._home.kv.has_room(num_tokens, num_cached, self.num_pending_tokens, num_waiting)

    def pool_share(self, num_tokens: float, num_sequences: float) -> float:
        """The share of its pool that so many sequences take, which have `num_tokens` together."""
        return self._home.kv.pool_share(num_tokens, num_sequences)

    def peak_share(self, known: Int32, left: Int32, num_cached: int) -> float:
        """The largest share of its pool that sequences with `known` tokens ever hold together,
        which end after `left` steps; what several own, and so many cached tokens, counts once.
        """
        kv, slots = self._home.kv, self._scheduler.running.slots
        num_twice = max(0, int(np.add.reduce(kv.charged[slots])) - kv.pool.num_held)
        peak = future_peak(known, left, kv).peak
        if kv.has_windows:
            own = peak - num_twice - kv.blocks_to_share(num_cached)
            return own / max(1, kv.pool.num_blocks)
        return (peak - num_twice * kv.block_size - num_cached) / max(1, kv.pool_tokens)

    @Kept
    def saturating_tokens(self) -> int:
        """Prompt tokens that keep the device busy alone; at most those of a step."""
        known = self._home.forward_tokens  # as its worker measured it
        return min(known, self.step_tokens) or self.step_time.saturating_tokens(self.step_tokens)

    @Kept
    def load(self) -> LoadHere:
        """All sequences that run, wait, or are on their way."""
        queue, members = self._scheduler.waiting, self._scheduler.running
        running, ends = members.prompt, members.likely_end
        num = running.size + len(queue)
        prompts = int(np.add.reduce(running)) + queue.prompt_tokens
        likely = int(np.add.reduce(ends)) + queue.likely_tokens
        heavy = int(np.count_nonzero(ends - running > HEAVY_TOKENS)) + queue.num_heavy
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
        running = self._scheduler.running
        over = running.known - running.likely_end
        late = over >= 0
        if not late.any():
            return 0
        ahead = (running.delivered - running.prompt)[late] // OVERRUN + 1
        return int(np.add.reduce(over[late] + ahead))

    @property
    def context(self) -> int:
        """Computed tokens of running sequences."""
        return self._scheduler.running.num_computed_tokens

    @Kept
    def prompt_left(self) -> int:
        """Tokens that running prompts still have to compute."""
        pending = self._scheduler.running.known - self._scheduler.running.computed
        return int(np.add.reduce(pending[pending > 1]))

    @Kept
    def members(self) -> Members:
        """The running sequences."""
        running = self._scheduler.running
        known = running.known
        outputs = running.delivered - running.prompt
        first_s = running.first_s
        first_s[first_s < 0.0] = np.inf
        if self.role is Role.PREFILL:
            return Members(known, np.ones_like(known), outputs, first_s)
        ahead = running.likely_end - known
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
        kv = self._home.kv
        if not kv.caches_prefixes or not newcomer.hashes:
            return 0
        return kv.cached(newcomer.hashes, newcomer.num_tokens).num_blocks * kv.block_size
