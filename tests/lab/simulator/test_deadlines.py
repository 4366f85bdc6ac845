"""Deadlines in the simulator: a scale of the time alone, as the report and the Core count it."""

from dataclasses import replace

import numpy as np

from daemon.core.core import Core
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, run
from daemon.lab.workload.workload import SloClass
from tests.lab.simulator.made import phases, prepared, profile, workload

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))


def test_a_class_has_its_scale_of_the_time_alone() -> None:
    """One at a time takes about what it takes alone."""
    made = workload([0.0, 60.0, 120.0, 180.0], [40] * 4, [30] * 4)
    classes = SloClass("tight", 0.5, scale=0.5), SloClass("loose", 0.5, scale=1.5)
    dealt = np.array([0, 1, 0, 1], np.uint8)
    plan = prepared([profile(STEP)], replace(made, classes=classes, slo_class=dealt), noise=False)
    seen: list[Core] = []
    log = run(plan, Options(after_event=seen.append))
    assert report_of(plan, log).slo_by_class == {"tight": 0.0, "loose": 1.0}
    counts = {one.scale: (one.kept, one.missed) for one in seen[-1].counters.due}
    assert counts == {0.5: (0, 2), 1.5: (2, 0)}, "the Core counts what the report says"
