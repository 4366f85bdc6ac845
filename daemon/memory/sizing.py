"""How many KV blocks an instance gets: a stated formula over plain numbers.

block      = layers * 2 * block_size * kv_heads * head_dim * dtype_bytes
             in 8 bits head_dim + 4 instead of the last two: a byte each, and a float32 scale;
             where layers have other heads than others, the sum of theirs; a layer with latent
             rows has one of kv_lora_rank + qk_rope_head_dim in place of 2 * kv_heads * head_dim
activation = max_batch_tokens * (16 * hidden + 2 * (heads + 2 * kv_heads) * head_dim) * dtype
           + max_running * vocab * 4 * 3          (fp32 logits, probabilities, sorted copy)
gpu: kv    = utilization * total - in use by others - weights - panel - activation - runtime
cpu: kv    = min(cpu_fraction * available, available - weights - activation - runtime)
blocks     = kv / block, at most what max_running sequences of max_len need

A block is one of all layers; where some have windows, the pool's pages are smaller
(`daemon.memory.layout`), as many as have the same bytes. A sequence's states take pages beside
those of its blocks.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from daemon.memory.layout import KVHeads, KVLayout, agreed, layout_of, token_bytes
from daemon.memory.state_layout import StatePart, own_page_bytes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_DTYPES = ("auto", "int8", "fp8")
"""The formats of a KV cache: the instance's dtype, or 8 bits with scales."""
WEIGHT_KINDS = ("int8", "int4", "fp8")
"""The formats that plain weights can be rounded to, in groups that share a scale."""
FP8_CAPABILITY = (8, 9)
"""The least compute capability of a GPU that rounds to fp8 (Ada, Hopper)."""
SCALE_BYTES = 4
"""float32, one for each token and KV head of an 8-bit cache's keys and of its values."""
CHANNEL_BYTES = 2 * 2
"""A scale and a zero of a packed channel, float16 each (`daemon.engine.kv.host_int8`)."""
MIN_BLOCKS = 2
NCCL_BYTES = 512 << 20
"""Taken of each GPU by what NCCL passes sums through, where ranks share layers: assumed, as no card
has run them.
"""
GPU_RUNTIME_BYTES = 1 << 30
"""The CUDA context, cuBLAS workspaces and loaded kernels, which no allocator reports."""
CPU_RUNTIME_BYTES = 256 << 20
"""A CPU worker's imports, 229 MB that it does not share, and what its bounded caches keep of
the shapes of its steps, 8 to 12 MB (`python -m benchmarks.worker_memory --capacities 16,1024
--steps 200`; without the bound 352 MB, and still growing).
"""
GPU_PANEL_BYTES = 128 << 20
"""Bytes of a quantised weight's rows that a GPU unpacks at a time."""
KEEP_BOTH_BYTES = 2 << 30
"""Most bytes of weights of which a CPU keeps plain copies beside those packed for its products."""


class SizingError(ValueError):
    """The memory does not hold a usable KV pool; the message says what would."""


class Shape(Protocol):
    """The part of a model's shape that sizing reads; daemon.models.shape.ModelShape has it."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens that each layer sees; 0: all. Empty: all layers see all."""

    @property
    def layer_heads(self) -> tuple[KVHeads, ...]:
        """The heads of each layer's keys and values; empty: all layers have the same."""

    @property
    def layer_states(self) -> tuple[tuple[StatePart, ...], ...]:
        """The state that each layer keeps of a sequence; empty: no layer is recurrent."""

    @property
    def beside(self) -> Sequence["Shape"]:
        """The other stages of the instance, where it is one of several."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The demands on the pool: what it must serve, and what the operator fixed."""

    dtype: str
    kv_dtype: str = "auto"  # of `KV_DTYPES`
    block_size: int  # tokens
    max_running: int  # sequences
    max_len: int  # tokens of the longest sequence that the model allows
    max_batch_tokens: int
    required_len: int = 0  # tokens one sequence must be able to reach; 0: the pool decides
    kv_blocks: int = 0  # 0: from the formula
    kv_bytes: int = 0  # 0: from the formula


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The device's memory, read before the weights are loaded unless weight_bytes is 0."""

    weight_bytes: int
    panel_bytes: int = 0  # of numbers that a GPU unpacks of quantised weights
    nccl_bytes: int = 0  # of what sums over several GPUs pass through
    total_bytes: int  # a GPU's; of a CPU unused
    free_bytes: int  # a GPU's free memory, or the machine's available RAM
    is_cpu: bool
    utilization: float = 0.9
    cpu_fraction: float = 0.25


