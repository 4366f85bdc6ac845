"""A request's sampling parameters, and the states of its token streams."""

from enum import IntEnum

import msgspec

MAX_SEQUENCES_PER_REQUEST = 128


class FinishReason(IntEnum):
    """Why a sequence ended; NONE while it lives."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


NO_PLACE = "the instance that could hold this request is lost, and none that is left can"
"""The error of a sequence that no instance can go on with: a fault of the server's state."""


class State(IntEnum):
    """The state of a sequence in its life."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    State.RUNNING: frozenset({State.PREEMPTED, State.FINISHED}),
    State.PREEMPTED: frozenset({State.RUNNING, State.FINISHED}),
    State.FINISHED: frozenset(),
}
"""The one table of request states; `Sequence.move` is the only assignment to a state."""


def sequence_id(request: int, index: int) -> int:
    """The id of the index-th token stream (of n) of a request."""
    return request * MAX_SEQUENCES_PER_REQUEST + index


def request_of(sequence: int) -> int:
    """The request that a sequence belongs to."""
    return sequence // MAX_SEQUENCES_PER_REQUEST


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Parameters for sampling the next token; one set per sequence, so that n > 1 differ by seed.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 switch a filter off. `logprobs` -1 is
    none, k >= 0 asks for the sampled token's and the k best; `prompt_logprobs` asks the same of the
    prompt's tokens. `seed` and positions alone decide the noise of sampling, so recompute, swap and
    migration reproduce it. `grammar` (llguidance's, as text; empty: none) allows only tokens that
    continue it; the API has compiled it once before it comes here.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int = -1
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    grammar: str = ""
    prompt_logprobs: int = -1

    @property
    def needs_history(self) -> bool:
        """Whether a worker must know the tokens before, beyond what it computes."""
        return self.counts_tokens or self.grammar != "" or self.prompt_logprobs >= 0

    @property
    def counts_tokens(self) -> bool:
        """Whether a penalty looks at the tokens before."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty
        return penalties != (0.0, 0.0, 1.0)
