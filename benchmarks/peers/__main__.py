"""The comparison's command line: start the servers, go through the rounds, report."""

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import machine, report
from benchmarks.peers.formats import FLOAT32, FORMATS, Format, size_bytes
from benchmarks.peers.load import complete, drive, finish, wait_ready
from benchmarks.peers.memory import tree_memory
from benchmarks.peers.servers import (
    PEERS,
    Prepared,
    Room,
    Server,
    Spec,
    StartError,
    find_llmd,
    llmd_spec,
    missing,
    start,
    stopping,
)
from benchmarks.peers.workload import (
    MODES,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    Mode,
    Prompts,
    make_jobs,
    room_for,
)

WARM_UP = Mode("warm-up", requests=2, outputs=((16, 1.0),))
FIRST_WARM_UP = Mode("first warm-up", requests=16, streams=8, outputs=((16, 1.0),))
GREEDY = Mode("greedy", requests=4, outputs=((32, 1.0),))


class Comparison:
    """One sitting: its settings, the runs so far, and what went wrong."""

    def __init__(
        self, args: argparse.Namespace, prepared: Prepared, specs: dict[Format, list[Spec]]
    ) -> None:
        self._args = args
        self._prepared = prepared
        self._specs = specs
        self._prompts = Prompts(prepared.models / FLOAT32.folder / "tokenizer.json")
        self._greedy: dict[str, dict[str, list[str]]] = {form.name: {} for form in specs}
        self._runs: list[report.Run] = []
        self._problems: list[str] = []
        self._start_s: dict[str, float] = {}
        self._machine = machine.describe()
        every = {spec.name: spec for chosen in specs.values() for spec in chosen}
        self._versions = {name: spec.version(prepared.tools) for name, spec in every.items()}

    def run(self) -> None:
        """For each format all rounds of the normal modes, then all of those with little room."""
        chosen = self._modes()
        for form, specs in self._specs.items():
            for limited in (False, True):
                modes = [mode for mode in chosen if mode.limited_kv is limited]
                if modes:
                    self._rounds(form, specs, modes)

    def _modes(self) -> list[Mode]:
        """The modes, with as many requests as are asked for."""
        share = self._args.share
        return [one.with_requests(share) for one in MODES if one.name in self._args.modes]

    def _rounds(self, form: Format, specs: list[Spec], modes: list[Mode]) -> None:
        """All rounds of one format, its servers side by side or one at a time."""
        numbers = list(range(self._args.rounds))
        if not self._args.alone:
            self._with_servers(form, specs, modes, numbers)
            return
        for number in numbers:
            for spec in self._turn(specs, number):
                self._with_servers(form, [spec], modes, [number])

    def _with_servers(
        self, form: Format, specs: list[Spec], modes: list[Mode], numbers: list[int]
    ) -> None:
        """Start servers, take them through the modes once per round number, stop them."""
        with stopping([]) as servers:
            for spec in specs:
                self._start(spec, form, room_for(modes), servers)
            for number in numbers:
                for mode in modes:
                    for server in self._turn(servers, number):
                        self._measure(server, mode, number)

    def _turn(self, items: list[Any], number: int) -> list[Any]:
        """The items, beginning with another one each round."""
        first = number % len(items) if items else 0
        return items[first:] + items[:first]

    def _start(self, spec: Spec, form: Format, room: Room, servers: list[Server]) -> None:
        """Start one server, warm it up, and keep its greedy text; leave it out if it fails."""
        began = time.monotonic()
        server = start(spec, self._prepared, form, self._args.threads, room)
        servers.append(server)
        try:
            finish(wait_ready(server, self._args.start_limit))
        except StartError as error:
            self._problem(str(error))
            servers.remove(server)
            server.stop()
            return
        self._start_s[server.log.stem] = round(time.monotonic() - began, 1)
        self._say(f"{spec.name}, {form.name}: ready after {self._start_s[server.log.stem]} s")
        jobs = make_jobs(FIRST_WARM_UP, self._prompts, f"{spec.name} first")
        finish(drive(server, FIRST_WARM_UP, jobs))
        texts_by_server = self._greedy[form.name]
        if spec.name not in texts_by_server and not self._args.sampling:
            samples = make_jobs(GREEDY, self._prompts, GREEDY.name)
            texts = [finish(complete(server, one.prompt, one.output_tokens)) for one in samples]
            texts_by_server[spec.name] = texts

    def _measure(self, server: Server, mode: Mode, number: int) -> None:
        """One run, repeated when others disturbed it; the least disturbed attempt counts."""
        attempts: list[report.Run] = []
        while len(attempts) <= self._args.retries:
            if not server.alive:
                self._problem(f"{server.spec.name} ended by itself; see {server.log}")
                return
            attempts.append(self._attempt(server, mode, number, len(attempts)))
            if attempts[-1]["cpu"]["others"] <= self._args.disturbed:
                break
        best = min(attempts, key=lambda run: float(run["cpu"]["others"]))
        best["attempts"] = len(attempts)
        best["disturbed"] = best["cpu"]["others"] > self._args.disturbed
        self._runs.append(best)
        self._tell(best)
        self._write()

    def _attempt(self, server: Server, mode: Mode, number: int, attempt: int) -> report.Run:
        """Wait for a quiet machine, warm the server up, load it, and measure."""
        quiet = machine.wait_until_quiet(self._args.quiet, self._args.patience)
        seed = f"{self._args.seed} {mode.name} {number}"
        warm_up = make_jobs(WARM_UP, self._prompts, f"{seed} warm-up", attempt)
        finish(drive(server, WARM_UP, warm_up))
        jobs = make_jobs(mode, self._prompts, seed, attempt)
        meter = machine.CpuMeter(server.process.pid)
        answers, wall_s = finish(drive(server, mode, jobs))
        use = dataclasses.asdict(meter.read())
        run: report.Run = {"format": server.form.name, "server": server.spec.name}
        run |= {"mode": mode.name, "round": number, "busy_before": round(quiet, 3), "cpu": use}
        run |= report.measure(mode, answers, wall_s)
        return run | report.processor_time(answers, use) | self._memory(server)

    def _memory(self, server: Server) -> report.Run:
        """What the server takes, and how much of it would stay with no weights at all."""
        taken = tree_memory(server.process.pid)
        part = self._prepared.models / server.spec.reads(server.form)
        weights_mb = round(size_bytes(part) / 2**20, 1)
        beyond_mb = round(taken.pss_mb - weights_mb, 1)
        taken_mb = dataclasses.asdict(taken)
        return taken_mb | {"weights_mb": weights_mb, "beyond_weights_mb": beyond_mb}

    def result(self) -> dict[str, Any]:
        """Everything there is to know so far, ready for JSON."""
        args = {key: value for key, value in vars(self._args).items() if key not in PATHS}
        return {
            "machine": self._machine,
            "versions": self._versions,
            "start_s": self._start_s,
            "settings": args | {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
            "modes": [dataclasses.asdict(mode) for mode in self._modes()],
            "greedy": {name: report.agreement(texts) for name, texts in self._greedy.items()},
            "summary": self._summary(),
            "runs": self._runs,
            "problems": self._problems,
        }

    def _summary(self) -> dict[str, Any]:
        """The numbers of each format."""
        summary: dict[str, Any] = {}
        for form, specs in self._specs.items():
            runs = [run for run in self._runs if run["format"] == form.name]
            summary[form.name] = report.summarise(runs, [spec.name for spec in specs])
        return summary

    def _write(self) -> None:
        """Keep what is known so far, so that an interrupted sitting is not lost."""
        if self._args.out:
            self._args.out.write_text(json.dumps(self.result(), indent=1) + "\n")

    def _tell(self, run: report.Run) -> None:
        """One line about a finished run."""
        parts = [f"{run['format']} round {run['round'] + 1} {run['mode']:<7}{run['server']:<14}"]
        for metric in report.METRICS[run["mode"]][:2]:
            parts.append(f"{metric.title} {run.get(metric.key, 'none')}")
        parts.append(f"others' cpu {run['cpu']['others']:.2f}")
        if run["not_whole"]:
            parts.append(f"{run['failed']} failed, {run['short']} short")
        if run["disturbed"]:
            parts.append(f"disturbed, {run['attempts']} attempts")
        self._say("; ".join(parts))

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)
            self._say(f"problem: {text}")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


