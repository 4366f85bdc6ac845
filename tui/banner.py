"""The banner that says since when no daemon answers; hidden while one does."""

import time

from rich.text import Text
from textual.widgets import Static

from tui.format import duration, printable
from tui.source import Disconnected


class Banner(Static):
    """One line across the screen."""

    def __init__(self) -> None:
        super().__init__(id="banner")
        self.display = False
        self.text = ""

    def update_from(self, lost: Disconnected | None) -> None:
        """Show or hide it; the time it says moves on with each call."""
        text = ""
        if lost is not None:
            seconds = int(time.monotonic() - lost.since_s)
            since = duration(seconds) if seconds >= 10 else f"{seconds} s"
            text = f" ✕ disconnected for {since} · {printable(lost.reason)} · trying again"
        if text != self.text:
            self.text = text
            self.display = bool(text)
            self.update(Text(text, no_wrap=True, overflow="ellipsis"))
