"""Default values for help texts, taken from the configuration's schema."""

from daemon import placement
from daemon.config.load import flatten
from daemon.config.schema import Config
from daemon.scheduler.policies import meanings

POLICIES_BELOW = "policies:\n  " + "\n  ".join(meanings())
PLACEMENTS_BELOW = "placements:\n  " + "\n  ".join(placement.meanings().values())
"""Tables for the end of a help text."""

_DEFAULTS = flatten(Config())


def by_default(key: str, otherwise: str = "") -> str:
    """`(default: 8000)` of a dotted key; `otherwise` says what its 0 or empty text stands for."""
    return of_default(_DEFAULTS[key], otherwise)


def of_default(value: object, otherwise: str = "") -> str:
    """`(default: 8000)` of a value."""
    shown = f"{value:g}".replace("e+", "e") if isinstance(value, float) else str(value)
    return f"(default: {otherwise or shown})"
