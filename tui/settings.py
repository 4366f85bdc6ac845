"""The settings that llmd-top keeps: the chosen theme.

They are in $XDG_CONFIG_HOME/llmd/top.json (~/.config by default). A file that cannot be read or
written only loses the settings.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from daemon.base.files import write_whole


class KeptSettings(msgspec.Struct, frozen=True):
    """The choices; unknown fields of newer versions are ignored."""

    theme: str = ""


def default_place() -> Path:
    """The path of this user's settings."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "llmd" / "top.json"


def read_settings(place: Path) -> KeptSettings:
    """The settings there; defaults where the file is missing or unusable."""
    try:
        return msgspec.json.decode(place.read_bytes(), type=KeptSettings)
    except (OSError, msgspec.MsgspecError):
        return KeptSettings()


def keep_settings(place: Path, settings: KeptSettings) -> None:
    """Write the settings whole, or not at all."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, msgspec.json.encode(settings))
