"""`llmd profile`: measure this machine, fit a profile anew from a journal, or import a table."""

import argparse
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from daemon.base.nearest import unknown
from daemon.cli.argument_parser import FILE, add_flags, offer
from daemon.cli.faults import UsageError, error_text
from daemon.cli.parser import add_config_flags, overrides
from daemon.cli.profile_warnings import warn_of
from daemon.cli.progress import progress
from daemon.config.cuda import DeviceError
from daemon.config.load import load
from daemon.control.place import nearest_folder
from daemon.cost.forward_size import size_of
from daemon.cost.profile import Profile
from daemon.lab.profiles.devices import DEVICES
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.importers import IMPORTERS
from daemon.lab.profiles.load import load_profile, names, save_profile
from daemon.lab.profiles.models import MODELS
from daemon.lab.profiles.table import error_words, size_words
from daemon.memory.sizing import SizingError
from daemon.models.shape import ModelError
from daemon.runtime.model import cache_folder
from daemon.scheduler.policies import POLICIES

if TYPE_CHECKING:
    from daemon.lab.profiler.check import JournalCheck
    from daemon.lab.profiler.run import Profiled

BUDGET_S = 100.0
LEAST_BUDGET_S = 2.0
WIDEST_TOKENS = max(policy.batch_tokens for policy in POLICIES.values())
"""Tokens of a step, where the configuration does not say."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd profile` and of `llmd profile import`."""
    add_config_flags(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to (default: in the cache folder)"
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=BUDGET_S,
        metavar="S",
        help="seconds to spend, the model's loading included; less of them measure less "
        "(default: %(default)g)",
    )
    named = "its name (default: model and device, as smollm2-135m-instruct@cpu-2)"
    parser.add_argument("--name", default="", help=named)
    group = parser.add_argument_group("from live steps, instead of measuring")
    group.add_argument("--from-journal", type=Path, metavar="FILE", help="a daemon's journal")
    scaled = group.add_argument(
        "--profile", metavar="P", help="the profile whose terms are scaled to it"
    )
    offer(scaled, names())
    checked = group.add_argument(
        "--check", type=Path, metavar="FILE", help="a later journal, to say the error on"
    )
    offer(checked, FILE)
    verbs = parser.add_subparsers(dest="verb", metavar="import")
    importing = verbs.add_parser("import", help="convert a published table")
    kind = importing.add_argument("kind", metavar="KIND", help=", ".join(IMPORTERS))
    offer(kind, tuple(IMPORTERS))
    importing.add_argument("source", type=Path, metavar="SOURCE", help="its file or folder")
    model = importing.add_argument(
        "--model", dest="import_model", required=True, metavar="M", help="whose times they are"
    )
    offer(model, tuple(MODELS))
    device = importing.add_argument(
        "--device", default="a100-80g", metavar="D", help="and on which (default: %(default)s)"
    )
    offer(device, tuple(DEVICES))
    add_flags(importing, ("--tp", int, 1, "N", "tensor parallel degree (default: %(default)s)"))
    # SUPPRESS: without the flag here, the subparser must not erase the one before the verb
    importing.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="where to (default: the profile's name, here)",
    )


def profile(arguments: argparse.Namespace) -> int:
    """Make a profile and write it. 0: done; 1: it could not be made. Raises ConfigError."""
    try:
        if arguments.verb == "import":
            return _import(arguments)
        if any((arguments.from_journal, arguments.profile, arguments.check)):
            return _refit(arguments)
        return _measure(arguments)
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except (ProfileError, DeviceError, ModelError, SizingError, OSError) as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 1


def _measure(arguments: argparse.Namespace) -> int:
    if not arguments.budget_s >= LEAST_BUDGET_S:
        raise UsageError(f"--budget-s must be at least {LEAST_BUDGET_S:g} s")
    loaded = load(arguments.config, given := overrides(arguments))
    step_tokens = 0
    if not loaded.written.scheduler.max_batch_tokens:
        step_tokens = loaded.config.scheduler.max_batch_tokens
        loaded = load(arguments.config, {**given, "scheduler.max_batch_tokens": WIDEST_TOKENS})
    config = loaded.config
    folder = cache_folder(config) / "profiles"
    _check_place(arguments.out or folder / "any")
    from daemon.lab.profiler.run import (
        profile_machine,  # here: a wrong configuration is reported at once
    )

    with progress() as show:
        made = profile_machine(
            config,
            arguments.name,
            arguments.budget_s,
            lambda share, what: show(share, 1.0, what),
            step_tokens,
        )
    print("\n".join(summary(made)))
    warn_of(made.profile)
    _write(made.profile, arguments.out or folder / f"{made.profile.name}.json")
    return 0


def _refit(arguments: argparse.Namespace) -> int:
    if arguments.from_journal is None or arguments.profile is None or arguments.out is None:
        raise UsageError("fitting anew needs all of --from-journal, --profile and --out")
    from daemon.lab.profiler.check import check
    from daemon.lab.profiler.refit import read_journal, refit_to

    old = load_profile(arguments.profile)
    later = None if arguments.check is None else read_journal(arguments.check)
    made = refit_to(old, read_journal(arguments.from_journal))
    for name, factor in made.factors.items():
        print(f"{name:<10} x {factor:.3f}")
    fit, edges = made.profile.fit, made.profile.edges
    print(
        f"between steps {_ms(edges.gap_s)} where the worker waited, {_ms(edges.turn_s)} where it "
        f"did not; {_ms(old.edges.gap_s)} and {_ms(old.edges.turn_s)} before"
    )
    print(
        f"fitted to {fit.num_points:,} steps; on those held out the error goes from "
        f"{made.old_mape:.1%} to {error_words(fit)}, noise {fit.noise_sigma:.1%}"
    )
    if later is not None:
        print("\n".join(_checked(check(old, later), check(made.profile, later))))
    print(size_line(made.profile))
    warn_of(made.profile)
    _write(made.profile, arguments.out)
    return 0


