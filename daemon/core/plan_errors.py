"""How far the answers of an instance differ from what was likely when they were placed."""

import numpy as np

from daemon.placement.rebalance import PlanError
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence


def overrun(table: SlotTable) -> PlanError:
    """By those that run though they were likely to have ended: they are not to be there."""
    order = table.order()
    known = table.known[order]
    late = known > table.likely_end[order]
    return PlanError(int(np.add.reduce(known[late])), int(np.count_nonzero(late)))


def early(ended: list[Sequence]) -> PlanError:
    """By those that have ended before they were likely to: what would have come is not there."""
    lacking = [
        one.predicted_tokens - one.num_output_tokens
        for one in ended
        if one.predicted_tokens > one.num_output_tokens
    ]
    return PlanError(-sum(lacking), -len(lacking))
