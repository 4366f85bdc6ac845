"""Token ids of living sequences: the Core counts them, the runtime holds them."""

import msgspec
import numpy as np

from daemon.protocol.api import Generate
from daemon.protocol.worker import Join
from daemon.runtime.lookup import draft
from daemon.state.request import SamplingParams, sequence_id
from daemon.wire.columns import Int32, Int64, int32

_SEED_STRIDE = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


class _Tokens:
    """Prompt and outputs of one sequence, in one column with room to grow."""

    def __init__(self, prompt: Int32, sampling: SamplingParams) -> None:
        self.num_prompt = len(prompt)
        self.length = len(prompt)  # tokens that are known
        self.sampling = sampling
        self.draft: Int32 = int32()  # tokens that may follow ...
        self.draft_at = -1  # ... so many known ones
        self._column = prompt
        self._is_own = False  # the prompt's column is never written to

    def slice(self, start: int, count: int) -> Int32:
        """Tokens [start, start + count) of prompt and outputs together, as far as they are known.

        They stay as they are, whatever is added.
        """
        return self._column[start : min(start + count, self.length)]

    def append(self, token: int) -> None:
        """The next output."""
        self._grow(self.length + 1)
        self._column[self.length] = token
        self.length += 1

    def look(self, news: Int32) -> int:
        """Draft behind these tokens, which come next; how many."""
        ends = self.length + len(news)
        self._grow(ends)
        self._column[self.length : ends] = news
        self.draft, self.draft_at = draft(self._column[:ends]), ends
        return len(self.draft)

    def _grow(self, length: int) -> None:
        """Room for so many tokens."""
        if length > len(self._column) or not self._is_own:
            column = np.empty(max(64, 2 * length), np.int32)
            column[: self.length] = self._column[: self.length]
            self._column, self._is_own = column, True


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
            held[sequence].append(token)

    def slice(self, sequence: int, start: int, count: int) -> Int32:
        """Tokens [start, start + count); they are known, or it is an error of the plan."""
        tokens = self._sequences[sequence].slice(start, count)
        if len(tokens) != count:
            raise LookupError(f"sequence {sequence}: tokens {start}+{count} are not known yet")
        return tokens

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted behind these, which come next; 0 of a sequence that has
        ended, or that follows a grammar: its draws depend on more than its tokens.
        """
        held = self._sequences.get(sequence)
        if held is None or held.sampling.grammar:
            return 0
        return held.look(news)

    def drafted(self, sequence: int, length: int, count: int) -> Int32:
        """So many of the tokens that were drafted behind the first `length`, or it is an error of
        the plan.
        """
        held = self._sequences[sequence]
        if held.draft_at != length or len(held.draft) < count:
            raise LookupError(f"sequence {sequence}: nobody drafted {count} tokens at {length}")
        return held.draft[:count]

    def join(self, slot: int, sequence: int) -> Join:
        """What a worker must know of a sequence that takes a slot."""
        held = self._sequences[sequence]
        history = held.slice(0, held.length) if held.sampling.needs_history else int32()
        return Join(slot, sequence, held.num_prompt, held.sampling, history)

    def drop(self, sequence: int) -> None:
        """Forget an ended sequence."""
        del self._sequences[sequence]

    def drop_request(self, request: int, n: int) -> None:
        """Forget a request that was not taken."""
        for index in range(n):
            self.drop(sequence_id(request, index))
