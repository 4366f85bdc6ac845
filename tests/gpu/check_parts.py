"""The parts of `make gpu-check`, each imported when it runs: one that is missing fails alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from benchmarks.gpu.report import Check

Checks = Callable[[str], Iterator[Check]]


@dataclass(frozen=True, slots=True)
class Part:
    """Some checks in a process of their own; none should need half of its budget.

    They are functions of modules of this package, "module.function" or "module.function kind",
    called with the kind, where there is one, and the device.
    """

    name: str
    functions: tuple[str, ...]
    budget_s: float
    alone: bool = False  # it fills or counts the GPU's memory: no other may run beside it

    def checks(self, device: str) -> Iterator[Check]:
        """All of them, one after another."""
        for function in self.functions:
            yield from resolved(function)(device)


def resolved(function: str) -> Checks:
    """Import one of a part's functions."""
    path, *kind = function.split()
    module, name = path.split(".")
    return partial(getattr(import_module(f"tests.gpu.{module}"), name), *kind)


PARTS = (
    Part("pool", ("pool_checks.pool_checks",), 90),
    Part("attention-small", ("kernel_checks.attention_checks small",), 120),
    Part("ops", ("op_checks.op_checks",), 120),
    Part(
        "sampler",
        ("sampler_checks.sampler_checks", "kept_checks.kept_checks", "edit_checks.edit_checks"),
        120,
    ),
    Part("states", ("state_checks.state_checks",), 120),
    Part("self-test", ("selftest_checks.selftest_checks",), 280),
    Part("products", ("product_checks.product_checks",), 150),
    Part("blocks", ("block_checks.block_checks", "block_engine_checks.block_engine_checks"), 200),
    Part("experts", ("expert_checks.expert_checks",), 150),
    Part("engine", ("engine_checks.engine_checks",), 150),
    Part("swap", ("swap_checks.packing_checks", "swap_checks.swap_checks"), 90),
    Part("graphs", ("graph_checks.graph_checks",), 150),
    Part("flights", ("flight_checks.flight_checks",), 150),
    Part("llama-3-8b", ("shape_checks.shape_checks llama-3-8b",), 150),
    Part("qwen3-8b", ("shape_checks.shape_checks qwen3-8b",), 150),
    Part("opt-13b", ("shape_checks.shape_checks opt-13b",), 150),
    Part("gpt-neox-20b", ("shape_checks.shape_checks gpt-neox-20b",), 150),
    Part("attention-edges", ("kernel_checks.attention_checks edges",), 150),
    Part("attention-groups", ("kernel_checks.attention_checks groups",), 150),
    Part("attention-bfloat16", ("kernel_checks.attention_checks bfloat16",), 180),
    Part("attention-int8", ("kernel_checks.attention_checks int8",), 180),
    Part("attention-fp8", ("kernel_checks.attention_checks fp8",), 180),
    Part("attention-floats", ("kernel_checks.attention_checks other-floats",), 180),
    Part("far", ("pool_checks.far_checks",), 90),
    Part("handoff", ("handoff_checks.handoff_checks",), 120, alone=True),
    Part("devices", ("device_checks.device_checks",), 60, alone=True),
    Part("memory", ("memory_checks.memory_checks",), 120, alone=True),
    Part("killed", ("worker_checks.worker_checks",), 120, alone=True),
    Part("ranks", ("rank_checks.rank_checks",), 200, alone=True),
)
"""In this order: quick ones of every kind before long ones; those alone come last."""


def part_of(name: str) -> Part:
    """The part of this name."""
    return next(part for part in PARTS if part.name == name)
