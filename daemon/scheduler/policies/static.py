"""Static batching (FasterTransformer): a batch forms, runs until its last answer is done."""

from daemon.scheduler.policies.base import LIMIT, PROMPTS_ALONE, Policy


class Static(Policy):
    """Run to completion: finished sequences leave, none joins until all have left."""

    name = "static"
    meaning = "a batch runs until its last answer is done; none joins it"
    filler = PROMPTS_ALONE
    whole_prompts = True
    reserves = LIMIT
    gang = True
    batch_tokens = 2560
