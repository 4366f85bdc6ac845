"""Splitwise's table: whole prompts and decodes of Llama-2-70B, with power; `perf_model.csv`.

Milliseconds, five repeats of each shape (prompt size, batch, output size). Operators are not
measured, so they are separated by the shapes in which one changes alone; sizes are in tokens:

- `prefill_s` is c * (n^2 + 2 n before), c from a + b L + c L^2 over single prompts, at least 0;
- `decode_s` is d * decodes * context, d from the token times of single prompts by their context
  (prompt and half the output);
- `tokens_s` is the rest: of single decodes and of batches of 512 up to 64 tokens, of prompts from
  128 on. Where two shapes have the same total (1,024, or twice 512) their mean counts, as in
  Splitwise's own simulator. All-reduces and overheads are inside.

Token times are those of 128 output tokens: longer outputs come from another run that was 9 %
slower on A100. Dropped: the corrupt rows of tensor parallel 2 with 64 prompts of 512 (faster than
4), and rows without a time. `fit` leaves out one total of tokens after the other; `noise_sigma` is
the spread of the repeats.

Power: the share of the limit that prompts draw is the run's peak (up to 1: it is a limit), that of
decodes the run's average by batch, since a run is mostly decodes. The table has power for A100
alone; H100 is assumed to draw the same shares. The rows `h100-80gb-pcap` are at half the limit, and
give the factors on time; caps between are interpolated, those below are not known.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Fit, Operators, PowerSpec, Profile
from daemon.cost.step_cost import OperatorCost
from daemon.cost.work import StepWork
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import fit_curve, mape, rounded
from daemon.lab.profiles.importers.naming import profile_name
from daemon.lab.profiles.importers.tables import TableRow, rows_of
from daemon.lab.profiles.models import find_model

FILE = "perf_model.csv"
_MODELS = {"llama-2-70b": "llama2-70b"}
_DEVICES = {"a100-80g": "a100-80gb", "h100": "h100-80gb"}
_CAPPED, _UNCAPPED, _CAP_SHARE = "h100-80gb-pcap", "h100-80gb", 0.5
_POWER_FROM = "a100-80gb"
_COLUMNS = (
    "model",
    "hardware",
    "tensor_parallel",
    "prompt_size",
    "batch_size",
    "token_size",
    "prompt_time",
    "token_time",
    "peak_power",
    "average_power",
)
_OUTPUT = 128  # tokens, of the rows whose token times count
_LARGEST = 16384.0  # tokens, of the knots of surfaces
Groups = Mapping[int, list[float]]


@dataclass(frozen=True, slots=True)
class _Run:
    """One row: a batch of equal prompts, and the times of the prompts and of one token."""

    size: int
    batch: int
    output: int
    prompt_s: float
    token_s: float
    peak_share: float
    mean_share: float

    @property
    def total(self) -> int:
        """Prompt tokens of the batch."""
        return self.size * self.batch

    def prefill_work(self) -> StepWork:
        """The step that computes the prompts."""
        return StepWork(0, 0, ((self.size, 0),) * self.batch)

    def decode_work(self) -> StepWork:
        """The step in the middle of the outputs."""
        return StepWork(self.batch, self.batch * (self.size + self.output // 2))


def convert(source: Path, model: str, device: str, tp: int) -> Profile:
    """The profile from `source`, the file or its folder. Raises ProfileError."""
    architecture = find_model(model)
    path = source / FILE if source.is_dir() else source
    if model not in _MODELS or device not in _DEVICES:
        raise ProfileError(f"{path}: has {', '.join(_MODELS)} on {', '.join(_DEVICES)} alone")
    runs = _runs(path, _MODELS[model], _DEVICES[device], tp)
    return Profile(
        name=profile_name(model, device, tp),
        model=architecture.spec,
        device=find_device(device),
        tp=tp,
        step=_operators(runs),
        fit=_fit(runs),
        power=power_of(path, model, tp),
        source=(
            f"Splitwise (ISCA 2024), simulator, {FILE}, {_MODELS[model]} on {_DEVICES[device]}, "
            f"tensor parallel {tp}; MIT",
            "corrupt rows dropped; fit: one total of tokens left out after the other; noise: the "
            "spread of repeats",
            "power: shares measured on A100 at the same degree, slowdowns on H100 at half the "
            "limit; below it they are not known",
        ),
    )


def power_of(path: Path, model: str, tp: int) -> PowerSpec:
    """Shares of the limit drawn at that degree, and slowdowns at a cap. Raises ProfileError."""
    name = _MODELS[model]
    measured = [run for run in _runs(path, name, _POWER_FROM, tp) if run.peak_share > 0.0]
    prefill, decode = defaultdict(list), defaultdict(list)
    for run in measured:
        prefill[run.total].append(min(run.peak_share, 1.0))
        if run.size == 512:
            decode[run.batch].append(min(run.mean_share, 1.0))
    free, capped = _runs(path, name, _UNCAPPED, tp), _runs(path, name, _CAPPED, tp)
    return PowerSpec(
        prefill_share=_shares(path, prefill),
        decode_share=_shares(path, decode),
        prefill_slowdown=_slowdown(free, capped, "prompt_s"),
        decode_slowdown=_slowdown(free, capped, "token_s"),
    )


def _runs(path: Path, model: str, hardware: str, tp: int) -> list[_Run]:
    runs = [
        _run(row)
        for row in rows_of(path, _COLUMNS)
        if (row.text("model"), row.text("hardware")) == (model, hardware)
        and row.count("tensor_parallel") == tp
        and not _is_corrupt(row)
    ]
    if len({run.total for run in runs if run.batch == 1}) < 4:
        raise ProfileError(f"{path}: too few rows of {model}, {hardware}, tensor parallel {tp}")
    return runs


def _is_corrupt(row: TableRow) -> bool:
    """Whether a row is known to be wrong, or has no time."""
    shape = (row.count("tensor_parallel"), row.count("batch_size"), row.count("prompt_size"))
    if row.text("model") == "llama2-70b" and shape == (2, 64, 512):
        return True
    return row.number("prompt_time") <= 0.0 or row.number("token_time") <= 0.0


def _run(row: TableRow) -> _Run:
    return _Run(
        row.count("prompt_size"),
        row.count("batch_size"),
        row.count("token_size"),
        row.number("prompt_time") / 1e3,
        row.number("token_time") / 1e3,
        row.number("peak_power"),
        row.number("average_power"),
    )


def _operators(runs: Iterable[_Run], without: int = 0) -> Operators:
    """The fit, to all runs or to those whose step does not have `without` tokens."""
    prompts = [run for run in runs if run.total != without]
    decodes = [run for run in runs if run.output == _OUTPUT and run.batch != without]
    pair_s, context_s = _pair_s(prompts), _context_s(decodes)
    rest: dict[int, list[float]] = defaultdict(list)
    for shape_s, run in _by_shape(prompts, "prompt_s"):
        rest[run.total].append(shape_s - pair_s * run.batch * run.size**2)
    for shape_s, run in _by_shape(decodes, "token_s"):
        if run.size == 512:
            rest[run.batch].append(shape_s - context_s * run.decode_work().decode_context)
    at = sorted(rest)
    sizes = (1.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, _LARGEST)
    squares = tuple(
        (rounded(pair_s * n * n), rounded(pair_s * (n * n + 2 * n * _LARGEST))) for n in sizes
    )
    top = rounded(context_s * 256 * _LARGEST)
    return Operators(
        tokens_s=fit_curve(at, [float(np.mean(rest[tokens])) for tokens in at], tolerance=0.0),
        prefill_s=Surface(sizes, (0.0, _LARGEST), squares),
        decode_s=Surface((0.0, 256.0), (0.0, _LARGEST), ((0.0, 0.0), (0.0, top))),
    )


def _by_shape(runs: Iterable[_Run], field: str) -> list[tuple[float, _Run]]:
    """For each (prompt size, batch): the median of a time, and one of its runs."""
    shapes: dict[tuple[int, int], list[_Run]] = defaultdict(list)
    for run in runs:
        shapes[run.size, run.batch].append(run)
    return [
        (float(np.median([getattr(run, field) for run in same])), same[0])
        for same in shapes.values()
    ]


def _pair_s(prompts: Iterable[_Run]) -> float:
    """Seconds per square of a prompt's tokens, from single prompts."""
    single = [
        (run.size, time_s) for time_s, run in _by_shape(prompts, "prompt_s") if run.batch == 1
    ]
    sizes, times = zip(*single, strict=True)
    return max(0.0, float(np.polyfit(sizes, times, 2)[0]))


