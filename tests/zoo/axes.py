"""Along which lines a type has variants: what its configuration's fields let it be."""

from collections.abc import Iterator
from typing import Any

from tests.zoo.own import DROP
from tests.zoo.sizes import CONTEXT_LEN, ORIGINAL_LEN, WINDOW, config_of, defaults, tiny_args
from tests.zoo.variant import Variant

_FACTOR = 4.0
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": _FACTOR},
    "dynamic": {"factor": _FACTOR, "original_max_position_embeddings": ORIGINAL_LEN},
    "yarn": {"factor": _FACTOR, "original_max_position_embeddings": ORIGINAL_LEN},
    "llama3": {
        "factor": _FACTOR,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL_LEN,
    },
    "longrope": {
        "factor": _FACTOR,
        "short_factor": [1.0 + 0.1 * one for one in range(8)],
        "long_factor": [2.0 + 0.5 * one for one in range(8)],
        "original_max_position_embeddings": ORIGINAL_LEN,
    },
    "proportional": {"factor": _FACTOR, "partial_rotary_factor": 0.5},
}
LEGACY_ROPES = ("linear", "dynamic", "yarn", "longrope")

_SILENT = frozenset(
    {
        "use_cache",
        "output_hidden_states",
        "output_attentions",
        "output_router_logits",
        "return_dict",
        "is_encoder_decoder",
        "tie_word_embeddings",
        "summary_use_proj",
        "summary_proj_to_labels",
        "use_mambapy",
        "use_associative_scan",
        "use_mamba_kernels",
        "use_mem_eff_path",
        "add_cross_attention",
        "is_encoder",
        "slow_but_exact",
        "reorder_and_upcast_attn",
    }
)
"""Flags that change no logits of a decoder, or make it no decoder."""

_WIDTHS = ("hidden_size", "n_embd", "d_model")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_CAPS = {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.0, "clip_qkv": 0.7}


def variants(model_type: str) -> Iterator[Variant]:
    """All variants of a type that follow from its fields."""
    told = defaults(model_type)
    yield from _bases(model_type, told)
    yield from _heads(model_type, told)
    yield from _ropes(model_type)
    yield from _windows(model_type, told)
    yield from _layer_kinds(model_type, told)
    yield from _flags(model_type, told)
    yield from _unsaid(model_type)
    yield from _others(model_type, told)


