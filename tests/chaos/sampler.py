"""How the toy draws: a token is a function of the context, and where there is heat of the seed."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daemon.models.grammar import Compiler
from daemon.protocol.worker import Join
from daemon.state.request import FinishReason
from daemon.wire.columns import Int32, int32
from tests.chaos.toy import combined

if TYPE_CHECKING:
    from llguidance import LLMatcher

FIRST_WORD = 4
"""Ids below are the tokenizer's special ones."""
ENDS_ONE_IN = 48
"""How often a token ends an answer that may end."""

Scores = tuple[float, list[int], list[float]]
"""Log-probability of a token, and the best tokens with theirs."""


class Draw(NamedTuple):
    """A drawn token, whether it ends its sequence, and its scores if they were asked for."""

    token: int
    reason: FinishReason
    logprobs: Scores | None


class Seat:
    """The sequence in one slot."""

    def __init__(self, join: Join, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self.sequence = join.sequence
        self.sampling = join.sampling
        self.num_prompt_tokens = join.num_prompt_tokens
        self._vocab_size = vocab_size
        own_ends = () if join.sampling.ignore_eos else eos_ids
        self._ends = (*own_ends, *join.sampling.stop_token_ids)
        self._history: list[int] = join.history.tolist()
        self._matcher: LLMatcher | None = None
        self._mask = int32()
        self._ended = False

    def follow(self, compiler: Compiler) -> None:
        """Its draws follow its grammar, behind the outputs that are known."""
        self._matcher = compiler.matcher(self.sampling.grammar)
        self._mask = np.zeros(compiler.mask_words, np.int32)
        outputs = self._history[self.num_prompt_tokens :]
        if outputs:
            self._matcher.consume_tokens(outputs)

    def known_upto(self, length: int) -> list[int]:
        """The first tokens of prompt and outputs, as far as it knows them."""
        return self._history[:length]

    def draw(self, context: int, position: int) -> Draw:
        """The token at `position`, behind a context of which this is the summary."""
        chance = self._chance(context, position)
        token = self._bound(chance) if self._matcher else self._free(chance, position)
        if self.sampling.needs_history:
            self._history.append(token)
        ends = token in self._ends
        if self._matcher is not None and not self._ended:
            self._ended = ends
            if not ends:
                self._matcher.consume_token(token)
        scores = self._scores(chance, token, self.sampling.logprobs)
        reason = FinishReason.STOP if ends else FinishReason.NONE
        return Draw(token, reason, scores if self.sampling.logprobs >= 0 else None)

    def score(self, seen: int) -> Scores:
        """The scores of the next token, by the second number of a prompt token's entry."""
        chance = combined(seen)
        return self._scores(chance, chance % self._vocab_size, self.sampling.prompt_logprobs)

    def _chance(self, context: int, position: int) -> int:
        """A number that decides the draw, of all that it may depend on."""
        sampling = self.sampling
        parts = [context]
        if sampling.needs_history:
            if position != len(self._history):
                raise ValueError(f"position {position} follows {len(self._history)} known tokens")
            parts += self._history
        if sampling.temperature > 0.0:
            parts += [sampling.seed, position]
        return combined(*parts)

    def _free(self, chance: int, position: int) -> int:
        early = position - self.num_prompt_tokens < self.sampling.min_tokens
        if self._ends and not early and (chance >> 32) % ENDS_ONE_IN == 0:
            return self._ends[0]
        words = self._vocab_size - FIRST_WORD
        tokens = (FIRST_WORD + (chance + more) % words for more in range(words))
        return next(one for one in tokens if not (early and one in self._ends))

    def _bound(self, chance: int) -> int:
        """One of the tokens that the grammar allows; the end where it is complete, now and then."""
        if self._ended or self._matcher is None:
            return self._ends[0]
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        allowed = _tokens(self._mask)
        allowed = allowed[~np.isin(allowed, self._ends)]
        if self._matcher.is_accepting() and (not allowed.size or (chance >> 32) % 4 == 0):
            return self._ends[0]
        return int(allowed[chance % allowed.size])

    def _scores(self, chance: int, token: int, depth: int) -> Scores:
        """Made up, and the same for the same draw."""
        best = [(token + 7 * place) % self._vocab_size for place in range(max(0, depth))]
        values = [-(chance % 97) / 97 - place for place in range(len(best))]
        return -(chance % 1000) / 250, best, values


def _tokens(mask: Int32) -> Int32:
    """The ids whose bits are set."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).astype(np.int32)
