"""The help screen: keys, signs and colours."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.palette import MUTED, STATE_LOOK, TEAL, TEXT, USE_LOOK
from tui.sequences import residency_legend

KEYS = (
    ("q", "quit"),
    ("p", "pause or go on; the daemon is not paused"),
    ("s", "next order of the sequences"),
    ("/", "filter by id, state, instance or place"),
    ("Tab", "next table; arrows and page keys scroll it"),
    ("?", "this help"),
)

MEANINGS = (
    ("step", "smoothed time of one model step"),
    ("seq/tok", "sequences and tokens of the newest batch"),
    ("pre", "how often the sequence gave up its place"),
    ("◧ 3/9", "of its 9 blocks the host has copies of 3"),
    ("pred", "predicted output tokens; ! exceeded already"),
    ("levels", "bars, then level:sequences; 0 is served first"),
    ("link", "share of time it copied, out and in together"),
    ("TTFT", "time to first token, mean of 30 s"),
)


def help_text() -> Text:
    """All of it, aligned."""
    text = Text()
    for key, meaning in KEYS:
        text.append(f"{key:>9}  ", f"bold {TEAL}").append(f"{meaning}\n", TEXT)
    text.append("\n")
    for word, meaning in MEANINGS:
        text.append(f"{word:>9}  ", TEXT).append(f"{meaning}\n", MUTED)
    text.append("\n   states  ", TEXT)
    states = list(STATE_LOOK.items())
    for state, (sign, colour) in states[:4]:
        text.append(f"{sign} {state}  ", colour)
    text.append("\n           ")
    for state, (sign, colour) in states[4:]:
        text.append(f"{sign} {state}  ", colour)
    text.append("\n   blocks  ", TEXT)
    for name, colour in USE_LOOK.values():
        text.append("■ ", colour).append(f"{name}  ", MUTED)
    return text.append("\n    KV at", TEXT).append(residency_legend())


class HelpScreen(ModalScreen[None]):
    """Closed by any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "close")
    ]

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        box = Static(help_text(), id="help")
        box.border_title = "llmd-top"
        box.border_subtitle = "Esc closes"
        yield box
