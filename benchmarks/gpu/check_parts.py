"""The parts of `gpu_check`, each imported when it runs: one that is missing fails alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from benchmarks.gpu.report import Check

Checks = Callable[[str], Iterator[Check]]


@dataclass(frozen=True, slots=True)
class Part:
    """Some checks in a process of their own; none should need half of its budget."""

    name: str
    checks: Checks  # of a device
    budget_s: float
    alone: bool = False  # it fills or counts the GPU's memory: no other may run beside it


def _of(*names: str) -> Checks:
    """Functions of modules of this package, "module.function", one after another."""

    def checks(device: str) -> Iterator[Check]:
        for name in names:
            module, function = name.split(".")
            yield from getattr(import_module(f"benchmarks.gpu.{module}"), function)(device)

    return checks


def _attention(kind: str) -> Checks:
    """The attention kernels at one kind of shapes."""

    def checks(device: str) -> Iterator[Check]:
        from benchmarks.gpu.kernel_checks import attention_checks
        from benchmarks.gpu.kernel_shapes import PARTS as SHAPES

        yield from attention_checks(SHAPES[kind], device)

    return checks


def _shape(name: str) -> Checks:
    """One model's shape, a few layers of it, against transformers."""

    def checks(device: str) -> Iterator[Check]:
        from benchmarks.gpu.shape_checks import shape_checks

        yield from shape_checks(name, device)

    return checks


PARTS = (
    Part("pool", _of("pool_checks.pool_checks"), 90),
    Part("attention-small", _attention("small"), 120),
    Part("ops", _of("op_checks.op_checks"), 120),
    Part("sampler", _of("sampler_checks.sampler_checks"), 120),
    Part("products", _of("product_checks.product_checks"), 150),
    Part("engine", _of("engine_checks.engine_checks"), 150),
    Part("swap", _of("swap_checks.packing_checks", "swap_checks.swap_checks"), 90),
    Part("graphs", _of("graph_checks.graph_checks"), 150),
    Part("flights", _of("flight_checks.flight_checks"), 150),
    Part("llama-3-8b", _shape("llama-3-8b"), 150),
    Part("qwen3-8b", _shape("qwen3-8b"), 150),
    Part("opt-13b", _shape("opt-13b"), 150),
    Part("gpt-neox-20b", _shape("gpt-neox-20b"), 150),
    Part("attention-edges", _attention("edges"), 150),
    Part("attention-groups", _attention("groups"), 150),
    Part("attention-bfloat16", _attention("bfloat16"), 180),
    Part("attention-int8", _attention("int8"), 180),
    Part("attention-fp8", _attention("fp8"), 180),
    Part("attention-floats", _attention("other-floats"), 180),
    Part("far", _of("pool_checks.far_checks"), 90),
    Part("handoff", _of("handoff_checks.handoff_checks"), 120, alone=True),
    Part("memory", _of("memory_checks.memory_checks"), 120, alone=True),
    Part("killed", _of("worker_checks.worker_checks"), 120, alone=True),
)
"""In this order: quick ones of every kind before long ones; those alone come last."""


def part_of(name: str) -> Part:
    """The part of this name."""
    return next(part for part in PARTS if part.name == name)
