"""DistServe's placements: Algorithm 1 for high node affinity, Algorithm 2 for low (section 4).

Algorithm 1 finds the parallelism of prefill and of decode apart, each by its goodput for each
device, and replicates both to the rate asked. Algorithm 2 puts segments of both with as many
stages on one node, simulates them together, and replicates the node.
"""

from collections.abc import Sequence
from math import ceil

import msgspec

from daemon.lab.planner.bounds import Bound, Mix, bound
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate, Space
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import Problem, WorkloadSlice, longest, rows_of
from daemon.lab.planner.halving import bounded, halve
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session
from daemon.state.role import Role

AFFINITIES = ("high", "low")
_WIDTH = 0.05
_HELPERS = 2.0
"""Prefill instances beside a decode instance under test, over those that its bound keeps busy."""


class PhaseGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """One instance's goodput in one phase: `config` of Algorithm 1."""

    unit: CandidatePool
    goodput_rps: float

    @property
    def per_device(self) -> float:
        """The goodput over the instance's devices."""
        return self.goodput_rps / self.unit.num_devices


def simu_prefill(
    session: Session, problem: Problem, config: PlanCandidate, part: WorkloadSlice
) -> float:
    """The highest rate at which one instance keeps the TTFT, prompts alone."""
    goal = msgspec.structs.replace(problem.goal, tpot_s=0.0)
    alone = msgspec.structs.replace(problem, goal=goal, answers=False)
    return _goodput(session, alone, config, part)


def simu_decode(
    session: Session, problem: Problem, config: PlanCandidate, part: WorkloadSlice
) -> float:
    """The highest rate at which one instance keeps the TPOT, behind prefill instances enough."""
    goal = msgspec.structs.replace(problem.goal, ttft_s=0.0)
    alone = msgspec.structs.replace(problem, goal=goal)
    unit = config.pools[0]
    decode, prefill = (
        msgspec.structs.replace(unit, role=role.value) for role in (Role.DECODE, Role.PREFILL)
    )
    mix = _mix(alone, config, part)
    most = bound(alone, msgspec.structs.replace(config, pools=(decode,)), mix)
    if most.fault:
        return 0.0
    each = bound(alone, msgspec.structs.replace(config, pools=(prefill,)), mix)
    helpers = max(1, ceil(_HELPERS * most.rps / each.rps)) if each.rps else 1
    pools = (msgspec.structs.replace(prefill, count=helpers), decode)
    return _goodput(session, alone, msgspec.structs.replace(config, pools=pools), part)


def high_affinity(
    session: Session,
    problem: Problem,
    units: Sequence[CandidatePool],
    knobs: Knobs,
    requests: int,
) -> tuple[PhaseGoodput, PhaseGoodput]:
    """Algorithm 1 up to replication: the best configuration of prefill, and that of decode."""
    part = WorkloadSlice(0, requests)

    def both(unit: CandidatePool) -> tuple[PhaseGoodput, PhaseGoodput]:
        config = PlanCandidate(pools=(unit,), knobs=knobs)
        prefill_goodput = simu_prefill(session, problem, config, part)
        decode_goodput = simu_decode(session, problem, config, part)
        return (
            PhaseGoodput(unit=unit, goodput_rps=prefill_goodput),
            PhaseGoodput(unit=unit, goodput_rps=decode_goodput),
        )

    session.what = f"prefill and decode of {len(units)} configurations apart"
    tried = session.map(both, units)
    prefill_config = max((prefill for prefill, _ in tried), key=lambda each: each.per_device)
    decode_config = max((decode for _, decode in tried), key=lambda each: each.per_device)
    for name, config in (("TTFT", prefill_config), ("TPOT", decode_config)):
        if not config.goodput_rps:
            raise PlannerError(f"no configuration keeps the {name} at any rate that was tried")
    return prefill_config, decode_config


