"""GGUF's fields of unlike layers and of recurrent ones, as transformers' configurations have them.

A file says with a number for each layer which of them are recurrent: those without heads of keys.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from daemon.models.shape import ModelError

Own = Mapping[str, Any]
"""An architecture's fields, by what comes behind its name."""
_FULL, _LINEAR, SLIDING = "full_attention", "linear_attention", "sliding_attention"
KEY_HEADS = "attention.head_count_kv"
INTERVAL, RECURRENT = "full_attention_interval", "attention.recurrent_layers"
CONVOLUTION, INNER, STATE = "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"
HEADS, GROUPS = "ssm.time_step_rank", "ssm.group_count"
EPSILON, WIDTH, SHORT = (
    "attention.layer_norm_rms_epsilon",
    "feed_forward_length",
    "shortconv.l_cache",
)
OF_MAMBA_1 = (CONVOLUTION, INNER, STATE, HEADS)
OF_STATES = (CONVOLUTION, INNER, STATE, HEADS, GROUPS)
"""Fields of recurrent layers with heads."""
KDA_HEAD, LEADING = "kda.head_dim", "leading_dense_block_count"
SHARED, PER_LAYER = "attention.shared_kv_layers", "embedding_length_per_layer_input"
OF_KINDS = tuple(
    f"attention.{part}_length{end}" for part in ("key", "value") for end in ("", "_swa")
)
"""Sizes of heads, of layers that see all and of those with windows."""
TURNED_OF_KINDS = tuple(
    f"rope.{part}{end}" for part in ("dimension_count", "freq_base") for end in ("", "_swa")
)
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
MIXTURES = "interleave_moe_layer_step"
_INTERVAL = 4
"""llama.cpp's, where a file does not say."""
_CHUNK_LEN, _EXPERTS_WITHOUT_NORMS = 8192, 128
"""Llama 4's in llama.cpp: the tokens of a chunk, and the experts of models whose queries and keys
have no norms."""


class LayerFields(NamedTuple):
    """The settings that some fields mean, and the value that counts for a field of all layers."""

    settings: dict[str, Any]
    says: dict[str, Any]


