"""From tokens to text, one token at a time."""

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from daemon.wire.columns import Int32

CONTEXT_TOKENS = 6
"""Prompt tokens that the first output token is decoded after: some tokenizers drop the space of a
text's first word, and an answer does not begin a text."""

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one sequence's output; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer, prompt: Int32) -> None:
        context: list[int] = prompt[-CONTEXT_TOKENS:].tolist()
        # A prompt that ends inside a character would have it shown as output.
        if tokenizer.decode(context).endswith(REPLACEMENT):
            context = []
        self._tokenizer = tokenizer
        self._context = context
        self._pending: list[int] = []
        self._step = DecodeStream(context, True).step

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is not whole."""
        self._pending.append(token)
        try:
            text: str | None = self._step(self._tokenizer, token)
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            return self._restart(error)
        if not text:
            return ""
        self._context = self._pending
        self._pending = []
        return text

    def flush(self) -> str:
        """The text of an unfinished character at the end."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._context)
        after = self._tokenizer.decode(self._context + self._pending)
        if not after.startswith(before):
            after, before = self._tokenizer.decode(self._pending), ""
        self._context, self._pending = self._pending, []
        return after[len(before) :]

    def _restart(self, error: Exception) -> str:
        # Tokens that change the text before them: show what is new and go on from here.
        if "prefix" not in str(error).lower():
            raise error
        text = self.flush()
        self._step = DecodeStream(self._context, True).step
        return text


class MarkedDetokenizer(Detokenizer):
    """Has a text for some special tokens too: those that mark calls of tools."""

    def __init__(self, tokenizer: Tokenizer, prompt: Int32, shown: dict[int, str]) -> None:
        super().__init__(tokenizer, prompt)
        self._shown = shown

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is not whole."""
        marker = self._shown.get(token)
        return super().push(token) if marker is None else self._marked(marker)

    def _marked(self, marker: str) -> str:
        # An unfinished character before a marker will not be finished after it.
        if not self._pending:
            return marker
        text = self.flush()
        self._context = []
        self._step = DecodeStream([], True).step
        return text + marker
