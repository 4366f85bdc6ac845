"""Aladdin's worker configuration, its Table 3: the devices of a worker for most tokens/s of each.

T_max of eq. 6 from the profiles' own times, for ShareGPT within 2,048 tokens and the SLOs of its
Table 2; OPT-13B stands for Llama2-13b, which has no profile.

    python -m benchmarks.studies plan_aladdin
"""

import argparse

from benchmarks.studies import frame
from daemon.lab.planner.aladdin import worker_config
from daemon.lab.planner.bounds import Mix
from daemon.lab.planner.candidate import unit_of
from daemon.lab.planner.evaluate import Problem, WorkloadSlice, rows_of
from daemon.lab.planner.goal import Goal
from daemon.lab.report.numbers import three_digits
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec

MODELS = (("llama-2-70b", (2, 4, 8), 0.075), ("opt-13b", (1, 2, 4), 0.03))
"""(model, tensor parallelism, TPOT in seconds)."""


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--device", default="a100-80g")


def study(options: argparse.Namespace) -> None:
    """Print the table."""
    frame.heads("model", "devices a worker", "tokens/s a device", "batch", "binds")
    for model, degrees, tpot_s in MODELS:
        problem = Problem(
            base=Scenario(
                workload=WorkloadSpec(name="sharegpt"),
                instance=(),
                limits=ScenarioLimits(max_len=2048),
            ),
            goal=Goal(tpot_s=tpot_s),
        )
        mix = Mix.of(rows_of(problem, WorkloadSlice(0, 2000), 2048))
        for tp in degrees:
            unit = unit_of(f"{model}@{options.device}" + f"-tp{tp}" * (tp > 1))
            found = worker_config(problem, unit, mix)
            frame.row((model, tp, three_digits(found.t_max), found.batch, found.binds))
