"""Orca: whole prompts mixed with decodes, memory reserved for the longest possible answer."""

from daemon.scheduler.policies.base import LIMIT, Policy


class Orca(Policy):
    """Iteration-level batching with max allocation."""

    name = "orca"
    meaning = "arrival order, prompts whole; room for the longest answer is kept"
    whole_prompts = True
    reserves = LIMIT
    batch_tokens = 2560
