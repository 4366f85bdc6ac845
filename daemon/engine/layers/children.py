"""The names of a module's children, by which its kind is told."""

from typing import Any


def child_names(module: Any) -> set[str]:
    """The names of the modules that one has directly below it."""
    return {name for name, _child in module.named_children()}
