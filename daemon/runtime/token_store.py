"""Token ids of live sequences: the Core counts them, the runtime holds them."""

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
        self.draft_at = -1  # ... the first `draft_at` known ones
        self._column = prompt
        self._is_own = False  # the prompt's column is never written to

    def slice(self, start: int, count: int) -> Int32:
        """Tokens [start, start + count) of prompt and outputs together, as far as they are known.

        They do not change when tokens are added.
        """
        return self._column[start : min(start + count, self.length)]

    def append(self, token: int) -> None:
        """Add the next output."""
        self._grow(self.length + 1)
        self._column[self.length] = token
        self.length += 1

    def look(self, news: Int32) -> int:
        """Draft after `news`, which come next; return how many tokens."""
        ends = self.length + len(news)
        self._grow(ends)
        self._column[self.length : ends] = news
        self.draft, self.draft_at = draft(self._column[:ends]), ends
        return len(self.draft)

    def _grow(self, length: int) -> None:
        """Make room for `length` tokens."""
        if length > len(self._column) or not self._is_own:
            column = np.empty(max(64, 2 * length), np.int32)
            column[: self.length] = self._column[: self.length]
            self._column, self._is_own = column, True


class TokenStore:
    """Prompt, outputs and sampling parameters of each sequence that has not ended."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Tokens] = {}

    def add(self, request: int, message: Generate) -> None:
        """Store a request's tokens under the Core's id."""
        for index in range(message.n):
            seed = (message.sampling.seed + index * _SEED_STRIDE) & _SEED_MASK
            sampling = msgspec.structs.replace(message.sampling, seed=seed)
            self._sequences[sequence_id(request, index)] = _Tokens(message.tokens, sampling)

    def append(self, sequences: Int64, tokens: Int32) -> None:
        """Add output tokens; a sequence with several is named once for each."""
        held = self._sequences
        for sequence, token in zip(sequences.tolist(), tokens.tolist(), strict=True):
            held[sequence].append(token)

    def slice(self, sequence: int, start: int, count: int) -> Int32:
        """Tokens [start, start + count); unknown ones are an error of the plan."""
        tokens = self._sequences[sequence].slice(start, count)
        if len(tokens) != count:
            raise LookupError(f"sequence {sequence}: tokens {start}+{count} are not known yet")
        return tokens

    def look(self, sequence: int, news: Int32) -> int:
        """How many tokens can be drafted after `news`, which come next; 0 for a sequence that has
        ended or follows a grammar: its sampling depends on more than its tokens.
        """
        held = self._sequences.get(sequence)
        if held is None or held.sampling.grammar:
            return 0
        return held.look(news)

    def drafted(self, sequence: int, length: int, count: int) -> Int32:
        """The first `count` tokens drafted after the first `length`; if there are none, the plan is
        wrong.
        """
        held = self._sequences[sequence]
        if held.draft_at != length or len(held.draft) < count:
            raise LookupError(f"sequence {sequence}: no {count} tokens were drafted at {length}")
        return held.draft[:count]

    def join(self, slot: int, sequence: int) -> Join:
        """The message about a sequence that takes a slot, for the worker."""
        held = self._sequences[sequence]
        history = held.slice(0, held.length) if held.sampling.needs_history else int32()
        return Join(slot, sequence, held.num_prompt, held.sampling, history)

    def drop(self, sequence: int) -> None:
        """Forget an ended sequence."""
        del self._sequences[sequence]

    def drop_request(self, request: int, n: int) -> None:
        """Forget a request that was refused."""
        for index in range(n):
            self.drop(sequence_id(request, index))
