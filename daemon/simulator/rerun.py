"""A journal's traffic run again: with its recorded step times, or under a cost model."""

from collections import defaultdict
from statistics import fmean

import msgspec
import numpy as np

from daemon.batch import Batch
from daemon.cost.profile import DeviceSpec, Fit, ModelSpec, PhaseFit, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.report.records import RunLog
from daemon.simulator.journal import Incident, Step, traffic_of_incident
from daemon.simulator.links import Link
from daemon.simulator.power import PowerMeter
from daemon.simulator.recorder import Recorder
from daemon.simulator.simulator import Extras, Machine, Simulator
from daemon.simulator.worker import Answers, Noise, SimulatedWorker, Worker
from daemon.wire.columns import UInt8


class RecordedWorker:
    """Takes as long for its n-th step as the journal says; beyond those, as long as the mean."""

    def __init__(self, steps: list[Step], warm_step_s: float, answers: Answers) -> None:
        self._durations_s = {step.number: step.end_s - step.start_s for step in steps}
        self._mean_s = fmean(self._durations_s.values()) if steps else warm_step_s
        self._warm_step_s = warm_step_s
        self._answers = answers
        self._free_s = 0.0

    def compute(self, now: float, batch: Batch, work: StepWork) -> tuple[float, float, UInt8]:
        """Take a plan; (start, end, reasons) of its step."""
        start_s = max(now, self._free_s)
        end_s = start_s + self._durations_s.get(batch.step, self._mean_s)
        self._free_s = end_s
        return start_s, end_s, self._answers.reasons(batch)

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
    steps: defaultdict[int, list[Step]] = defaultdict(list)
    for step in incident.steps:
        steps[step.instance].append(step)
    workers: list[Worker] = []
    for instance, stream in enumerate(np.random.SeedSequence(seed).spawn(len(config.instances))):
        answers = Answers(traffic.stops_at, config.max_running)
        if profile is None:
            warm_s = incident.warm_step_s.get(instance, 0.0)
            workers.append(RecordedWorker(steps[instance], warm_s, answers))
        else:
            noise = Noise(profile.fit.noise_sigma, np.random.default_rng(stream))
            power = PowerMeter(profile, 1.0)
            peer = Link(profile.device.peer_link, "peer link")
            cost = step_cost(profile.step)
            workers.append(SimulatedWorker(profile, cost, answers, noise, power, peer))
    shown = profile or _UNKNOWN
    names = [one.name for one in config.instances]
    recorder = Recorder(traffic.log(), [shown] * len(names), names)
    pools = [incident.pools.get(index, (0, 0)) for index in range(len(names))]
    host = Link(shown.device.host_link, "host link")
    machine = Machine(workers, pools, [0] * len(names), host)
    return Simulator(config, traffic, machine, recorder, extras).run()


_UNKNOWN = Profile(
    name="recorded",
    model=ModelSpec(
        name="recorded",
        num_layers=0,
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        hidden_size=0,
        vocab_size=0,
        context_len=0,
        num_params=0,
        dtype="float32",
    ),
    device=DeviceSpec(name="recorded", memory_bytes=0),
    step=PhaseFit(
        prefill_s=(0.0, 0.0, 0.0),
        decode_s=(0.0, 0.0, 0.0),
        large_decode_s=(0.0, 0.0, 0.0),
        large_batch=1,
    ),
    fit=Fit(num_points=0, mape=0.0),
)
"""Steps of a journal have times but no model: counts that need one come out as zero."""
