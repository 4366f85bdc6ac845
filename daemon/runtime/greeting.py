"""How to talk to what is served: lines that a person can copy from."""

import shlex
import shutil
import sys
from pathlib import Path

from daemon.config.schema import ServerConfig

PROGRAM = "llmd"
DEFAULT_URL = f"http://{ServerConfig().host}:{ServerConfig().port}"
"""Where `llmd serve` serves and `llmd chat` asks, unless either is told otherwise."""
_EVERYWHERE = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}
"""Who listens everywhere is asked here under this machine's own address."""


def how_to_talk(url: str, has_page: bool) -> list[str]:
    """A command, and an address for a browser where there is a page; `url` is the base URL."""
    for everywhere, here in _EVERYWHERE.items():
        url = url.replace(everywhere, here)
    words = [_program(), "chat", *([] if url == DEFAULT_URL else ["--url", url])]
    lines = [f"talk to it in another terminal: {shlex.join(words)}"]
    return [*lines, f"or in a browser: {url}/"] if has_page else lines


def _program() -> str:
    """The name that a shell finds, or the path that this one was started by."""
    started_by = sys.argv[0]
    if shutil.which(PROGRAM) is None and Path(started_by).name == PROGRAM:
        return started_by
    return PROGRAM
