"""Small models, profiles, workloads and scenarios made by hand, with numbers easy to reckon."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from daemon.core.values.events import Event
from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import (
    DeviceSpec,
    Edges,
    Fit,
    LinkSpec,
    Operators,
    PhaseFit,
    Profile,
)
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.run import Prepared
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.memory.sizing import block_bytes
from tests.shapes import tiny_spec

MODEL = tiny_spec(
    head_dim=8,
    hidden_size=32,
    vocab_size=100,
    context_len=1024,
    num_params=1_000_000,
    dtype="float16",
)
DEVICE = DeviceSpec(
    name="cpu-made",  # slow steps follow each other, so that times can be computed by hand
    memory_bytes=8 << 30,
    host_link=LinkSpec(1e6),  # the weights' 2 MB take two seconds
    peer_link=LinkSpec(1e9),
    idle_w=50.0,
    power_w=400.0,
)


def phases(
    prefill: tuple[float, float, float], decode: tuple[float, float, float] | None = None
) -> PhaseFit:
    """A step's time; decodes cost what prompts cost unless said."""
    decode = decode or (prefill[0], 0.0, 0.0)
    return PhaseFit(prefill_s=prefill, decode_s=decode, large_decode_s=decode, large_batch=1 << 30)


def profile(step: PhaseFit | Operators, **changes: object) -> Profile:
    """A profile of the tiny model, without noise."""
    fields: dict[str, object] = {
        "name": "tiny@made",
        "model": MODEL,
        "device": DEVICE,
        "fit": Fit(num_points=1, mape=0.0),
        "edges": Edges(),
    }
    return Profile(step=step, **{**fields, **changes})  # type: ignore[arg-type]


def workload(
    arrival_s: list[float],
    prompts: list[int],
    answers: list[int],
    prefixes: list[tuple[int, ...]] | None = None,
    prefix_block: int = 0,
    priorities: tuple[int, ...] = (0,),
) -> Workload:
    """These requests; request i belongs to the i-th of the classes, going round."""
    num_classes = len(priorities)
    return Workload(
        label="made by hand",
        arrival_s=np.array(arrival_s, np.float64),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(answers, np.int32),
        slo_class=(np.arange(len(prompts)) % num_classes).astype(np.uint8),
        classes=tuple(
            SloClass(f"class {i}", 1 / num_classes, priority=one)
            for i, one in enumerate(priorities)
        ),
        prefixes=prefixes or [],
        prefix_block=prefix_block,
    )


def prepared(
    profiles: list[Profile],
    requests: Workload,
    num_blocks: int = 1000,
    limits: ScenarioLimits | None = None,
    host_bytes: float = 64e9,
    roles: Sequence[str] = (),
    **changes: object,
) -> Prepared:
    """A scenario of one instance for each profile, each with `num_blocks` blocks; without `roles`
    all are mixed.
    """
    limits = limits or ScenarioLimits()
    size_bytes = float(num_blocks * block_bytes(MODEL, limits.block_size, MODEL.dtype))
    groups = tuple(
        InstanceGroup(profile=one.name, kv_bytes=size_bytes, host_bytes=host_bytes, role=role)
        for one, role in zip(profiles, roles or ["mixed"] * len(profiles), strict=True)
    )
    scenario = Scenario(workload=WorkloadSpec(name="made"), instance=groups, limits=limits)
    scenario = msgspec.structs.replace(scenario, **{"predictor": "none", **changes})
    max_len = limits.max_len or MODEL.context_len
    return Prepared(scenario, tuple(profiles), groups, max_len, requests)


def journalled(folder: Path) -> list[Event]:
    """The events of a run's journal, its configuration first."""
    return list(read_records(folder / FILE_NAME))  # type: ignore[arg-type]


CURVES = Operators(
    tokens_s=Curve((1, 64, 65, 256), (0.001, 0.001, 0.002, 0.004)),
    prefill_s=Surface((1, 256), (0, 256), ((0.0, 1e-4), (1e-3, 2e-3))),
    decode_s=Surface((1, 16), (1, 256), ((1e-5, 1e-4), (1e-4, 1e-3))),
    sampled_s=Curve((1, 16), (1e-5, 1e-4)),
    overhead_s=0.0005,
    row_s=1e-6,
)
"""Steps with a tile's edge at 64 tokens."""
