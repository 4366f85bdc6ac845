"""The page as one file, made of the files beside this one, and its security headers."""

import base64
import hashlib
import re
from pathlib import Path

from aiohttp import web

PATH = "/"
_FOLDER = Path(__file__).parent
_STYLE = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">')
_SCRIPT = re.compile(r'<script defer src="(\w+\.js)"></script>')


class Page:
    """The page, read once. It is the same for all clients and holds no secret: it needs no key."""

    def __init__(self) -> None:
        text = (_FOLDER / "page.html").read_text(encoding="utf-8")
        styles, scripts = _files(_STYLE, text), _files(_SCRIPT, text)
        text = _STYLE.sub(lambda found: f"<style>{styles[found[1]]}</style>", text)
        text = _SCRIPT.sub("", text)
        # At the end of the body, as with `defer`.
        ends = "".join(f"<script>{script}</script>\n" for script in scripts.values())
        self._body = text.replace("</body>", f"{ends}</body>").encode()
        self._headers = {
            "Content-Security-Policy": _policy([*styles.values()], [*scripts.values()]),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-cache",
        }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        router.add_get(PATH, self.page)

    async def page(self, _request: web.Request) -> web.StreamResponse:
        """`GET /`."""
        return web.Response(
            body=self._body, headers=self._headers, content_type="text/html", charset="utf-8"
        )


def _files(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    """The files that the page names, in its order."""
    return {name: (_FOLDER / name).read_text(encoding="utf-8") for name in pattern.findall(text)}


def _policy(styles: list[str], scripts: list[str]) -> str:
    """A Content-Security-Policy that allows only these scripts and styles, and no other server.

    Trusted types: turning a text into markup throws, in browsers that support them.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(map(_source, scripts)),
        "style-src": " ".join(map(_source, styles)),
        "img-src": "data:",  # its icon
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
