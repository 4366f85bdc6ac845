"""The choice of devices where none is named: every GPU that can serve, or else the CPU.

A GPU can serve if its generation is supported, no other program keeps it, and, by the formula of
`daemon.memory.sizing`, the model, a step's work and the KV cache of one full context fit its free
memory. If none can, a GPU with a shorter context than the model's is better than a CPU. Devices
that are named are used as they are.
"""

from collections.abc import Collection, Iterator

import msgspec

from daemon.config.cuda import Card, Devices
from daemon.config.instances import named, shared_limits
from daemon.config.pool import PooledModel, demand_of, gib, instance_dtype, refuse_experts
from daemon.config.schema import Config, InstanceSpec
from daemon.memory.layout import KVLayout
from daemon.memory.sizing import (
    FP8_CAPABILITY,
    GPU_RUNTIME_BYTES,
    MIN_BLOCKS,
    activation_bytes,
    block_bytes,
    blocks_for,
    gpu_panel_bytes,
    layout_for,
)

LEAST_CAPABILITY = (8, 0)
"""The kernels' least compute capability: Ampere. They are compiled and tested from there on; Triton
and bfloat16 begin there, too.
"""
BLACKWELL, FIRST_CUDA_OF_BLACKWELL = (10, 0), (12, 8)
"""Builds of torch with an older CUDA have no kernels for it."""
LEAST_CONTEXT = 4096
"""Tokens below which a GPU's pool is too short for what people ask."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """An instance's demands on a GPU, by the memory formula's terms."""

    weight_bytes: int
    work_bytes: int  # a step's largest intermediate results, and what CUDA itself takes
    kv_bytes: int  # of one full context, or of the pool that was asked for
    utilization: float = 1.0  # share of the card's memory that may be used
    capability: tuple[int, int] = LEAST_CAPABILITY
    what: str = "llmd's kernels need"  # that capability
    tokens: int = 0  # in kv_bytes; 0: the configuration sets their number
    layout: KVLayout | None = None  # of the pool, where its size is not configured
    chunk: int = 0  # most tokens of one sequence in a step
    least_tokens: int = 0  # that a useful pool holds

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.work_bytes + self.kv_bytes


class DeviceCandidate(msgspec.Struct, frozen=True):
    """A GPU that was considered, and the verdict on it."""

    device: str
    card: str  # its name
    fault: str = ""  # why it does not serve, its kind before a colon; empty: it does
    room: str = ""  # the memory that the model needs and the GPU has, if compared
    tokens: int = 0  # of the longest context that would fit, if a useful one would

    def __str__(self) -> str:
        """The verdict, such as `cuda:1 (NVIDIA L4) does not serve: too little memory: ...`."""
        verdict = f"does not serve: {self.fault}" if self.fault else f"serves: {self.room}"
        return f"{self.device} ({self.card}) {verdict}"


class Found(msgspec.Struct, frozen=True):
    """The instances that serve, and why they do."""

    instances: tuple[InstanceSpec, ...]
    candidates: tuple[DeviceCandidate, ...] = ()  # none where devices were named, or none answers
    why_cpu: str = ""  # where the CPU serves although it was not named
    why_several: str = ""  # where several devices serve together although none was named
    experts_on_cpu: int = 0  # as `model.experts_on_cpu`, where that was chosen too

    def lines(self) -> Iterator[str]:
        """A sentence for each GPU, and one where the CPU serves in their place."""
        yield from map(str, self.candidates)
        if self.why_cpu:
            yield f"the CPU serves: {self.why_cpu}"
        if self.why_several:
            yield f"several devices serve together: {self.why_several}"


def find(config: Config, model: PooledModel, devices: Devices) -> Found:
    """The instances of `config`: as named there, or else those of `devices` that can serve `model`,
    or else one on the CPU.
    """
    if config.instance:
        return Found(config.instance)
    return choose(devices, needs_of(config, model))


def released(devices: Devices, held: Collection[str]) -> Devices:
    """The devices as they will be once the daemon that holds some of them has ended: their free
    memory cannot be known now.
    """
    cards = tuple(
        msgspec.structs.replace(card, free_bytes=None, taken="") if f"cuda:{n}" in held else card
        for n, card in enumerate(devices.cards)
    )
    return msgspec.structs.replace(devices, cards=cards)


def choose(devices: Devices, needs: Needs) -> Found:
    """One instance on each device that has what is needed, or one on the CPU."""
    if devices.fault:
        return Found(named((InstanceSpec("cpu"),)), why_cpu=devices.fault)
    candidates = tuple(
        _judged(f"cuda:{number}", card, needs, devices.torch_cuda)
        for number, card in enumerate(devices.cards)
    )
    if all(candidate.fault for candidate in candidates):
        candidates = tuple(_shortened(candidates))
    able = tuple(InstanceSpec(candidate.device) for candidate in candidates if not candidate.fault)
    if able:
        return Found(named(able), candidates)
    count = len(candidates)
    none = "the one GPU here cannot" if count == 1 else f"none of the {count} GPUs here can"
    kinds = dict.fromkeys(candidate.fault.partition(":")[0] for candidate in candidates)
    why_cpu = f"{none} serve this model: {', '.join(kinds)}"
    return Found(named((InstanceSpec("cpu"),)), candidates, why_cpu)


def _shortened(candidates: tuple[DeviceCandidate, ...]) -> Iterator[DeviceCandidate]:
    """The candidates, of which those serve that fit the longest context of all, or half of it."""
    longest = max(candidate.tokens for candidate in candidates)
    for candidate in candidates:
        tokens = candidate.tokens
        if LEAST_CONTEXT <= tokens >= longest / 2:
            room = f"contexts of up to {tokens:,} tokens; for the model's own it {candidate.room}"
            yield msgspec.structs.replace(candidate, fault="", room=room)
        else:
            yield candidate


def needs_of(config: Config, model: PooledModel) -> Needs:
    """The demands of an instance of `model` on a GPU."""
    dtype = instance_dtype(config, "cuda", model.dtype)
    asked = config.model.experts_on_cpu
    refuse_experts(config, model)
    model = model.on_device(asked if isinstance(asked, int) else model.num_expert_layers)
    demand = demand_of(config, model, dtype, shared_limits(config))
    per_block = block_bytes(model, demand.block_size, dtype, demand.kv_dtype)
    layout, chunk = layout_for(model, demand), demand.max_batch_tokens
    asked_bytes = demand.kv_blocks * per_block or demand.kv_bytes
    num_blocks = max(blocks_for(demand.max_len, demand.block_size), MIN_BLOCKS)
    longest_tokens = num_blocks * demand.block_size
    return Needs(
        weight_bytes=model.weight_bytes(dtype),
        work_bytes=activation_bytes(model, demand)
        + gpu_panel_bytes(model.packed_bytes)
        + GPU_RUNTIME_BYTES,
        kv_bytes=asked_bytes or layout.pages_at(longest_tokens, chunk) * layout.page_bytes,
        # As for a named device: a pool of a configured size need only fit free memory.
        utilization=1.0 if asked_bytes else config.memory.utilization,
        capability=least_capability(demand.kv_dtype),
        what='memory.kv_dtype = "fp8" needs' if demand.kv_dtype == "fp8" else "llmd's kernels need",
        tokens=0 if asked_bytes else longest_tokens,
        layout=layout,
        chunk=chunk,
        least_tokens=max(demand.required_len, MIN_BLOCKS * demand.block_size),
    )


def least_capability(kv_dtype: str) -> tuple[int, int]:
    """The least compute capability for a KV cache of such numbers."""
    return FP8_CAPABILITY if kv_dtype == "fp8" else LEAST_CAPABILITY


def is_too_new(card: Card, torch_cuda: tuple[int, int] | None) -> bool:
    """Whether torch's build for this CUDA, if known, has no kernels for a card."""
    is_old = torch_cuda is not None and torch_cuda < FIRST_CUDA_OF_BLACKWELL
    return is_old and card.capability >= BLACKWELL


