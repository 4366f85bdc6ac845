"""The role of an instance: the part of a request that it computes."""

from enum import StrEnum


class Role(StrEnum):
    """The part of a request that an instance computes; files and flags write its value."""

    MIXED = "mixed"  # prompts and answers
    PREFILL = "prefill"  # prompts, whose KV it hands over
    DECODE = "decode"  # answers to prompts that others computed


AUTO = "auto"
LOW_LOAD, IDLE = "low_load", "idle"
TRANSITIONS = (LOW_LOAD, IDLE)
"""TetriInfer's rules: prefill and decode instances of little load, or idle ones, change roles."""
WATCHED = (AUTO, *TRANSITIONS)
"""Ways in which the watcher sets roles: by forecasts of the load, or by such a rule."""
ROLES_MODES = (*WATCHED, Role.MIXED.value)
"""All ways: the watcher sets them, or they stay as configured."""
