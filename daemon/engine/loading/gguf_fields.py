"""A GGUF file's fields of its model, put into transformers' configuration of it.

A field's kind of value is checked earlier (`daemon.models.gguf_kinds`): a new field needs both.
transformers reads some of them and leaves the rest out without a word. Here each field is used,
known to say nothing of what is computed, or refused by its name. Where a file leaves one out, what
llama.cpp takes for it counts, not what transformers does.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from daemon.engine.loading.gguf_architectures import architecture_of
from daemon.engine.loading.gguf_layers import LayerFields
from daemon.engine.loading.gguf_rope import BY_LENGTH, put_scaling, rope_parameters
from daemon.engine.loading.resolve import CAP, caps_scores, resolved_of
from daemon.models.gguf_header import GgufHeader
from daemon.models.resolved import SLIDING
from daemon.models.shape import ModelError

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": (
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_shared_count": ("n_shared_experts",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "moe_latent_size": ("moe_latent_size",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "use_parallel_residual": ("use_parallel_residual",),
}
"""By a field's name behind that of the architecture: its names in configurations."""
_CHOSEN = frozenset({"expert_weights_norm", "use_parallel_residual"})
"""Fields with a fixed value per architecture in llama.cpp and in transformers' reader: they must
agree."""
_GROUPS = frozenset({"expert_group_count", "expert_group_used_count"})
"""Fields with which 0 says the same as 1."""
_FACTORS = frozenset({"expert_weights_scale", "embedding_scale", "residual_scale", "logit_scale"})
"""Fields with which 0 says that nothing is multiplied."""
_SIGMOID, _SIGMOID_TYPES = (
    2,
    frozenset(
        {
            *("deepseek_v3", "dots1", "glm4_moe", "kimi_linear", "lfm2_moe", "llama4_text"),
            *("minimax_m2", "nemotron_h"),
        }
    ),
)
"""GGUF's number of the gate that these types compute."""
_OF_THE_TYPE = frozenset({"partial_rotary_factor", "truncate"})
"""Parameters of rotary positions whose defaults a type keeps where a file does not say."""
_BEFORE = "original_max_position_embeddings"
"""A parameter of rotary positions that some types have beside them: what is said there counts."""
_WINDOW_THETA = {"gemma3": 10000.0}
"""The base of positions in windows that llama.cpp takes, where it is not that of all layers."""
_DIVIDED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose scores are divided by the root of the width for each head, and not of
a head's own size: no field says it."""
_NOTHING: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.q_lora_rank": (0,),
    "attention.kv_lora_rank": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_chunk_feed_forward_length": (0,),
    "expert_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_gating_func": (0, 1),  # softmax
    "expert_group_count": (0, 1),
    "expert_group_scale": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "feed_forward_length": (0,),  # of a mixture without a dense layer
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.dimension_sections": (0,),
    "router_logit_softcapping": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
}
"""Values with which a field changes nothing, where a configuration has no name for it."""
_LISTS = frozenset({"attention.sliding_window_pattern", *_NOTHING} - {*_ATTRIBUTES})
"""Fields that may have a value for each layer."""
_NEEDED = ("context_length", "embedding_length", "block_count", "attention.head_count")
_EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_FRACTIONS = _FACTORS | {*_EPSILONS, "final_logit_softcapping", "rope.freq_base"}
"""Fields whose numbers may have fractions, which a file may leave out."""
_HEAD_DIMS = (
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
)
_TURNED = "rope.scaling.finetuned"
_TURNED_BY_A_FIELD = frozenset({"granite"})
"""Architectures in which that field, where false, says that there are no positions."""
_VALUES_SHARE_THE_WIDTH = frozenset({"minicpm3"})
"""Types whose heads of values are an even part of the width where a file does not say."""
_WINDOWS_UNSAID = frozenset({"gemma2"})
"""Types with windows of one size, the same in llama.cpp and transformers where a file says none."""
_ROPE_THETA = 10000.0
"""llama.cpp's, where a file does not say."""
_SAYS_NOTHING = re.compile(
    r"general\.(architecture|type|name|author|version|organization|finetune|basename|description"
    r"|quantized_by|size_label|license(\.\w+)?|url|doi|uuid|repo_url|tags|languages|datasets"
    r"|(source|base_model|dataset)\..+|file_type|quantization_version|alignment)"
    r"|quantize\..+|split\..+|imatrix\..+"
)
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def check_fields(header: GgufHeader) -> None:
    """Raise ModelError, a sentence without the file, where it is no model's, lacks what every model
    has, or has layers that differ.
    """
    said, begin = header.fields, f"{header.architecture}."
    if not header.architecture:
        raise ModelError("the field general.architecture is missing")
    if said.get("general.type", "model") != "model":
        raise ModelError(f"general.type says that it is no model: {said['general.type']!r}")
    if said.get("general.quantization_version", 2) != 2:
        version = said["general.quantization_version"]
        raise ModelError(f"general.quantization_version is {version!r}, and llmd reads 2")
    known = architecture_of(header)
    own_needs, own_lists = (known.needs, known.lists) if known else ((), frozenset[str]())
    for name in (*_NEEDED, *own_needs):
        if begin + name not in said:
            raise ModelError(f"the field {begin}{name} is missing")
    if not any(begin + name in said for name in _EPSILONS):
        raise ModelError(f"the field {begin}{_EPSILONS[0]} is missing")
    for name, value in said.items():
        own = name.removeprefix(begin)
        if isinstance(value, list) and own != name and own not in _LISTS | own_lists:
            _refuse_list(name, value)
    if num_layers(header) < 1:
        count = said[f"{begin}nextn_predict_layers"]
        raise ModelError(f"{begin}nextn_predict_layers is {count}, which are all of its layers")
    experts, used = (said.get(f"{begin}{name}") for name in ("expert_count", "expert_used_count"))
    if experts and used is None:
        raise ModelError(f"the field {begin}expert_used_count is missing")
    if experts and used == 0:
        raise ModelError(f"{begin}expert_used_count is 0: no expert would compute")
    if experts and used > experts:
        raise ModelError(f"{begin}expert_used_count is {used}, and there are {experts} experts")
    width, heads = said[f"{begin}embedding_length"], said[f"{begin}attention.head_count"]
    if heads and width % heads and not any(begin + name in said for name in _HEAD_DIMS):
        raise ModelError(f"{begin}attention.head_count is {heads}, which does not divide {width}")


