"""`POST /page/markdown`: an answer's Markdown, rendered for the page in a helper process."""

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.api.http.body import read_body
from daemon.api.http.middleware import owner_of
from daemon.api.replies.errors import invalid
from daemon.api.request.decode import decode
from daemon.api.sandbox.forking import QuestionOutcome
from daemon.api.sandbox.helper import Helper, Unanswered

PATH = "/page/markdown"
MAX_CHARS = 64 * 1024
AT_ONCE = 2
MOST_WAITING = 64
"""Waiting questions of one owner; a page renders one text at a time."""
_GIVEN_UP = {
    QuestionOutcome.LATE: "it takes too long to render",
    QuestionOutcome.DIED: "it takes too much memory to render",
    QuestionOutcome.TOO_LONG: "too much comes of it",
}


class MarkdownText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, or the rest of one whose beginning has been rendered."""

    text: Annotated[str, Meta(max_length=MAX_CHARS)]


class Rendering:
    """The route, and the process behind it, which is started when first needed."""

    def __init__(self) -> None:
        self._helper = Helper("daemon.api.page.markdown_process", AT_ONCE, MOST_WAITING)
        self._decoder = msgspec.json.Decoder(MarkdownText)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        router.add_post(PATH, self.markdown)

    async def markdown(self, request: web.Request) -> web.StreamResponse:
        """`POST /page/markdown`: a `RenderedMarkdown`. Raises ApiError 400, 503."""
        asked = decode(self._decoder, await read_body(request))
        try:
            text = asked.text.encode()
        except UnicodeEncodeError:
            raise invalid("`text` has half a character", "text") from None
        try:
            body = await self._helper.ask((), text, owner_of(request))
        except Unanswered as error:
            what = f"`text` cannot be rendered: {_GIVEN_UP[error.outcome]}"
            raise invalid(what, "text", "not_rendered") from None
        return web.Response(body=body, content_type="application/json")

    async def close(self) -> None:
        """End the process."""
        await self._helper.close()
