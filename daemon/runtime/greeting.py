"""Messages for the person who starts a daemon: the room it has, and commands to copy."""

import shlex
import shutil
import sys
from pathlib import Path

from daemon.config.schema import ServerConfig
from daemon.protocol.worker import Ready

PROGRAM, VIEWER = "llmd", "llmd-top"
DEFAULT_URL = f"http://{ServerConfig().host}:{ServerConfig().port}"
"""The address at which `llmd serve` serves and `llmd chat` asks by default."""
_EVERYWHERE = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}
"""The loopback address to use for a server that listens on every address."""


def what_serves(
    name: str,
    ready: Ready,
    *,
    num_tokens: int,
    max_len: int,
    max_running: int,
    num_ranks: int = 1,
) -> str:
    """The room of an instance: how long a conversation, and how many answers at once."""
    pool_bytes = ready.num_blocks * ready.block_bytes
    ranks = f", of {num_ranks} ranks," if num_ranks > 1 else ""
    return (
        f"{name}{ranks} is ready: conversations of up to {max_len:,} tokens, and up to "
        f"{max_running} answers at once; together they have room for {num_tokens:,} tokens "
        f"({_size(pool_bytes)}, beside {_size(ready.weight_bytes)} of weights)"
    )


def how_to_talk(url: str, has_page: bool, socket: str = "") -> list[str]:
    """Commands, and an address for a browser where there is a page. `url` is the base URL; `socket`
    is the control socket where it is not the default one.
    """
    for everywhere, here in _EVERYWHERE.items():
        url = url.replace(everywhere, here)
    chat = [_program(PROGRAM), "chat", *([] if url == DEFAULT_URL else ["--url", url])]
    top = [_program(VIEWER), *(["--socket", socket] if socket else [])]
    return [
        f"talk to it in another terminal: {shlex.join(chat)}",
        *([f"or in a browser: {url}/"] if has_page else []),
        f"watch what it does: {shlex.join(top)}",
    ]


def _program(name: str) -> str:
    """The name if a shell finds it, else the path beside the program that was started."""
    started_by = Path(sys.argv[0])
    if shutil.which(name) is None and started_by.name == PROGRAM:
        return str(started_by.with_name(name))
    return name


def _size(size_bytes: int) -> str:
    mebibytes = size_bytes / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"
