"""Models that profiles are made for: published shapes, and parameters counted from them."""

from dataclasses import dataclass

from daemon.base.nearest import unknown
from daemon.cost.profile import ModelSpec
from daemon.lab.profiles.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's shape, and the other facts that its layers' cost depends on."""

    spec: ModelSpec
    published: str  # its name on the model hub, by which tables list it
    ffn_size: int
    is_gated: bool  # a gate beside the up projection (Llama), or none (OPT)


def _opt(name: str, published: str, num_layers: int, num_heads: int) -> Architecture:
    """An OPT decoder: learned positions, biases, an MLP of four widths, tied head."""
    hidden = num_heads * 128
    vocab, context, ffn = 50272, 2048, 4 * hidden
    attention = 4 * (hidden * hidden + hidden)
    mlp = 2 * hidden * ffn + ffn + hidden
    norms = 4 * hidden
    embeddings = (vocab + context + 2) * hidden
    spec = ModelSpec(
        name=name,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=128,
        hidden_size=hidden,
        vocab_size=vocab,
        context_len=context,
        num_params=num_layers * (attention + mlp + norms) + embeddings + 2 * hidden,
        dtype="float16",
    )
    return Architecture(spec, published, ffn, is_gated=False)


def _llama(
    name: str,
    published: str,
    *,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    ffn_size: int,
    vocab_size: int,
    context_len: int,
    dtype: str,
) -> Architecture:
    """A Llama decoder: no biases, a gated MLP, a head of its own."""
    hidden = num_heads * 128
    attention = 2 * hidden * hidden + 2 * hidden * num_kv_heads * 128
    layer = attention + 3 * hidden * ffn_size + 2 * hidden
    spec = ModelSpec(
        name=name,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        hidden_size=hidden,
        vocab_size=vocab_size,
        context_len=context_len,
        num_params=num_layers * layer + 2 * vocab_size * hidden + hidden,
        dtype=dtype,
    )
    return Architecture(spec, published, ffn_size, is_gated=True)


_ALL = (
    _opt("opt-13b", "facebook/opt-13b", num_layers=40, num_heads=40),
    _opt("opt-66b", "facebook/opt-66b", num_layers=64, num_heads=72),
    _llama(
        "llama-2-7b",
        "meta-llama/Llama-2-7b-hf",
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        ffn_size=11008,
        vocab_size=32000,
        context_len=4096,
        dtype="float16",
    ),
    _llama(
        "llama-2-70b",
        "meta-llama/Llama-2-70b-hf",
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        ffn_size=28672,
        vocab_size=32000,
        context_len=4096,
        dtype="float16",
    ),
    _llama(
        "llama-3-8b",
        "meta-llama/Meta-Llama-3-8B",
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        ffn_size=14336,
        vocab_size=128256,
        context_len=8192,
        dtype="bfloat16",
    ),
)
MODELS = {architecture.spec.name: architecture for architecture in _ALL}


def find_model(name: str) -> Architecture:
    """The model of that name. Raises ProfileError, naming those that are known."""
    if name not in MODELS:
        raise ProfileError(unknown("model", name, MODELS))
    return MODELS[name]
