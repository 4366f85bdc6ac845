"""Sarathi: every decode in every step, the rest of the budget for chunks of prompts.

Published, it computes its victims again: that is `memory.swap = "recompute"`.
"""

from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy


class Sarathi(Policy):
    """Stall-free mixing, first come first served."""

    name = "sarathi"
    meaning = "arrival order; decodes in every step, prompts in chunks beside"
    swap = PROACTIVE
