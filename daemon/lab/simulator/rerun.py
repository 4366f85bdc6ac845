"""A journal's traffic run again: with its recorded step times, or under a cost model.

Each stream of a request with n > 1 is a request of its own here.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from daemon.base.nearest import not_one_of
from daemon.core.values.events import (
    Configured,
    Event,
    InstanceConfig,
    MigrationOrdered,
    PolicyChosen,
    Predicted,
)
from daemon.core.values.limits import limits_of
from daemon.core.values.snapshot import Counters
from daemon.core.view.checkpoint import Checkpoint
from daemon.core.wakes import NEVER
from daemon.cost.profile import Profile
from daemon.journal.reader import JournalError
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.simulator.drafts import RecordedDrafts
from daemon.lab.simulator.journal import Incident, JournalInstance, JournalStream
from daemon.lab.simulator.pool import over_link
from daemon.lab.simulator.recorded import RecordedWorker
from daemon.lab.simulator.recorder import Recorder
from daemon.lab.simulator.routes import Routes
from daemon.lab.simulator.run import Options, forward_tokens, journal_of
from daemon.lab.simulator.scenario import ScenarioError, WorkerFault
from daemon.lab.simulator.simulator import Extras, Machine, Simulator
from daemon.lab.simulator.traffic import Traffic
from daemon.lab.simulator.worker import Answers, Worker
from daemon.lab.simulator.workers import chances, simulated_workers
from daemon.scheduler.policies import POLICIES
from daemon.state.request import sequence_id


def rerun(
    incident: Incident,
    policy: str = "",
    profile: Profile | None = None,
    seed: int = 0,
    options: Options | None = None,
) -> RunLog:
    """Simulate an incident's traffic on its own instances.

    Without a profile each step and each transfer takes its recorded time, which is best under the
    recorded policy: another policy has other steps; and the Core begins in the state at the
    journal's beginning, with cached blocks and all that it had learned. With a profile, steps and
    transfers take the modelled time, and the Core begins new. Recorded predictions are repeated.
    Raises ScenarioError, JournalError, SimulationError.
    """
    options = options or Options()
    config = configured(incident, policy, profile)
    rows = rerun_rows(incident)
    if not rows:
        raise JournalError(f"{incident.source}: no answer had a token, so none can be run again")
    traffic = _traffic(incident, rows)
    names = [instance.name for instance in config.instances]
    recorder = Recorder(traffic.log(), [profile] * len(names), config.instances)
    recorder.spans = [] if options.spans else None
    chance, *noises = chances(seed, 1 + len(names))
    inputs = _inputs(incident, rows, bool(policy), options.predictor is not None)
    numbers = {
        sequence: sequence_id(number, 0)
        for number, sequence in enumerate(list(incident.streams)[row] for row in rows)
    }
    drafts = incident.drafts.of(numbers)
    state = _state(incident, config) if profile is None else None
    journal = journal_of(options, config)
    if journal is not None and state is not None:
        journal.goes_on_from(state)
    extras = Extras(
        predictor=options.predictor,
        chance=chance,
        journal=journal,
        faults=_faults(incident),
        inputs=inputs,
        state=state,
        progress=options.progress,
        after_event=options.after_event,
        drafts=drafts,
        ticks=incident.ticks if profile is None else {},
        hashes={
            (numbers[sequence], block): block_hash
            for (sequence, block), block_hash in incident.hashes.items()
            if sequence in numbers
        },
    )
    machine = _machine(incident, config, traffic, profile, noises, recorder, drafts)
    return Simulator(config, traffic, machine, recorder, extras).run()


def rerun_rows(incident: Incident) -> list[int]:
    """The streams that a rerun has, by their place in the journal: those that got a token or were
    rejected.
    """
    return [
        row
        for row, (stream, length) in enumerate(
            zip(incident.streams.values(), incident.lengths(), strict=True)
        )
        if length and (stream.token_s or stream.outcome is Outcome.REJECTED)
    ]


def configured(incident: Incident, policy: str, profile: Profile | None) -> Configured:
    """The incident's configuration under another policy, with that policy's own budget, chunk and
    swap mode, or on the profile's devices: its pipeline, and whether steps begin ahead.
    """
    config = incident.config
    if policy and policy not in POLICIES:
        raise ScenarioError(f"policy {not_one_of(policy, POLICIES)}")
    used = {limits_of(instance, config).policy for instance in config.instances}
    if policy and used != {policy}:
        budget = POLICIES[policy].budget(0)
        changes = {"max_batch_tokens": budget, "prefill_chunk": budget, "swap": ""}
        config = msgspec.structs.replace(
            config,
            policy=policy,
            instances=tuple(
                msgspec.structs.replace(instance, policy=policy, **changes)
                for instance in config.instances
            ),
            **changes,
        )
    if profile is not None:
        instances = tuple(
            msgspec.structs.replace(instance, stages=profile.pp, ahead=not profile.device.is_cpu)
            for instance in config.instances
        )
        config = msgspec.structs.replace(config, instances=instances)
    return config


def _state(incident: Incident, config: Configured) -> Checkpoint | None:
    """The Core's initial state, under the policies of `config`. Nothing is counted yet."""
    if incident.state is None:
        return None
    instances = [
        msgspec.structs.replace(
            instance,
            scheduler=msgspec.structs.replace(
                instance.scheduler, policy=limits_of(own, config).policy
            ),
        )
        for instance, own in zip(incident.state.instances, config.instances, strict=True)
    ]
    return msgspec.structs.replace(
        incident.state,
        instances=instances,
        counters=Counters(),
        wake_at_s=NEVER,
        num_flips=0,
        flips=[],
    )


