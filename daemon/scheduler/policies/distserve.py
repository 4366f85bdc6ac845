"""DistServe's prefill instance (section 4.3): batches of whole prompts near what fills the device.

L_m, the shortest length that saturates the device, is its worker's target forward size. Prompts
that are shorter go together up to it; a longer one goes alone, whole.
"""

from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import PROMPTS_ALONE, Policy


class DistServe(Policy):
    """First come first served; prompts alone in their step, near the size of the device."""

    name = "distserve"
    meaning = "arrival order; whole prompts that fill the device, longer alone"
    swap = PROACTIVE
    filler = PROMPTS_ALONE
    whole_prompts = True
    fills_device = True
    batch_tokens = 2560
