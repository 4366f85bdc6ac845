"""The cells: which requests, how they arrive and on what they run, and what each can serve."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.studies.scheduling import KV_BYTES, Way, scenario
from daemon.lab.report.measures import completion_window
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.lab.workload.workload import WorkloadSpec

CAPACITIES = Path(__file__).parents[1] / "results" / "frontier-capacity.json"
FOUR = InstanceGroup(profile="llama-2-70b@a100-80g-tp2", count=4)


class Kind(NamedTuple):
    """Requests of a cell, and where they run: on four Llama-2-70B with all their memory, or one
    OPT-13B with little KV. Capacity is measured over so many, fewer where answers are long.
    """

    spec: WorkloadSpec
    four: bool = False
    at_once: int = 3000


MOONCAKE = "mooncake"
WORKLOADS = {
    "sharegpt": Kind(WorkloadSpec(name="sharegpt")),
    "skew": Kind(WorkloadSpec(name="skew")),
    "azure-conv": Kind(WorkloadSpec(name="azure-conv")),
    "code": Kind(WorkloadSpec(name="splitwise-code")),
    "book": Kind(WorkloadSpec(name="bwb-4k"), at_once=1200),
    "growing": Kind(WorkloadSpec(name="sharegpt", drift=4.0), at_once=2100),
    "arxiv": Kind(WorkloadSpec(name="arxiv-4k")),
    MOONCAKE: Kind(WorkloadSpec()),  # of a file that is not part of this repository
    "azure-70b": Kind(WorkloadSpec(name="azure-conv"), four=True),
    "arxiv-70b": Kind(WorkloadSpec(name="arxiv-4k"), four=True),
}
ARRIVALS = ("poisson", "gamma:4")
CELLS = tuple(
    f"{name}/{arrivals}"
    for name, kind in WORKLOADS.items()
    for arrivals in (ARRIVALS[1:] if kind.four else ARRIVALS)
)


def chosen_cells(text: str) -> list[str]:
    """Cells by their names; a workload's name alone means all its arrivals. Raises ValueError."""
    found = []
    for name in text.split(","):
        cells = [cell for cell in CELLS if name in (cell, cell.partition("/")[0])]
        if not cells:
            raise ValueError(f"no cell {name!r}: choose {', '.join((*WORKLOADS, *CELLS))}")
        found += cells
    return found


def setting(name: str, way: Way, seed: int, mooncake: Path | None, **spec: object) -> Scenario:
    """One run of a workload: how many requests come how and when is in `spec`."""
    kind = WORKLOADS[name]
    if name == MOONCAKE:
        spec["trace"] = mooncake
    asked = msgspec.structs.replace(kind.spec, seed=seed, **spec)
    one = scenario(way, asked, KV_BYTES, seed)
    if not kind.four:
        return one
    limits = msgspec.structs.replace(one.limits, max_len=0)
    return msgspec.structs.replace(one, instance=(FOUR,), limits=limits)


def capacity(name: str, mooncake: Path | None) -> float:
    """Requests/s of a workload that is there at once, without its beginning and its end."""
    requests = WORKLOADS[name].at_once
    closed = setting(name, Way("sarathi"), 0, mooncake, requests=requests, arrivals="closed")
    log = run(prepare(closed))
    window = completion_window(log.requests)
    assert window is not None, "none finished"
    begin_s, end_s = window
    inside = (log.requests.last_s > begin_s) & (log.requests.last_s <= end_s)
    return float(inside.sum()) / (end_s - begin_s)


def capacities() -> dict[str, float]:
    """Those that were kept, in requests/s."""
    kept: dict[str, float] = json.loads(CAPACITIES.read_text(encoding="utf-8"))
    return kept


def search(names: Sequence[str], mooncake: Path | None, workers: int | None) -> Mapping[str, float]:
    """Measure capacities and keep them; those of other workloads stay as they are."""
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(partial(capacity, mooncake=mooncake), names)
        rates = dict(zip(names, found, strict=True))
    text = json.dumps({**capacities(), **rates}, indent=1, sort_keys=True)
    CAPACITIES.write_text(text + "\n", encoding="utf-8")
    return rates