def _context_s(decodes: Iterable[_Run]) -> float:
    """Seconds per token of context, from single decodes."""
    single = [
        (run.decode_work().decode_context, time_s)
        for time_s, run in _by_shape(decodes, "token_s")
        if run.batch == 1
    ]
    contexts, times = zip(*single, strict=True)
    return max(0.0, float(np.polyfit(contexts, times, 1)[0]))


def _fit(runs: list[_Run]) -> Fit:
    """The error on steps whose token count was left out, each inner one in turn; the repeats'
    spread.
    """
    prompts = _by_shape(runs, "prompt_s")
    decodes = _by_shape([run for run in runs if run.output == _OUTPUT], "token_s")
    guesses, truths = [], []
    for total in sorted({run.total for _, run in prompts})[1:-1]:
        cost = OperatorCost(_operators(runs, total))
        held = [(time_s, run.prefill_work()) for time_s, run in prompts if run.total == total]
        guesses += [cost.step_s(work) for _, work in held]
        truths += [time_s for time_s, _ in held]
    for batch in sorted({run.batch for _, run in decodes})[1:-1]:
        cost = OperatorCost(_operators(runs, batch))
        held = [(time_s, run.decode_work()) for time_s, run in decodes if run.batch == batch]
        guesses += [cost.step_s(work) for _, work in held]
        truths += [time_s for time_s, _ in held]
    return Fit(
        num_points=len(prompts) + len(decodes),
        mape=round(mape(guesses, truths), 4),
        noise_sigma=_spread(runs),
    )


