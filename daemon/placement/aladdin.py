"""Best fit: the fullest instance that keeps every promise (Aladdin, section 4.2)."""

from collections.abc import Sequence as Listing
from math import hypot

import numpy as np

from daemon.placement.base import Candidate, Newcomer, Placement, answers_there, length_there
from daemon.placement.least_loaded import load_key
from daemon.placement.trajectory import Trajectory
from daemon.wire.columns import int32

GAMMA = 0.5
"""The share of an answer's length that counts as context: on average over its life, half."""

THETA = 0.9
"""The share of what is promised that is planned with, as predictions err; below 1."""


class BestFit(Placement):
    """Algorithm 1: instances by capacity_norm, the fullest first; the first takes it that satisfies
    the constraints b to e. Where none does there is no further instance to open, and the least
    loaded takes it.
    """

    name = "aladdin"
    meaning = "best fit: to the fullest instance that keeps every promise with it"
    looks_at_lengths = True
    rebalances = True

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The fullest that fits."""
        for one in sorted(candidates, key=lambda one: (-capacity_norm(one), one.instance)):
            if fits(newcomer, one):
                return one.instance
        able = [one for one in candidates if one.capacity_tokens >= length_there(newcomer, one)]
        return min(able or candidates, key=load_key).instance


def capacity_norm(one: Candidate) -> float:
    """The L2 norm of the number of those that are there, and of their weighted context."""
    return hypot(one.load.num, _context(one))


def fits(newcomer: Newcomer, one: Candidate) -> bool:
    """Whether all constraints hold, the cheapest looked at first."""
    decodes = not answers_there(newcomer, one) or _keeps_pace(newcomer, one)  # b
    return decodes and _prompts_in_time(newcomer, one) and _has_memory(newcomer, one)  # c and d, e


def _context(one: Candidate) -> float:
    load = one.load
    return load.prompt_tokens + GAMMA * (load.likely_tokens - load.prompt_tokens)


def _keeps_pace(newcomer: Newcomer, one: Candidate) -> bool:
    """b: a step of decodes of all, half-way through their answers, takes as promised."""
    own = newcomer.num_tokens + GAMMA * newcomer.num_left
    context = (_context(one) + own) / THETA
    return one.step_time.decode_s(one.load.num + 1, int(context)) <= newcomer.slo_tpot_s


def _prompts_in_time(newcomer: Newcomer, one: Candidate) -> bool:
    """c: all prompts that wait are computed within the promised time to first token; d: and in the
    time that those that draw tokens have saved.
    """
    if newcomer.brings_kv:
        return True
    own = newcomer.num_tokens - one.cached_tokens(newcomer)
    num_tokens = one.num_pending_tokens + one.prompt_left + own
    prompts_s = one.step_time.drain_s(1.0, 0, 0, num_tokens)
    if prompts_s > newcomer.slo_ttft_s - (newcomer.now - newcomer.arrived_s):
        return False
    members = one.members
    begun = members.outputs > 0
    saved_s = newcomer.slo_tpot_s * members.outputs[begun] - members.since_s(newcomer.now)[begun]
    return not saved_s.size or prompts_s <= THETA * float(saved_s.min())


def _has_memory(newcomer: Newcomer, one: Candidate) -> bool:
    """e: at no step until all have ended do they hold more than there is."""
    own = length_there(newcomer, one)
    if one.load.likely_tokens + one.beyond + own <= one.capacity_tokens:
        return True
    if one.context + newcomer.num_tokens > one.capacity_tokens:
        return False
    members, (waiting, waiting_left) = one.members, one.queued
    known = np.concatenate([members.known, waiting, int32([newcomer.num_tokens])])
    own_left = max(1, own - newcomer.num_tokens)
    left = np.concatenate([members.left, waiting_left, int32([own_left])])
    shared = one.shared_tokens + one.cached_tokens(newcomer)
    return float(Trajectory(known, left).peaks) <= one.capacity_tokens + shared