PATHS = ("peers_dir", "tools_dir", "out", "llmd", "llmd_args")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measure llmd against other servers; the package's docstring says how.",
    )
    add = parser.add_argument
    names = [mode.name for mode in MODES]
    add("--peers-dir", type=Path, required=True, help="the prepared folder")
    add("--tools-dir", type=Path, help="where the servers are (default: the prepared folder)")
    add("--formats", nargs="+", choices=FORMATS, default=[FLOAT32.name], help="of the weights")
    add("--servers", nargs="+", choices=[spec.name for spec in PEERS], help="only these peers")
    usual = [mode.name for mode in MODES if mode.prompt_tokens == PROMPT_TOKENS]
    add("--modes", nargs="+", choices=names, default=usual)
    add("--sampling", type=json.loads, default={}, help="JSON fields of each request, not greedy")
    add("--rounds", type=int, default=3, help="times each mode is run per server")
    add("--alone", action="store_true", help="run one server at a time, not all side by side")
    add("--without-llmd", action="store_true", help="measure the peers only")
    add("--llmd", type=Path, default=find_llmd(), help="the llmd program")
    add("--llmd-files", action="store_true", help="llmd reads GGUF files, folders never")
    add("--llmd-args", nargs=argparse.REMAINDER, default=[], help="more for `llmd serve`; last")
    add("--out", type=Path, help="write everything here, as JSON")
    add("--share", type=float, default=1.0, help="of each mode's requests")
    add("--seed", type=int, default=1)
    add("--threads", type=int, default=os.cpu_count(), help="threads of each server")
    add("--quiet", type=float, default=0.2, help="start when fewer processors are busy")
    add("--patience", type=float, default=60.0, help="seconds to wait for that")
    add("--disturbed", type=float, default=0.2, help="repeat when others took more processors")
    add("--retries", type=int, default=2, help="how often a disturbed run is repeated")
    add("--start-limit", type=float, default=240.0, help="seconds a server may take to start")
    return parser.parse_args()


