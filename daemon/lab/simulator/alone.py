"""What answers take alone, by the times that workers report: SLO scales are multiples of it."""

from collections.abc import Sequence

import numpy as np

from daemon.cost.step_time import StepTimeModel
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.worker import Worker


def note_alone(log: RequestLog, workers: Sequence[Worker]) -> None:
    """Note it for every answer, where it began: of its true length, the same for all policies."""
    models = [StepTimeModel(one.warm_step_s(), one.warm_token_s()) for one in workers]
    rows = log.instance.tolist(), log.prompt_tokens.tolist(), log.asked_tokens.tolist()
    log.alone_s = np.array(
        [
            (models[instance].alone_s(num_prompt, num_output) if instance >= 0 else 0.0) or np.nan
            for instance, num_prompt, num_output in zip(*rows, strict=True)
        ],
        np.float64,
    )
