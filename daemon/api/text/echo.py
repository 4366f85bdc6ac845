"""Echoed prompts: `echo` shows them before their answers, with log-probabilities if wanted."""

from typing import Any

import msgspec

from daemon.api.text.logprobs import TokenLogprob, best_of, finite, name_of
from daemon.api.text.text import Prompt
from daemon.api.text.token_bytes import TokenBytes
from daemon.protocol.worker import PromptLogprobs

_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")


class Echo:
    """A prompt as it is shown at the beginning of each of its answers.

    Log-probabilities are encoded as they come, some tokens at a time: to encode those of a long
    prompt at once would hold up all clients' events.
    """

    def __init__(self, prompt: Prompt, offsets: list[int], token_bytes: TokenBytes) -> None:
        """`offsets`: where each token begins, if log-probabilities of them will come before any
        answer's first token; else empty.
        """
        self.text = prompt.text
        self.scored = scored = bool(offsets)
        self._tokens: list[int] = prompt.tokens.tolist()
        self._token_bytes = token_bytes
        count = len(self._tokens) if scored else 0
        self._logprobs: list[float | None] = [None] * count  # the first stays so
        self._best = [_NULL] * count
        self._names = [name_of(token, token_bytes) for token in self._tokens] if scored else []
        self._offsets = offsets

    def take(self, logprobs: PromptLogprobs) -> None:
        """Take some of its log-probabilities; a recomputed prompt sends them again."""
        count = len(logprobs.chosen)
        ids = logprobs.top_ids.reshape(count, -1).tolist()
        values = logprobs.top_values.reshape(count, -1).tolist()
        for row, chosen in enumerate(logprobs.chosen.tolist()):
            index = logprobs.start + row
            top = list(zip(ids[row], values[row], strict=True))
            entry = TokenLogprob(self._tokens[index], chosen, top)
            self._logprobs[index] = finite(chosen)
            self._best[index] = msgspec.Raw(_encode(best_of(entry, self._token_bytes)))

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The `logprobs` object of the prompt."""
        return {
            "tokens": self._names,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._best,
            "text_offset": self._offsets,
        }