def replicated(
    prefill_config: PhaseGoodput, decode_config: PhaseGoodput, rate: float
) -> tuple[int, int]:
    """n and m of Algorithm 1: how many of each the rate R takes."""
    n = ceil(rate / prefill_config.goodput_rps - 1e-9)
    m = ceil(rate / decode_config.goodput_rps - 1e-9)
    return max(1, n), max(1, m)


def filled(
    prefill_config: PhaseGoodput, decode_config: PhaseGoodput, devices: dict[str, int]
) -> tuple[int, int]:
    """n and m that serve the most on the devices there are. Raises PlannerError."""
    best, found = 0.0, (0, 0)
    prefill, decode = prefill_config.unit, decode_config.unit
    for n in range(1, devices[prefill.device] // prefill.num_devices + 1):
        left = devices[decode.device]
        if prefill.device == decode.device:
            left -= n * prefill.num_devices
        m = left // decode.num_devices
        served = min(n * prefill_config.goodput_rps, m * decode_config.goodput_rps)
        if served > best:
            best, found = served, (n, m)
    if not best:
        raise PlannerError(
            f"{prefill.text} for prefill and {decode.text} for decode do not fit the devices"
        )
    return found


def placement(
    session: Session,
    problem: Problem,
    space: Space,
    objective: Objective,
    *,
    requests: int,
    affinity: str = "high",
) -> list[PlanCandidate]:
    """`best_plm` for each of the space's knobs. Raises PlannerError."""
    found = []
    for knobs in space.knobs:
        if affinity == "low":
            found.append(_low_affinity(session, problem, space, knobs, objective, requests))
            continue
        prefill, decode = high_affinity(session, problem, space.units, knobs, requests)
        counts = (
            replicated(prefill, decode, objective.rate_rps)
            if objective.rate_rps
            else filled(prefill, decode, space.devices)
        )
        pools = tuple(
            msgspec.structs.replace(config.unit, count=count, role=role.value)
            for config, count, role in zip(
                (prefill, decode), counts, (Role.PREFILL, Role.DECODE), strict=True
            )
        )
        found.append(PlanCandidate(pools=pools, knobs=knobs))
    return found


def _low_affinity(
    session: Session,
    problem: Problem,
    space: Space,
    knobs: Knobs,
    objective: Objective,
    requests: int,
) -> PlanCandidate:
    """Algorithm 2: `space.devices` are those of one node; segments have as many stages each."""
    node = msgspec.structs.replace(space, knobs=(knobs,), mixed=False, split=True, partial=True)
    configs = [each for each in node.candidates() if len({pool.pp for pool in each.pools}) == 1]
    if not configs:
        raise PlannerError("no node holds an instance for prefill beside one for decode")
    mix = _mix(problem, configs[0], WorkloadSlice(0, requests))
    per_device = Objective(name="devices")
    field = bounded(session, problem, per_device, configs, mix)
    ranked = halve(session, problem, per_device, field, (max(20, requests // 4), requests))
    if not ranked or not ranked[0].rps:
        raise PlannerError("no configuration of a node keeps the SLOs")
    n = ceil(objective.rate_rps / ranked[0].rps - 1e-9) if objective.rate_rps else 1
    pools = tuple(
        msgspec.structs.replace(pool, count=max(1, n) * pool.count)
        for pool in ranked[0].candidate.pools
    )
    return msgspec.structs.replace(ranked[0].candidate, pools=pools)


def _mix(problem: Problem, candidate: PlanCandidate, part: WorkloadSlice) -> Mix:
    return Mix.of(rows_of(problem, part, longest(problem, candidate)))


def _goodput(
    session: Session, problem: Problem, candidate: PlanCandidate, part: WorkloadSlice
) -> float:
    limit: Bound = bound(problem, candidate, _mix(problem, candidate, part))
    if limit.fault:
        session.dropped[limit.fault] += 1
        return 0.0
    near = max(limit.estimate_rps, 1e-3 * limit.rps)
    found = session.capacity(problem, candidate, part, near=near, most=limit.rps, width=_WIDTH)
    return found.rps
