"""EcoServe: prompts and answers wait in queues of their own, and answers get exactly their room.

`synced-d`, `synced-sd` and `synced-sdo` are its ablations.
"""

from daemon.scheduler.policies.base import DECOUPLED, GROUPED, PREDICTION, Policy


class SyncedD(Policy):
    """Two queues, first come first served, and room for what an answer is predicted to take."""

    name = "synced-d"
    meaning = "arrival order; an answer begins when its predicted length has room"
    filler = DECOUPLED
    reserves = PREDICTION


class SyncedSd(SyncedD):
    """Answers that are predicted to be of the same length begin together."""

    name = "synced-sd"
    meaning = "the same; answers of the same predicted length begin together"
    filler = GROUPED