class PoolSize(msgspec.Struct, frozen=True):
    """The pool, and the terms it came from."""

    num_blocks: int
    block_bytes: int
    activation_bytes: int
    kv_bytes: int  # the room for the pool before rounding and capping
    max_len: int  # tokens of the longest sequence that model and pool allow
    reason: str  # which rule decided: "kv_blocks", "kv_bytes", "memory", "max_running"


def block_bytes(shape: Shape, block_size: int, dtype: str, kv_dtype: str = "auto") -> int:
    """Bytes of one block of all layers, keys and values, and their scales where it has some; of a
    page of states where no layer has keys. Of a stage all that its pages take, padding too.
    """
    if shape.beside:
        layout = configured_layout(shape, block_size, dtype, kv_dtype)
        return layout.page_bytes * max(len(layout.groups), 1)
    sizes = _head_bytes(dtype, kv_dtype)
    own = [heads for heads in heads_of(shape) if heads.is_own]
    if not own:
        return own_page_bytes(shape.layer_states, DTYPE_BYTES[dtype])
    return block_size * sum(token_bytes(heads, sizes) for heads in own)


def heads_of(shape: Shape) -> tuple[KVHeads, ...]:
    """The heads of each layer's keys and values."""
    alike = KVHeads(shape.num_kv_heads, shape.head_dim)
    return shape.layer_heads or (alike,) * shape.num_layers


def _head_bytes(dtype: str, kv_dtype: str) -> Callable[[int], int]:
    """Bytes of a token's key in one head, by the head's size."""
    if kv_dtype != "auto":
        return lambda head_dim: head_dim + SCALE_BYTES
    return lambda head_dim: head_dim * DTYPE_BYTES[dtype]


def model_layout(
    shape: Shape,
    windows: Sequence[int],
    block_size: int,
    dtype: str,
    kv_dtype: str = "auto",
    chunked: Collection[int] = (),
) -> KVLayout:
    """The layout of a model whose layers have these windows; empty: all see all tokens. `chunked`:
    the layers whose windows are chunks.
    """
    windows, sizes = windows or (0,) * shape.num_layers, _head_bytes(dtype, kv_dtype)
    states = shape.layer_states, DTYPE_BYTES[dtype]
    return layout_of(windows, heads_of(shape), sizes, block_size, chunked, *states)


def packed_block_bytes(shape: Shape, block_size: int) -> int:
    """Bytes of a block packed for host memory: a byte an element, and what each channel of a
    layer's keys and values was packed with.
    """
    own = [heads for heads in heads_of(shape) if heads.is_own]
    channels = sum(heads.num_planes * heads.num_kv_heads * heads.head_dim for heads in own)
    return channels * (block_size + CHANNEL_BYTES)


def activation_bytes(shape: Shape, demand: Demand) -> int:
    """Bytes of a step's largest intermediate results; an upper estimate.

    16 hidden widths: residual, norm, attention output and projection, and three of an MLP that is
    at most four times as wide; queries, keys and values twice (before and after rotation).
    """
    heads = 2 * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    per_token = (16 * shape.hidden_size + heads) * DTYPE_BYTES[demand.dtype]
    logits = demand.max_running * shape.vocab_size * 4 * 3
    return demand.max_batch_tokens * per_token + logits


