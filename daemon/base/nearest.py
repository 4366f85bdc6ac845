"""Unknown names: a sentence for each, with the name that was probably meant."""

from collections.abc import Collection
from difflib import get_close_matches

_LONGEST = 80  # letters of a name that are compared and shown


def did_you_mean(name: str, known: Collection[str], most: int = 1) -> str:
    """`; did you mean 'sarathi'?`, to be put after a sentence; empty if no name is near."""
    longer = [word for word in sorted(known) if name and word.startswith(f"{name[:_LONGEST]}-")]
    near = longer[:most] or get_close_matches(name[:_LONGEST], sorted(known), n=most)
    if not near:
        return ""
    *others, last = map(repr, near)
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def not_one_of(value: object, known: Collection[str]) -> str:
    """A sentence for a value that is not among the few in `known`."""
    meant = did_you_mean(value, known) if isinstance(value, str) else ""
    return f"must be one of {', '.join(known)}, got {value!r}{meant}"


def unknown(kind: str, name: str, known: Collection[str], most: int = 1) -> str:
    """A sentence for a name that is not among `known`, with the nearest ones, or all of them."""
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    every = ", ".join(sorted(known))
    return f"unknown {kind} {shown!r}" + (did_you_mean(name, known, most) or f"; known are {every}")
