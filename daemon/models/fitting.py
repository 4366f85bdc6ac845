"""Asks a child process whether a folder's weights are those that its configuration asks for.

The child makes the model without memory and goes by the files' headers alone, so it takes seconds
whatever the model's size. Loading would find the same, and takes longer. A good result is kept
under the content of the files read.
"""

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from daemon.base.files import write_whole
from daemon.models.gguf_index import read_index
from daemon.models.shape import ModelError
from daemon.models.weights import weight_headers

_VERSION = 2
"""Part of the kept result's key: raise it when more is checked."""
_CONFIGS = ("config.json", "quant_config.json", "quantize_config.json", "hf_quant_config.json")
_LIMIT_S = 300.0

AskFit = Callable[[Path], None]
"""Raises ModelError where a folder's weights do not fit."""


def check_fit(folder: Path, cache: Path, ask: AskFit) -> None:
    """Raise ModelError unless the weights of `folder` are those that its configuration asks for.

    What llmd made itself of a GGUF file or by rounding was made for its configuration.
    """
    if read_index(folder) is not None:
        return
    kept = cache / "configurations" / f"{_key(folder)}-fits"
    if kept.exists():
        return
    ask(folder)
    with contextlib.suppress(OSError):  # where nothing can be kept the next one asks again
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, b"")


def ask_fit(folder: Path) -> None:
    """Have a process of its own look; blocks for some seconds. Raises ModelError."""
    command = [sys.executable, "-m", "daemon.engine.loading.fits", str(folder)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{folder}: its weights were not looked at in {_LIMIT_S:g} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ModelError(last[0] if last else f"{folder}: exit status {done.returncode}")


def _key(folder: Path) -> str:
    """A key of the files that are read and of the code that reads them. Raises ModelError."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{_VERSION}:{version('transformers')}".encode())
    for name in _CONFIGS:
        with contextlib.suppress(FileNotFoundError):
            digest.update(f":{name}:".encode() + (folder / name).read_bytes())
    for name, header in sorted(weight_headers(folder).items()):
        digest.update(f"{name}:{header}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()
