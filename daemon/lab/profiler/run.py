"""`llmd profile` from a configuration to a profile: find the model, measure its worker, fit."""

import os
import re
import time
from dataclasses import dataclass

import msgspec
import uvloop

from daemon.config.machine import measured_ram_bytes_per_s
from daemon.config.schema import Config
from daemon.cost.profile import DeviceSpec, Edges, LinkSpec, ModelSpec, Profile
from daemon.lab.profiler.experiments import HELD_OUT
from daemon.lab.profiler.fit import Fitted, fit
from daemon.lab.profiler.host import copy_bytes_per_s, dense_flops
from daemon.lab.profiler.measure import Measurements, Progress, measure
from daemon.lab.profiler.operators import fit_alone
from daemon.lab.profiler.points import Point, disturbed_share
from daemon.lab.profiler.quality import lacks, refuse_unfit
from daemon.protocol.worker import Load
from daemon.runtime.model import ServedModel, find_model

_ATTENTION = "attention and tokens are told apart by one least-squares fit over all steps"


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile, with the fit and measurements behind it."""

    profile: Profile
    fitted: Fitted
    measured: Measurements


def profile_machine(
    config: Config, name: str, budget_s: float, progress: Progress, step_tokens: int = 0
) -> Profiled:
    """Measure the first configured instance for about `budget_s` seconds, its load included.

    `step_tokens` as in `measure`. Blocks. Raises ProfileError; ModelError and SizingError where
    there is nothing to measure.
    """
    progress(0.0, "finding the model")
    served = find_model(
        config, progress=lambda share: progress(0.0, f"converting the model {share:.0%}")
    )
    load, *others = served.loads(config, 0)
    measured: Measurements = uvloop.run(measure(load, budget_s, progress, step_tokens, others))
    progress(1.0, "fitting")
    refuse_unfit(measured.points, measured.wanted)
    fitted = fit(measured.points)
    doubts = lacks(measured.points, measured.wanted, fitted, measured.used_by_others)
    device = _device(served, load, measured)
    if served.shape.experts is not None:
        device = _beside_ram(device, _threads(load))
    profile = Profile(
        name=name or profile_name(served.name, load),
        model=_model(served, load),
        device=device,
        step=fitted.operators,
        fit=msgspec.structs.replace(fitted.fit, lacks=tuple(doubts)),
        edges=Edges(gap_s=float(f"{measured.gap_s:.4g}")),
        most_times=measured.most_times,
        operators=fit_alone(measured.alone, measured.points),
        source=_source(load, measured, fitted),
    )
    return Profiled(profile, fitted, measured)


def profile_name(model: str, load: Load) -> str:
    """A name such as smollm2-135m-instruct@cpu-2: the model, and the device with its cores."""
    return f"{re.sub(r'[^a-z0-9.]+', '-', model.lower()).strip('-')}@{_device_name(load)}"


def _device_name(load: Load) -> str:
    kind = load.device.partition(":")[0]
    return f"cpu-{_threads(load)}" if kind == "cpu" else kind


def _threads(load: Load) -> int:
    return load.num_threads or len(os.sched_getaffinity(0))


def _model(served: ServedModel, load: Load) -> ModelSpec:
    # Steps that were measured with experts in host memory are as long as they are.
    held = served.shape.on_device(load.experts_on_cpu)
    shape = msgspec.structs.asdict(held)
    if load.experts_on_cpu:
        shape["experts"] = None
    known = {field: shape[field] for field in ModelSpec.__struct_fields__ if field in shape}
    kv_dtype = load.kv_dtype or "auto"
    return ModelSpec(**{**known, "name": served.name, "dtype": load.dtype, "kv_dtype": kv_dtype})


def _device(served: ServedModel, load: Load, measured: Measurements) -> DeviceSpec:
    """Its memory is what the pool's formula was given, so that a simulation finds the same pool."""
    room = served.pools[0].room
    if load.device != "cpu":
        pool_bytes = measured.num_blocks * measured.block_bytes
        return DeviceSpec(
            name=_device_name(load),
            memory_bytes=room.total_bytes if room is not None else pool_bytes,
            bandwidth_bytes_per_s=float(f"{2.0 * measured.copy_bytes_per_s:.4g}"),
        )
    copied = float(f"{copy_bytes_per_s(measured.block_bytes):.4g}")
    return DeviceSpec(
        name=_device_name(load),
        memory_bytes=room.free_bytes if room is not None else 0,
        flops=float(f"{dense_flops():.4g}"),
        bandwidth_bytes_per_s=2.0 * copied,
        host_link=LinkSpec(copied),
        peer_link=LinkSpec(copied),
    )


def _beside_ram(device: DeviceSpec, threads: int) -> DeviceSpec:
    """A device with the rates at which the CPU reads and computes experts in host memory."""
    return msgspec.structs.replace(
        device,
        ram_bytes_per_s=float(f"{measured_ram_bytes_per_s(threads):.4g}"),
        ram_flops=float(f"{dense_flops():.4g}"),
    )


def _source(load: Load, measured: Measurements, fitted: Fitted) -> tuple[str, ...]:
    points = measured.points
    samples = sum(len(point.samples_s) for point in points)
    notes = [
        f"llmd profile on {time.strftime('%Y-%m-%d', time.gmtime())}: {load.device}, {load.dtype}, "
        f"{len(points)} of {len(measured.wanted)} kinds of step, {samples} steps, "
        f"{disturbed_share(points):.0%} of them over 1.25 times the fastest of their kind and "
        "left out",
        f"step times are the worker's own; {_ATTENTION}; {_judged_on(points)}; equal steps vary by "
        f"{fitted.repeat_sigma:.1%}",
        f"gap_s is a plan's round trip less its step; {1e6 * measured.gap_per_row_s:.1f} us more "
        "for each row were seen and are not modelled",
    ]
    if load.device == "cpu":
        notes.append(
            "memory is the RAM that was available; flops by a product in numpy's BLAS; links are "
            "copies of whole KV blocks in host memory by one thread, bandwidth is twice that"
        )
    else:
        notes.append(
            "bandwidth is twice the rate of block copies on the device; copies to host memory are "
            "not measured, since the worker has no order for them; power and peak are unknown"
        )
    return tuple(notes)


def _judged_on(points: list[Point]) -> str:
    if any(point.kind in HELD_OUT for point in points):
        return "mape and noise_sigma on mixed and skewed steps that were held out"
    return "no step was held out: mape is not known, noise_sigma is that of the fitted steps"
