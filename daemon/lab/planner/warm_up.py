"""A run without its warm-up: the first requests, which met an emptier machine, do not count."""

from dataclasses import fields

from daemon.lab.report.records import RequestLog, RunLog

_GAPS = ("gap_s", "gap_request")


def without_first(requests: RequestLog, count: int) -> RequestLog:
    """The rows of all but the first `count` requests, [N - count], and their gaps alone."""
    kept = requests.gap_request >= count
    columns = {
        each.name: getattr(requests, each.name)[count:]
        for each in fields(RequestLog)
        if each.name not in _GAPS
    }
    return RequestLog(
        **columns,
        gap_s=requests.gap_s[kept],
        gap_request=requests.gap_request[kept] - count,
    )


def warmed_up(run: RunLog, count: int) -> RunLog:
    """The run's requests after the first `count`; its instances, which span both, are left out."""
    rest = without_first(run.requests, count)
    return RunLog(rest, [], [], virtual_s=run.virtual_s, wall_s=run.wall_s)