def _spread(runs: list[_Run]) -> float:
    """Standard deviation of log(time / median of the same shape), prompts and tokens."""
    logs = []
    shapes: dict[tuple[int, int, int], list[_Run]] = defaultdict(list)
    for run in runs:
        shapes[run.size, run.batch, run.output].append(run)
    for same in shapes.values():
        for field in ("prompt_s", "token_s"):
            times = [getattr(run, field) for run in same]
            middle = float(np.median(times))
            logs += [math.log(time_s / middle) for time_s in times]
    return round(float(np.std(logs)), 4)


def _shares(path: Path, groups: Groups) -> Curve:
    if not groups:
        raise ProfileError(f"{path}: no row of {_POWER_FROM} has power")
    at = sorted(groups)
    values = tuple(rounded(float(np.mean(groups[place]))) for place in at)
    return Curve(tuple(map(float, at)), values)


def _slowdown(free: Iterable[_Run], capped: Iterable[_Run], field: str) -> Curve:
    """The factor on a time at the cap, the median over shapes, and 1 without it."""
    base = {(run.size, run.batch): time_s for time_s, run in _by_shape(free, field)}
    ratios = [
        time_s / base[run.size, run.batch]
        for time_s, run in _by_shape(capped, field)
        if (run.size, run.batch) in base
    ]
    return Curve((_CAP_SHARE, 1.0), (rounded(max(1.0, float(np.median(ratios)))), 1.0))