def put_fields(config: Any, header: GgufHeader) -> tuple[str, ...]:
    """Have a configuration say what a file's fields say; the names of the fields that are of no use
    here. Raises ModelError, a sentence without the file, for one that it cannot say.
    """
    _Fields(config, header).put()
    return tuple(_unused(header))


def layer_fields(header: GgufHeader) -> LayerFields:
    """The settings that fields of unlike layers and of recurrent ones mean. Raises ModelError."""
    known, begin = architecture_of(header), f"{header.architecture}."
    if known is None or known.read is None:
        return LayerFields({}, {})
    own = {name.removeprefix(begin): value for name, value in header.fields.items()}
    try:
        return known.read(own, num_layers(header), {tensor.name for tensor in header.tensors})
    except ModelError as error:
        raise ModelError(f"{begin}{error}") from None


def num_layers(header: GgufHeader) -> int:
    """Layers of a file's model, without those that foretell more tokens."""
    return int(header.fields[f"{header.architecture}.block_count"]) - num_foretelling(header)


def num_foretelling(header: GgufHeader) -> int:
    """Layers behind a model's own that foretell more tokens; llmd does not compute them."""
    own = architecture_of(header)
    if own is None or not own.foretells:
        return 0
    return int(header.fields.get(f"{header.architecture}.nextn_predict_layers", 0))


def recommended(header: GgufHeader) -> dict[str, Any]:
    """The default sampling that a file's fields recommend, as generation_config.json has it."""
    return {name: header.fields[key] for key, name in _SAMPLING.items() if key in header.fields}


