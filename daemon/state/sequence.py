"""One token stream of a request, with its state; counts only, never token ids."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from daemon.state.pause import Cause
from daemon.state.remote_kv import RemoteKV
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST, TRANSITIONS, State
from daemon.state.story import MarkList

NEVER = 1 << 30
"""A token count that no sequence reaches."""

UNKNOWN_TOKENS = 256
"""The likely length of an answer without any prediction."""


class TransitionError(RuntimeError):
    """A sequence was asked to move where the table of states has no arrow."""


class Outlook(NamedTuple):
    """The expected future of an answer of its age, learned from answers that ended."""

    gittins_index: float  # expected cost in tokens per chance to end; see `gittins_index.py`
    span_tokens: float  # the stretch for which it is worth going on, on average
    room_tokens: float  # growth that others have to leave room for


class Left(NamedTuple):
    """The expected rest of a sequence's answer, in whole numbers, to be summed up."""

    steps: int
    work: int  # tokens held, summed over these steps


NOTHING_LEFT = Left(0, 0)
NO_OUTLOOK = Outlook(1.0, 1.0, 1.0)


class Where(Enum):
    """The place of a sequence's KV."""

    NOWHERE = "nowhere"  # it waits, and none of its KV is kept
    DEVICE = "device"  # it runs, and its blocks have it
    BOTH = "both"  # likewise; the host has its first blocks too, or will have when copies end
    HOST = "host"  # it waits, and the host's copy is all there is
    AWAY = "away"  # it waits, and a pool of the instance that it left has it, as remote KV
    RETURNING = "returning"  # it has a slot, and waits for copies to its blocks


@dataclass(slots=True)
class Residence:
    """The state of one sequence's KV; only `Residency`, with its host pool, changes it."""

    where: Where = Where.NOWHERE
    host_blocks: list[int] = field(default_factory=list)  # copies of its first blocks, in order
    last_copy: int = 0  # newest plan that orders a copy to or from any of them
    parked_tokens: int = 0  # HOST: the first of its tokens, whose KV the copy has
    fetched_by: int = 0  # RETURNING: the plan that orders the copies
    fetched_s: float = 0.0  # RETURNING: when that was
    remote_kv: RemoteKV | None = None  # AWAY, and RETURNING from there
    transfer: int = 0  # RETURNING from there: the transfer that it waits for


