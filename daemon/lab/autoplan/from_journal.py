"""The requests of a journal as a self-driver sees them."""

import numpy as np

from daemon.lab.autoplan.search import SeenRequests
from daemon.lab.report.records import Outcome
from daemon.lab.simulator.journal import Incident, JournalStream
from daemon.lab.workload.traces import MOONCAKE_BLOCK
from daemon.memory.hashing import split_hashes
from daemon.state.slo import Slo


def seen_in(incident: Incident, slo: Slo, now: float) -> SeenRequests:
    """A journal's requests until now. One that waits longer than its TTFT has ended as far as its
    SLOs are concerned.
    """
    streams = [each for each in incident.streams.values() if each.arrival.now <= now]
    per_id = max(1, MOONCAKE_BLOCK // incident.config.block_size)
    ids: dict[bytes, int] = {}
    hashes = [split_hashes(each.arrival.hashes)[per_id - 1 :: per_id] for each in streams]
    over = [each.outcome is not Outcome.UNFINISHED for each in streams]
    ended = [over or _is_late(each, slo, now) for over, each in zip(over, streams, strict=True)]
    return SeenRequests(
        np.array([each.arrival.now for each in streams], np.float64),
        np.array([each.arrival.num_prompt_tokens for each in streams], np.int32),
        np.array([len(each.token_s) for each in streams], np.int32),
        np.array(ended, np.bool_),
        np.array([_is_kept(each, slo) for each in streams], np.bool_),
        np.array(over, np.bool_),
        np.array([_stay_s(each, now) for each in streams], np.float64),
        [tuple(ids.setdefault(key, len(ids)) for key in row) for row in hashes],
    )


def _stay_s(stream: JournalStream, now: float) -> float:
    """The time from a request's arrival to its last token, or until now."""
    if stream.outcome is Outcome.UNFINISHED:
        return now - stream.arrival.now
    return stream.token_s[-1] - stream.arrival.now if stream.token_s else 0.0


def _is_late(stream: JournalStream, slo: Slo, now: float) -> bool:
    return not stream.token_s and now - stream.arrival.now > slo.ttft_s


def _is_kept(stream: JournalStream, slo: Slo) -> bool:
    """Whether an answer ended and kept both SLOs."""
    times = stream.token_s
    if stream.outcome is not Outcome.FINISHED or not times:
        return False
    if times[0] - stream.arrival.now > slo.ttft_s:
        return False
    return len(times) < 2 or times[-1] - times[0] <= slo.tpot_s * (len(times) - 1)
