"""The base of screens that follow the news: a header, a banner, a body, the keys."""

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from daemon.protocol.control import Closer
from tui.format import duration, printable
from tui.header import Header, Sign
from tui.source import Disconnected
from tui.watched import Watched


class Banner(Static):
    """One line across the screen."""

    def __init__(self) -> None:
        super().__init__(id="banner")
        self.display = False
        self.text = ""

    def update_from(self, lost: Disconnected | None) -> None:
        """Show or hide the banner; its duration advances with each call."""
        text = ""
        if lost is not None:
            seconds = int(time.monotonic() - lost.since_s)
            since = duration(seconds) if seconds >= 10 else f"{seconds} s"
            text = f" ✕ disconnected for {since} · {printable(lost.reason)} · trying again"
        if text != self.text:
            self.text = text
            self.display = bool(text)
            self.update(Text(text, no_wrap=True, overflow="ellipsis"))


class LiveScreen(Screen[None]):
    """Shows a `Watched` on demand; a subclass fills the body."""

    class Opened(Message):
        """The screen has come to the front, and should be shown at once."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.back", "back")]

    def __init__(self) -> None:
        super().__init__()
        self.header = Header()
        self.banner = Banner()
        self.body = Container(id="body")
        self._shown_version = -1

    def parts(self) -> Iterable[Widget]:
        """The widgets of the body."""
        raise NotImplementedError

    def below(self) -> Iterable[Widget]:
        """Widgets between the body and the keys."""
        return ()

    def show(self, watched: Watched) -> None:
        """Bring the body up to date."""
        raise NotImplementedError

    def questions(self, watched: Watched) -> list[Closer]:
        """The questions, beyond the snapshots, for the next picture."""
        del watched
        return []

    def chosen_instance(self) -> int | None:
        """The index of the instance for this screen's keys, if there is one."""
        return None

    def chosen_sequence(self) -> int | None:
        """The sequence for this screen's keys, if there is one."""
        return None

    def compose(self) -> ComposeResult:
        """Header, banner, body, and the keys below."""
        yield self.header
        yield self.banner
        with self.body:
            yield from self.parts()
        yield from self.below()
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Announce the screen."""
        self.post_message(self.Opened())

    def update_from(self, watched: Watched, signs: tuple[Sign, ...]) -> None:
        """Show the changes since the last call."""
        if not self.body.is_attached:
            return
        self.banner.update_from(watched.lost)
        self.header.mark(connected=watched.lost is None, signs=signs)
        self.body.set_class(watched.lost is not None, "-stale")
        if watched.version == self._shown_version or watched.snapshot is None:
            return
        self._shown_version = watched.version
        with self.app.batch_update():
            self.header.update_from(watched.snapshot, watched.history.now())
            self.show(watched)

    def repaint(self) -> None:
        """Repaint everything in other colours."""
        self._shown_version = -1
        for widget in self.query("*"):
            widget.notify_style_update()
            widget.refresh()
