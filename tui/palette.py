"""The dashboard's colours and signs: a state is a sign and a word, never a colour alone."""

from collections.abc import Mapping

from rich.text import Text
from textual.color import Color, ColorParseError
from textual.theme import Theme

from daemon.protocol.control import BlockUse
from tui.format import BAR_EMPTY

BACKGROUND = "#10141a"
PANEL = "#161b23"
LINE = "#2d3644"
TEXT = "#c6d0de"
MUTED = "#74839a"
TEAL = "#5ec4b6"

THEME = Theme(
    name="llmd",
    primary=TEAL,
    secondary="#67a9f0",
    accent="#b79df2",
    warning="#e5b567",
    error="#ef6f78",
    success="#8ccf7e",
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
        "scrollbar": LINE,
        "scrollbar-hover": MUTED,
        "scrollbar-active": TEAL,
        "scrollbar-background": BACKGROUND,
        "scrollbar-background-hover": BACKGROUND,
        "scrollbar-background-active": BACKGROUND,
        "scrollbar-corner-color": BACKGROUND,
        "ink-line": LINE,
        "ink-cursor": "#24303f",
        "ink-muted": MUTED,
        "ink-faint": "#3d4858",
        "ink-cached": "#40609c",
        "ink-free": "#262e3a",
    },
)

_OF_THEME = {
    "main": "primary",
    "info": "secondary",
    "extra": "accent",
    "warn": "warning",
    "bad": "error",
    "good": "success",
    "text": "foreground",
    "background": "background",
    "panel": "panel",
}
_MIXED = {  # name: (share, of what); used where the theme has none
    "line": (0.25, "text"),
    "cursor": (0.18, "text"),
    "muted": (0.6, "text"),
    "faint": (0.3, "text"),
    "cached": (0.5, "info"),
    "free": (0.15, "text"),
}


class Ink:
    """The colours in use, by meaning; hex, or a name that terminals know."""

    def __init__(self) -> None:
        self.main = self.info = self.extra = ""
        self.warn = self.bad = self.good = ""
        self.text = self.background = self.panel = ""
        self.line = self.cursor = self.muted = self.faint = ""
        self.cached = self.free = ""
        self.focus = ""
        system = THEME.to_color_system().generate()
        self.wear({**system, **THEME.variables})

    def wear(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Take the colours of a theme's CSS variables; return those that the layout adds."""
        for name, source in _OF_THEME.items():
            setattr(self, name, _hex(variables[source]))
        for name, (share, of) in _MIXED.items():
            mixed = blend(getattr(self, of), share, self.background)
            setattr(self, name, variables.get(f"ink-{name}", mixed))
        self.focus = blend(self.main, 0.6, self.background)
        named = ("line", "cursor", "muted", "focus")
        return {f"ink-{name}": getattr(self, name) for name in named}


def _hex(colour: str) -> str:
    """A theme's colour in rich's form."""
    if colour.startswith("ansi_"):
        return colour.removeprefix("ansi_")
    try:
        return Color.parse(colour).hex6
    except ColorParseError:
        return colour


def blend(colour: str, share: float, background: str = "") -> str:
    """`colour` mixed with the background; a share of 1 is the colour itself."""
    below = background or ink.background
    if not (colour.startswith("#") and below.startswith("#")):
        return colour
    parts = [(int(colour[i : i + 2], 16), int(below[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in parts)


STATE_LOOK = {
    "decode": ("●", "good"),
    "prefill": ("◐", "info"),
    "waiting": ("○", "muted"),
    "preempted": ("↺", "warn"),
    "ready": ("●", "good"),
    "asleep": ("○", "muted"),
    "loading": ("◐", "info"),
    "draining": ("◑", "warn"),
    "stopped": ("◌", "bad"),
    "lost": ("✕", "bad"),
    "given up": ("✕", "bad"),
}

RESIDENCY_LOOK = {
    "device": ("■", "main"),
    "host": ("□", "extra"),
    "both": ("◧", "info"),
    "moving": ("⇄", "warn"),
    "elsewhere": ("◇", "extra"),
}

ROLE_LOOK = {"mixed": "main", "prefill": "info", "decode": "good"}

USE_LOOK = {  # name, colour, and the character where there are no colours
    BlockUse.HELD: ("held", "main", "█"),
    BlockUse.FENCED: ("fenced", "warn", "▓"),
    BlockUse.CACHED: ("cached", "cached", "▒"),
    BlockUse.FREE: ("free", "free", "·"),
}

KIND_LOOK = {  # of held blocks whose layers are of one kind: the same
    "full": ("main", "█"),
    "window": ("info", "▙"),
    "latent": ("good", "▚"),
    "state": ("text", "▛"),
}
_OTHER_KIND = ("muted", "▟")
_LOOKS = [
    *((colour, sign) for _, (_, colour, sign) in sorted(USE_LOOK.items())),
    *KIND_LOOK.values(),
    _OTHER_KIND,
]


def look_of(kind: str) -> int:
    """The look of held blocks of a kind of layers; below it are those of uses."""
    kinds = list(KIND_LOOK)
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return len(USE_LOOK) + place


def block_colour(look: int) -> str:
    """The colour of blocks by their use, or their kind."""
    return str(getattr(ink, _LOOKS[look][0]))


def block_sign(look: int) -> str:
    """Their character where there are no colours."""
    return _LOOKS[look][1]


def residency_look(residency: str) -> tuple[str, str]:
    """The sign and colour of the place of a sequence's blocks."""
    sign, name = RESIDENCY_LOOK.get(residency, ("?", "muted"))
    return sign, getattr(ink, name)


def state_look(state: str) -> tuple[str, str]:
    """The sign and colour of a sequence's or instance's state."""
    sign, name = STATE_LOOK.get(state, ("?", "extra"))
    return sign, getattr(ink, name)


def role_colour(role: str) -> str:
    """The colour of an instance's role."""
    return str(getattr(ink, ROLE_LOOK.get(role, "text")))


def drawn(text: str, style: str) -> Text:
    """One line in one style, except that the empty part of a bar in it is faint."""
    line = Text(text, style, no_wrap=True, end="")
    start = text.find(BAR_EMPTY)
    if start >= 0:
        line.stylize(ink.faint, start, text.rfind(BAR_EMPTY) + 1)
    return line


ink = Ink()
"""The one set of colours of this process; `LlmdTop` sets it to the chosen theme."""
