"""Token ids of living sequences: the Core counts them, the runtime holds them."""

from dataclasses import dataclass, field

import msgspec
import numpy as np

from daemon.protocol.api import Generate
from daemon.protocol.worker import Join
from daemon.request import SamplingParams, sequence_id
from daemon.wire.columns import Int32, Int64, int32

_SEED_STRIDE = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


@dataclass(slots=True)
class _Tokens:
    prompt: Int32
    sampling: SamplingParams
    outputs: list[int] = field(default_factory=list)

    def slice(self, start: int, count: int) -> Int32:
        """Tokens [start, start + count) of prompt and outputs together."""
        first_output = len(self.prompt)
        if start + count <= first_output:
            return self.prompt[start : start + count]
        outputs = self.outputs[max(0, start - first_output) : start + count - first_output]
        return np.concatenate([self.prompt[start:], int32(outputs)])


class TokenStore:
    """Prompt, outputs and sampling parameters of each sequence that has not ended."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Tokens] = {}

    def add(self, request: int, message: Generate) -> None:
        """Take a request's tokens under the id that the Core knows it by."""
        for index in range(message.n):
            seed = (message.sampling.seed + index * _SEED_STRIDE) & _SEED_MASK
            sampling = msgspec.structs.replace(message.sampling, seed=seed)
            self._sequences[sequence_id(request, index)] = _Tokens(message.tokens, sampling)

    def append(self, sequences: Int64, tokens: Int32) -> None:
        """The next output tokens of these sequences; one with several is named as often."""
        held = self._sequences
        for sequence, token in zip(sequences.tolist(), tokens.tolist(), strict=True):
            held[sequence].outputs.append(token)

    def slice(self, sequence: int, start: int, count: int) -> Int32:
        """Tokens [start, start + count); they are known, or it is an error of the plan."""
        tokens = self._sequences[sequence].slice(start, count)
        if len(tokens) != count:
            raise LookupError(f"sequence {sequence}: tokens {start}+{count} are not known yet")
        return tokens

    def join(self, slot: int, sequence: int) -> Join:
        """What a worker must know of a sequence that takes a slot."""
        held = self._sequences[sequence]
        length = len(held.prompt) + len(held.outputs)
        history = held.slice(0, length) if held.sampling.needs_history else int32()
        return Join(slot, sequence, len(held.prompt), held.sampling, history)

    def drop(self, sequence: int) -> None:
        """Forget an ended sequence."""
        del self._sequences[sequence]

    def drop_request(self, request: int, n: int) -> None:
        """Forget a request that was not taken."""
        for index in range(n):
            self.drop(sequence_id(request, index))
