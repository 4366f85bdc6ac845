"""Checks of grammars before a worker gets them, in a process that may be killed."""

import re
from math import inf

from daemon.api.model import CurrentModel
from daemon.api.replies.errors import ApiError, invalid
from daemon.api.sandbox.answer_cache import REFUSED_S, AnswerCache
from daemon.api.sandbox.forking import QuestionOutcome
from daemon.api.sandbox.helper import Helper, NothingHere, Unanswered
from daemon.state.request import SamplingParams

MAX_BYTES = 128 * 1024
AT_ONCE = 2
MOST_WAITING = 32
MOST_VERDICTS = 1024
_GIVEN_UP = {
    QuestionOutcome.LATE: "it takes too long to compile",
    QuestionOutcome.DIED: "it is too large or too deep to compile",
    QuestionOutcome.TOO_LONG: "it is too large to compile",
}
_LINE = re.compile(r"^line \d+, column \d+: ")
_WRITTEN_BY_CLIENTS = ("response_format", "guided_grammar", "structured_outputs.grammar")
"""Fields whose grammar a client may have written: its line numbers mean something to it."""


class Grammars:
    """The verdicts on recent grammars; new ones are checked by the process."""

    def __init__(self, model: CurrentModel) -> None:
        self._model = model
        self._verdicts = AnswerCache[str](MOST_VERDICTS, lambda fault: REFUSED_S if fault else inf)
        self._helper = Helper("daemon.api.sandbox.grammar_process", AT_ONCE, MOST_WAITING)

    async def check(self, sampling: SamplingParams, param: str, owner: str = "") -> None:
        """Raise ApiError 400 if the grammar of the field `param` cannot be used,

        503 if too many of the owner's wait, or 501 if this server cannot follow grammars.
        """
        grammar = sampling.grammar
        if not grammar:
            return
        if sampling.ignore_eos:
            what = f"`ignore_eos` cannot be combined with `{param}`, which says when to end"
            raise invalid(what, "ignore_eos", "unsupported_parameter")
        text = grammar.encode()
        if len(text) > MAX_BYTES:
            fault = f"it makes a grammar of {len(text)} bytes, and may make {MAX_BYTES}"
        else:
            fault = await self._verdicts.get(text, owner, lambda: self._ask(text, owner))
        if fault:
            if param not in _WRITTEN_BY_CLIENTS:
                fault = _LINE.sub("", fault)
            raise invalid(f"`{param}` cannot be used: {fault}", param, "invalid_grammar")

    async def close(self) -> None:
        """End the process."""
        self._verdicts.close()
        await self._helper.close()

    async def _ask(self, grammar: bytes, owner: str) -> str:
        serving = self._model.serving
        assert serving is not None, "a request was admitted"
        arguments = "--folder", serving.root, "--vocab-size", str(serving.vocab_size)
        try:
            return (await self._helper.ask(arguments, grammar, owner)).decode()
        except Unanswered as error:
            return _GIVEN_UP[error.outcome]
        except NothingHere as error:
            raise ApiError(501, str(error), code="not_supported") from None
