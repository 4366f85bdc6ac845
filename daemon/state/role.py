"""The role of an instance: what of a request it computes."""

from enum import StrEnum


class Role(StrEnum):
    """What of a request an instance computes; its value is what files and flags write."""

    MIXED = "mixed"  # prompts and answers
    PREFILL = "prefill"  # prompts, whose KV it hands over
    DECODE = "decode"  # answers to prompts that others computed


AUTO = "auto"
ROLES_MODES = (AUTO, Role.MIXED.value)
"""Who gives instances their roles: the watcher; or nobody, so that they stay as configured."""
