"""Which model fits which card: the pool that `llmd serve` would have, by `llmd check`'s formula.

    python -m benchmarks.sizing [--kv-dtype int8] [--in-use 0.5] [--each 4096] [--write]

Each cell has the tokens of the longest sequence, and how many answers of `--each` tokens, prompt
included, have room at once. `--write` puts the tables into docs/sizing.md. Nothing is measured.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from daemon.config.instances import shared_limits
from daemon.config.load import load
from daemon.config.pool import demand_of
from daemon.memory.layout import KVHeads
from daemon.memory.sizing import (
    KV_DTYPES,
    NCCL_BYTES,
    PoolSize,
    Room,
    SizingError,
    gpu_panel_bytes,
    model_layout,
    size_pool,
)
from daemon.models.formats import FORMATS
from daemon.models.rank_shares import largest_share
from daemon.models.shape import ModelError, ModelShape

PAGE = Path(__file__).parent.parent / "docs" / "sizing.md"
BEGIN, END = "<!-- sizing: begin -->\n", "<!-- sizing: end -->\n"
CARDS_GIB = (8, 12, 16, 24, 32, 48, 80, 96)
SIDE_BY_SIDE = ((2, 24), (4, 24), (2, 48), (4, 48), (2, 80), (4, 80), (8, 80))
"""How many cards, and the GiB of each, that would compute a model together."""
IN_USE_GIB = 0.5
"""Of a card's memory, what its driver and a desktop take."""
EACH_TOKENS = 4096
TOGETHER = (
    "Cards side by side, each with a share of every layer (`cuda:0,1:tp2`), as the same formula "
    "has them; `-` also where ranks\ncannot share the model "
    "([several GPUs](instances.md#several-gpus))."
)


def _shape(
    sizes: tuple[int, int, int, int, int, int],
    vocab_size: int,
    context_len: int,
    *,
    is_tied: bool = False,
    norms_heads: bool = False,
    window: int = 0,
) -> ModelShape:
    """A decoder with a gated MLP and no biases, of layers, width, heads, KV heads, head size and
    MLP width, as its config.json has them; parameters are counted. `window`: of five of six layers,
    with norms behind attention and MLP too, as in Gemma 3.
    """
    num_layers, hidden, num_heads, num_kv_heads, head_dim, ffn = sizes
    attention = 2 * hidden * (num_heads + num_kv_heads) * head_dim
    norms = (4 if window else 2) * hidden + (2 * head_dim if norms_heads else 0)
    layer = attention + 3 * hidden * ffn + norms
    embeddings = (1 if is_tied else 2) * vocab_size * hidden
    return ModelShape(
        model_type="decoder",
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        vocab_size=vocab_size,
        context_len=context_len,
        num_params=num_layers * layer + embeddings + hidden,
        dtype="bfloat16",
        windows=tuple(window * ((layer + 1) % 6 > 0) for layer in range(num_layers * bool(window))),
    )


def _of_kinds(
    model_type: str,
    num_params: int,
    sizes: tuple[int, int, int],
    vocab_size: int,
    context_len: int,
    heads: tuple[KVHeads, ...],
    windows: tuple[int, ...],
) -> ModelShape:
    """A decoder whose layers are of unlike kinds, of so many parameters; `sizes`: layers, width and
    query heads.
    """
    num_layers, hidden, num_heads = sizes
    return ModelShape(
        model_type=model_type,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=max(own.num_kv_heads for own in heads),
        head_dim=max(own.head_dim for own in heads),
        hidden_size=hidden,
        vocab_size=vocab_size,
        context_len=context_len,
        num_params=num_params,
        dtype="bfloat16",
        windows=windows,
        layer_heads=heads,
    )


def _gpt_oss(num_params: int, num_layers: int, num_experts: int) -> ModelShape:
    """gpt-oss: each second layer sees all tokens; experts in MXFP4, as they are published."""
    windows, heads = tuple(128 * (layer % 2 == 0) for layer in range(num_layers)), KVHeads(8, 64)
    sizes, form = (num_layers, 2880, 64), FORMATS["MXFP4"]
    model = _of_kinds(
        "gpt_oss", num_params, sizes, 201_088, 131_072, (heads,) * num_layers, windows
    )
    packed = num_layers * num_experts * 3 * 2880 * 2880
    packed_bytes = packed // form.block_len * form.block_bytes
    return msgspec.structs.replace(model, packed_params=packed, packed_bytes=packed_bytes)


