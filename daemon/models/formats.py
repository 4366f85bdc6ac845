"""Formats of weights: how many numbers a block of a row holds, and how many bytes it takes.

A row of a weight [N, K] is a run of blocks, each with its numbers and what scales them. GGUF's are
as its files have them, under its names. The others hold what AWQ, GPTQ, compressed tensors and FP8
checkpoints say, brought into one shape: `int4/g`, `int8/g` and `fp8/g` begin with a scale and a
zero, float32 each, and g numbers follow, of which each is worth scale * (number - zero).

`fp4/g` is NVFP4: a factor and a divisor, float32 each, up to eight scales of a byte (e4m3), each of
16 numbers, and g half bytes (e2m1), of each 32 first all low halves. A number is worth
scale * factor / divisor * number: ModelOpt's files have a factor, those of compressed tensors a
divisor, and either is computed as its own tool does, to the bit.
"""

import msgspec

GROUP_SIZES = (128, 64, 32)
"""Numbers of a block of our own formats: of a longer group each block repeats the scale."""
_GROUP_HEAD_BYTES = 8
_FP4_SCALES_BYTES = 8
FP4_HEAD_BYTES = _GROUP_HEAD_BYTES + _FP4_SCALES_BYTES
"""Bytes in front of the numbers of `fp4/g`."""
FP4_GROUP = 16
"""Numbers of `fp4/g` that share a scale."""


class WeightFormat(msgspec.Struct, frozen=True):
    """How numbers of a row are stored."""

    name: str
    block_len: int  # numbers
    block_bytes: int

    @property
    def integers(self) -> bool:
        """Whether its numbers are integers with a scale."""
        return self.block_len > 1 and not self.name.startswith("fp8")

    @property
    def may_round(self) -> bool:
        """Whether products may round what they multiply with its numbers: not with four bytes."""
        return self.name != "F32"

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` numbers. Raises ValueError if they are no whole blocks."""
        blocks, rest = divmod(columns, self.block_len)
        if rest:
            raise ValueError(f"rows of {columns} are no whole blocks of {self.name}")
        return blocks * self.block_bytes


def _group(kind: str, block_len: int, bits: int) -> WeightFormat:
    size_bytes = _GROUP_HEAD_BYTES + block_len * bits // 8
    return WeightFormat(f"{kind}/{block_len}", block_len, size_bytes)


_GGUF = (
    WeightFormat("F32", 1, 4),
    WeightFormat("F16", 1, 2),
    WeightFormat("BF16", 1, 2),
    WeightFormat("Q4_0", 32, 18),
    WeightFormat("Q4_1", 32, 20),
    WeightFormat("Q5_0", 32, 22),
    WeightFormat("Q5_1", 32, 24),
    WeightFormat("Q8_0", 32, 34),
    WeightFormat("Q2_K", 256, 84),
    WeightFormat("Q3_K", 256, 110),
    WeightFormat("Q4_K", 256, 144),
    WeightFormat("Q5_K", 256, 176),
    WeightFormat("Q6_K", 256, 210),
    WeightFormat("IQ4_NL", 32, 18),
    WeightFormat("IQ4_XS", 256, 136),
    WeightFormat("MXFP4", 32, 17),
    WeightFormat("IQ1_S", 256, 50),
    WeightFormat("IQ1_M", 256, 56),
    WeightFormat("IQ2_XXS", 256, 66),
    WeightFormat("IQ2_XS", 256, 74),
    WeightFormat("IQ2_S", 256, 82),
    WeightFormat("IQ3_XXS", 256, 98),
    WeightFormat("IQ3_S", 256, 110),
    WeightFormat("TQ1_0", 256, 54),
    WeightFormat("TQ2_0", 256, 66),
)
_GROUPS = tuple(
    _group(kind, size, bits)
    for kind, bits in (("int4", 4), ("int8", 8), ("fp8", 8))
    for size in GROUP_SIZES
)
_FP4 = tuple(WeightFormat(f"fp4/{size}", size, FP4_HEAD_BYTES + size // 2) for size in GROUP_SIZES)
FORMATS = {form.name: form for form in (*_GGUF, *_GROUPS, *_FP4)}
NIBBLES = {
    "IQ4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "FP4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}
"""Values of half a byte, times a scale, for formats where they are not the numbers 0 to 15."""
CPU_ONLY = frozenset({
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"),
})  # fmt: skip
"""Formats that no kernel of a GPU reads."""
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Formats without blocks, and how torch and safetensors call their numbers."""


def group_size(columns: int, group: int) -> int:
    """The block length for rows of `columns` in groups of `group`. Raises ValueError."""
    for size in GROUP_SIZES:
        if columns % size == 0 and group % size == 0:
            return size
    raise ValueError(f"rows of {columns} in groups of {group} are no whole blocks")