def read_delta_net(own: Own, num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Qwen's gated delta nets beside attention. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    recurrent = own.get(RECURRENT)
    if recurrent is None:
        interval = own.get(INTERVAL, _INTERVAL)
        recurrent = [bool((layer + 1) % interval) for layer in range(num_layers)]
    if not isinstance(recurrent, list) or not num_layers <= len(recurrent) <= own["block_count"]:
        raise ModelError(f"{RECURRENT} is no list of {own['block_count']} layers")
    if all(recurrent[:num_layers]) or not any(recurrent[:num_layers]):
        raise ModelError(f"{INTERVAL} or {RECURRENT} leave {num_layers} layers all alike")
    sizes = {
        "linear_conv_kernel_dim": own[CONVOLUTION],
        "linear_key_head_dim": own[STATE],
        "linear_num_key_heads": own[GROUPS],
        "linear_num_value_heads": own[HEADS],
        "linear_value_head_dim": _divided(own, INNER, own[HEADS]),
    }
    if sizes["linear_value_head_dim"] != own[STATE]:
        raise ModelError(
            f"{STATE} is {own[STATE]}, and heads have {sizes['linear_value_head_dim']}"
        )
    if own[HEADS] % own[GROUPS]:
        raise ModelError(f"{HEADS} is {own[HEADS]}, and {GROUPS} {own[GROUPS]}: not shared evenly")
    kinds = [_LINEAR if states else _FULL for states in recurrent[:num_layers]]
    return LayerFields({**sizes, "layer_types": kinds}, {})


def read_granite_hybrid(own: Own, num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Granite 4's Mamba 2 beside attention, with or without experts. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    experts = own.get("expert_count", 0)
    shared = "expert_shared_feed_forward_length"
    width = own.get(shared) if experts else own.get("feed_forward_length")
    settings = {
        "hidden_size": own["embedding_length"],
        "layer_types": kinds,
        "num_key_value_heads": heads,
        "num_local_experts": experts,
        "shared_intermediate_size": width,
        "mamba_n_heads": own[HEADS],
        "mamba_n_groups": own[GROUPS],
        "mamba_d_state": own[STATE],
        "mamba_d_conv": own[CONVOLUTION],
        "mamba_d_head": _divided(own, INNER, own[HEADS]),
        "mamba_expand": _divided(own, INNER, own["embedding_length"]),
        "position_embedding_type": "rope" if own.get("rope.scaling.finetuned", True) else None,
    }
    return LayerFields(settings, {KEY_HEADS: heads, shared: width})


def read_mamba(own: Own, _num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Mamba 1 alone. Raises ModelError."""
    settings = {
        "hidden_size": own["embedding_length"],
        "expand": _divided(own, INNER, own["embedding_length"]),
        "state_size": own[STATE],
        "conv_kernel": own[CONVOLUTION],
        "time_step_rank": own[HEADS],
        "layer_norm_epsilon": own[EPSILON],
    }
    return LayerFields(settings, {})


def read_mamba_2(own: Own, _num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Mamba 2 alone. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    settings = {
        "hidden_size": own["embedding_length"],
        "expand": _divided(own, INNER, own["embedding_length"]),
        "num_heads": own[HEADS],
        "head_dim": _divided(own, INNER, own[HEADS]),
        "n_groups": own[GROUPS],
        "state_size": own[STATE],
        "conv_kernel": own[CONVOLUTION],
        "layer_norm_epsilon": own[EPSILON],
    }
    return LayerFields(settings, {})


def read_falcon_h1(own: Own, _num_layers: int, tensors: Collection[str]) -> LayerFields:
    """Falcon-H1's layers, which attend and carry a state; its multipliers are in a file's weights.

    Raises ModelError.
    """
    _check_above_0(own, *OF_STATES)
    settings = {
        "hidden_size": own["embedding_length"],
        "mamba_d_ssm": own[INNER],
        "mamba_n_heads": own[HEADS],
        "mamba_d_head": _divided(own, INNER, own[HEADS]),
        "mamba_n_groups": own[GROUPS],
        "mamba_d_state": own[STATE],
        "mamba_d_conv": own[CONVOLUTION],
        "mamba_norm_before_gate": False,  # as llama.cpp has it
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in tensors,
    }
    return LayerFields(settings, {})


def read_short_convolutions(own: Own, num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """LFM2's convolutions beside attention. Raises ModelError."""
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    settings = {
        "layer_types": [kind if kind == _FULL else "conv" for kind in kinds],
        "conv_L_cache": own[SHORT],
        "block_auto_adjust_ff_dim": False,
    }
    return LayerFields(settings, {KEY_HEADS: heads})


def read_jamba(own: Own, num_layers: int, tensors: Collection[str]) -> LayerFields:
    """Jamba's Mamba 1 beside attention, and its mixtures, each at even distances. Raises
    ModelError.
    """
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    attending = [kind == _FULL for kind in kinds]
    mixed = [f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(num_layers)]
    attention, experts = _evenly(attending, KEY_HEADS), _evenly(mixed, "expert_count")
    settings = {
        "hidden_size": own["embedding_length"],
        "attn_layer_period": attention[0],
        "attn_layer_offset": attention[1],
        "expert_layer_period": experts[0],
        "expert_layer_offset": experts[1],
        "mamba_expand": _divided(own, INNER, own["embedding_length"]),
        "mamba_d_state": own[STATE],
        "mamba_d_conv": own[CONVOLUTION],
        "mamba_dt_rank": own[HEADS],
    }
    return LayerFields(settings, {KEY_HEADS: heads})


def read_nemotron_h(own: Own, num_layers: int, tensors: Collection[str]) -> LayerFields:
    """Nemotron-H's layers: each attends, has a state, is an MLP or a mixture. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    widths = own[WIDTH]
    if not isinstance(widths, list) or len(widths) not in (num_layers, own["block_count"]):
        raise ModelError(f"{WIDTH} is {widths!r}, and must be a list of {num_layers} layers")
    widths = widths[:num_layers]
    if len({width for width in widths if width}) != 1:
        raise ModelError(f"{WIDTH} is {widths[:8]}: not one number for all layers that have an MLP")
    if any(width and kind == _FULL for width, kind in zip(widths, kinds, strict=True)):
        raise ModelError(f"{WIDTH} and {KEY_HEADS} are both of a layer, which is of one kind")
    for name in (EPSILON, "attention.layer_norm_epsilon"):
        if own.get(name, own[EPSILON]) != own[EPSILON]:
            raise ModelError(f"{name} is {own[name]}, and {EPSILON} {own[EPSILON]}")
    mixed = [f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(num_layers)]
    settings = {
        "layers_block_type": [
            ("moe" if has_router else "mlp") if width else kind
            for width, kind, has_router in zip(widths, kinds, mixed, strict=True)
        ],
        "mamba_num_heads": own[HEADS],
        "mamba_head_dim": _divided(own, INNER, own[HEADS]),
        "n_groups": own[GROUPS],
        "ssm_state_size": own[STATE],
        "conv_kernel": own[CONVOLUTION],
        "layer_norm_epsilon": own[EPSILON],
    }
    return LayerFields(settings, {KEY_HEADS: heads, WIDTH: max(widths)})


def read_llama_4(own: Own, num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Llama 4's layers, of which llama.cpp takes for granted what no field says. Raises
    ModelError.
    """
    window, chunk_len = own.get(WINDOW, _CHUNK_LEN), _CHUNK_LEN
    if window not in (0, chunk_len):
        raise ModelError(f"{WINDOW} is {window}, and its chunks are of {chunk_len} tokens")
    if own.get(PATTERN, _INTERVAL) != _INTERVAL:
        raise ModelError(f"{PATTERN} is {own[PATTERN]}, and every {_INTERVAL}th layer sees all")
    settings: dict[str, Any] = {
        "intermediate_size_mlp": own.get(WIDTH, 0),
        "interleave_moe_layer_step": own[MIXTURES],
        "use_qk_norm": own["expert_count"] != _EXPERTS_WITHOUT_NORMS,
        "attention_chunk_size": chunk_len,
        "no_rope_layer_interval": _INTERVAL,
        "attn_temperature_tuning": window > 0,
        "floor_scale": chunk_len,
        "attn_scale": 0.1,
    }
    if not window:
        settings["no_rope_layers"] = [1] * num_layers
        settings["layer_types"] = [_FULL] * num_layers
    return LayerFields(settings, {WINDOW: 0})


def read_kimi_linear(own: Own, num_layers: int, _tensors: Collection[str]) -> LayerFields:
    """Kimi's delta nets beside attention from latent rows. Raises ModelError."""
    _check_above_0(own, CONVOLUTION, KDA_HEAD)
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    dense = own.get(LEADING, 0)
    settings = {
        "layer_types": kinds,
        "mlp_layer_types": ["dense" if at < dense else "sparse" for at in range(num_layers)],
        "linear_head_dim": own[KDA_HEAD],
        "linear_num_heads": own["attention.head_count"],
        "linear_conv_kernel_dim": own[CONVOLUTION],
    }
    return LayerFields(settings, {KEY_HEADS: heads})


def read_gemma_4(own: Own, num_layers: int, tensors: Collection[str]) -> LayerFields:
    """Gemma 4's layers with windows and those that see all, whose heads and positions differ.
    Raises ModelError.
    """
    windows = own[PATTERN]
    if not isinstance(windows, list) or len(windows) != num_layers or windows[-1]:
        said = f"must be a list of {num_layers} layers, of which the last sees all"
        raise ModelError(f"{PATTERN} is {windows!r}, and {said}")
    seeing = [layer for layer, window in enumerate(windows) if not window]
    each = own[KEY_HEADS] if isinstance(own[KEY_HEADS], list) else [own[KEY_HEADS]] * num_layers
    if len(each) != num_layers:
        raise ModelError(f"{KEY_HEADS} is a list of {len(each)}, and there are {num_layers} layers")
    kinds = {
        window: {each[at] for at in range(num_layers) if bool(windows[at]) is window}
        for window in (True, False)
    }
    if any(len(counts) > 1 for counts in kinds.values()):
        raise ModelError(f"{KEY_HEADS} is {each[:8]}: not one number for all layers of a kind")
    heads = {window: min(counts, default=1) for window, counts in kinds.items()}
    shared = own.get(SHARED, 0)
    if type(shared) is not int or not 0 <= shared < num_layers:
        raise ModelError(f"{SHARED} is {shared}, and there are {num_layers} layers")
    if {*map(bool, windows[: num_layers - shared])} != {*map(bool, windows)}:
        raise ModelError(f"{SHARED} is {shared}: all layers of a kind would have others' keys")
    width, is_wider = _widths(own[WIDTH], num_layers, shared)
    said_keys = {f"blk.{at}.attn_v.weight" in tensors for at in seeing if at < num_layers - shared}
    if len(said_keys) > 1:
        raise ModelError(f"{PATTERN}: some layers that see all have values of their own, some not")
    experts = own.get("expert_count", 0)
    if experts and not own.get("expert_feed_forward_length"):
        raise ModelError("expert_feed_forward_length is missing")
    settings = {
        "layer_types": [SLIDING if window else _FULL for window in windows],
        "sliding_window": own[WINDOW],
        "head_dim": _one_size(own, "_swa"),
        "num_key_value_heads": heads[True],
        "per_layer_config": {
            at: {"head_dim": _one_size(own, ""), "num_key_value_heads": heads[False]}
            for at in seeing
        },
        "attention_k_eq_v": said_keys == {False},
        "num_kv_shared_layers": shared,
        "intermediate_size": width,
        "use_double_wide_mlp": is_wider,
        "hidden_size_per_layer_input": own.get(PER_LAYER, 0),
        "enable_moe_block": experts > 0,
        "num_experts": experts or None,
        "top_k_experts": own.get("expert_used_count") if experts else None,
        "moe_intermediate_size": own.get("expert_feed_forward_length") if experts else None,
        "rope_parameters": {
            _FULL: _positions(own, ""),
            SLIDING: _positions(own, "_swa"),
        },
    }
    return LayerFields(settings, {WIDTH: width, KEY_HEADS: heads[True]})


def _widths(said: Any, num_layers: int, shared: int) -> tuple[int, bool]:
    """The width of MLPs, and whether those of layers that share keys are twice as wide."""
    each = said if isinstance(said, list) else [said] * num_layers
    width = each[0]
    for factor in (1, 2):
        if each == [width] * (num_layers - shared) + [factor * width] * shared:
            return width, factor == 2
    raise ModelError(f"{WIDTH} is {each[:8]}: neither one number nor twice that of {shared} layers")


def _one_size(own: Own, end: str) -> int:
    """The size of a head of one kind of layers."""
    keys, values = (own[f"attention.{part}_length{end}"] for part in ("key", "value"))
    if keys != values:
        raise ModelError(f"attention.value_length{end} is {values}, and heads of keys have {keys}")
    return int(keys)


def _positions(own: Own, end: str) -> dict[str, Any]:
    """The positions of one kind of layers, all of whose heads turn as a whole."""
    turning, size = own.get(f"rope.dimension_count{end}"), _one_size(own, end)
    if turning not in (None, size):
        raise ModelError(f"rope.dimension_count{end} is {turning}, and heads have {size}")
    return {"rope_type": "default", "rope_theta": float(own.get(f"rope.freq_base{end}", 10000.0))}


def _evenly(chosen: list[bool], name: str) -> tuple[int, int]:
    """Every how many layers one is chosen, and the first. Raises ModelError."""
    places = [layer for layer, here in enumerate(chosen) if here]
    if not places:
        raise ModelError(f"{name}: no layer of {len(chosen)} is of this kind")
    first = places[0]
    period = places[1] - first if len(places) > 1 else len(chosen)
    if first >= period or chosen != [at % period == first for at in range(len(chosen))]:
        raise ModelError(f"{name}: layers {places[:8]} lie at no even distances")
    return period, first


def _kinds_by_key_heads(own: Own, num_layers: int) -> tuple[list[str], int]:
    """The layers' kinds, recurrent where they have no heads of keys, and how many heads others
    have.
    """
    each = own.get(KEY_HEADS)
    heads = each if isinstance(each, list) else [each] * num_layers
    if len(heads) not in (num_layers, own["block_count"]):
        raise ModelError(
            f"{KEY_HEADS} is a list of {len(heads)}, and there are {num_layers} layers"
        )
    heads = heads[:num_layers]
    counts = {count for count in heads if count}
    if len(counts) != 1:
        raise ModelError(f"{KEY_HEADS} is {heads[:8]}: not one number for all layers that attend")
    return [_FULL if count else _LINEAR for count in heads], counts.pop()


def _check_above_0(own: Own, *names: str) -> None:
    for name in names:
        if type(own[name]) is not int or own[name] < 1:
            raise ModelError(f"{name} is {own[name]!r}, and must be a whole number above 0")


def _divided(own: Own, name: str, parts: int) -> int:
    """A field's number by what it is a multiple of."""
    if own[name] % parts:
        raise ModelError(f"{name} is {own[name]}, which is no multiple of {parts}")
    return int(own[name] // parts)
