"""vLLM as first published: first come first served, whole prompts before any decode.

Published, it computes its victims again: that is `memory.swap = "recompute"`.
"""

from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import PROMPTS_ALONE, Policy


class Vllm(Policy):
    """Prompts first, alone in their step; decodes stall meanwhile."""

    name = "vllm"
    meaning = "arrival order; whole prompts first, while decodes wait"
    swap = PROACTIVE
    filler = PROMPTS_ALONE
    whole_prompts = True
    batch_tokens = 2560
