"""The memory formula of an instance in lines of text, term by term, and its limits."""

from collections import Counter
from collections.abc import Iterator

from daemon.config.host_pool import HostPlan
from daemon.config.pool import PoolPlan
from daemon.core.values.limits import InstanceLimits
from daemon.memory.layout import NO_KEYS, kind_of
from daemon.memory.sizing import (
    CPU_RUNTIME_BYTES,
    DTYPE_BYTES,
    GPU_RUNTIME_BYTES,
    SCALE_BYTES,
    Demand,
    PoolSize,
    Room,
    heads_of,
    layout_for,
)
from daemon.models.shape import ModelShape


def kinds_of(shape: ModelShape) -> list[tuple[str, int]]:
    """The kind of each layer, by what it holds, and its window; a layer with keys and a state
    beside them counts twice, one with neither not at all.
    """
    windows = shape.windows or (0,) * shape.num_layers
    attending = [
        ("shared" if heads.source >= 0 else kind_of(window, heads.latent), window)
        for heads, window in zip(heads_of(shape), windows, strict=True)
        if heads != NO_KEYS
    ]
    return attending + [("state", 0) for parts in shape.layer_states if parts]


def pool_lines(shape: ModelShape, plan: PoolPlan) -> Iterator[str]:
    """The memory formula of one instance, term by term."""
    yield f"  computes in  {plan.dtype}{_weights_in(shape, plan)}"
    if plan.experts_on_cpu and shape.experts is not None:
        num_in_ram = plan.experts_on_cpu * shape.experts.count
        of_all = f"{num_in_ram:,} of {shape.experts.num_layers * shape.experts.count:,} experts"
        yield f"  in RAM       {mib(plan.ram_weight_bytes)} of {of_all}, computed by the CPU"
    if plan.size is None:
        yield "  the GPU's memory cannot be read from here; the worker sizes its pool at its start"
        yield host_line(plan.host)
        return
    size, demand = plan.size, plan.demand
    if plan.room is not None:
        yield from _room_lines(plan.room, size)
    yield f"  block        {size.block_bytes / 1024:>10,.1f} KiB = {_block_said(shape, demand)}"
    yield from _blocks_lines(shape, demand, size)
    yield from _window_lines(shape, plan, size)
    yield host_line(plan.host)
    yield f"  longest      {size.max_len:>10,} tokens of prompt and answer"


def _blocks_lines(shape: ModelShape, demand: Demand, size: PoolSize) -> Iterator[str]:
    """The pool's blocks and the tokens that they hold; its pages, where these are others."""
    layout, pool_bytes = layout_for(shape, demand), size.num_blocks * size.block_bytes
    num_pages = pool_bytes // layout.page_bytes
    tokens = f"{size.num_blocks * demand.block_size:,} tokens"
    if not layout.is_plain:
        num_tokens = num_pages * size.max_len // layout.pages_at(size.max_len)
        tokens = f"{num_tokens:,} tokens of sequences of {size.max_len:,}"
    yield (
        f"  blocks       {size.num_blocks:>10,}  ({_REASONS[size.reason]}) = "
        f"{mib(pool_bytes).strip()}, {tokens}"
    )
    if layout.page_bytes != size.block_bytes:
        yield (
            f"  pages        {num_pages:>10,}  of {layout.page_bytes / 1024:,.1f} KiB, each of "
            "layers of one kind: the blocks that viewers count"
        )


def _block_said(shape: ModelShape, demand: Demand) -> str:
    """The bytes of a block of all layers, as a product for each kind of heads."""
    own = Counter(
        (heads.num_planes, heads.num_kv_heads, heads.head_dim)
        for heads in heads_of(shape)
        if heads.is_own
    )
    terms = [
        f"{num_layers} layers * {demand.block_size} tokens * one latent row of {head_dim}"
        if num_planes == 1
        else f"{num_layers} layers * 2 * {demand.block_size} tokens * "
        f"{num_kv_heads} kv heads * {head_dim}"
        for (num_planes, num_kv_heads, head_dim), num_layers in own.items()
    ]
    if not terms:
        return "a page of a sequence's states"
    numbers = terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
    return f"{numbers} * {_number_bytes(demand)}"


