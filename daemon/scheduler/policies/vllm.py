"""vLLM as first published: first come first served, whole prompts before any decode."""

from daemon.scheduler.policies.base import Policy


class Vllm(Policy):
    """Prompts first, alone in their step; decodes stall meanwhile."""

    name = "vllm"
    meaning = "arrival order; whole prompts first, while decodes wait"
    prefill_alone = True
    whole_prompts = True
    batch_tokens = 2560