def _gemma_4(
    num_params: int,
    sizes: tuple[int, int, int],
    heads: tuple[int, int],
    window: int,
    context_len: int,
    num_shared: int = 0,
) -> ModelShape:
    """Gemma 4: each sixth layer sees all tokens. `heads` of keys: of layers with the window, of
    size 256, and of the others, of 512. The last `num_shared` read the keys of others.
    """
    num_layers = sizes[0]
    windows = tuple(window * ((layer + 1) % 6 > 0) for layer in range(num_layers))
    with_keys = range(num_layers - num_shared)
    last = {bool(windows[layer]): layer for layer in with_keys}
    of_layers = tuple(
        KVHeads(
            heads[0 if recent else 1],
            256 if recent else 512,
            -1 if layer in with_keys else last[bool(recent)],
        )
        for layer, recent in enumerate(windows)
    )
    return _of_kinds("gemma4_text", num_params, sizes, 262_144, context_len, of_layers, windows)


def quantised(model: ModelShape, shares: dict[str, float], num_unpacked: int = 0) -> ModelShape:
    """A model with these shares of its numbers in some formats; norms count too, they are few.
    `num_unpacked`: numbers that are unpacked when they are loaded.
    """
    forms = [(FORMATS[name], share) for name, share in shares.items()]
    number_bytes = sum(share * form.block_bytes / form.block_len for form, share in forms)
    packed = model.num_params - num_unpacked
    return msgspec.structs.replace(
        model, packed_params=packed, packed_bytes=int(number_bytes * packed)
    )


QWEN, LLAMA, GEMMA = 151_936, 128_256, 262_208
MODELS = {
    "SmolLM2-135M": _shape((30, 576, 9, 3, 64, 1536), 49_152, 8192, is_tied=True),
    "Qwen3-0.6B": _shape(
        (28, 1024, 16, 8, 128, 3072), QWEN, 40_960, is_tied=True, norms_heads=True
    ),
    "SmolLM2-1.7B": _shape((24, 2048, 32, 32, 64, 8192), 49_152, 8192, is_tied=True),
    "Mistral-7B-v0.3": _shape((32, 4096, 32, 8, 128, 14_336), 32_768, 32_768),
    "Llama-3.1-8B": _shape((32, 4096, 32, 8, 128, 14_336), LLAMA, 131_072),
    "Qwen3-8B": _shape((36, 4096, 32, 8, 128, 12_288), QWEN, 40_960, norms_heads=True),
    "Qwen3-14B": _shape((40, 5120, 40, 8, 128, 17_408), QWEN, 40_960, norms_heads=True),
    "Gemma-3-12B": _shape(
        (48, 3840, 16, 8, 256, 15_360), GEMMA, 131_072, is_tied=True, norms_heads=True, window=1024
    ),
    "Gemma-3-27B": _shape(
        (62, 5376, 32, 16, 128, 21_504), GEMMA, 131_072, is_tied=True, norms_heads=True, window=1024
    ),
    "gpt-oss-20b": _gpt_oss(20_914_757_184, 24, 32),
    "Gemma-4-E4B": _gemma_4(7_463_013_376, (42, 2560, 8), (2, 2), 512, 131_072, num_shared=18),
    "Gemma-4-26B-A4B": _gemma_4(25_233_141_760, (30, 2816, 16), (8, 2), 1024, 262_144),
    "Gemma-4-31B": _gemma_4(30_697_345_280, (60, 5376, 32), (16, 4), 1024, 262_144),
    "GLM-4.7-Flash": _of_kinds(
        "glm4_moe_lite",
        29_943_390_976,
        (47, 2048, 20),
        154_880,
        202_752,
        (KVHeads(1, 512 + 64, latent=512),) * 47,
        (),
    ),
    "Qwen3-32B": _shape((64, 5120, 64, 8, 128, 25_600), QWEN, 40_960, norms_heads=True),
    "Llama-3.1-70B": _shape((80, 8192, 64, 8, 128, 28_672), LLAMA, 131_072),
    "gpt-oss-120b": _gpt_oss(116_829_156_672, 36, 128),
}
MORE_BITS = {
    "Llama-3.1-8B": 0.19,
    "Qwen3-14B": 0.18,
    "Gemma-3-12B": 0.18,
    "Gemma-3-27B": 0.16,
    "Gemma-4-26B-A4B": 0.18,
    "Gemma-4-31B": 0.16,
    "GLM-4.7-Flash": 0.16,
    "Qwen3-32B": 0.16,
    "Llama-3.1-70B": 0.15,
}
"""Share of the numbers that is in Q6_K in a file of Q4_K_M: the head, and in half of the layers
values and the MLP's last matrix.
"""
UNPACKED = {"GLM-4.7-Flash": 47 * 20 * (192 + 256) * 512}
"""Numbers of projections from latent rows."""
QUANTISED = {
    f"{name}, {kind}": quantised(MODELS[name], shares, UNPACKED.get(name, 0))
    for name, more in MORE_BITS.items()
    for kind, shares in (("Q4_K_M", {"Q4_K": 1 - more, "Q6_K": more}), ("Q8_0", {"Q8_0": 1.0}))
}


