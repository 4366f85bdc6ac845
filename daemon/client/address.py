"""The address of a server, and the text of its refusals."""

import msgspec

from daemon.client.sse import UNREADABLE, error_text


class AddressError(Exception):
    """The text is no server's address; the message says why."""


def base_url(text: str) -> str:
    """A server's address without its last slash or `/v1`. Raises AddressError."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise AddressError(f"{text} is not an HTTP address")
    return url.rstrip("/").removesuffix("/v1")


def refusal_text(body: bytes) -> str:
    """The text of an error answer."""
    try:
        decoded = msgspec.json.decode(body)
    except UNREADABLE:
        return body.decode(errors="replace")
    if isinstance(decoded, dict) and "error" in decoded:
        return error_text(decoded["error"])
    return error_text(decoded)
