"""What goes wrong with profiles, and how an unknown name is answered."""

from collections.abc import Collection
from difflib import get_close_matches


class ProfileError(ValueError):
    """A profile or a table cannot be used; the message names the file and the fault."""


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """A sentence for a name that is not among `known`: the nearest ones, or all of them."""
    near = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    if near:
        return f"no {kind} is called {name!r}; the nearest are {', '.join(near)}"
    return f"no {kind} is called {name!r}; known are {', '.join(sorted(known))}"
