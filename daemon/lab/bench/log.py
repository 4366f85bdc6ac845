"""The log of a real run, from its answers: in the format of simulated runs."""

import numpy as np

from daemon.lab.bench.load import SentLoad
from daemon.lab.report.measures import pauses_seen
from daemon.lab.report.records import Outcome, RequestLog, RunLog
from daemon.lab.workload.workload import Workload


def run_log(sent: SentLoad, workload: Workload, fixed_length: bool) -> RunLog:
    """The log of the requests that left; a run that was ended early has fewer than its workload.

    An arrival is the time at which a request was due, so that a late generator does not hide in
    better latencies. `fixed_length`: answers were asked to be as long as the workload says;
    otherwise a finished answer's own length is the true one. Gaps are between events; a server may
    send fewer events than tokens.
    """
    answers = sent.answers
    count = len(answers)
    log = RequestLog.empty(count)
    log.arrival_s[:] = workload.arrival_s[:count]
    log.slo_class[:] = workload.slo_class[:count]
    log.prompt_tokens[:] = [
        answer.prompt_tokens or asked
        for answer, asked in zip(answers, workload.prompt_tokens, strict=False)
    ]
    log.asked_tokens[:] = workload.output_tokens[:count]
    log.output_tokens[:] = [answer.num_tokens for answer in answers]
    log.outcome[:] = [answer.outcome for answer in answers]
    if not fixed_length:
        own = log.outcome == Outcome.FINISHED
        log.asked_tokens[own] = log.output_tokens[own]
    gaps = []
    for index, answer in enumerate(answers):
        if answer.token_s:
            token_s = np.asarray(answer.token_s) - sent.start_s
            log.first_s[index], log.last_s[index] = token_s[0], token_s[-1]
            gaps.append(np.diff(token_s))
    num_events = [len(answer.token_s) for answer in answers]
    log.gap_s = np.concatenate([*gaps, np.zeros(0)]).astype(np.float32)
    num_gaps = np.maximum(np.array(num_events, np.int32) - 1, 0)
    log.gap_request = np.repeat(np.arange(count, dtype=np.int32), num_gaps)
    paused_s = pauses_seen(log.gap_s, log.gap_request, count)
    log.paused_s = np.where(np.isnan(log.first_s), np.float32(np.nan), paused_s)
    wall_s = sent.end_s - sent.start_s
    first_s = float(log.arrival_s[0]) if count else 0.0
    ended_s = [answer.ended_s for answer in answers if not np.isnan(answer.ended_s)]
    last_s = max(ended_s, default=sent.start_s + first_s) - sent.start_s
    return RunLog(log, instances=[], spans=[], virtual_s=last_s - first_s, wall_s=wall_s)
