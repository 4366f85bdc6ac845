"""Batches near saturation for prompts, the least load for answers (DistServe, section 4.3)."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement, length_there
from daemon.placement.least_loaded import load_key


class NearSaturation(Placement):
    """A prompt goes where the waiting prompts, with it, come nearest to the length that keeps the
    device busy (L_m), and not beyond; where all are beyond, to the shortest queue. A sequence that
    brings its KV goes where the least memory is taken.
    """

    name = "distserve"
    meaning = (
        "prompts where the next batch comes nearest to what fills the device, answers to memory"
    )

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """Choose by queue for a prompt, by memory for a sequence that brings its KV."""
        able = [
            candidate for candidate in candidates if _may_hold(newcomer, candidate)
        ] or candidates
        if newcomer.brings_kv:
            return min(able, key=_memory_key).instance
        queues = [(_queue(newcomer, candidate), candidate) for candidate in able]
        near = [
            (queue, candidate)
            for queue, candidate in queues
            if queue <= candidate.saturating_tokens
        ]
        if not near:
            return min((queue, candidate.instance) for queue, candidate in queues)[1]
        longest = max(queue for queue, _ in near)
        return min(
            (candidate for queue, candidate in near if queue == longest), key=load_key
        ).instance


def _may_hold(newcomer: Newcomer, candidate: Candidate) -> bool:
    return candidate.capacity_tokens >= length_there(newcomer, candidate)


def _queue(newcomer: Newcomer, candidate: Candidate) -> int:
    """Prompt tokens to be computed there, the newcomer's included."""
    own = newcomer.num_tokens - candidate.cached_tokens(newcomer)
    return candidate.num_pending_tokens + candidate.prompt_left + own


def _memory_key(candidate: Candidate) -> tuple[float, int, int]:
    """(the share of memory taken, by waiting and coming sequences too; their number; the index)."""
    known, _ = candidate.queued
    share = candidate.kv_share + candidate.pool_share(int(known.sum()), known.size)
    return share, candidate.load.num, candidate.instance
