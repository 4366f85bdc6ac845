"""A profile for narrower weights or KV, derived from a measured one by the bytes that are saved.

A step reads all weights whatever its tokens, and computes by their number. Where reading takes
longer than computing, narrower weights make the step shorter, down to its products' time at the
rate of the longest measured step; longer steps stay as they are. Unpacking is assumed to cost
nothing: good kernels come near it at few tokens. Attention of decodes reads the cache.
"""

from typing import NamedTuple

from msgspec.structs import replace

from daemon.cost.curve import Curve
from daemon.cost.profile import ModelSpec, Operators, PhaseFit, Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.fitting import rounded
from daemon.lab.profiles.roofline import bound_by_cache
from daemon.memory.sizing import DTYPE_BYTES, SCALE_BYTES


class WeightBits(NamedTuple):
    """Bits of a weight, its share of scales included."""

    layers: float
    ends: float  # of the embedding and the output head


WEIGHT_BITS = {
    # In groups of 128 with a scale and a zero of 32 bits each, as model.quantize makes them.
    "int8": WeightBits(8.5, 8.5),
    "fp8": WeightBits(8.5, 8.5),
    "int4": WeightBits(4.5, 8.5),
    "Q8_0": WeightBits(8.5, 8.5),
    # A mixture: the mean of published files of Llama-2 is 4.80 (70B) to 4.84 (7B, 13B).
    "Q4_K_M": WeightBits(4.84, 4.84),
}


def quantised(profile: Profile, weights: str) -> Profile:
    """`profile` with its weights in a format of `WEIGHT_BITS`, named `...-FORMAT`.

    A head that is tied to the embedding counts as its own, so the bytes are an upper bound. Raises
    ProfileError for a fit by phases, which does not separate reading from computing.
    """
    step, model, bits = profile.step, profile.model, WEIGHT_BITS[weights]
    if not isinstance(step, Operators):
        raise ProfileError(f"{profile.name}: only operators tell what reading the weights takes")
    if model.packed_params:
        raise ProfileError(f"{profile.name}: its weights are quantised already")
    stored = 8 * DTYPE_BYTES[model.dtype]
    note = f"not measured: weights as {weights}, steps shorter by what is not read (roofline)"
    return replace(
        profile,
        name=f"{profile.name}-{weights}",
        model=_quantised_model(model, bits),
        step=replace(
            step,
            tokens_s=_reading_less(step.tokens_s, bits.layers / stored),
            sampled_s=_reading_less(step.sampled_s, bits.ends / stored),
        ),
        source=(note, *profile.source),
    )


def with_narrow_cache(profile: Profile) -> Profile:
    """`profile` with keys and values in 8 bits, a float32 scale for each head; named `...-kv8`."""
    model, step = profile.model, profile.step
    if model.kv_dtype != "auto":
        raise ProfileError(f"{profile.name}: its keys and values have 8 bits already")
    factor = (model.head_dim + SCALE_BYTES) / (model.head_dim * DTYPE_BYTES[model.dtype])
    made: PhaseFit | Operators
    if isinstance(step, Operators):
        made = replace(step, decode_s=bound_by_cache(step.decode_s, factor))
    else:
        made = replace(
            step,
            decode_s=_context(step.decode_s, factor),
            large_decode_s=_context(step.large_decode_s, factor),
        )
    note = "not measured: keys and values in 8 bits, attention shorter by what is not read"
    return replace(
        profile,
        name=f"{profile.name}-kv8",
        model=replace(model, kv_dtype="int8"),
        step=made,
        source=(note, *profile.source),
    )


def _quantised_model(model: ModelSpec, bits: WeightBits) -> ModelSpec:
    ends = min(2 * model.vocab_size * model.hidden_size, model.num_params)
    size_bits = ends * bits.ends + (model.num_params - ends) * bits.layers
    return replace(model, packed_params=model.num_params, packed_bytes=int(size_bits / 8))


def _reading_less(curve: Curve, factor: float) -> Curve:
    """The curve where reading takes `factor` of its time, partly hidden by products.

    No rows still take no time.
    """
    reading_s = next((value for value in curve.value if value), 0.0)
    if not reading_s:
        return curve
    rate_s = curve.value[-1] / curve.at[-1]  # of a token, where products alone count
    bends = (reading_s * factor / rate_s, reading_s / rate_s)
    first = next(at for at, value in zip(curve.at, curve.value, strict=True) if value)
    at = sorted({*curve.at, *(bend for bend in bends if first < bend < curve.at[-1])})

    def shorter(count: float) -> float:
        hidden_s = min(reading_s, max(reading_s * factor, rate_s * count))
        return rounded(curve(count) - reading_s + hidden_s)

    return Curve(tuple(at), tuple(shorter(count) if curve(count) else 0.0 for count in at))


def _context(terms: tuple[float, float, float], factor: float) -> tuple[float, float, float]:
    """A fit of decodes whose time by context is multiplied by `factor`."""
    return terms[0], terms[1] * factor, terms[2]
