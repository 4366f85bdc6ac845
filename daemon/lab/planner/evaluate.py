"""`evaluate`: the planner's only call of the simulator, each result kept under a hash.

The hash is of all that a result depends on: candidate, workload, goal, rate, slice, the profiles'
and the trace's bytes, and the code of the Core, the simulator and all that they import.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np

from daemon.core.core import Core
from daemon.lab.planner.candidate import PlanCandidate, profile_named, scenario_of
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal, attainments, judge
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.simulator.about import about_of, report_of
from daemon.lab.simulator.run import Options, Prepared, prepare, run
from daemon.lab.simulator.scenario import Scenario, ScenarioError
from daemon.lab.workload.build import AZURE_CONV, build
from daemon.lab.workload.traces import read_trace
from daemon.lab.workload.workload import Workload, WorkloadSpec
from daemon.state.request import request_of

WARM_UP = 0.1
"""Share of a slice's requests, from the first on, that do not count."""
_CHECK_EVENTS = 64
_CODE = (
    *("core", "cost", "lab/simulator", "lab/workload", "lab/report", "length_models", "memory"),
    *("placement", "roles", "scheduler", "state"),
)


class WorkloadSlice(msgspec.Struct, frozen=True):
    """Consecutive requests of a workload; `seed` moves all random streams."""

    first: int
    requests: int
    seed: int = 0
    lead: int = 0  # of these the first, which fill the instances and do not count; 0: `WARM_UP`
    parts: int = 1  # equal spans of those that count, with an attainment each


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """All but the candidate that a simulation depends on; the workload's rate does not count."""

    base: Scenario
    goal: Goal
    answers: bool = True  # False: each request ends with its first token (DistServe's prefill)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation's measures, after the warm-up."""

    rate_rps: float
    sustained: bool = False
    failed: tuple[str, ...] = ()  # the bounds that did not hold, by the goal's names
    attainment: float = 0.0  # of the worst class; 1 where nothing is promised
    attainments: tuple[float, ...] = ()  # of each part, where the slice has several
    lost_early: bool = False  # ended once attainment was lost: `attainment` is of those that came
    requests: int = 0  # that were simulated
    throughput_rps: float = 0.0
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    mean_power_w: float | None = None
    makespan_s: float = 0.0
    error: str = ""  # why it cannot be simulated


class _LostError(Exception):
    """Too many requests have missed their first token for the attainment asked."""

    def __init__(self, missed: int, arrived: int) -> None:
        super().__init__(missed, arrived)
        self.missed, self.arrived = missed, arrived


def simulate(problem: Problem, candidate: PlanCandidate, rate: float, part: WorkloadSlice) -> Score:
    """Simulate a slice at a rate, without a look at what is kept."""
    try:
        prepared = prepared_of(problem, candidate, rate, part)
    except (ScenarioError, ProfileError) as error:
        return Score(rate_rps=rate, failed=("impossible",), error=str(error))
    warm_up = part.lead or int(len(prepared.workload) * WARM_UP)
    watch = _watch(prepared, problem.goal, warm_up)
    try:
        log = run(prepared, Options(after_event=watch))
    except _LostError as lost:
        share = 1.0 - lost.missed / max(1, lost.arrived)
        goal = problem.goal.attainment
        return Score(
            rate_rps=rate,
            failed=("attainment",),
            attainment=min(share, np.nextafter(goal, 0.0)),
            lost_early=True,
            requests=warm_up + lost.arrived,
        )
    report = report_of(prepared, log)
    trial = judge(prepared, log, report, problem.goal, warm_up)
    spans = part.parts if part.parts > 1 else 0
    return Score(
        rate_rps=rate,
        sustained=trial.sustained,
        failed=trial.failed,
        attainment=1.0 if trial.attainment is None else trial.attainment,
        attainments=attainments(prepared, log, problem.goal, warm_up, spans) if spans else (),
        requests=len(prepared.workload),
        throughput_rps=report.throughput_rps,
        ttft_p99_s=report.ttft_s.p99,
        tpot_p99_s=report.tpot_s.p99,
        mean_power_w=report.mean_power_w,
        makespan_s=report.virtual_s,
    )


def prepared_of(
    problem: Problem, candidate: PlanCandidate, rate: float, part: WorkloadSlice
) -> Prepared:
    """A candidate ready to run on a slice. Raises ScenarioError, ProfileError, WorkloadError."""
    scenario = scenario_of(problem.base, candidate)
    rows = rows_of(problem, part, longest(problem, candidate))
    spec = msgspec.structs.replace(scenario.workload, rate=rate, rate_scale=0.0)
    scenario = msgspec.structs.replace(scenario, workload=spec, seed=scenario.seed + part.seed)
    return prepare(scenario, at_rate(rows, rate))


def longest(problem: Problem, candidate: PlanCandidate) -> int:
    """Tokens of the longest request that the models and the limits allow, whatever the pools."""
    context = min(profile.model.context_len for _, profile in candidate.profiles())
    return min(problem.base.limits.max_len or context, context)