def _unused(header: GgufHeader) -> Iterator[str]:
    """Fields of other programs, or of ways of sampling that llmd does not have."""
    own = (f"{header.architecture}.", "tokenizer.")
    for name in header.fields:
        known = name in _SAMPLING or _SAYS_NOTHING.fullmatch(name)
        if not name.startswith(own) and not known:
            yield name


class _Fields:
    """The fields of a file's architecture."""

    def __init__(self, config: Any, header: GgufHeader) -> None:
        self._config = config
        self._fields = header.fields
        self._begin = f"{header.architecture}."
        self._own = {
            name.removeprefix(self._begin): value
            for name, value in header.fields.items()
            if name.startswith(self._begin)
        }
        known = architecture_of(header)
        self._own |= {
            name: it for name, it in layer_fields(header).says.items() if name in self._own
        }
        self._architecture = header.architecture
        self._read_here = known is not None
        self._by_kinds = known is not None and known.by_kinds
        self._num_layers = num_layers(header)
        self._by_length = any(tensor.name in BY_LENGTH for tensor in header.tensors)
        self._left = set(self._own) - (known.used if known else frozenset())

    def put(self) -> None:
        """Use them all."""
        self._config.num_hidden_layers = self._num_layers
        self._left.discard("block_count")
        if self._own["block_count"] > self._num_layers:
            self._left.discard("nextn_predict_layers")
        for name, attributes in _ATTRIBUTES.items():
            if name in self._left:
                self._attribute(name, attributes)
        self._expert_width()
        self._gating()
        self._key_heads()
        attends = self._own["attention.head_count"] and not self._by_kinds
        if "attention.kv_lora_rank" in self._own:
            self._latent_heads()
        elif attends:
            self._heads()
        if attends:
            self._positions()
            self._scale()
        self._window()
        for name in sorted(self._left):
            self._nothing(name)

    def _attribute(self, name: str, attributes: tuple[str, ...]) -> None:
        """Put a field into the configuration, where that has a name for it."""
        has = [attribute for attribute in attributes if hasattr(self._config, attribute)]
        if not has:
            return
        value = self._own[name]
        if name in _NOTHING and _among(value, _NOTHING[name]):
            setting = getattr(self._config, has[0])
            if not setting or (name == "expert_weights_scale" and not self._read_here):
                self._left.discard(name)
                return
            value = value or type(value)(name in _FACTORS | _GROUPS)
        if name == CAP and not caps_scores(type(self._config)):
            raise self._refused(name)
        fixed = name in _CHOSEN and not self._read_here
        if fixed and bool(getattr(self._config, has[0])) != bool(value):
            raise self._refused(name)
        if name in _FRACTIONS and type(value) is int:
            value = float(value)  # some types of configuration take no whole number there
        setattr(self._config, has[0], value)
        self._left.discard(name)

    def _expert_width(self) -> None:
        """The width of experts, in a type whose layers are all mixtures: it has one width."""
        name = "expert_feed_forward_length"
        if name in self._left and hasattr(self._config, "num_local_experts"):
            self._config.intermediate_size = self._own[name]
            self._left.discard(name)

    def _gating(self) -> None:
        """Check how experts' scores are made of what the router gives."""
        name = "expert_gating_func"
        if self._config.model_type not in _SIGMOID_TYPES:
            return  # softmax, or refused by its name
        if self._own.get(name, 0) not in (0, _SIGMOID):
            raise self._refused(name)
        self._left.discard(name)

    def _key_heads(self) -> None:
        """As many heads of keys as of queries, where a file does not say."""
        name, config = "attention.head_count_kv", self._config
        if name not in self._own:
            for attribute in _ATTRIBUTES[name]:
                if hasattr(config, attribute):
                    setattr(config, attribute, config.num_attention_heads)
        elif name in self._left and self._own[name] == config.num_attention_heads:
            self._left.discard(name)

    def _heads(self) -> None:
        """Set the size of a head, where the file gives it."""
        config = self._config
        sizes = {self._own[name] for name in _HEAD_DIMS if name in self._own}
        if len(sizes) > 1:
            raise ModelError(f"heads of keys and values differ in size: {sorted(sizes)}")
        head_dim = sizes.pop() if sizes else config.hidden_size // config.num_attention_heads
        follows = isinstance(getattr(type(config), "head_dim", None), property)
        if not follows and (hasattr(config, "head_dim") or self._read_here):
            config.head_dim = head_dim  # types without such a field ask for it nonetheless
        elif head_dim * config.num_attention_heads != config.hidden_size:
            raise self._refused(_HEAD_DIMS[0])
        self._head_dim = head_dim
        self._left -= set(_HEAD_DIMS)

    def _latent_heads(self) -> None:
        """Set the sizes of heads that are made of latent rows. A newer file gives those of rows as
        of one head of keys, and theirs beside them.
        """
        config, own = self._config, self._own
        if config.model_type == "deepseek_v2" and own.get("expert_weights_norm"):
            raise self._refused("expert_weights_norm")
        turned, rank = own["rope.dimension_count"], own["attention.kv_lora_rank"]
        of_rows = {"attention.key_length": rank + turned, "attention.value_length": rank}
        is_newer = "attention.key_length_mla" in own
        sizes = [f"{name}_mla" if is_newer else name for name in of_rows]
        said = dict(own)
        if config.model_type in _VALUES_SHARE_THE_WIDTH:
            said.setdefault(sizes[1], own["embedding_length"] // own["attention.head_count"])
        for name in sizes:
            if name not in said:
                raise self._missing(name)
        key_dim, value_dim = (said[name] for name in sizes)
        if not 0 < turned < key_dim or turned % 2:
            raise self._refused("rope.dimension_count")
        for name, size in of_rows.items() if is_newer else ():
            if own.get(name, size) != size:
                raise self._refused(name)
            self._left.discard(name)
        config.qk_rope_head_dim = config.head_dim = self._head_dim = turned
        config.qk_head_dim, config.qk_nope_head_dim = key_dim, key_dim - turned
        config.v_head_dim = value_dim
        heads = config.num_attention_heads
        if own.get("attention.head_count_kv", heads) not in (1, heads):
            raise self._refused("attention.head_count_kv")
        config.num_key_value_heads = heads
        self._left -= {*sizes, "attention.head_count_kv"}

    def _positions(self) -> None:
        """Bases of rotary positions, how many numbers of a head turn, and how they are scaled."""
        kinds = rope_parameters(self._config)
        if not kinds:
            return  # a model without: the fields are refused by their names
        if self._architecture in _TURNED_BY_A_FIELD and not self._own.get(_TURNED, True):
            raise self._refused(_TURNED)
        base = float(self._own.get("rope.freq_base", _ROPE_THETA))
        of_window = float(
            self._own.get("rope.freq_base_swa", _WINDOW_THETA.get(self._architecture, base))
        )
        for kind, parameters in kinds.items():
            if self._read_here:
                for name in set(parameters) - _OF_THE_TYPE:
                    del parameters[name]
                parameters["rope_type"] = "default"
            parameters["rope_theta"] = of_window if kind == "sliding_attention" else base
        self._left.discard("rope.freq_base")
        if "sliding_attention" in kinds:
            self._left.discard("rope.freq_base_swa")
        for name in ("rope.dimension_count", "rope.dimension_count_swa"):
            self._turning(name, kinds.values())
        scaled = kinds.get("full_attention") or next(iter(kinds.values()))
        scaling = {name: self._own[name] for name in self._left if name.startswith("rope.scal")}
        context_len = self._own["context_length"]
        self._left -= put_scaling(self._begin, scaled, scaling, context_len, self._by_length)
        if hasattr(self._config, _BEFORE) and _BEFORE in scaled:
            setattr(self._config, _BEFORE, scaled[_BEFORE])
        self._temperature(scaled)

    def _temperature(self, rope: dict[str, Any]) -> None:
        """Set how queries grow with their positions, which Ministral 3 computes."""
        name = "attention.temperature_scale"
        if self._config.model_type == "ministral3":
            rope["llama_4_scaling_beta"] = float(self._own[name])
            original = self._own.get("rope.scaling.original_context_length")
            rope.setdefault(_BEFORE, original or self._own["context_length"])
            self._left.discard(name)

    def _turning(self, name: str, parameters: Any) -> None:
        if name not in self._own and name.endswith("swa"):
            return
        turning = self._own.get(name, self._head_dim)
        if name in self._own and (turning > self._head_dim or turning % 2):
            raise self._refused(name)
        for rope in parameters:
            if "partial_rotary_factor" in rope:
                rope["partial_rotary_factor"] = turning / self._head_dim
            elif turning != self._head_dim:
                raise self._refused(name)
        self._left.discard(name)

    def _scale(self) -> None:
        """Set the factor of attention's scores."""
        name, config = "attention.scale", self._config
        said = self._own.get(name, 0)
        self._left.discard(name)
        if hasattr(config, "attention_multiplier"):
            config.attention_multiplier = said or self._head_dim**-0.5
            return
        scalar = self._head_dim
        if hasattr(config, "query_pre_attn_scalar"):
            if _DIVIDED_BY_WIDTH.get(self._architecture) == self._num_layers:
                scalar = config.hidden_size // config.num_attention_heads
            config.query_pre_attn_scalar = scalar
        if not _among(said, (0, scalar**-0.5)):
            raise self._refused(name)

    def _window(self) -> None:
        """Set how far layers look back."""
        name, config = "attention.sliding_window", self._config
        window = self._own.get(name, 0)
        self._left.discard(name)
        if not window and config.model_type == "mistral":  # transformers takes one for granted
            config.sliding_window = None
        if window and hasattr(config, "sliding_window"):
            config.sliding_window = window
        found, longest = resolved_of(config), self._own["context_length"]
        if window and window < longest and found.window != window:
            raise self._refused(name)
        narrow = SLIDING in found.layer_kinds and found.window < longest
        if not window and narrow and config.model_type not in _WINDOWS_UNSAID:
            raise self._refused(name) if name in self._own else self._missing(name)
        pattern = "attention.sliding_window_pattern"
        if pattern in self._own and resolved_of(config).window == window:
            self._check_pattern(self._own[pattern])
            self._left.discard(pattern)

    def _check_pattern(self, pattern: Any) -> None:
        """Check which layers have a window: one in `pattern` has none, or a list says which."""
        kinds = getattr(self._config, "layer_types", None) or ()
        windows = [kind == "sliding_attention" for kind in kinds]
        if isinstance(pattern, list):
            agrees = [bool(flag) for flag in pattern] == windows
        else:
            agrees = [
                (layer + 1) % pattern > 0 if pattern else False for layer in range(len(kinds))
            ] == (windows)
        if not agrees:
            raise self._refused("attention.sliding_window_pattern")

    def _nothing(self, name: str) -> None:
        """A field that the configuration has no name for must change nothing."""
        value = self._own[name]
        values = value if isinstance(value, list) else [value]
        if name not in _NOTHING or not all(_among(item, _NOTHING[name]) for item in values):
            raise self._refused(name)

    def _missing(self, name: str) -> ModelError:
        return ModelError(f"the field {self._begin}{name} is missing")

    def _refused(self, name: str) -> ModelError:
        value = self._own[name]
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value!r}"[:60]
        return ModelError(
            f"{self._begin}{name} is {shown}, and transformers' {self._config.model_type} does not "
            "compute so"
        )


def _refuse_list(name: str, values: list[Any]) -> None:
    """Raise ModelError for a value for each layer: transformers reads none of a GGUF file."""
    if any(value != values[0] for value in values):
        raise ModelError(f"{name} differs from layer to layer: {values[:8]}")
    raise ModelError(f"{name} is a list, {values[:8]}, and llmd reads one value for all layers")


def _among(value: Any, known: tuple[Any, ...]) -> bool:
    """Whether a value is one of some, but for the rounding of float32."""
    same: Callable[[Any], bool] = lambda other: (  # noqa: E731
        math.isclose(value, other, rel_tol=1e-6)
        if isinstance(value, float) and isinstance(other, int | float)
        else value == other
    )
    return any(same(other) for other in known)