def choose_specs(args: argparse.Namespace, prepared: Prepared, form: Format) -> list[Spec]:
    """llmd and those peers that have all they need to serve a format."""
    specs: list[Spec] = []
    if not args.without_llmd:
        if args.llmd is None:
            sys.exit("llmd is not installed; name it with --llmd or use --without-llmd")
        specs.append(llmd_spec(args.llmd.absolute(), args.llmd_args, args.llmd_files))
    specs += [spec for spec in PEERS if not args.servers or spec.name in args.servers]
    chosen = []
    for spec in specs:
        lacking = missing(spec, prepared, form)
        if lacking:
            want = ", ".join(lacking)
            print(f"{spec.name} is left out of {form.name}, for want of {want}", file=sys.stderr)
        else:
            body = {**spec.body, **args.sampling}
            chosen.append(dataclasses.replace(spec, body=body))
    return chosen


def print_result(result: dict[str, Any]) -> None:
    """The tables, and what is to be known of the machine and the runs."""
    about = result["machine"]
    print(f"{about['processor']}, {about['cores']} cores: {about['features']}")
    for name, version in result["versions"].items():
        print(f"{name}: {version}")
    print(report.table(result["summary"]))
    for name, greedy in result["greedy"].items():
        same = f"{greedy['same']} of {greedy['prompts']} prompts"
        print(f"\n{name}: same greedy text from all servers for {same}")
    disturbed = sum(run["disturbed"] for run in result["runs"])
    print(f"runs disturbed by others: {disturbed} of {len(result['runs'])}")
    for problem in result["problems"]:
        print(f"problem: {problem}")


def main() -> None:
    """Run the comparison and print its table."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    models = args.peers_dir.resolve()
    prepared = Prepared(models, (args.tools_dir or models).resolve())
    forms = [FORMATS[name] for name in args.formats]
    chosen = {form: choose_specs(args, prepared, form) for form in forms}
    specs = {form: servers for form, servers in chosen.items() if servers}
    comparison = Comparison(args, prepared, specs)
    try:
        comparison.run()
    finally:
        print_result(comparison.result())


if __name__ == "__main__":
    main()
