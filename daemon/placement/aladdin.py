"""Best fit: the fullest instance that still meets every SLO (Aladdin, section 4.2)."""

from collections.abc import Sequence as Listing
from math import hypot

import numpy as np

from daemon.placement.base import Candidate, Newcomer, Placement, answers_there, length_there
from daemon.placement.least_loaded import load_key
from daemon.wire.columns import int32

GAMMA = 0.5
"""The share of an answer's length that counts as context: on average over its life, half."""

THETA = 0.9
"""The share of an SLO that is planned with, as predictions err; below 1."""


class BestFit(Placement):
    """Algorithm 1: instances by capacity_norm, the fullest first; the first that satisfies the
    constraints b to e takes the sequence. Where none does the least loaded takes it, and an
    instance that is asleep may be woken (`daemon/core/placing/asleep.py`).
    """

    name = "aladdin"
    meaning = "best fit: to the fullest instance that keeps every promise with it"
    looks_at_lengths = True
    rebalances = True

    def has_room(self, newcomer: Newcomer, candidate: Candidate) -> bool:
        """Whether it keeps every promise with the newcomer."""
        return fits(newcomer, candidate)

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The fullest candidate that fits."""
        for candidate in sorted(
            candidates, key=lambda candidate: (-capacity_norm(candidate), candidate.instance)
        ):
            if fits(newcomer, candidate):
                return candidate.instance
        able = [
            candidate
            for candidate in candidates
            if candidate.capacity_tokens >= length_there(newcomer, candidate)
        ]
        return min(able or candidates, key=load_key).instance


def capacity_norm(candidate: Candidate) -> float:
    """The L2 norm of the number of sequences there and of their weighted context."""
    return hypot(candidate.load.num, _context(candidate))


def fits(newcomer: Newcomer, candidate: Candidate) -> bool:
    """Whether all constraints hold, the cheapest looked at first."""
    decodes = not answers_there(newcomer, candidate) or _keeps_pace(newcomer, candidate)  # b
    return (
        decodes and _prompts_in_time(newcomer, candidate) and _has_memory(newcomer, candidate)
    )  # c and d, e


def _context(candidate: Candidate) -> float:
    load = candidate.load
    return load.prompt_tokens + GAMMA * (load.likely_tokens - load.prompt_tokens)


def _keeps_pace(newcomer: Newcomer, candidate: Candidate) -> bool:
    """b: a step that decodes all, half-way through their answers, keeps the TPOT SLO."""
    own = newcomer.num_tokens + GAMMA * newcomer.num_left
    context = (_context(candidate) + own) / THETA
    return candidate.step_time.decode_s(candidate.load.num + 1, int(context)) <= newcomer.slo_tpot_s


def _prompts_in_time(newcomer: Newcomer, candidate: Candidate) -> bool:
    """c: all waiting prompts are computed within the TTFT SLO; d: and in the time that the
    decoding sequences have saved.
    """
    if newcomer.brings_kv:
        return True
    own = newcomer.num_tokens - candidate.cached_tokens(newcomer)
    num_tokens = candidate.num_pending_tokens + candidate.prompt_left + own
    prompts_s = candidate.step_time.drain_s(1.0, 0, 0, num_tokens)
    if prompts_s > newcomer.slo_ttft_s - (newcomer.now - newcomer.arrived_s):
        return False
    members = candidate.members
    begun = members.outputs > 0
    saved_s = newcomer.slo_tpot_s * members.outputs[begun] - members.since_s(newcomer.now)[begun]
    return not saved_s.size or prompts_s <= THETA * float(saved_s.min())


def _has_memory(newcomer: Newcomer, candidate: Candidate) -> bool:
    """e: at no step until all have ended do they hold more than the pool."""
    own, load = length_there(newcomer, candidate), candidate.load
    if candidate.pool_share(load.likely_tokens + candidate.beyond + own, load.num + 1) <= 1.0:
        return True
    if own > candidate.capacity_tokens:
        return False
    members, (waiting, waiting_left) = candidate.members, candidate.queued
    known = np.concatenate([members.known, waiting, int32([newcomer.num_tokens])])
    own_left = max(1, own - newcomer.num_tokens)
    left = np.concatenate([members.left, waiting_left, int32([own_left])])
    return candidate.peak_share(known, left, candidate.cached_tokens(newcomer)) <= 1.0
