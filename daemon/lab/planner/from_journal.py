"""A journal as a planner's problem: its requests, its configuration, and what clients got."""

import json
from pathlib import Path

from daemon.base.files import write_whole
from daemon.core.values.limits import limits_of
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal, warmed_up
from daemon.lab.report.records import RunLog
from daemon.lab.report.summarize import About, Promise, summarize
from daemon.lab.simulator.journal import Incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.workload.traces import MOONCAKE_BLOCK
from daemon.memory.hashing import split_hashes
from daemon.state.role import AUTO, Role


def write_trace(incident: Incident, path: Path) -> int:
    """Write the journal's requests as a Mooncake trace, and return how many there are.

    Answers are as long as what was delivered; prompts share whole blocks of 512 tokens, which the
    last hash in each names with all before it. Requests without a token are left out.
    """
    per_id = max(1, MOONCAKE_BLOCK // incident.config.block_size)
    ids: dict[bytes, int] = {}
    lines = []
    for stream, length in zip(incident.streams.values(), incident.lengths(), strict=True):
        if not length:
            continue
        hashes = split_hashes(stream.arrival.hashes)
        row = {
            "timestamp": 1000.0 * (stream.arrival.now - incident.first_s),
            "input_length": stream.arrival.num_prompt_tokens,
            "output_length": length,
            "hash_ids": [ids.setdefault(h, len(ids)) for h in hashes[per_id - 1 :: per_id]],
        }
        lines.append(json.dumps(row))
    if not lines:
        raise PlannerError(f"{incident.source}: no answer had a token, so there is nothing to plan")
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return len(lines)


def present(incident: Incident, unit: CandidatePool) -> PlanCandidate:
    """The journal's own configuration, on instances of a profile. Raises PlannerError."""
    config = incident.config
    each = [limits_of(instance, config) for instance in config.instances]
    if len(set(each)) > 1:
        raise PlannerError(f"{incident.source}: its instances have unlike limits")
    roles: dict[Role, int] = {}
    for instance in config.instances:
        roles[instance.role] = roles.get(instance.role, 0) + 1
    pools = [home.pool for home in incident.homes.values()]
    limits = each[0]
    return PlanCandidate(
        pools=tuple(
            CandidatePool(
                profile=unit.profile,
                device=unit.device,
                tp=unit.tp,
                pp=unit.pp,
                count=count,
                role=role.value,
                quantize=unit.quantize,
            )
            for role, count in roles.items()
        ),
        knobs=Knobs(
            policy=limits.policy,
            max_batch_tokens=limits.max_batch_tokens,
            prefill_chunk=limits.prefill_chunk,
            max_running=limits.max_running,
            kv_bytes=float(min((p.num_blocks * p.block_bytes for p in pools), default=0)),
        ),
        roles=AUTO if config.roles == AUTO else Role.MIXED.value,
    )


def measured_attainment(incident: Incident, goal: Goal, first: int) -> float | None:
    """The share of requests from the `first` on that kept the goal's promises, as it was."""
    return attainment_of(replayed(incident), goal, first)


def attainment_of(log: RunLog, goal: Goal, first: int) -> float | None:
    """The share of a log's requests from the `first` on that kept the goal's promises."""
    promises = goal.promises([Promise("all")])
    about = About(kind="measured", label="", policy="", profile="", seed=0, classes=promises)
    return summarize(warmed_up(log, first), about).slo_attainment
