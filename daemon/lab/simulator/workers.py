"""The simulated workers of a run: one for each instance, with links of its own."""

from collections.abc import Sequence

import numpy as np

from daemon.cost.profile import Profile
from daemon.cost.step_cost import cost_of
from daemon.lab.report.records import Span
from daemon.lab.simulator.copies import CopyEngine
from daemon.lab.simulator.drafts import Drafts
from daemon.lab.simulator.links import SimulatedLink
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.power import PowerMeter
from daemon.lab.simulator.worker import Answers, Noise, SimulatedWorker
from daemon.wire.columns import Int32

_DOMAIN = 0x51D
"""Separates a run's random streams from its workload's, which may have the same seed."""


def chances(seed: int, count: int) -> list[np.random.Generator]:
    """Independent streams of random numbers, for everything in a run except its workload."""
    streams = np.random.SeedSequence((seed, _DOMAIN)).spawn(count)
    return [np.random.default_rng(stream) for stream in streams]


def simulated_workers(
    names: Sequence[str],
    profiles: Sequence[Profile],
    caps: Sequence[float],
    pools: Sequence[Pool],
    stops_at: Int32,
    max_running: Sequence[int],
    noises: Sequence[np.random.Generator],
    noisy: bool = True,
    spans: list[Span] | None = None,
    drafts: Drafts | None = None,
) -> list[SimulatedWorker]:
    """A worker for each profile, limited to its power cap; uses of its links go to `spans`.

    `noises` are the random streams of each one's step times.
    """
    costs = {profile: cost_of(profile) for profile in dict.fromkeys(profiles)}
    return [
        SimulatedWorker(
            profile,
            costs[profile],
            Answers(stops_at, num_slots, drafts),
            Noise(profile.fit.noise_sigma if noisy else 0.0, chance),
            PowerMeter(profile, cap),
            [
                SimulatedLink(f"{name} stage {stage} to {stage + 1}", "hand-over", spans=spans)
                for stage in range(1, profile.pp)
            ],
            CopyEngine(profile, pool, name, spans),
            pool.windows,
        )
        for name, profile, cap, pool, num_slots, chance in zip(
            names, profiles, caps, pools, max_running, noises, strict=True
        )
    ]