def pool(
    model: ModelShape, card_gib: float, kv_dtype: str, in_use_gib: float, nccl_bytes: int = 0
) -> PoolSize | None:
    """The pool with the default configuration; None where it would be of no use."""
    config = load(None, {"memory.kv_dtype": kv_dtype}).config
    total_bytes = int(card_gib * 2**30)
    room = Room(
        weight_bytes=model.weight_bytes(model.dtype),
        panel_bytes=gpu_panel_bytes(model.packed_bytes),
        nccl_bytes=nccl_bytes,
        total_bytes=total_bytes,
        free_bytes=total_bytes - int(in_use_gib * 2**30),
        is_cpu=False,
        utilization=config.memory.utilization,
    )
    try:
        return size_pool(model, demand_of(config, model, model.dtype, shared_limits(config)), room)
    except SizingError:
        return None


def table(kv_dtype: str, in_use_gib: float = IN_USE_GIB, each: int = EACH_TOKENS) -> Iterator[str]:
    """Lines of a table in Markdown."""
    yield "| Model | Weights | " + " | ".join(f"{card} GB" for card in CARDS_GIB) + " |"
    yield "|---|---:|" + "---:|" * len(CARDS_GIB)
    for name, model in (MODELS | QUANTISED).items():
        cells = [cell(model, card, kv_dtype, in_use_gib, each) for card in CARDS_GIB]
        gib = model.weight_bytes(model.dtype) / 2**30
        yield f"| {name} | {gib:.1f} GiB | " + " | ".join(cells) + " |"


def side_by_side(kv_dtype: str = "auto") -> Iterator[str]:
    """Lines of a table of cards that have a share of each layer, as ranks of one instance would;
    the rank with the largest share decides.
    """
    heads = [f"{count} x {card} GB" for count, card in SIDE_BY_SIDE]
    yield "| Model | " + " | ".join(heads) + " |"
    yield "|---|" + "---:|" * len(heads)
    for name, model in (MODELS | QUANTISED).items():
        cells = []
        for count, card in SIDE_BY_SIDE:
            try:
                share = largest_share(model, count)
            except ModelError:
                cells.append("-")
            else:
                cells.append(cell(share, card, kv_dtype, IN_USE_GIB, EACH_TOKENS, NCCL_BYTES))
        yield f"| {name} | " + " | ".join(cells) + " |"


def cell(
    model: ModelShape,
    card: float,
    kv_dtype: str,
    in_use_gib: float,
    each: int,
    nccl_bytes: int = 0,
) -> str:
    """The longest sequence, and answers at once."""
    size = pool(model, card, kv_dtype, in_use_gib, nccl_bytes)
    if size is None:
        return "-"
    config = load().config
    block_size = config.memory.block_size
    layout = model_layout(model, model.windows, block_size, model.dtype, kv_dtype)
    held_bytes = layout.bytes_at(min(each, size.max_len))
    at_once = size.num_blocks * size.block_bytes // held_bytes
    return f"{size.max_len / 1000:.3g}k, {min(at_once, config.scheduler.max_running)}"


def tables() -> str:
    """What docs/sizing.md shows."""
    own = "\n".join(table("auto"))
    together = "\n".join(side_by_side())
    return (
        f'{own}\n\nWith `memory.kv_dtype = "int8"`:\n\n'
        + "\n".join(table("int8"))
        + f"\n\n{TOGETHER}\n\n{together}\n"
    )


def main() -> None:
    """Print a table, or write both into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="auto")
    parser.add_argument("--in-use", type=float, default=IN_USE_GIB, metavar="GIB")
    parser.add_argument("--each", type=int, default=EACH_TOKENS, metavar="TOKENS")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    if not given.write:
        print("\n".join(table(given.kv_dtype, given.in_use, given.each)))
        return
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + tables() + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