def _window_lines(shape: ModelShape, plan: PoolPlan, size: PoolSize) -> Iterator[str]:
    """A line for each window that layers have, and what a sequence then holds."""
    kinds = kinds_of(shape)
    for window in sorted({window for kind, window in kinds if kind == "window"}):
        num_layers = kinds.count(("window", window))
        yield f"  window       {window:>10,} tokens are held of {num_layers} layers"
    if num_shared := sum(kind == "shared" for kind, _ in kinds):
        yield f"  shared       {num_shared:>10,} layers read keys and values of others"
    if num_recurrent := sum(kind == "state" for kind, _ in kinds):
        layout = layout_for(shape, plan.demand)
        held = _size(layout.state_pages * layout.page_bytes)
        pages = f"{held:>10} in {layout.state_pages} blocks"
        yield f"  states       {pages} of each sequence, of {num_recurrent} layers"
    if {*kinds} != {("full", 0)}:
        held = _size(layout_for(shape, plan.demand).bytes_at(size.max_len))
        yield f"  held         {held:>10} by one sequence of {size.max_len:,} tokens"


def _weights_in(shape: ModelShape, plan: PoolPlan) -> str:
    """How weights are held, where that differs from the dtype of the states."""
    if shape.packed_params:
        return f", {shape.packed_params / shape.num_params:.0%} of the weights in blocks as stored"
    return f", weights held in {plan.weight_dtype}" if plan.weight_dtype != plan.dtype else ""


def limits_line(limits: InstanceLimits) -> str:
    """A line on an instance's policy and limits."""
    depth = f", {limits.depth} steps in flight" if limits.depth else ""
    return (
        f"  scheduling   {limits.policy}: {limits.max_running} running, "
        f"{limits.max_batch_tokens} tokens a step, {limits.prefill_chunk} of one sequence{depth}"
    )


def host_line(host: HostPlan) -> str:
    """A line on an instance's host pool."""
    if not host.num_blocks:
        return f"  host pool          none  ({_HOST_REASONS[host.reason]})"
    return (
        f"  host pool    {host.num_blocks:>10,}  ({_HOST_REASONS[host.reason]}) = "
        f"{mib(host.num_blocks * host.block_bytes).strip()}, "
        f"{host.block_bytes / 1024:,.1f} KiB a block"
    )


_REASONS = {
    "kv_blocks": "memory.kv_blocks",
    "kv_bytes": "memory.kv_bytes / block",
    "memory": "kv / block",
    "max_running": "all that max_running sequences of the longest length can use",
}


_HOST_REASONS = {
    "swap": "preempted sequences are not swapped",
    "host_bytes": "memory.host_bytes",
    "kv": "four times the KV pool",
    "ram": "this instance's share of available RAM",
}


def _room_lines(room: Room, size: PoolSize) -> Iterator[str]:
    if room.is_cpu:
        yield f"  available    {mib(room.free_bytes)} of RAM, cpu_fraction {room.cpu_fraction}"
        yield f"  runtime      {mib(CPU_RUNTIME_BYTES)} of libraries and what they compile"
    else:
        yield f"  total        {mib(room.total_bytes)}, utilization {room.utilization}"
        yield f"  in use       {mib(room.total_bytes - room.free_bytes)}"
        yield f"  runtime      {mib(GPU_RUNTIME_BYTES)}"
    yield f"  weights      {mib(room.weight_bytes)}"
    if room.panel_bytes:
        yield f"  unpacked     {mib(room.panel_bytes)} of their numbers at a time"
    if room.nccl_bytes:
        yield f"  nccl         {mib(room.nccl_bytes)} of sums over GPUs"
    yield f"  activations  {mib(size.activation_bytes)}"
    if room.is_cpu:
        how = "min(cpu_fraction * available, available - weights - activations - runtime)"
    else:
        further = " - unpacked" * bool(room.panel_bytes) + " - nccl" * bool(room.nccl_bytes)
        how = f"utilization * total - in use - weights{further} - activations - runtime"
    yield f"  kv           {mib(size.kv_bytes)} = {how}"


def _number_bytes(demand: Demand) -> str:
    """The bytes of one number, as the last factor in the formula of a block."""
    if demand.kv_dtype == "auto":
        return f"{DTYPE_BYTES[demand.dtype]} bytes"
    return f"1 byte of {demand.kv_dtype}, and a scale of {SCALE_BYTES} bytes for each head"


def _size(size_bytes: int) -> str:
    """MiB, or KiB of what is less than one."""
    return f"{size_bytes / 1024:,.1f} KiB" if size_bytes < 2**20 else mib(size_bytes).strip()


def mib(size_bytes: int) -> str:
    """Bytes in MiB, in a column."""
    return f"{size_bytes / 2**20:>10,.1f} MiB"
