"""The role of an instance: the part of a request that it computes."""

from enum import StrEnum


class Role(StrEnum):
    """The part of a request that an instance computes; files and flags write its value."""

    MIXED = "mixed"  # prompts and answers
    PREFILL = "prefill"  # prompts, whose KV it hands over
    DECODE = "decode"  # answers to prompts that others computed


AUTO = "auto"
ROLES_MODES = (AUTO, Role.MIXED.value)
"""Ways to set roles: the watcher sets them, or they stay as configured."""
