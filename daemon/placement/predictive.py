"""Placement by predicted harm: what a sequence would get at each instance, and cost those there.

The next seconds of an instance are played with the Core's own models: step times, likely lengths,
its pool, what waits. The harm is the number of answers that are expected to miss what is promised
of them (slo), the newcomer's own among them, beyond those that would miss it anyway.
"""

from collections.abc import Sequence as Listing
from math import exp

import numpy as np

from daemon.cost.step_time import Float64
from daemon.placement.base import Candidate, Newcomer, Placement, answers_there, length_there
from daemon.placement.prospects import Prospects

SHORTLIST = 4
"""So many instances are played, the best by a cheap estimate."""

BLUR = 0.12
"""How uncertain a prediction is: with so much of a promise to spare one in four misses it still."""

EVEN = 1e-2
"""What it weighs that a sequence is served sooner than promised."""

OVERFLOW = 0.5
"""The chance that one misses a promise who has to give way as memory runs out."""

NEVER = 1e6
"""The harm where it can never be held."""

SURE = 4.0
"""What takes so many times as long as promised is missed for sure."""


class Predictive(Placement):
    """The least predicted harm; of a shortlist by each instance's queue, pace and memory, which
    decides among equals: so no instance gets all while none has memory yet.
    """

    name = "predictive"
    meaning = "where the fewest answers are predicted to miss what slo promises, with it there"
    looks_at_lengths = True

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The one with the least harm; among equals the best by sums."""
        ranked = sorted((_estimate(newcomer, one), one.instance, one) for one in candidates)
        listed = [one for _, _, one in ranked[:SHORTLIST]]
        found = harms(newcomer, listed)
        return listed[found.index(min(found))].instance


def _estimate(newcomer: Newcomer, one: Candidate) -> float:
    """What it would be like there, by sums alone: shares of what is promised, and of memory."""
    load, capacity, there = one.load, one.capacity_tokens, answers_there(newcomer, one)
    base_s, row_s, context_s, token_s, _ = one.step_time.terms
    length = newcomer.likely_length if there else newcomer.num_tokens + 1
    tokens = load.likely_tokens + length
    taken = tokens / max(1, capacity)
    total = 0.1 * taken if taken < 0.9 else 1.1 * taken - 0.9
    if capacity < length:
        total += NEVER
    if there:
        paced_s = base_s + row_s * (load.num + 1) + context_s * tokens
        total += (paced_s / newcomer.slo_tpot_s) ** 2
    if not newcomer.brings_kv:
        queue = one.num_pending_tokens + newcomer.num_tokens - one.cached_tokens(newcomer)
        total += (base_s + token_s * queue) / newcomer.slo_ttft_s
    return total


def harms(newcomer: Newcomer, candidates: Listing[Candidate]) -> list[float]:
    """How many promises are expected to be missed more, as a sequence is queued at each."""
    played = Prospects(newcomer, candidates)
    prompts = [one.num_pending_tokens + one.prompt_left for one in candidates]
    own = [_own_prompt(newcomer, one) for one in candidates]
    both = list(zip(candidates, prompts, own, strict=True))
    stall_s = np.array([one.step_time.drain_s(0.0, 0, 0, queue) for one, queue, _ in both])
    added_s = np.array([one.step_time.chunk_s(new) if new else 0.0 for one, _, new in both])
    tpots_s, draws = played.tpots_s(stall_s, added_s)
    now, then = _misses(tpots_s / newcomer.slo_tpot_s)
    others = ((then - now) * draws).sum(axis=-1).tolist()
    excess, lives_s = played.more_excess(), played.life_s
    found = []
    for row, (one, queue, new) in enumerate(both):
        room_s = _room_s(newcomer, one, played, row)
        if one.capacity_tokens < length_there(newcomer, one):
            found.append(NEVER)
        elif not answers_there(newcomer, one):
            found.append(_own_harm(newcomer, one, room_s, queue + new, 0.0))
        else:
            crowded = OVERFLOW * excess[row] / played.mean_tokens(row) if excess[row] else 0.0
            its_own = _own_harm(newcomer, one, room_s, queue + new, lives_s[row])
            found.append(others[row] + crowded + its_own)
    return found


def _own_prompt(newcomer: Newcomer, one: Candidate) -> int:
    """Its tokens that are to be computed there."""
    return 0 if newcomer.brings_kv else newcomer.num_tokens - one.cached_tokens(newcomer)


def _room_s(newcomer: Newcomer, one: Candidate, played: Prospects, row: int) -> float:
    """When there is memory and a slot for it and for those that wait before it."""
    needed = newcomer.num_tokens + played.num_waiting_tokens[row]
    share = max(0, needed - one.capacity_tokens) / max(1, one.capacity_tokens)
    lacking_slots = one.num_running + one.num_waiting + 1 - one.max_running
    return played.room_s(row, needed, one.free_tokens, lacking_slots, share)


def _own_harm(
    newcomer: Newcomer, one: Candidate, room_s: float, num_tokens: int, life_s: float
) -> float:
    """The chance that it misses one of its own promises, which it is the better for keeping well.

    It begins after `room_s`, once so many prompt tokens are computed, and then lasts `life_s`.
    """
    if newcomer.brings_kv:
        begun_s = newcomer.first_token_s if newcomer.first_token_s >= 0.0 else newcomer.now
        gone_s = newcomer.now - begun_s + newcomer.transfer_s(one.instance) + room_s
        outputs = newcomer.num_outputs + newcomer.num_left
        tpot = (gone_s + life_s) / (outputs * newcomer.slo_tpot_s)
        return _miss(tpot) + EVEN * tpot
    decodes = one.num_running
    steps = -(-num_tokens // max(1, one.step_tokens - decodes))
    rows, context = steps * decodes, steps * one.context
    prompts_s = one.step_time.drain_s(steps, rows, context, num_tokens)
    waited_s = newcomer.now - newcomer.arrived_s
    ttft = (waited_s + room_s + prompts_s) / newcomer.slo_ttft_s
    tpot = life_s / (newcomer.num_left * newcomer.slo_tpot_s)
    kept = 1.0 if newcomer.first_token_s >= 0.0 else 1.0 - _miss(ttft)
    return 1.0 - kept * (1.0 - _miss(tpot)) + EVEN * (ttft + tpot)


def _misses(shares: Float64) -> Float64:
    """The chances that promises are missed, where these shares of them are predicted."""
    missed: Float64 = 1.0 / (1.0 + np.exp((1.0 - np.minimum(shares, SURE)) / BLUR))
    return missed


def _miss(share: float) -> float:
    return 1.0 / (1.0 + exp((1.0 - min(share, SURE)) / BLUR))