def _checked(before: "JournalCheck", after: "JournalCheck") -> Iterator[str]:
    """The errors on a later journal, of the profile as it was and as it is now."""
    yield f"on {after.requests:,} requests of {before.source}, before and after the fit:"
    for name, error in after.step_mape.items():
        yield f"  steps of {name}: {before.step_mape[name]:.1%}, now {error:.1%}"
    for what, old, new in (
        ("a request's time, in the median", before.request_error, after.request_error),
        ("their mean", before.mean_error, after.mean_error),
        ("the mean first token", before.ttft_error, after.ttft_error),
    ):
        yield f"  {what}: {old:+.1%}, now {new:+.1%}"


def _import(arguments: argparse.Namespace) -> int:
    convert = IMPORTERS.get(arguments.kind)
    if convert is None:
        raise UsageError(unknown("kind of table", arguments.kind, IMPORTERS))
    if arguments.tp < 1:
        raise UsageError(f"--tp must be at least 1, got {arguments.tp}")
    made = convert(arguments.source, arguments.import_model, arguments.device, arguments.tp)
    print(f"{made.name}: {made.fit.num_points:,} points, error {error_words(made.fit)}")
    print(size_line(made))
    _write(made, arguments.out or Path(f"{made.name}.json"))
    return 0


def summary(made: "Profiled") -> Iterator[str]:
    """The measurements and the fit's error on them, as lines of a table."""
    from daemon.lab.profiler.experiments import HELD_OUT
    from daemon.lab.profiler.fit import step_errors

    yield f"{'steps':<10}{'kinds':>7}{'measured':>10}{'from':>10}{'to':>10}{'error':>8}{'worst':>8}"
    errors = step_errors(made.fitted.operators, made.measured.points)
    for kind, found in errors.items():
        points = [point for point in made.measured.points if point.kind is kind]
        times = [point.elapsed_s for point in points]
        samples = sum(len(point.samples_s) for point in points)
        yield (
            f"{kind:<10}{len(points):>7}{samples:>10}{_ms(min(times)):>10}{_ms(max(times)):>10}"
            f"{np.mean(np.abs(found)):>8.1%}{np.max(np.abs(found)):>8.1%}"
            f"{'  held out' if kind in HELD_OUT else ''}"
        )
    profile, device = made.profile, made.profile.device
    yield from _operators(profile)
    error, noise = error_words(profile.fit), profile.fit.noise_sigma
    yield f"error of steps held out {error}, noise {noise:.1%}"
    host = (
        f"{device.host_link.bytes_per_s / 1e9:.1f} GB/s"
        if device.host_link.bytes_per_s
        else "not measured"
    )
    yield (
        f"between steps {_ms(profile.edges.gap_s)}; block copies: "
        f"{made.measured.copy_bytes_per_s / 1e9:.1f} GB/s by the worker, in host memory {host}"
    )
    yield size_line(profile)


def _operators(profile: Profile) -> Iterator[str]:
    """Each operator alone: its input, and its times at the smallest and the largest of these."""
    alone = profile.operators
    if alone is None:
        return
    yield f"{'operators alone':<20}{'from':>8}{'to':>8}{'takes':>12}{'to':>12}"
    for operator in (*alone.tokens_s, *alone.sampled_s):
        at, value = operator.time_s.at, operator.time_s.value
        yield (
            f"{operator.name:<20}{at[0]:>8,.0f}{at[-1]:>8,.0f}"
            f"{_us(value[0]):>12}{_us(value[-1]):>12}"
        )
    for name, surface in (("prefill", alone.prefill_s), ("decode", alone.decode_s)):
        low = surface(surface.rows[0], surface.columns[0])
        high = surface(surface.rows[-1], surface.columns[-1])
        yield (
            f"{f'{name} attention':<20}{surface.rows[0]:>8,.0f}{surface.rows[-1]:>8,.0f}"
            f"{_us(low):>12}{_us(high):>12}  at {surface.columns[0]:,.0f} and "
            f"{surface.columns[-1]:,.0f} tokens before"
        )
    error = f"{alone.mape:.1%}" if alone.mape else "not known"
    yield (
        f"their sums on steps held out: error {error}, with {_ms(alone.overhead_s)} a step beyond "
        "operators"
    )


def size_line(profile: Profile) -> str:
    """A line on how many tokens a step needs to fill the device."""
    size = size_of(profile)
    return (
        f"target forward size {size_words(size)} tokens ({size.tokens_per_s:,.0f} tokens/s of a "
        f"prompt; steps of up to {size.most_tokens:,} are known)"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} us"


def _check_place(path: Path) -> None:
    """Raise OSError where a profile could not be written, before minutes are spent on it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    folder = nearest_folder(path.parent)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _write(made: Profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_profile(made, path)
    print(path)