def _bases(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    mutants = ("keys", "positions", "routing")
    yield Variant(name, "base", mutants=mutants)
    yield Variant(name, "bfloat16", dtype="bfloat16")
    yield Variant(name, "sharded", sharded=True, mutants=("layers",))
    if "tie_word_embeddings" in told:
        flipped = not told["tie_word_embeddings"]
        label = "tied" if flipped else "untied"
        yield Variant(name, label, {"tie_word_embeddings": flipped}, mutants=("head",))


def _heads(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    if "num_key_value_heads" in told:
        yield Variant(name, "mqa", {"num_key_value_heads": 1})
        yield Variant(name, "mha", {"num_key_value_heads": 4})
    if "head_dim" in told:
        for size in (24, 80):
            yield Variant(name, f"head_dim={size}", {"head_dim": size})
        return
    for width in _WIDTHS:
        if width in told:
            yield Variant(name, "head_dim=24", {width: 96})
            return


def _ropes(name: str) -> Iterator[Variant]:
    told = config_of(name).get("rope_parameters")
    if not isinstance(told, dict) or not told:
        return
    if "rope_type" not in told:  # one for each kind of layer
        for kind, more in ROPES.items():
            changed = {
                layer: {**(own or {}), "rope_type": kind, **more}
                if layer == "full_attention"
                else own
                for layer, own in told.items()
            }
            yield _rope(name, kind, {"rope_parameters": changed}, {"rope_parameters": told})
        return
    for kind, more in ROPES.items():
        changed = {"rope_parameters": {**told, "rope_type": kind, **more}}
        yield _rope(name, kind, changed, {"rope_parameters": told})
    theta = told.get("rope_theta", 10000.0)
    for kind in LEGACY_ROPES:
        scaling = {"type": kind, **ROPES[kind]}
        legacy = {"rope_parameters": DROP, "rope_theta": theta, "rope_scaling": scaling}
        yield _rope(name, f"legacy {kind}", legacy, {"rope_scaling": DROP})
    scaled = {**told, "rope_type": "yarn", **ROPES["yarn"], "llama_4_scaling_beta": 0.3}
    plain = {**told, "rope_type": "yarn", **ROPES["yarn"]}
    changed = {"rope_parameters": scaled}
    yield _rope(name, "llama_4_scaling_beta", changed, {"rope_parameters": plain})
    partial = {"rope_parameters": {**told, "partial_rotary_factor": 0.5}}
    if told.get("partial_rotary_factor") == 0.5:
        partial = {"rope_parameters": {**told, "partial_rotary_factor": 1.0}}
    yield _rope(name, "partial rotary", partial, {"rope_parameters": told})


def _rope(name: str, kind: str, raw: dict[str, Any], revert: dict[str, Any]) -> Variant:
    return Variant(name, f"rope: {kind}", raw=raw, revert=revert, mutants=("config",))


def _windows(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    if "sliding_window" not in told:
        return
    wide = {"sliding_window": 4 * CONTEXT_LEN}
    for label, value in (("window", WINDOW), ("window wide", 4 * CONTEXT_LEN), ("no window", None)):
        raw = {"sliding_window": value}
        yield Variant(name, label, raw=raw, revert=wide, mutants=("config",))
        if "use_sliding_window" in told:
            raw = {"sliding_window": value, "use_sliding_window": True, "max_window_layers": 1}
            yield Variant(name, f"{label}, used", raw=raw, revert=wide, mutants=("config",))
    yield Variant(name, "window by default", raw={"sliding_window": DROP})
    long = {"max_position_embeddings": 8192}
    yield Variant(name, "window by default, long", raw={"sliding_window": DROP, **long})


def _layer_kinds(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    kinds = told.get("layer_types")
    if not isinstance(kinds, list):
        return
    count = len(config_of(name).get("layer_types") or ()) or 2
    for kind in sorted({*kinds, "full_attention", "sliding_attention"}):
        yield Variant(name, f"layers: {kind}", {"layer_types": [kind] * count})


def _flags(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    for flag, value in sorted(told.items()):
        if isinstance(value, bool) and flag not in _SILENT:
            flipped, args = not value, {flag: not value}
            mutants = ("biases", "config") if "bias" in flag and flipped else ("config",)
            label = f"{flag}={str(flipped).lower()}"
            yield Variant(name, label, args, revert={flag: value}, mutants=mutants)


def _unsaid(name: str) -> Iterator[Variant]:
    """Keys that config.json leaves out, or names null: the class's default is the model's."""
    told = config_of(name)
    for key in ("num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings"):
        if key in told:
            yield Variant(name, f"{key} unsaid", raw={key: DROP})
    if "head_dim" in told:
        yield Variant(name, "head_dim null", raw={"head_dim": None})
    rope = told.get("rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope:
        legacy = {"rope_parameters": DROP, "rope_theta": 77.0}
        yield _rope(name, "legacy rope_theta", legacy, {"rope_theta": DROP})
        legacy = {"rope_parameters": DROP, "partial_rotary_factor": 0.5}
        if rope.get("partial_rotary_factor") == 0.5:
            legacy["partial_rotary_factor"] = 1.0
        yield _rope(name, "legacy partial rotary", legacy, {"partial_rotary_factor": DROP})


def _others(name: str, told: dict[str, Any]) -> Iterator[Variant]:
    sizes = tiny_args(name)
    for cap, value in _CAPS.items():
        if cap in told:
            revert = {cap: None}
            yield Variant(name, cap, {cap: value}, revert=revert, mutants=("config",))
    for field in _ACTIVATIONS:
        if isinstance(told.get(field), str):
            act = "relu" if told[field] != "relu" else "silu"
            revert = {field: told[field]}
            yield Variant(name, f"{field}={act}", {field: act}, revert=revert, mutants=("config",))
    if sizes.get("n_group") == 1 and sizes.get("topk_group") == 1:
        args = {"n_group": 2, "topk_group": 1}
        yield Variant(name, "expert groups", args, revert={"n_group": 1}, mutants=("config",))
    for field in ("num_experts_per_tok", "moe_topk", "moe_k"):
        if sizes.get(field) == 2:
            yield Variant(name, "one expert", {field: 1}, mutants=("routing",))
    if "max_position_embeddings" in told:
        yield Variant(name, "short context", {"max_position_embeddings": 160})
    for field in ("intermediate_size", "ffn_dim", "n_inner"):
        if field in told:
            yield Variant(name, f"{field}=97", {field: 97})
    for field in ("num_hidden_layers", "n_layer"):
        if field in told:
            yield Variant(name, f"{field}=3", {field: 3})
