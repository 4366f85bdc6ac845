"""The help screen: keys, signs and colours."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.palette import STATE_LOOK, USE_LOOK, block_colour, ink, state_look
from tui.sequences import residency_legend

KEYS = (
    ("Enter", "open the sequence or instance at the cursor; Esc: back"),
    ("i  t", "instances as cards, transfers; tree, space folds"),
    ("k", "map of the KV blocks and their owners; n: next instance"),
    ("s  /", "next order of sequences; filter by id, state, place, key"),
    ("Tab", "next table; arrows and page keys move in it"),
    ("Ctrl+P", "all commands, themes too"),
)
LIVE_KEYS = (
    ("p  q", "pause the picture, not the daemon; quit"),
    ("o r d m", "policy; flip or drain an instance; move a sequence"),
)
REPLAY_KEYS = (
    ("p  q", "stop the time, or let it go on; quit"),
    (",. <> -+", "10 s back or on; a minute; slower or faster"),
)

STATES_A_LINE = 5
MEANINGS = (
    ("step", "its smoothed time; seq/tok: what the newest batch held"),
    ("pre", "how often the sequence gave up its place"),
    ("◧ 3/9", "of its 9 blocks the host has copies of 3"),
    ("pred", "predicted output tokens; ! exceeded already"),
    ("ready ▼", "torch replaces GPU kernels, slower"),
    ("levels", "bars, then level:sequences; 0 is served first"),
    ("link", "share of time it copied, out and in together"),
    ("TTFT", "time to first token; it, TPOT and pause: means of 30 s"),
)


def help_text(*, replay: bool = False) -> Text:
    """The whole text, aligned."""
    text = Text()
    for key, meaning in KEYS + (REPLAY_KEYS if replay else LIVE_KEYS):
        text.append(f"{key:>9}  ", f"bold {ink.main}").append(f"{meaning}\n", ink.text)
    text.append("\n")
    for word, meaning in MEANINGS:
        text.append(f"{word:>9}  ", ink.text).append(f"{meaning}\n", ink.muted)
    text.append("\n   states  ", ink.text)
    for place, state in enumerate(STATE_LOOK):
        sign, colour = state_look(state)
        text.append("\n           " if place == STATES_A_LINE else "").append(
            f"{sign} {state}  ", colour
        )
    text.append("\n   blocks  ", ink.text)
    for use, (name, *_) in USE_LOOK.items():
        text.append("■ ", block_colour(use)).append(f"{name}  ", ink.muted)
    return text.append("\n    KV at", ink.text).append(residency_legend())


class HelpScreen(ModalScreen[None]):
    """A box closed by any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "close")
    ]

    def __init__(self, *, replay: bool) -> None:
        super().__init__()
        self._replay = replay

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        box = Static(help_text(replay=self._replay), id="help")
        box.border_title = "llmd-top"
        box.border_subtitle = "Esc closes"
        yield box
