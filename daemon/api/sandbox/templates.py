"""Rendering of conversations in a process that may be killed: templates are programs."""

from contextlib import suppress

import msgspec

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.sandbox.answer_cache import REFUSED_S, AnswerCache
from daemon.api.sandbox.conversation import Rendered
from daemon.api.sandbox.forking import QuestionOutcome
from daemon.api.sandbox.helper import Helper, NothingHere, Unanswered
from daemon.protocol.api import Serving

AT_ONCE = 4
MOST_WAITING = 8192
"""As many as connections: a crowd of chats is no attack, and most take a few milliseconds."""
MOST_REFUSALS = 1024
_GIVEN_UP = {
    QuestionOutcome.LATE: "takes too long over",
    QuestionOutcome.DIED: "needs too much memory for",
    QuestionOutcome.TOO_LONG: "makes too long a text of",
}

_decode = msgspec.json.Decoder(Rendered).decode


class Templates:
    """The client of the process; a conversation that failed is not tried again at once."""

    def __init__(self) -> None:
        self._helper = Helper("daemon.api.sandbox.template_process", AT_ONCE, MOST_WAITING)
        self._asked = AnswerCache[str | Rendered](
            MOST_REFUSALS, lambda found: REFUSED_S if isinstance(found, str) else 0.0
        )

    async def warm(self, root: str) -> None:
        """Have the process started, so that the first chat does not wait for it."""
        with suppress(ApiError, NothingHere):  # requests will report it
            await self._helper.ready(_arguments(root))

    async def render(self, conversation: bytes, serving: Serving, owner: str) -> Rendered:
        """The text of a `TemplateConversation`, as JSON. Raises ApiError 400, 503."""
        key = serving.root.encode() + b"\0" + conversation
        rendered = await self._asked.get(
            key, owner, lambda: self._ask(conversation, serving.root, owner)
        )
        if isinstance(rendered, str):
            raise invalid(rendered, "messages")
        return rendered

    async def close(self) -> None:
        """End the process."""
        self._asked.close()
        await self._helper.close()

    async def _ask(self, conversation: bytes, root: str, owner: str) -> str | Rendered:
        """The text, or why there is none."""
        try:
            rendered = _decode(await self._helper.ask(_arguments(root), conversation, owner))
        except Unanswered as error:
            return f"the model's chat template {_GIVEN_UP[error.outcome]} these `messages`"
        except NothingHere as error:
            return str(error)
        return rendered.refusal or rendered


def _arguments(root: str) -> tuple[str, ...]:
    return ("--folder", root)
