"""The dashboard's colours and signs: a state is a sign and a word, never colour alone."""

from rich.text import Text
from textual.theme import Theme

from daemon.control.protocol import BlockUse
from tui.format import BAR_EMPTY

BACKGROUND = "#10141a"
PANEL = "#161b23"
LINE = "#2d3644"
TEXT = "#c6d0de"
MUTED = "#74839a"
FAINT = "#3d4858"
TEAL = "#5ec4b6"
GREEN = "#8ccf7e"
BLUE = "#67a9f0"
AMBER = "#e5b567"
RED = "#ef6f78"
VIOLET = "#b79df2"

STATE_LOOK = {
    "decode": ("●", GREEN),
    "prefill": ("◐", BLUE),
    "waiting": ("○", MUTED),
    "preempted": ("↺", AMBER),
    "ready": ("●", GREEN),
    "loading": ("◐", BLUE),
    "draining": ("◑", AMBER),
    "lost": ("✕", RED),
}

RESIDENCY_LOOK = {
    "gpu": ("■", TEAL),
    "host": ("□", VIOLET),
    "both": ("◧", BLUE),
    "moving": ("⇄", AMBER),
}

ROLE_COLOUR = {"mixed": TEAL, "prefill": BLUE, "decode": GREEN}

USE_LOOK = {
    BlockUse.HELD: ("held", TEAL),
    BlockUse.FENCED: ("fenced", AMBER),
    BlockUse.CACHED: ("cached", "#40609c"),
    BlockUse.FREE: ("free", "#262e3a"),
}

THEME = Theme(
    name="llmd",
    primary=TEAL,
    secondary=BLUE,
    accent=VIOLET,
    warning=AMBER,
    error=RED,
    success=GREEN,
    foreground=TEXT,
    background=BACKGROUND,
    surface=BACKGROUND,
    panel=PANEL,
    dark=True,
    variables={
        "border": LINE,
        "border-blurred": LINE,
        "footer-background": PANEL,
        "footer-key-foreground": TEAL,
        "footer-description-foreground": MUTED,
        "block-cursor-background": "#24303f",
        "block-cursor-foreground": TEXT,
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": BACKGROUND,
        "scrollbar": LINE,
        "scrollbar-hover": MUTED,
        "scrollbar-active": TEAL,
        "scrollbar-background": BACKGROUND,
        "scrollbar-background-hover": BACKGROUND,
        "scrollbar-background-active": BACKGROUND,
        "scrollbar-corner-color": BACKGROUND,
    },
)


def blend(colour: str, share: float) -> str:
    """`colour` mixed with the background; a share of 1 is the colour itself."""
    parts = [(int(colour[i : i + 2], 16), int(BACKGROUND[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in parts)


def drawn(text: str, style: str) -> Text:
    """One line in one style, but the empty part of a bar in it is faint."""
    line = Text(text, style, no_wrap=True, end="")
    start = text.find(BAR_EMPTY)
    if start >= 0:
        line.stylize(FAINT, start, text.rfind(BAR_EMPTY) + 1)
    return line


def residency_look(residency: str) -> tuple[str, str]:
    """The sign and colour of the place where a sequence's blocks are."""
    return RESIDENCY_LOOK.get(residency, ("?", MUTED))


def state_look(state: str) -> tuple[str, str]:
    """The sign and colour of a sequence's or instance's state."""
    return STATE_LOOK.get(state, ("?", VIOLET))
