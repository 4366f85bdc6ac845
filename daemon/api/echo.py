"""What `echo` shows: a prompt before its answers, with log-probabilities where they are wanted."""

import codecs

from daemon.api.logprobs import TokenLogprob
from daemon.api.text import Prompt
from daemon.api.token_bytes import TokenBytes
from daemon.engine.protocol import PromptLogprobs


class Echo:
    """One prompt, as each of its answers begins with it."""

    def __init__(self, prompt: Prompt, scored: bool) -> None:
        """`scored`: its tokens' log-probabilities will come, before any answer's first token."""
        self.text = prompt.text
        self.scored = scored
        self.tokens: list[int] = prompt.tokens.tolist()
        self.entries: list[TokenLogprob | None] = [None] * len(self.tokens)  # the first stays so

    def take(self, told: PromptLogprobs) -> None:
        """Some of its log-probabilities; a prompt that is computed again tells them again."""
        count = len(told.chosen)
        ids = told.top_ids.reshape(count, -1).tolist()
        values = told.top_values.reshape(count, -1).tolist()
        for row, chosen in enumerate(told.chosen.tolist()):
            index = told.start + row
            top = list(zip(ids[row], values[row], strict=True))
            self.entries[index] = TokenLogprob(self.tokens[index], chosen, top)

    def offsets(self, token_bytes: TokenBytes) -> list[int]:
        """Where each token begins in the text, in letters.

        A special token that the text does not show has no width, nor has a part of a letter.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        offsets, end = [], 0
        for token in self.tokens:
            offsets.append(end)
            piece = decoder.decode(token_bytes(token))
            if not self.text.startswith(piece, end):
                piece = piece.removeprefix(" ")  # some tokenizers begin a text with one of theirs
            if self.text.startswith(piece, end):
                end += len(piece)
        return offsets
