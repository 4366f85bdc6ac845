"""Batches near saturation for prompts, the least load for answers (DistServe, section 4.3)."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement, length_there
from daemon.placement.least_loaded import load_key


class NearSaturation(Placement):
    """A prompt goes where the prompts that wait come nearest, with it, to the length that keeps the
    device busy (L_m), and not beyond; where all are beyond, to the shortest queue. What brings its
    KV goes where the least memory is taken.
    """

    name = "distserve"
    meaning = (
        "prompts where the next batch comes nearest to what fills the device, answers to memory"
    )

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """By what has to be computed of it: something, or nothing."""
        able = [one for one in candidates if _may_hold(newcomer, one)] or candidates
        if newcomer.brings_kv:
            return min(able, key=_memory_key).instance
        queues = [(_queue(newcomer, one), one) for one in able]
        near = [(queue, one) for queue, one in queues if queue <= one.saturating_tokens]
        if not near:
            return min((queue, one.instance) for queue, one in queues)[1]
        longest = max(queue for queue, _ in near)
        return min((one for queue, one in near if queue == longest), key=load_key).instance


def _may_hold(newcomer: Newcomer, one: Candidate) -> bool:
    return one.capacity_tokens >= length_there(newcomer, one)


def _queue(newcomer: Newcomer, one: Candidate) -> int:
    """Prompt tokens that are to be computed there, the newcomer's included."""
    own = newcomer.num_tokens - one.cached_tokens(newcomer)
    return one.num_pending_tokens + one.prompt_left + own


def _memory_key(one: Candidate) -> tuple[float, int, int]:
    """The share of memory that is taken, and by who waits or is on its way; their number."""
    known, _ = one.queued
    share = one.kv_share + int(known.sum()) / max(1, one.capacity_tokens)
    return share, one.load.num, one.instance
