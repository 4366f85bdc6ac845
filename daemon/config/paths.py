"""Default folders of llmd's files."""

import os
import re
from pathlib import Path

_UNFIT = re.compile(r"[^\w.-]")
"""Characters of a model's name that are replaced in a file's name."""


def _systemd_folder(variable: str) -> Path | None:
    """The first folder that systemd names in `variable` (it may list several), or None."""
    first = os.environ.get(variable, "").split(":")[0]
    return Path(first) if first else None


def default_socket() -> Path:
    """The control socket: in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR or /tmp/llmd-UID."""
    folder = _systemd_folder("RUNTIME_DIRECTORY") or _systemd_folder("XDG_RUNTIME_DIR")
    return (folder or Path(f"/tmp/llmd-{os.getuid()}")) / "llmd.sock"


def default_cache() -> Path:
    """The cache folder: $CACHE_DIRECTORY, $XDG_CACHE_HOME/llmd or ~/.cache/llmd."""
    if folder := _systemd_folder("CACHE_DIRECTORY"):
        return folder
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "llmd"
    return Path.home() / ".cache" / "llmd"


def cache_of(said: str) -> Path:
    """The cache folder that is `said`; empty: the default one."""
    return Path(said) if said else default_cache()


def default_journal() -> Path:
    """The journal's folder: below $STATE_DIRECTORY or the cache folder."""
    return (_systemd_folder("STATE_DIRECTORY") or default_cache()) / "journal"


def default_predictions(model: str) -> Path:
    """The file of learned answer lengths: below $STATE_DIRECTORY or the cache folder."""
    folder = (_systemd_folder("STATE_DIRECTORY") or default_cache()) / "predict"
    return folder / f"{_UNFIT.sub('_', model)}.lengths"