def _traffic(incident: Incident, rows: list[int]) -> Traffic:
    """The requests that got a token or were rejected; limits and priorities as they were."""
    streams, lengths = list(incident.streams.values()), incident.lengths()
    arrivals = [streams[row].arrival for row in rows]
    return Traffic(
        arrival_s=[arrival.now for arrival in arrivals],
        prompts=[arrival.num_prompt_tokens for arrival in arrivals],
        answers=[lengths[row] for row in rows],
        limits=[arrival.max_tokens for arrival in arrivals],
        priorities=[arrival.priority for arrival in arrivals],
        prompt_costs=[arrival.prompt_cost for arrival in arrivals],
        deadline_s=[arrival.deadline_s for arrival in arrivals],
        slo_scales=[arrival.slo_scale for arrival in arrivals],
        slo_class=np.zeros(len(rows), np.uint8),
        hashes=lambda request: arrivals[request].hashes,
    )


def _inputs(
    incident: Incident, rows: list[int], other_policy: bool, other_predictor: bool
) -> list[Event]:
    """The Core's other events, with requests and sequences numbered as in the rerun."""
    streams: list[JournalStream] = list(incident.streams.values())
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        numbers[streams[row].arrival.request].append(number)
    sequences = list(incident.streams)
    ids = {sequences[row]: number for number, row in enumerate(rows)}
    inputs: list[Event] = []
    for event in incident.inputs:
        if isinstance(event, Predicted):
            if not other_predictor:
                inputs += [
                    msgspec.structs.replace(event, request=number)
                    for number in numbers[event.request]
                ]
        elif isinstance(event, MigrationOrdered):
            if event.sequence in ids:
                again = sequence_id(ids[event.sequence], 0)
                inputs.append(msgspec.structs.replace(event, sequence=again))
        elif not (other_policy and isinstance(event, PolicyChosen)):
            inputs.append(event)
    return inputs


def _faults(incident: Incident) -> tuple[WorkerFault, ...]:
    """The deaths of workers; the next one is ready when it was then, its weights loaded."""
    return tuple(
        WorkerFault(
            instance=death.lost.instance,
            at_s=death.lost.now,
            restart_s=death.ready_s - death.lost.now,
            blamed=death.lost.blamed,
        )
        for death in incident.deaths
    )


def _machine(
    incident: Incident,
    config: Configured,
    traffic: Traffic,
    profile: Profile | None,
    noises: Sequence[np.random.Generator],
    recorder: Recorder,
    drafts: RecordedDrafts,
) -> Machine:
    ready = next((home for home in incident.homes.values() if home.pool.num_blocks), None)
    if ready is None:
        raise JournalError(
            f"{incident.source}: no worker was ever ready, so there is no memory to run it in"
        )
    count = len(config.instances)
    homes = [
        incident.homes.get(instance, _never_ready(own, ready))
        for instance, own in enumerate(config.instances)
    ]
    pools = [home.pool for home in homes]
    max_running = [limits_of(instance, config).max_running for instance in config.instances]
    workers: Sequence[Worker]
    routes = None
    if profile is None:
        workers = [
            RecordedWorker(
                *(incident, instance, home),
                Answers(traffic.stops_at, slots, drafts, home.same_until),
            )
            for instance, (home, slots) in enumerate(zip(homes, max_running, strict=True))
        ]
    else:
        pools = [over_link(profile, pool) for pool in pools]
        names = [instance.name for instance in config.instances]
        routes = Routes(names, [profile] * count, pools, config.block_size)
        workers = simulated_workers(
            names,
            [profile] * count,
            [1.0] * count,
            pools,
            traffic.stops_at,
            max_running,
            noises,
            spans=recorder.spans,
            drafts=drafts,
        )
    sizes = [home.forward_tokens for home in homes]
    if profile is not None:
        sizes = forward_tokens(config, [profile] * count)
    owned = zip(homes, config.instances, strict=True)
    return Machine(
        workers,
        pools,
        [home.ready_s for home in homes],
        reload_s=[0.0] * count,
        wake_s=[home.wake_s or own.wakes_in_s for home, own in owned],
        routes=routes,
        recorded=incident.links if profile is None else None,
        forward_tokens=sizes,
    )


def _never_ready(config: InstanceConfig, ready: JournalInstance) -> JournalInstance:
    """An instance without a worker: one that slept to the end would have been as the `ready` one,
    should it wake now.
    """
    return replace(ready, wake_s=0.0) if config.wakes_in_s else JournalInstance()
