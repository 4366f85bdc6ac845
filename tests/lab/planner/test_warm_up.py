"""The first requests and their gaps leave a log, and nothing else does."""

import numpy as np

from daemon.lab.planner.goal import warmed_up, without_first
from daemon.lab.report.records import InstanceLog, RequestLog, RunLog


def _log() -> RequestLog:
    log = RequestLog.empty(4)
    log.arrival_s[:] = [0, 1, 2, 3]
    log.output_tokens[:] = [2, 3, 1, 2]
    log.slo_class[:] = [0, 1, 0, 1]
    log.gap_s = np.asarray([0.5, 0.25, 2, 4], np.float32)
    log.gap_request = np.asarray([1, 0, 3, 1], np.int32)
    return log


def test_rows_and_gaps_of_the_rest_are_kept() -> None:
    rest = without_first(_log(), 1)
    assert rest.arrival_s.tolist() == [1, 2, 3]
    assert rest.output_tokens.tolist() == [3, 1, 2]
    assert rest.gap_s.tolist() == [0.5, 2, 4]
    assert rest.gap_request.tolist() == [0, 2, 0]


def test_no_warm_up_keeps_all_and_a_whole_one_nothing() -> None:
    log = _log()
    same, empty = without_first(log, 0), without_first(log, 4)
    for name in RequestLog.__slots__:
        np.testing.assert_array_equal(getattr(same, name), getattr(log, name))
    assert len(empty) == 0
    assert empty.gap_s.size == 0


def test_the_run_itself_is_left_as_it_was() -> None:
    run = RunLog(_log(), [InstanceLog("a")], [], virtual_s=9.0, wall_s=1.0)
    rest = warmed_up(run, 2)
    assert (len(rest.requests), rest.virtual_s) == (2, 9.0)
    assert (len(run.requests), len(run.instances)) == (4, 1)
