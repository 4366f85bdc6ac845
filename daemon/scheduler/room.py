"""What the next plan of an instance has left for those who wait, without anybody giving way."""

import numpy as np

from daemon.scheduler.scheduler import Scheduler
from daemon.sequence import Sequence


class Room:
    """Slots, blocks and tokens; less for each sequence that is taken in, in its order.

    With `later`, what comes without anybody giving way counts as there.
    """

    def __init__(self, scheduler: Scheduler, later: bool = False) -> None:
        self._seats = seats = scheduler.seats
        self._limits = limits = scheduler.limits
        slots, pool, policy = seats.slots, seats.kv.pool, seats.policy
        leaving = slots.leaving() if later else slots.order()[:0]
        self._slots = len(slots.vacant) + leaving.size
        self._blocks = pool.num_available + (seats.coming(leaving) if later else 0)
        order = slots.order()
        pending = (slots.known - slots.computed)[order]
        if policy.prefill_alone:
            pending = pending[pending > 1]
        chunk = limits.max_batch_tokens if policy.whole_prompts else limits.prefill_chunk
        self._tokens = limits.max_batch_tokens - int(np.minimum(pending, chunk).sum())
        self._prompts = bool((pending > 1).any())
        self._alone = not slots.num_running
        if scheduler.suspects or (policy.gang and not seats.forming):
            self._slots = 0  # nobody joins

    @property
    def none(self) -> bool:
        """Whether there is room for nobody, however short."""
        return self._slots <= 0 or self._tokens <= 0 or self._blocks <= 0

    def take(self, sequence: Sequence) -> bool:
        """Take one in that waits here or elsewhere; False if it has to wait for its place."""
        if self.none:
            return False
        seats, limits = self._seats, self._limits
        place = seats.place_of(sequence)
        idle = seats.kv.pool.idle_among(place.matched)
        blocks = place.num_blocks - place.num_reusable + idle
        pending = sequence.num_known_tokens - place.num_shared_tokens
        if blocks + (0 if self._alone else seats.num_spare) > self._blocks:
            return False
        if seats.policy.whole_prompts:
            if pending > self._tokens and self._prompts:
                return False
        else:
            pending = min(pending, limits.prefill_chunk)
        self._slots -= 1
        self._blocks -= blocks
        self._tokens -= min(pending, self._tokens)
        self._prompts, self._alone = True, False
        return True
