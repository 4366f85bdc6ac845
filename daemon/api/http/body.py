"""Reading a request's body, within limits of size and time."""

import asyncio

from aiohttp import web

from daemon.api.replies.errors import ApiError, invalid

BODY_TIMEOUT_S = web.AppKey("body_timeout_s", float)


async def read_body(request: web.Request) -> bytes:
    """Read the whole body. Raises ApiError 400, 408, 413 and 415, and aiohttp's own 413.

    A body whose declared length is too large is not read. A compressed one is refused: a few
    kilobytes could be gigabytes.
    """
    length = request.content_length
    if length is not None and length > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, length)
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        message = "compressed bodies are not taken: send it without `Content-Encoding`"
        raise ApiError(415, message, code="unsupported_encoding")
    try:
        async with asyncio.timeout(request.app[BODY_TIMEOUT_S]):
            body = await request.read()
    except TimeoutError:
        raise ApiError(408, "the body did not come in time", code="body_timeout") from None
    if not body:
        raise invalid("the body is empty", code="invalid_json")
    return body
