"""An incident as a run's log: every time and every count is the journal's."""

from dataclasses import replace

import numpy as np

from daemon.lab.report.records import RequestLog, RunLog, Span
from daemon.lab.simulator.journal import Incident
from daemon.lab.simulator.recorder import step_span, tell_moves


def replayed(incident: Incident, spans: bool = False) -> RunLog:
    """The run as it was; `spans`: with every step and copy, for the trace viewer."""
    streams = list(incident.streams.values())
    first_s = incident.first_s
    log = RequestLog.empty(len(streams))
    log.asked_tokens[:] = incident.lengths()
    gaps, owners = [np.zeros(0)], [np.zeros(0, np.int32)]
    for row, stream in enumerate(streams):
        log.arrival_s[row] = stream.arrival.now - first_s
        log.started_s[row] = stream.started_s - first_s
        log.instance[row] = stream.instance
        log.prompt_tokens[row] = stream.arrival.num_prompt_tokens
        log.output_tokens[row] = len(stream.token_s)
        log.outcome[row] = stream.outcome
        if stream.token_s:
            log.first_s[row] = stream.token_s[0] - first_s
            log.last_s[row] = stream.token_s[-1] - first_s
            gaps.append(np.diff(stream.token_s))
            owners.append(np.full(len(stream.token_s) - 1, row, np.int32))
    log.gap_s = np.concatenate(gaps).astype(np.float32)
    log.gap_request = np.concatenate(owners)
    instances = [
        replace(instance_log, sample_s=[at_s - first_s for at_s in instance_log.sample_s])
        for instance_log in incident.instances
    ]
    tell_moves(log, instances, [stream.sequence for stream in streams])
    last_s = max(streams[-1].arrival.now, *(step.end_s for step in incident.steps), first_s)
    return RunLog(
        log,
        instances,
        _spans(incident) if spans else [],
        last_s - first_s,
        0.0,
        incident.handoffs,
        incident.handoffs_failed,
    )


def _spans(incident: Incident) -> list[Span]:
    """Steps, and copies: a direction's busy time is taken to end with its message."""
    first_s = incident.first_s
    names = [instance.name for instance in incident.config.instances]
    spans = [
        step_span(names[step.instance], step.work, step.start_s - first_s, step.end_s - first_s)
        for step in incident.steps
        if step.work.num_tokens
    ]
    for copied in (swap.copied for swap in incident.swaps):
        for direction, blocks, link_s in (
            ("out", copied.num_out, copied.out_s),
            ("in", copied.num_in, copied.in_s),
        ):
            if blocks:
                track = f"{names[copied.instance]} host link {direction}"
                start_s = copied.now - link_s - first_s
                spans.append(Span(track, f"swap {direction}", start_s, link_s, {"blocks": blocks}))
    return spans
