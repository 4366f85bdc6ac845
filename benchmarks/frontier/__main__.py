"""What a short mean costs in long pauses: mean latency against the longest gap, policy by policy.

--bounds  `gittins` with the predictors `features` (the default), `mean` and `noisy:0.5` against
          both baselines: every cell, under loads of 0.7, 0.9 and 1.3, one seed.
--sweep   `gittins` with every pause and `mean`, and with its own pause and every predictor, and the
          other policies: ShareGPT, `skew` and `book` under Gamma arrivals, 0.9, three seeds.
--search  measures capacities and keeps them in benchmarks/results/frontier-capacity.json.
--read    shows, draws and writes what --json kept.

Every cell is a workload under Poisson or Gamma arrivals for --minutes, or for --least-requests if
they take longer (`book`, and `growing` at 0.7), on OPT-13B under DistServe's fit with 12e9 bytes of
KV (`benchmarks/studies/scheduling.py`), of the requests within its context of 2,048 tokens.
`azure-70b` and `arxiv-70b` are four Llama-2-70B with all their memory and a context of 4,096.
`book` has long answers that are alike; `growing` ones are four times as long at the end as at
first. Mooncake's trace is not part of this repository: without --mooncake FILE its cells are left
out.

Each policy sees the same arrivals, and figures are means over the seeds. Beside each figure stands
its ratio to the better of `sarathi` and `sarathi+swap` in that measure, with `!` where it is over
the bound: 1.03 for mean normalised latency and mean JCT, 1.4 for P99 JCT, 1.25 for P99 TTFT, 1.5
for P99 TPOT, and for the P99 of the longest gap 1.5 or 5 s, whichever allows more.

A load is a share of the workload's capacity: requests/s that `sarathi+swap` finishes between 10 %
and 90 % of completions where all requests of seed 0 are there at once. The planner's capacity is
not used: it counts what still runs at the last arrival, which on `skew` needs some 24,000 requests
to be little. A draw of Gamma arrivals may come at half or twice the rate. So every draw is
stretched until its mean rate is what was asked; the load as it was drawn is printed beside it. The
seeds are fresh: 0 to 2 tuned `gittins`, and 3 and 4 were looked at.

`gittins:2` has `max_pause_s` = 2, `gittins` the daemon's own 4, and `gittins:inf` promises nothing.
Predictions concern `speculative` and `gittins` alone. `features` reads prompts, and these workloads
have only lengths: its stand-in errs as it did on real answers.

    python -m benchmarks.frontier --bounds [--cells sharegpt,skew/gamma:4] [--json FILE]
"""

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.frontier.cells import CELLS, MOONCAKE, chosen_cells, search
from benchmarks.frontier.figure import plot
from benchmarks.frontier.measures import Results
from benchmarks.frontier.runs import Plan, results
from benchmarks.frontier.tables import markdown, shown
from benchmarks.frontier.ways import FEATURES, chosen_ways, swept
from benchmarks.studies.scheduling import NOISY


class Mode(NamedTuple):
    """What is run where flags say nothing else."""

    cells: str
    ways: str
    loads: str
    seeds: str


TOLD = ",".join(f"gittins {told}" for told in (FEATURES, "mean", NOISY))
BOUNDS = Mode(",".join(CELLS), TOLD, "0.7,0.9,1.3", "5")
SWEEP = Mode("sharegpt/gamma:4,skew/gamma:4,book/gamma:4", swept(), "0.9", "5,6,7")


def measure(plan: Plan, options: argparse.Namespace) -> None:
    """Run every cell, and show each as soon as it is done; what is asked of all is then written."""
    cores = plan.workers or os.cpu_count()
    print(f"{plan.minutes:g} minutes of arrivals, {cores} processes; ratios, ! misses", flush=True)
    found = Results(list(plan.seeds), plan.minutes, [])
    for done in results(plan):
        print("\n".join(shown(done)), flush=True)
        found.cells.append(done)
        write(found, options)
    print(f"\n{found.processor_s:.0f} s of processor: {found.processor_s / 3600:.2f} core-hours")


def write(found: Results, options: argparse.Namespace) -> None:
    """The files that were asked for, of the cells so far."""
    if options.json is not None:
        text = msgspec.json.format(msgspec.json.encode(found), indent=1)
        options.json.write_bytes(text + b"\n")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(markdown(found)) + "\n", encoding="utf-8")
    if options.plot is not None:
        plot(found, options.plot)


def again(options: argparse.Namespace) -> None:
    """Show and write what an earlier call kept."""
    found = msgspec.json.decode(options.read.read_bytes(), type=Results)
    for done in found.cells:
        print("\n".join(shown(done)))
    write(found, options)


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument("--bounds", dest="mode", action="store_const", const=BOUNDS)
    modes.add_argument("--sweep", dest="mode", action="store_const", const=SWEEP)
    modes.add_argument("--search", action="store_true", help="measure the cells' capacities")
    modes.add_argument("--read", type=Path, help="a file of --json; default: none")
    for name in Mode._fields:
        told = f"default of --bounds: {getattr(BOUNDS, name)}; of --sweep: {getattr(SWEEP, name)}"
        parser.add_argument(f"--{name}", help=told.replace("%", "%%"))
    parser.add_argument("--minutes", type=float, default=10.0, help="default: %(default)s")
    parser.add_argument(
        "--least-requests", type=int, default=500, help="of a run; default: %(default)s"
    )
    parser.add_argument("--workers", type=int, help="processes; default: as many as cores")
    parser.add_argument("--mooncake", type=Path, help="its trace; default: none, without its cells")
    parser.add_argument("--json", type=Path, help="a file for the figures; default: none")
    parser.add_argument("--plot", type=Path, help="a picture, SVG or PNG; default: none")
    parser.add_argument("--markdown", type=Path, help="a file for the table; default: none")
    return parser, parser.parse_args()


def main() -> None:
    parser, options = parsed()
    if options.read is not None:
        again(options)
        return
    mode = options.mode or BOUNDS
    chosen = Mode(*(getattr(options, name) or getattr(mode, name) for name in Mode._fields))
    try:
        cells = chosen_cells(chosen.cells)
        ways = chosen_ways(chosen.ways)
    except ValueError as error:
        parser.error(str(error))
    if options.mooncake is None and any(one.startswith(MOONCAKE) for one in cells):
        cells = [one for one in cells if not one.startswith(MOONCAKE)]
        print(f"without --mooncake FILE, the cells of {MOONCAKE} are left out")
    if options.search:
        names = sorted({cell.partition("/")[0] for cell in cells})
        for name, rate in search(names, options.mooncake, options.workers).items():
            print(f"{name:<12}{rate:>8.3f} requests/s")
        return
    loads = [float(one) for one in chosen.loads.split(",")]
    seeds = [int(one) for one in chosen.seeds.split(",")]
    rest = options.minutes, options.least_requests, options.mooncake, options.workers
    measure(Plan(cells, loads, ways, seeds, *rest), options)


if __name__ == "__main__":
    main()
