"""A request's body, within a time."""

import asyncio

from aiohttp import web

from daemon.api.errors import ApiError, invalid

BODY_TIMEOUT_S = 30.0


async def read_body(request: web.Request, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """The whole body. Raises ApiError 408 and 400, and aiohttp's own 413."""
    try:
        async with asyncio.timeout(timeout_s):
            body = await request.read()
    except TimeoutError:
        raise ApiError(408, "the body did not come in time", code="body_timeout") from None
    if not body:
        raise invalid("the body is empty", code="invalid_json")
    return body