def rows_of(problem: Problem, part: WorkloadSlice, max_len: int) -> Workload:
    """The slice's requests, at the workload's own rate. Raises WorkloadError, PlannerError."""
    spec = msgspec.structs.replace(
        problem.base.workload, seed=problem.base.workload.seed + part.seed, rate_scale=0.0
    )
    if not spec.rate and not has_times(spec) and spec.arrivals != "closed":
        spec = msgspec.structs.replace(spec, rate=1.0)
    if not spec.requests and not has_times(spec):
        spec = msgspec.structs.replace(spec, requests=part.first + part.requests)
    rows = _built(msgspec.json.encode(spec, enc_hook=str), max_len)
    if part.first + part.requests > len(rows):
        raise PlannerError(
            f"the workload has {len(rows)} requests, and a slice needs those from {part.first} to "
            f"{part.first + part.requests}"
        )
    rows = _cut(rows, part.first, part.first + part.requests)
    if not problem.answers:
        rows = replace(rows, output_tokens=np.ones_like(rows.output_tokens))
    return rows


def at_rate(rows: Workload, rate: float) -> Workload:
    """The same requests, closer together or further apart, so that their mean rate is `rate`."""
    if len(rows) < 2 or not np.isfinite(rows.rate):
        return rows
    return replace(rows, arrival_s=rows.arrival_s * (rows.rate / rate))


def has_times(spec: WorkloadSpec) -> bool:
    """Whether the number of requests and their times are the trace's own."""
    if spec.arrivals or spec.rate:
        return False
    return spec.name == AZURE_CONV or (spec.trace is not None and _is_timed(spec.trace))


@cache
def _is_timed(path: Path) -> bool:
    return read_trace(path).time_s is not None


@lru_cache(maxsize=8)
def _built(spec: bytes, max_len: int) -> Workload:
    return build(
        msgspec.json.decode(spec, type=WorkloadSpec, dec_hook=lambda _, x: Path(x)), max_len
    )


def _cut(rows: Workload, begin: int, end: int) -> Workload:
    return replace(
        rows,
        arrival_s=rows.arrival_s[begin:end] - rows.arrival_s[begin],
        prompt_tokens=rows.prompt_tokens[begin:end],
        output_tokens=rows.output_tokens[begin:end],
        slo_class=rows.slo_class[begin:end],
        prefixes=rows.prefixes[begin:end],
    )


def _watch(prepared: Prepared, goal: Goal, warm_up: int) -> Callable[[Core], None] | None:
    """An observer that raises once too many first tokens are late, where a TTFT is promised and
    some attainment asked.

    A request that counts is late once requests come that arrived a TTFT after it. That is a lower
    bound: clients wait longer than the Core, and lateness between two looks may go unseen.
    """
    promises = goal.promises(about_of(prepared).classes)
    if len(promises) != 1 or not promises[0].ttft_s or not goal.attainment:
        return None
    ttft_s, counted = promises[0].ttft_s, len(prepared.workload) - warm_up
    most = int((1.0 - goal.attainment) * counted + 1e-9)
    late: set[int] = set()
    events = 0

    def look(core: Core) -> None:
        nonlocal events
        events += 1
        if events % _CHECK_EVENTS or not core.sequences:
            return
        now = next(reversed(core.sequences.values())).arrived_s
        for number, sequence in core.sequences.items():
            if now - sequence.arrived_s <= ttft_s:
                break
            first_s = sequence.first_token_s if sequence.first_token_s >= 0.0 else now
            if first_s - sequence.arrived_s > ttft_s and request_of(number) >= warm_up:
                late.add(number)
        if len(late) > most:
            raise _LostError(len(late), core.num_arrivals - warm_up)

    return look


class KeptScores:
    """Scores by hash: in memory, and in a file where one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = Lock()
        self._path = path
        self._scores: dict[str, Score] = {}
        if path is not None and path.exists():
            self._read(path)

    def get(self, key: str) -> Score | None:
        """The score of that hash, if it is known."""
        return self._scores.get(key)

    def put(self, key: str, score: Score) -> None:
        """Keep a score. Raises PlannerError where the file cannot be written."""
        with self._lock:
            self._scores[key] = score
            if self._path is None:
                return
            try:
                with self._path.open("ab") as file:
                    file.write(msgspec.json.encode((key, score)) + b"\n")
            except OSError as error:
                raise PlannerError(f"{self._path}: {error.strerror}") from error

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PlannerError(f"{path}: {error.strerror}") from error
        whole = data[: data.rfind(b"\n") + 1]  # a line that was cut short is not there
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                key, score = msgspec.json.decode(line, type=tuple[str, Score])
            except msgspec.DecodeError as error:
                raise PlannerError(f"{path}:{number}: not a kept score: {error}") from None
            self._scores[key] = score
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))


def key_of(problem: Problem, candidate: PlanCandidate, rate: float, part: WorkloadSlice) -> str:
    """The hash of all that a score depends on."""
    trace = problem.base.workload.trace
    workload = msgspec.structs.replace(problem.base.workload, trace=None)  # its bytes count
    base = msgspec.structs.replace(problem.base, workload=workload)
    facts = (
        msgspec.structs.replace(problem, base=base),
        candidate,
        rate,
        part,
        [_profile_hash(pool.profile) for pool in candidate.pools],
        _file_hash(trace) if trace is not None else "",
        _code_hash(),
    )
    return hashlib.sha256(msgspec.json.encode(facts, enc_hook=str)).hexdigest()


@cache
def _profile_hash(name: str) -> str:
    return hashlib.sha256(msgspec.json.encode(profile_named(name))).hexdigest()


@cache
def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _code_hash() -> str:
    """The hash of all code that a simulation runs through."""
    root, found = Path(__file__).parents[2], hashlib.sha256()
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
