"""`python -m benchmarks.operators`: whole steps of the embedded model, and the sums of their
operators, each measured alone as `llmd profile` does.

One thread computes, and times are its processor time, so that other work on the machine disturbs
them little. Both are taken in turn, and the medians of the rounds count.
"""

import argparse
import time
from collections import defaultdict

import numpy as np
import torch
from msgspec.structs import replace

from daemon.config.schema import Config
from daemon.engine.step.operators import time_operators
from daemon.engine.worker.start import start
from daemon.lab.profiler.synthetic import PlanMaker, Rows, StepRow
from daemon.protocol.worker import TimeOperators
from daemon.runtime.model import find_model

STEPS: dict[str, Rows] = {
    "1 decode, context 16": (StepRow(1, 15),),
    "1 decode, context 1,024": (StepRow(1, 1023),),
    "8 decodes, context 256": (StepRow(1, 255),) * 8,
    "24 decodes, context 256": (StepRow(1, 255),) * 24,
    "a prompt of 16": (StepRow(16, 0),),
    "a prompt of 64": (StepRow(64, 0),),
    "a prompt of 256": (StepRow(256, 0),),
    "64 more behind 1,024": (StepRow(64, 1024),),
    "8 decodes, and a prompt of 128": (*((StepRow(1, 255),) * 8), StepRow(128, 0)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    load = replace(find_model(Config()).load(Config(), 0), num_threads=1)
    torch.set_num_threads(1)
    maker = PlanMaker(load.block_size, load.max_slots)
    with torch.inference_mode():
        engine, *_ = start(load, lambda _stage, _done: None)
        engine.run(maker.opening())
        errors = []
        for name, rows in STEPS.items():
            engine.run(maker.tables(1, rows))
            plan = maker.step(2, rows)
            wholes_s, each_s = list[float](), defaultdict[str, list[float]](list)
            order = TimeOperators(plan, 1)
            engine.run(plan)
            for _ in range(arguments.rounds):
                began_s = time.process_time()
                engine.run(plan)
                wholes_s.append(time.process_time() - began_s)
                for operator, time_s in time_operators(engine, order, time.process_time).times_s:
                    each_s[operator].append(time_s)
            whole_s = float(np.median(wholes_s))
            alone_s = {operator: float(np.median(times)) for operator, times in each_s.items()}
            total_s = sum(alone_s.values())
            errors.append(total_s / whole_s - 1.0)
            largest = sorted(alone_s.items(), key=lambda pair: -pair[1])[:4]
            shares = ", ".join(f"{operator} {time_s / total_s:.0%}" for operator, time_s in largest)
            print(
                f"{name:<32}{1e3 * whole_s:8.1f} ms {1e3 * total_s:8.1f} ms {errors[-1]:+7.1%}  "
                f"{shares}",
                flush=True,
            )
    print(f"mean of |sum / step - 1|: {np.mean(np.abs(errors)):.1%}")


if __name__ == "__main__":
    main()
