"""A journal's traffic run again: with its recorded step times, or under a cost model."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import msgspec
import numpy as np

from daemon.batch import Batch
from daemon.cost.profile import LinkSpec, Profile
from daemon.cost.work import StepWork
from daemon.report.records import RunLog
from daemon.simulator.copies import Ended
from daemon.simulator.journal import Incident, Step, traffic_of_incident
from daemon.simulator.links import Link
from daemon.simulator.pool import Pool
from daemon.simulator.recorder import Recorder
from daemon.simulator.simulator import Extras, Machine, Simulator
from daemon.simulator.worker import Answers, Computed, Worker
from daemon.simulator.workers import simulated_workers
from daemon.wire.columns import Int32


class RecordedWorker:
    """Takes as long for its n-th step as the journal says; beyond those, as long as the mean.

    So do the swap copies of its n-th plan; other copies take what a block took when it was ready.
    """

    def __init__(
        self,
        steps: list[Step],
        copies: dict[int, Ended],
        pool: Pool,
        warm_step_s: float,
        answers: Answers,
    ) -> None:
        self._copies = copies
        self._copy_block_s = pool.copy_block_s
        self._durations_s = {step.number: step.end_s - step.start_s for step in steps}
        self._mean_s = fmean(self._durations_s.values()) if steps else warm_step_s
        self._warm_step_s = warm_step_s
        self._answers = answers
        self._free_s = 0.0
        self._copied_s = 0.0

    def compute(self, now: float, batch: Batch, work: StepWork) -> Computed:
        """Take a plan."""
        start_s = max(now, self._free_s)
        end_s = start_s + self._durations_s.get(batch.step, self._mean_s)
        self._free_s = end_s
        return Computed(start_s, end_s, self._answers.reasons(batch), self._copied(now, batch))

    def _copied(self, now: float, batch: Batch) -> Ended | None:
        num_out, num_in = batch.out_blocks.size, batch.in_blocks.size
        if not num_out and not num_in:
            return None
        out_s, in_s = num_out * self._copy_block_s, num_in * self._copy_block_s
        told = self._copies.get(batch.step, Ended(out_s + in_s, num_out, out_s, num_in, in_s))
        self._copied_s = max(self._copied_s, now + told.end_s)
        return replace(told, end_s=self._copied_s)

    def warm_step_s(self) -> float:
        """As the real one reported."""
        return self._warm_step_s

    def restart(self, now: float) -> None:
        """Nothing runs."""
        self._free_s = now

    def energy_j(self, run_s: float) -> float | None:
        """A journal knows nothing of power."""
        return None


def rerun(
    incident: Incident,
    policy: str = "",
    profile: Profile | None = None,
    seed: int = 0,
    extras: Extras | None = None,
) -> RunLog:
    """Simulate an incident's traffic on its own instances.

    Without a profile each step takes its recorded time, which means most under the recorded policy:
    another policy's steps are others. With one, steps take what its model says.
    """
    config = incident.config
    if policy:
        config = msgspec.structs.replace(config, policy=policy)
    traffic = traffic_of_incident(incident)
    instances = range(len(config.instances))
    pools = [incident.pools.get(instance, Pool(0, 0)) for instance in instances]
    workers: Sequence[Worker]
    if profile is None:
        workers = _recorded(incident, pools, config.max_running, traffic.stops_at)
    else:
        streams = np.random.SeedSequence(seed).spawn(len(instances))
        chances = [np.random.default_rng(stream) for stream in streams]
        alike, uncapped = [profile] * len(instances), [1.0] * len(instances)
        workers = simulated_workers(
            alike, uncapped, traffic.stops_at, config.max_running, chances, pools
        )
    names = [one.name for one in config.instances]
    recorder = Recorder(traffic.log(), [profile] * len(names), names)
    machine = Machine(list(workers), pools, [0] * len(names), Link(LinkSpec(0.0), "host link"))
    return Simulator(config, traffic, machine, recorder, extras).run()


def _recorded(
    incident: Incident, pools: list[Pool], max_running: int, stops_at: Int32
) -> list[RecordedWorker]:
    steps: defaultdict[int, list[Step]] = defaultdict(list)
    for step in incident.steps:
        steps[step.instance].append(step)
    copies: defaultdict[int, dict[int, Ended]] = defaultdict(dict)
    for (instance, number), ended in incident.copies.items():
        copies[instance][number] = ended
    return [
        RecordedWorker(
            steps[instance],
            copies[instance],
            pools[instance],
            incident.warm_step_s.get(instance, 0.0),
            Answers(stops_at, max_running),
        )
        for instance in range(len(incident.config.instances))
    ]
