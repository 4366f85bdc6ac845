"""A plan from one load's journal, and the next load under it and under the defaults, in turns.

    python -m benchmarks.studies plan_from_journal [--instances 2] [--rate 3] [--requests 240]
        [--slo 2/0.1] [--repeats 2] [--profile FILE] [--folder FOLDER]

1. The embedded model on CPU instances with the default configuration serves a load.
2. `llmd profile --from-journal` fits a profile (without --profile, a minute's) to it.
3. `llmd plan --journal` searches on it and says what the plan will attain at this rate.
4. The next load, of the same kind, runs under the defaults and under the plan, `--repeats` times.

Attainment is counted at the Core, from the journals; clients' own stands beside it. The last table
has the fitted profile's errors on the journals of the next load, which it has not seen, beside the
spread of the live runs of that load. `--folder` keeps all files: a study that was interrupted goes
on behind the last life that ended.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.live import bench, daemon
from benchmarks.studies import frame
from daemon.cost.profile import Profile
from daemon.journal.records import FILE_NAME
from daemon.lab.planner.from_journal import attainment_of, measured_attainment
from daemon.lab.planner.goal import Goal
from daemon.lab.profiler.check import check
from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.journal import Incident, read_incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import rerun
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.state.slo import Slo

MAX_LEN = 1024
_PROFILE_S = 60
_FIRST, _NEXT = 1, 2
"""Seeds of both loads."""


class Setting(NamedTuple):
    """What all lives of the daemon have in common."""

    folder: Path
    instances: int
    workload: str
    rate: float
    requests: int
    slo: Slo

    @property
    def goal(self) -> Goal:
        """Both promises."""
        return Goal(ttft_s=self.slo.ttft_s, tpot_s=self.slo.tpot_s)


class Life(NamedTuple):
    """A load that was served."""

    incident: Incident
    attained: float  # at the Core, of the later half
    clients: float  # of all


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--workload", default="alpaca")
    parser.add_argument("--rate", type=float, default=3.0)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--slo", default="2/0.1", help="TTFT/TPOT in seconds")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", type=Path, help="instead of measuring one")
    parser.add_argument("--folder", type=Path, help="for journals, profiles and the plan")


def study(options: argparse.Namespace) -> None:
    """Run it all, and print the tables."""
    with TemporaryDirectory(prefix="llmd-plan-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        ttft_s, tpot_s = map(float, options.slo.split("/"))
        load = options.instances, options.workload, options.rate, options.requests
        setting = Setting(folder, *load, Slo(ttft_s, tpot_s))
        profile = options.profile or measured(folder)
        plain = ["--instance", *["cpu"] * options.instances]
        first = served(setting, "first", plain, _FIRST)
        fitted = folder / "fitted.json"
        source = first.incident.source
        fit = ["--from-journal", source, "--profile", str(profile), "--out", str(fitted)]
        told = llmd("profile", *fit)
        print(told, flush=True)
        found = planned(setting, ["--journal", source], fitted)
        lives: dict[str, list[Life]] = {"defaults": [], "plan": []}
        for turn in range(options.repeats):
            for name, flags in (
                ("defaults", plain),
                ("plan", ["--config", str(folder / "plan.toml")]),
            ):
                if name == "plan" and found["present"]["kept"]:
                    continue
                lives[name].append(served(setting, f"{name}-{turn}", flags, _NEXT))
        lives["plan"] = lives["plan"] or lives["defaults"]
        attainments(first, lives, found)
        errors(load_profile(str(fitted)), lives["defaults"], setting)


def measured(folder: Path) -> Path:
    """A profile of the machine."""
    path = folder / "measured.json"
    if not path.exists():
        llmd("profile", "--budget-s", str(_PROFILE_S), "--out", str(path))
    return path


def llmd(*words: str) -> str:
    """The output of a command."""
    command = [sys.executable, "-m", "daemon.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llmd {words[0]}: {done.stderr}")
    return done.stdout


def planned(setting: Setting, journal: Sequence[str], profile: Path) -> dict[str, Any]:
    """`llmd plan` on the journal: what it says, and its configuration in the folder."""
    path = setting.folder / "plan.json"
    if not path.exists():
        slo = ["--slo-ttft", f"{setting.slo.ttft_s:g}", "--slo-tpot", f"{setting.slo.tpot_s:g}"]
        out = ["--json", "--out", str(setting.folder / "plan.toml"), "--max-len", str(MAX_LEN)]
        path.write_text(llmd("plan", *journal, "--profiles", str(profile), *slo, *out))
    found: dict[str, Any] = json.loads(path.read_text())
    best, kept = found["best"]["text"], found["present"]["kept"]
    print(f"plan: {best}{'; the present one is kept' * kept}; {found['wall_s']:.0f} s", flush=True)
    return found


def served(setting: Setting, name: str, flags: Sequence[str], seed: int) -> Life:
    """A load on a daemon of its own, whose journal stays in the folder."""
    journal, seen = (setting.folder / f"{name}.{kind}" for kind in ("llmd", "clients"))
    spec = WorkloadSpec(
        name=setting.workload,
        requests=setting.requests,
        arrivals="poisson",
        rate=setting.rate,
        seed=seed,
        classes=(SloClass(ttft_s=setting.slo.ttft_s, tpot_s=setting.slo.tpot_s),),
    )
    if not seen.exists():
        more = ["--set", f"model.max_len={MAX_LEN}"]
        more += ["--set", f"slo.ttft_s={setting.slo.ttft_s}"]
        more += ["--set", f"slo.tpot_s={setting.slo.tpot_s}"]
        with TemporaryDirectory(prefix="llmd-life-") as folder:
            with daemon([*flags, *more], Path(folder)) as url:
                report = bench(url, spec, MAX_LEN).report
            shutil.copy(Path(folder, FILE_NAME), journal)
        seen.write_text(f"{report.slo_attainment or 0.0}")
    incident = read_incident(journal)
    attained = measured_attainment(incident, setting.goal, setting.requests // 2) or 0.0
    clients = float(seen.read_text())
    print(f"{name}: {attained:.1%} attained, {clients:.1%} by clients' clocks", flush=True)
    return Life(incident, attained, clients)


def attainments(first: Life, lives: dict[str, list[Life]], found: dict[str, Any]) -> None:
    """The first table: both sides on the next load, beside what the plan said."""
    present = found["present"]
    plan = present if present["kept"] else found["predicted"]
    said = {"defaults": present["own_rate"], "plan": plan["own_rate"]}
    print(f"\nthe first load attained {first.attained:.1%}\n")
    frame.heads("next load under", "predicted", "measured", "in turns", "clients")
    for name, own in lives.items():
        turns = [life.attained for life in own]
        frame.row((
            name, f"{said[name]['attainment']:.1%}", f"{np.mean(turns):.1%}",
            ", ".join(f"{turn:.1%}" for turn in turns),
            f"{np.mean([life.clients for life in own]):.1%}",
        ))  # fmt: skip
    means = {name: float(np.mean([life.attained for life in own])) for name, own in lives.items()}
    spreads = [np.ptp([life.attained for life in own]) for own in lives.values()]
    print(
        f"\nthe plan: {100 * (means['plan'] - plan['own_rate']['attainment']):+.1f} points of "
        f"what was predicted, {100 * (means['plan'] - means['defaults']):+.1f} of the defaults; "
        f"turns spread by {100 * max(spreads):.1f}"
    )


def errors(profile: Profile, lives: Sequence[Life], setting: Setting) -> None:
    """The second table: the fitted profile on journals that it was not fitted to."""
    print()
    frame.heads("life", "steps", "a request, median", "mean", "mean TTFT", "mean request",
                "attained, foretold")  # fmt: skip
    means = []
    for number, life in enumerate(lives):
        found = check(profile, life.incident)
        requests = replayed(life.incident).requests
        again = rerun(life.incident, profile=profile)
        foretold = attainment_of(again, setting.goal, len(again.requests) // 2) or 0.0
        means.append(float(np.nanmean(requests.last_s - requests.arrival_s)))
        frame.row((
            number, ", ".join(f"{error:.1%}" for error in found.step_mape.values()),
            f"{found.request_error:.1%}", f"{found.mean_error:+.1%}", f"{found.ttft_error:+.1%}",
            f"{means[-1]:.2f} s", f"{life.attained:.1%}, {foretold:.1%}",
        ))  # fmt: skip
    print(f"\nthe live runs' means spread by {np.ptp(means) / np.mean(means):.1%}")