def cpu_copy_bytes(weight_bytes: int, dtype: str) -> int:
    """Bytes of the second layout that a CPU keeps of float32 weights, unless they are too many."""
    return weight_bytes if dtype == "float32" and weight_bytes <= KEEP_BOTH_BYTES else 0


def gpu_panel_bytes(packed_bytes: int) -> int:
    """Bytes for the numbers that a GPU unpacks, where `packed_bytes` of weights are in blocks."""
    return GPU_PANEL_BYTES if packed_bytes else 0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """The number of blocks that hold `num_tokens`."""
    return -(-num_tokens // block_size)


def layout_for(shape: Shape, demand: Demand) -> KVLayout:
    """The layout of a model's KV memory, by its configured windows."""
    return configured_layout(shape, demand.block_size, demand.dtype, demand.kv_dtype)


def configured_layout(
    shape: Shape, block_size: int, dtype: str, kv_dtype: str = "auto"
) -> KVLayout:
    """The layout of a model, or of a stage beside others, by the configured windows."""
    own, *others = (
        model_layout(part, part.windows, block_size, dtype, kv_dtype)
        for part in (shape, *shape.beside)
    )
    return agreed(own, others) if others else own


def size_pool(shape: Shape, demand: Demand, room: Room) -> PoolSize:
    """The pool of one instance. Raises SizingError where it would be of no use."""
    per_block = block_bytes(shape, demand.block_size, demand.dtype, demand.kv_dtype)
    layout = layout_for(shape, demand)
    activation = activation_bytes(shape, demand)
    kv_bytes = _kv_bytes(room, activation)
    useful = -(-demand.max_running * layout.bytes_at(demand.max_len) // per_block)
    if demand.kv_blocks:
        num_blocks, reason = demand.kv_blocks, "kv_blocks"
    elif demand.kv_bytes:
        num_blocks, reason = demand.kv_bytes // per_block, "kv_bytes"
    elif kv_bytes // per_block > useful:
        num_blocks, reason = useful, "max_running"
    else:
        num_blocks, reason = max(kv_bytes, 0) // per_block, "memory"
    _refuse_useless(num_blocks, per_block, reason, demand, layout)
    num_pages = num_blocks * per_block // layout.page_bytes
    max_len = layout.most_tokens(num_pages, demand.max_len, demand.max_batch_tokens)
    return PoolSize(
        num_blocks=num_blocks,
        block_bytes=per_block,
        activation_bytes=activation,
        kv_bytes=kv_bytes,
        max_len=max_len,
        reason=reason,
    )


def _kv_bytes(room: Room, activation: int) -> int:
    """Bytes left for the pool; negative where weights and activations alone do not fit."""
    if room.is_cpu:
        rest = room.free_bytes - room.weight_bytes - activation - CPU_RUNTIME_BYTES
        return min(int(room.cpu_fraction * room.free_bytes), rest)
    in_use = room.total_bytes - room.free_bytes
    usable = int(room.utilization * room.total_bytes)
    held = room.weight_bytes + room.panel_bytes + room.nccl_bytes
    return usable - in_use - held - activation - GPU_RUNTIME_BYTES


def _refuse_useless(
    num_blocks: int, per_block: int, reason: str, demand: Demand, layout: KVLayout
) -> None:
    tokens = max(MIN_BLOCKS, blocks_for(demand.required_len, demand.block_size)) * demand.block_size
    needed_bytes = layout.pages_at(tokens, demand.max_batch_tokens) * layout.page_bytes
    least = -(-needed_bytes // per_block)
    if num_blocks >= least:
        return
    raise SizingError(
        f"the KV pool would have {num_blocks} blocks (decided by {reason}), but one sequence of "
        f"{tokens} tokens needs {least} blocks of {per_block} bytes: give it more memory "
        "(memory.kv_blocks, memory.utilization, memory.cpu_fraction), or lower model.max_len, "
        "scheduler.max_running or scheduler.max_batch_tokens"
    )
