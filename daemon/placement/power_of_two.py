"""Power of two choices: the one of two random instances with fewer long answers."""

from collections.abc import Sequence as Listing

from daemon.placement.base import Candidate, Newcomer, Placement, length_there
from daemon.scheduler.queue import HEAVY_TOKENS


class PowerOfTwo(Placement):
    """TetriInfer's dispatcher (section 3.3.4): two of the instances with room for the whole
    predicted length are drawn, and the one with the lower ratio of heavy to light answers, the
    newcomer included, takes it. Where none has room, two of all are drawn.
    """

    name = "power_of_two"
    meaning = "of two instances with room that are drawn, to the one with fewer long answers"
    looks_at_lengths = True

    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The better of two candidates that the seed chooses."""
        ordered = sorted(candidates, key=lambda candidate: candidate.instance)
        able = [candidate for candidate in ordered if _has_room(newcomer, candidate)] or ordered
        if len(able) > 2:
            drawn = _mixed(seed)
            first = drawn % len(able)
            second = (first + 1 + (drawn >> 32) % (len(able) - 1)) % len(able)
            able = [able[first], able[second]]
        heavy = newcomer.likely_length - newcomer.num_tokens + newcomer.num_outputs > HEAVY_TOKENS
        return min(able, key=lambda candidate: _key(candidate, heavy)).instance


def _has_room(newcomer: Newcomer, candidate: Candidate) -> bool:
    length = length_there(newcomer, candidate)
    has_slot = candidate.num_running + candidate.num_waiting < candidate.max_running
    fits = candidate.has_room(length, candidate.cached_tokens(newcomer))
    return has_slot and fits and candidate.capacity_tokens >= length


def _key(candidate: Candidate, heavy: bool) -> tuple[float, int, int]:
    """The share of heavy answers with it, which is ordered as their ratio to light ones."""
    load = candidate.load
    return (load.num_heavy + heavy) / (load.num + 1), load.num, candidate.instance


def _mixed(seed: int) -> int:
    """64 bits that differ much where seeds differ little (splitmix64)."""
    mask = (1 << 64) - 1
    value = (seed + 1) * 0x9E3779B97F4A7C15 & mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)
