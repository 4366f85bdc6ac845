"""The shortest time in which a device could compute a step of a decoder. Pure arithmetic.

A step's limit is the sum over its operators of max(bytes / bandwidth, FLOP / rate). Bytes are what
must come from or go to the device's memory however well operators are fused: weights once, keys
and values of every context once, what is written to the KV cache, logits once. What operators hand
to each other (`passed_bytes`) may stay in the device's cache; it is kept apart, and a second, later
limit counts it too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STATE_BYTES = 2  # of a state and of a weight: bfloat16
SCALE_BYTES = 4  # of an 8-bit cache, for each token and KV head, keys and values apart
PRODUCT_OPERATIONS = 2  # a multiplication and an addition


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do, as measured in this run."""

    bytes_per_s: float  # read and written, by a large copy
    operations_per_s: float  # bfloat16, by large products of random numbers
    out_bytes_per_s: float = 0.0  # copied to pinned host memory
    in_bytes_per_s: float = 0.0  # copied from it


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder of the Llama family: its sizes as config.json has them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that a step reads: the embedding table is looked up, not read."""
        return sum(one.weight_bytes for one in operators(self, [Row(0, 1)]))

    def token_bytes(self, kv_bytes: int = STATE_BYTES) -> int:
        """Bytes of keys and values of a token, in all layers; with scales where 8-bit."""
        return self.layers * self.layer_token_bytes(kv_bytes)

    def layer_token_bytes(self, kv_bytes: int = STATE_BYTES) -> int:
        """The same in one layer."""
        scales = SCALE_BYTES if kv_bytes == 1 else 0
        return 2 * self.kv_heads * (self.head_dim * kv_bytes + scales)


LLAMA_3_8B = DecoderShape(32, 4096, 32, 8, 128, 14_336, 128_256)


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's part in a step: `count` tokens after `start` that the KV cache already has."""

    start: int
    count: int
    sampled: bool = True

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it may see."""
        return self.count * self.start + self.count * (self.count + 1) // 2


@dataclass(frozen=True, slots=True)
class Operator:
    """What one operator must move and compute in a whole step, all layers together."""

    name: str
    weight_bytes: int = 0
    kv_bytes: int = 0  # keys and values read or written
    other_bytes: int = 0  # logits
    passed_bytes: int = 0  # inputs and outputs that other operators make and take
    operations: int = 0

    def limit_s(self, limits: Limits, passed: bool = False) -> float:
        """The shortest time for it; `passed`: as if nothing stayed in the device's cache."""
        moved = self.weight_bytes + self.kv_bytes + self.other_bytes
        moved += self.passed_bytes if passed else 0
        return max(moved / limits.bytes_per_s, self.operations / limits.operations_per_s)


def operators(
    shape: DecoderShape, rows: Sequence[Row], kv_bytes: int = STATE_BYTES
) -> list[Operator]:
    """The operators of a step; `kv_bytes` is 1 where the KV cache holds 8-bit numbers."""
    tokens = sum(row.count for row in rows)
    sampled = sum(row.sampled for row in rows)
    width, queries = shape.hidden, shape.heads * shape.head_dim
    merged = queries + 2 * shape.kv_heads * shape.head_dim
    return [
        _product("qkv", shape.layers, tokens, width, merged),
        _place(shape, tokens, merged, kv_bytes),
        _attention(shape, rows, kv_bytes),
        _product("output", shape.layers, tokens, queries, width),
        # Two in a layer and one at the end: the sum and its norm are written, two states read.
        Operator("norms", passed_bytes=(2 * shape.layers + 1) * 4 * tokens * width * STATE_BYTES),
        _product("gate_up", shape.layers, tokens, width, 2 * shape.intermediate),
        Operator(
            "activation", passed_bytes=shape.layers * 3 * tokens * shape.intermediate * STATE_BYTES
        ),
        _product("down", shape.layers, tokens, shape.intermediate, width),
        _product("head", 1, sampled, width, shape.vocab),
        Operator("sampling", other_bytes=sampled * shape.vocab * STATE_BYTES),
    ]


def step_limit_s(operators: Sequence[Operator], limits: Limits, passed: bool = False) -> float:
    """The sum of the operators' limits, in seconds."""
    return sum(one.limit_s(limits, passed) for one in operators)


def decode_rows(batch: int, context: int) -> list[Row]:
    """A step that draws one token of each of `batch` sequences of `context` tokens, it included."""
    return [Row(context - 1, 1)] * batch


def prefill_steps(prompt: int, chunk: int) -> Iterator[list[Row]]:
    """The steps of one prompt in chunks; only the last draws a token."""
    for start in range(0, prompt, chunk):
        count = min(chunk, prompt - start)
        yield [Row(start, count, sampled=start + count == prompt)]


def _product(name: str, layers: int, rows: int, inputs: int, outputs: int) -> Operator:
    """A linear layer in each of so many decoder layers."""
    return Operator(
        name,
        weight_bytes=layers * inputs * outputs * STATE_BYTES if rows else 0,
        passed_bytes=layers * rows * (inputs + outputs) * STATE_BYTES,
        operations=layers * PRODUCT_OPERATIONS * rows * inputs * outputs,
    )


def _place(shape: DecoderShape, tokens: int, merged: int, kv_bytes: int) -> Operator:
    """Rotation of queries and keys, and the write of keys and values to the cache."""
    queries = shape.heads * shape.head_dim
    return Operator(
        "rotary and KV write",
        kv_bytes=tokens * shape.token_bytes(kv_bytes),
        passed_bytes=shape.layers * tokens * (merged + queries) * STATE_BYTES,
    )


def _attention(shape: DecoderShape, rows: Sequence[Row], kv_bytes: int) -> Operator:
    """Keys and values of a row are read once, however many of its tokens are computed."""
    tokens = sum(row.count for row in rows)
    queries = shape.heads * shape.head_dim
    return Operator(
        "attention",
        kv_bytes=sum(row.start + row.count for row in rows) * shape.token_bytes(kv_bytes),
        passed_bytes=shape.layers * 2 * tokens * queries * STATE_BYTES,
        operations=shape.layers * 2 * PRODUCT_OPERATIONS * queries * sum(row.pairs for row in rows),
    )
