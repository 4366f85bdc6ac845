"""The self-driving plan on a real daemon that begins with a bad policy, beside one that keeps it.

    python -m benchmarks.studies self_driving_live [--policy static] [--rate 2.5] [--requests 600]
        [--workload alpaca] [--arrivals poisson] [--slo 1/0.15] [--period-s 40] [--profile FILE]

The embedded model on one CPU instance of one thread, so that the plan's process has the other core.
The same load is served twice: with `plan.auto` on top of the policy, and where that gave an order,
under the policy alone. Attainment is counted at the Core, from the journals, before the plan's
first order and after it; the same times of the daemon without a plan stand beside. On two quiet
cores it takes ten minutes, one of them for the profile. The rate is one that whole batches do not
keep up with, and other policies do; on a slower machine it has to be lower: where nothing keeps up,
no plan helps.
"""

import argparse
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.live import bench, daemon
from benchmarks.studies import frame
from benchmarks.studies.plan_from_journal import MAX_LEN, measured
from daemon.control.client import ControlError, fetch_snapshot
from daemon.core.values.events import FlipOrdered, PolicyChosen, RolesChosen
from daemon.journal.records import FILE_NAME
from daemon.lab.autoplan.from_journal import seen_in
from daemon.lab.autoplan.search import SeenRequests
from daemon.lab.simulator.journal import read_incident
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.state.slo import Slo

_LOOK_S = 2.0


class DrivenLife(NamedTuple):
    """A load that was served: its requests, times from the first one on, and the orders given."""

    seen: SeenRequests
    orders: list[tuple[float, str]]


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--policy", default="static", help="in force at the start")
    parser.add_argument("--workload", default="alpaca")
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--rate", type=float, default=2.5)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--slo", default="1/0.15", help="TTFT/TPOT in seconds")
    parser.add_argument("--period-s", type=float, default=40.0, help="as `plan.period_s`")
    parser.add_argument("--profile", type=Path, help="instead of measuring one")
    parser.add_argument("--folder", type=Path, help="for journals and the profile")


def study(options: argparse.Namespace) -> None:
    """Run both lives, and print the tables."""
    ttft_s, tpot_s = map(float, options.slo.split("/"))
    slo = Slo(ttft_s, tpot_s)
    with TemporaryDirectory(prefix="llmd-drive-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        profile = options.profile or measured(folder)
        drives = ["--set", "plan.auto=true", "--set", f'plan.profile="{profile.resolve()}"']
        drives += ["--set", f"plan.period_s={options.period_s}"]
        driven = served(options, slo, folder / "driven.llmd", drives)
        for at_s, words in driven.orders:
            print(f"after {at_s:.0f} s: {words}")
        if not driven.orders:
            print(f"no plan was applied; {driven.seen.attainment:.1%} kept both SLOs")
            return
        attainments(served(options, slo, folder / "alone.llmd", []), driven)


def served(
    options: argparse.Namespace, slo: Slo, journal: Path, flags: Sequence[str]
) -> DrivenLife:
    """The load on a daemon of its own, whose journal stays."""
    spec = WorkloadSpec(
        name=options.workload,
        requests=options.requests,
        arrivals=options.arrivals,
        rate=options.rate,
        classes=(SloClass(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s),),
    )
    more = ["--set", f"model.max_len={MAX_LEN}", "--set", "daemon.threads=1"]
    more += ["--set", f'scheduler.policy="{options.policy}"']
    more += ["--set", f"slo.ttft_s={slo.ttft_s}", "--set", f"slo.tpot_s={slo.tpot_s}"]
    if not journal.exists():
        with TemporaryDirectory(prefix="llmd-life-") as temporary:
            folder = Path(temporary)
            with daemon([*more, *flags], folder) as url, followed(folder / "llmd.sock"):
                bench(url, spec, MAX_LEN)
            shutil.copy(folder / FILE_NAME, journal)
    incident = read_incident(journal)
    orders = [
        (event.now - incident.first_s, _words(event))
        for event in incident.inputs
        if isinstance(event, PolicyChosen | RolesChosen | FlipOrdered)
    ]
    return DrivenLife(seen_in(incident, slo, np.inf), orders)


@contextmanager
def followed(path: Path) -> Iterator[None]:
    """What `llmd-top` shows of the plan, printed as it changes."""
    over = threading.Event()

    def follow() -> None:
        begin_s, shown = time.monotonic(), ""
        while not over.wait(_LOOK_S):
            try:
                words = fetch_snapshot(path, 30.0).plan.words
            except (ControlError, OSError):
                continue
            if words != shown:
                print(f"{time.monotonic() - begin_s:5.0f} s  {words}", flush=True)
                shown = words

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def attainments(alone: DrivenLife, driven: DrivenLife) -> None:
    """Shares of both daemons before the first order and after it."""
    order_s = driven.orders[0][0]
    frame.heads("requests that came", "alone", "with the plan", "each")
    for name, begin_s, end_s in (("before", -1.0, order_s), ("after", order_s, np.inf)):
        parts = []
        for life in (alone, driven):
            first_s = float(life.seen.arrival_s[0])
            parts.append(life.seen.between(first_s + begin_s, first_s + end_s))
        shares = [f"{part.attainment:.1%}" for part in parts]
        frame.row((f"{name} the first order", *shares, ", ".join(str(len(p)) for p in parts)))


def _words(event: PolicyChosen | RolesChosen | FlipOrdered) -> str:
    """An order in a few words."""
    if isinstance(event, PolicyChosen):
        return f"policy {event.policy}"
    if isinstance(event, RolesChosen):
        return f"roles {event.mode}"
    return f"{event.instance} becomes {event.role.value}"
