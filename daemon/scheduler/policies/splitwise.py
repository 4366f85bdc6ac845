"""Splitwise's mixed instance (section 4.2): prompts first, decodes beside them, ageing."""

from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import PROMPTS_FIRST, Policy


class Splitwise(Policy):
    """First come first served; whole prompts have the budget before decodes that can wait."""

    name = "splitwise"
    meaning = "arrival order; whole prompts first, a decode waits a few steps"
    swap = PROACTIVE
    filler = PROMPTS_FIRST
    whole_prompts = True
    batch_tokens = 2048
