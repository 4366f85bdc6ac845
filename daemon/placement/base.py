"""The base of placements, which choose the instance that a sequence is queued at."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Listing
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from daemon.cost.step_time import Float64, StepTimeModel
from daemon.state.role import Role
from daemon.wire.columns import Int32


class Newcomer(NamedTuple):
    """The sequence that is to be placed, as far as it is known."""

    sequence: int
    num_tokens: int  # that it has
    likely_length: int  # when it ends
    num_outputs: int  # tokens that its client has
    brings_kv: bool  # nothing of it has to be computed again: its KV comes along
    now: float
    arrived_s: float
    slo_ttft_s: float
    slo_tpot_s: float
    hashes: Listing[bytes] = ()  # of its full blocks

    @property
    def num_left(self) -> int:
        """Output tokens that are likely to come."""
        return max(1, self.likely_length - self.num_tokens)


class LoadHere(NamedTuple):
    """The sequences that run, wait, or are on their way to an instance, summed up."""

    num: int
    prompt_tokens: int
    likely_tokens: int  # their lengths when they end
    num_heavy: int  # with likely long answers


class Members(NamedTuple):
    """The sequences with slots, as columns, in arbitrary order."""

    known: Int32  # tokens that each has
    left: Int32  # steps until it is likely to end, at least one
    outputs: Int32  # tokens that its client has
    first_s: Float64  # when the first of them came; inf where none did

    def since_s(self, now: float) -> Float64:
        """The time since the first token; 0 where none came."""
        elapsed_s: Float64 = np.maximum(now - self.first_s, 0.0)
        return elapsed_s


class Candidate(Protocol):
    """An instance that could take the sequence, and its load. What is costly to compute is computed
    when a placement asks for it, and kept until something changes there.
    """

    @property
    def instance(self) -> int:
        """Its index."""

    @property
    def role(self) -> Role:
        """Its role: the work it prefers."""

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens of sequences that wait for it."""

    @property
    def wait_s(self) -> float:
        """Predicted time to compute these."""

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""

    @property
    def num_waiting(self) -> int:
        """Sequences without one, those on their way to it included."""

    @property
    def kv_share(self) -> float:
        """The share of its blocks that is held or reserved, 0..1."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the longest sequence that its whole pool holds."""

    @property
    def max_running(self) -> int:
        """Its slots."""

    @property
    def step_tokens(self) -> int:
        """The token budget of a step."""

    @property
    def saturating_tokens(self) -> int:
        """Prompt tokens that keep the device busy alone; at most those of a step."""

    @property
    def step_time(self) -> StepTimeModel:
        """The model of its step times."""

    @property
    def load(self) -> LoadHere:
        """All sequences that run, wait, or are on their way."""

    @property
    def beyond(self) -> int:
        """Tokens that answers longer than was likely have beyond that, and will yet have: `load`
        counts them with their likely lengths.
        """

    @property
    def context(self) -> int:
        """Computed tokens of running sequences."""

    @property
    def prompt_left(self) -> int:
        """Tokens that running prompts still have to compute."""

    @property
    def members(self) -> Members:
        """The running sequences."""

    @property
    def queued(self) -> tuple[Int32, Int32]:
        """(known tokens, steps until the likely end) of the first sequences in its queue, and of
        those on their way.
        """

    def has_room(self, num_tokens: int, num_cached: int = 0) -> bool:
        """Whether a sequence of `num_tokens`, of which so many are cached, has room beside all that
        runs and waits there, in blocks that are neither held nor reserved.
        """

    def pool_share(self, num_tokens: float, num_sequences: int) -> float:
        """The share of its pool that so many sequences take, which have `num_tokens` together."""

    def peak_share(self, known: Int32, left: Int32, num_cached: int) -> float:
        """The largest share of its pool that sequences with `known` tokens ever hold together,
        which end after `left` steps; what several own, and so many cached tokens, counts once.
        """

    def cached_tokens(self, newcomer: Newcomer) -> int:
        """The newcomer's tokens whose KV is there."""


class Placement(ABC):
    """Chooses among instances. It holds no state: equal arguments give equal choices."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    """One line for help texts."""
    looks_at_lengths: ClassVar[bool] = False
    """Whether a waiting sequence is placed anew when its length is predicted."""
    rebalances: ClassVar[bool] = False
    """Whether waiting sequences are placed anew where others were longer than predicted."""

    def has_room(self, newcomer: Newcomer, candidate: Candidate) -> bool:
        """Whether a candidate can begin the newcomer without a wait; where none can and an instance
        is asleep, it may be woken.
        """
        free = candidate.num_running < candidate.max_running and not candidate.num_waiting
        return free and candidate.has_room(newcomer.likely_length)

    @abstractmethod
    def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
        """The `instance` of one of the candidates, which are two or more.

        `seed` is the only randomness: the Core gives each sequence another one, and keeps it when
        the sequence is placed anew: the same draw, with more known of the sequence.
        """


def answers_there(newcomer: Newcomer, candidate: Candidate) -> bool:
    """Whether its answer is decoded there too, if nothing changes."""
    return newcomer.brings_kv or candidate.role is not Role.PREFILL


def length_there(newcomer: Newcomer, candidate: Candidate) -> int:
    """Its length when it leaves the instance."""
    if answers_there(newcomer, candidate):
        return newcomer.likely_length
    return newcomer.num_tokens + 1