@dataclass(slots=True, eq=False)
class Sequence:
    """A token stream as the Core knows it. While it runs, its slot holds the changing counts."""

    id: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    arrived_s: float
    arrival: int  # how many sequences arrived before it: equal ranks run in this order
    hashes: list[bytes] = field(default_factory=list)  # of its full blocks, as far as known
    leader: "Sequence | None" = None  # the stream whose prompt blocks this one shares (n > 1)
    rank: float = 0.0  # in its policy's order; lower runs first
    level: int = 0  # of a policy with queues, or with ranges of time; 0 is served first
    begin_by_s: float = 0.0  # it has to begin by then, where levels are ranges of time
    promoted: bool = False  # it starved, and goes before its level for a while
    review_at: int = NEVER  # known tokens at which the policy looks at it again
    waiting_since_s: float = 0.0
    state: State = State.WAITING
    slot: int = -1
    instance: int = -1
    num_output_tokens: int = 0  # delivered; of a running sequence, as of when it joined or was
    # reviewed
    num_sealed_blocks: int = 0  # of this residence: blocks offered to the prefix cache
    preemptions: int = 0
    preemptions_after_first: int = 0  # of them, when it had delivered a token already
    recomputed_tokens: int = 0
    loans: int = 0  # how often it borrowed reserved blocks
    predicted_tokens: int = -1  # of output, in all; -1: no prediction came
    expected_tokens: int = -1  # the same, as scheduling sees it now: raised when it was too low
    high_tokens: int = 0  # the 0.9 quantile of its length; 0: unknown
    trusted: bool = True  # whether scheduling follows its prediction
    outlook: Outlook = NO_OUTLOOK  # as of its rank, where the policy asks for it
    left: Left = NOTHING_LEFT  # likewise, as of when it was queued
    residence: Residence = field(default_factory=Residence)
    swaps: int = 0  # how often its KV came back from host memory
    swap_s: float = 0.0  # how long it then waited for the copies
    paused_since_s: float = -1.0  # preempted then, without a token since; -1: no
    pause_cause: Cause = Cause.RECOMPUTED
    paused_s: float = 0.0  # in finished pauses, except behind prompts
    behind_prompts_s: float = 0.0  # behind prompts; of a running sequence, before it joined
    started: bool = False
    ordered_to: int = -1  # the instance that an operator sent it to; it stays there
    rebalanced: bool = False  # rebalancing moved it to another instance
    strikes: int = 0  # workers that died of a step with it, since its newest token
    first_token_s: float = -1.0
    prompt_cost: int = 1  # of a step's budget, for each prompt token
    deadline_s: float = 0.0  # when its answer is due, as `arrived_s`; 0: it has no deadline
    slo_scale: float = 0.0  # else due after this many times its time alone; 0: not due
    story: MarkList = field(default_factory=MarkList)

    @property
    def request(self) -> int:
        """The request it belongs to."""
        return self.id // MAX_SEQUENCES_PER_REQUEST

    @property
    def num_known_tokens(self) -> int:
        """Prompt and delivered output tokens; see `num_output_tokens`."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def remaining_tokens(self) -> int:
        """Output still to come, as expected (at least one), or up to its limit."""
        if self.expected_tokens < 0:
            return self.max_tokens - self.num_output_tokens
        return max(1, self.expected_tokens - self.num_output_tokens)

    @property
    def expected_length(self) -> int:
        """Its tokens after the stretch for which it is worth going on; as ranked, where it runs."""
        known = self.num_prompt_tokens + self.num_output_tokens
        return known + int(self.outlook.room_tokens)

    @property
    def predicted_length(self) -> int:
        """Its length when it ends, as predicted, if that is to be trusted, or by its limit."""
        if self.expected_tokens < 0:
            return self.num_prompt_tokens + self.max_tokens
        outputs = max(self.num_output_tokens + 1, self.expected_tokens)
        return self.num_prompt_tokens + min(self.max_tokens, outputs)

    @property
    def likely_length(self) -> int:
        """Its length when it ends, as placement assumes: as predicted, trusted or not, else learned
        from answers, else a guess. A sequence that runs on is longer than this.
        """
        outputs, most = self.predicted_tokens, self.max_tokens
        if outputs < self.expected_tokens:
            outputs = self.expected_tokens
        if outputs < 0:
            outputs = self.num_output_tokens + (self.left.steps or UNKNOWN_TOKENS)
        return self.num_prompt_tokens + (most if outputs > most else outputs or 1)

    @property
    def order_key(self) -> tuple[float, int]:
        """The key it is ordered by: rank, then arrival."""
        return self.rank, self.arrival

    @property
    def limit(self) -> int:
        """Its length when it ends by max_tokens."""
        return self.num_prompt_tokens + self.max_tokens

    def pause(self, now: float, cause: Cause) -> None:
        """Begin a pause at a preemption; a pause that is not over goes on."""
        if self.num_output_tokens and self.paused_since_s < 0.0:
            self.paused_since_s, self.pause_cause = now, cause

    def end_pause(self, now: float) -> float:
        """End the pause, as its next token came or it ended; returns the pause's length."""
        length_s = now - self.paused_since_s
        self.paused_s += length_s
        self.paused_since_s = -1.0
        return length_s

    def move(self, state: State) -> None:
        """Change state; raises TransitionError where the table has no such arrow."""
        if state not in TRANSITIONS[self.state]:
            raise TransitionError(f"sequence {self.id}: {self.state.name} -> {state.name}")
        self.state = state
