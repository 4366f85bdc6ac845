"""What llmd-top remembers from one time to the next: the theme that was chosen.

It lies in $XDG_CONFIG_HOME/llmd/top.json (~/.config by default). A file that cannot be read or
written costs the memory and nothing else.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from daemon.base.files import write_whole


class KeptSettings(msgspec.Struct, frozen=True):
    """The choices; unknown fields of newer versions are passed over."""

    theme: str = ""


def default_place() -> Path:
    """Where the choices of this user lie."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "llmd" / "top.json"


def read_settings(place: Path) -> KeptSettings:
    """The choices kept there; none where there is no such file, or no sense in it."""
    try:
        return msgspec.json.decode(place.read_bytes(), type=KeptSettings)
    except (OSError, msgspec.MsgspecError):
        return KeptSettings()


def keep_settings(place: Path, settings: KeptSettings) -> None:
    """Write the choices down whole, or not at all."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, msgspec.json.encode(settings))