def _judged(
    device: str, card: Card, needs: Needs, torch_cuda: tuple[int, int] | None
) -> DeviceCandidate:
    fault = _generation_fault(card, needs, torch_cuda) or (card.taken and f"taken: {card.taken}")
    if fault:
        return DeviceCandidate(device, card.name, fault)
    in_use = card.total_bytes - card.free_bytes if card.free_bytes is not None else 0
    whole = int(needs.utilization * card.total_bytes)
    room = f"needs {gib(needs.total_bytes)}, has {gib(max(whole - in_use, 0))}"
    if whole < card.total_bytes:
        room += f" of {gib(card.total_bytes)} (memory.utilization = {needs.utilization:g})"
    tokens = 0
    if whole < needs.total_bytes:
        tokens = _fitting(whole - in_use, needs)
        fault = f"too little memory: {room}"
        fault += f"; it would do for model.max_len = {tokens}" if tokens else ""
    elif whole - in_use < needs.total_bytes:
        fault = f"taken: other programs hold {gib(in_use)} of its memory: {room}"
    return DeviceCandidate(device, card.name, fault, room, tokens)


def _generation_fault(card: Card, needs: Needs, torch_cuda: tuple[int, int] | None) -> str:
    own = f"not supported: its compute capability is {_dotted(card.capability)}"
    if card.capability < needs.capability:
        return f"{own}, and {needs.what} {_dotted(needs.capability)} or higher"
    if torch_cuda and is_too_new(card, torch_cuda):
        return (
            f"{own}, and torch's build for CUDA {_dotted(torch_cuda)} ends below "
            f"{_dotted(BLACKWELL)}: driver 580 and `make venv TORCH=cuda` bring one that does not"
        )
    return ""


def _fitting(usable_bytes: int, needs: Needs) -> int:
    """Tokens of the longest context that fits; 0: no useful one, or the size is configured."""
    if not needs.tokens or needs.layout is None:
        return 0
    left_bytes = max(0, usable_bytes - needs.weight_bytes - needs.work_bytes)
    num_pages = left_bytes // needs.layout.page_bytes
    tokens = needs.layout.most_tokens(num_pages, needs.tokens, needs.chunk)
    return tokens if tokens >= needs.least_tokens else 0


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
