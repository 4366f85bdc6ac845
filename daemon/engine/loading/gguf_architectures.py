"""The architectures of GGUF that transformers' reader does not know, or reads wrongly.

For each: its type in transformers, what llama.cpp takes for granted of it and no file
says, and how its rows were moved when a file was written. All that a file does say is put into the
type's configuration by `daemon.engine.loading.gguf_fields`.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from transformers import modeling_gguf_pytorch_utils as reading

from daemon.engine.loading.gguf_layers import (
    CONVOLUTION,
    EPSILON,
    INTERVAL,
    KDA_HEAD,
    KEY_HEADS,
    LEADING,
    MIXTURES,
    OF_KINDS,
    OF_MAMBA_1,
    OF_STATES,
    PATTERN,
    PER_LAYER,
    RECURRENT,
    SHARED,
    SHORT,
    TURNED_OF_KINDS,
    WIDTH,
    WINDOW,
    LayerFields,
    Own,
    read_delta_net,
    read_falcon_h1,
    read_gemma_4,
    read_granite_hybrid,
    read_jamba,
    read_kimi_linear,
    read_llama_4,
    read_mamba,
    read_mamba_2,
    read_nemotron_h,
    read_short_convolutions,
)
from daemon.models.gguf_header import GgufHeader

_NONE: Mapping[str, Any] = MappingProxyType({})


class GgufArchitecture(NamedTuple):
    """The facts about one architecture that no file says."""

    model_type: str  # of transformers
    settings: Mapping[str, Any] = _NONE  # of its configuration, where no field says otherwise
    turns: bool = False  # rotary pairs are neighbours in a file, and halves of a head in the model
    norms: bool = False  # weights of norms are larger by 1 in a file
    needs: tuple[str, ...] = ()  # fields without which llama.cpp takes no file
    foretells: bool = False  # layers that foretell more tokens may lie behind the model's own
    read: Callable[[Own, int, Collection[str]], LayerFields] | None = None  # of what is `used`
    used: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()  # fields that may have a value for each layer
    by_kinds: bool = False  # `read` knows heads and positions, which layers have by their kinds


def _olmo(header: GgufHeader) -> GgufArchitecture:
    """OLMo 3 is OLMo 2 with windows."""
    windows = header.fields.get("olmo2.attention.sliding_window")
    return GgufArchitecture("olmo3" if windows else "olmo2", {"tie_word_embeddings": False})


def _mistral(header: GgufHeader) -> GgufArchitecture:
    """Ministral 3 scales queries by their positions; Mistral Small 3 does not."""
    scales = header.fields.get("mistral3.attention.temperature_scale")
    if scales:
        return GgufArchitecture("ministral3", turns=True)
    return GgufArchitecture("mistral", {"sliding_window": None}, turns=True)


def _exaone(header: GgufHeader) -> GgufArchitecture:
    """EXAONE 4 has windows in its model of 64 layers alone, which transformers has by default."""
    count = header.fields.get("exaone4.block_count", 0)
    if count == 64:
        return GgufArchitecture("exaone4")
    everywhere = {"sliding_window": None, "layer_types": ["full_attention"] * count}
    return GgufArchitecture("exaone4", everywhere)


def _llama(header: GgufHeader) -> GgufArchitecture | None:
    """A mixture under Llama's name is a Mixtral; transformers reads a dense one."""
    if header.fields.get("llama.expert_count"):
        return GgufArchitecture("mixtral", {"sliding_window": None}, turns=True)
    return None


def _deepseek(header: GgufHeader) -> GgufArchitecture:
    """DeepSeek V3 and its like score experts by a sigmoid, V2 by softmax."""
    settings: dict[str, Any] = {**_SIGMOID, "q_lora_rank": None, "tie_word_embeddings": False}
    needs = (
        *("attention.kv_lora_rank", "rope.dimension_count"),
        *("expert_count", "expert_shared_count", "leading_dense_block_count"),
    )
    if header.fields.get("deepseek2.expert_gating_func") == _BY_SIGMOID:
        return GgufArchitecture("deepseek_v3", settings, needs=needs, foretells=True)
    in_groups = (header.fields.get("deepseek2.expert_group_count") or 1) > 1
    settings["topk_method"] = "group_limited_greedy" if in_groups else "greedy"
    return GgufArchitecture("deepseek_v2", settings, needs=needs, foretells=True)


def _granite_mixture(header: GgufHeader) -> GgufArchitecture:
    """Granite's mixtures have an expert that all tokens take, or none."""
    shared = header.fields.get("granitemoe.expert_shared_feed_forward_length")
    return GgufArchitecture("granitemoeshared" if shared else "granitemoe", turns=True)


def _mamba(header: GgufHeader) -> GgufArchitecture:
    """Mamba 1, or Falcon's, which norms what steps are made of."""
    norms = header.fields.get("mamba.ssm.dt_b_c_rms", False)
    return GgufArchitecture(
        "falcon_mamba" if norms else "mamba",
        needs=(*OF_MAMBA_1, EPSILON),
        read=read_mamba,
        used=frozenset((*OF_MAMBA_1, *_WITHOUT_ATTENTION, "ssm.dt_b_c_rms")),
    )


def _delta_net(model_type: str, *unread: str) -> GgufArchitecture:
    """`unread`: fields that say nothing of this type."""
    lists = frozenset({"rope.dimension_sections", RECURRENT})
    used = frozenset((*OF_STATES, INTERVAL, *unread)) | lists
    return GgufArchitecture(
        model_type, needs=OF_STATES, foretells=True, read=read_delta_net, used=used, lists=lists
    )


def _nemotron_h(*needs: str) -> GgufArchitecture:
    """`needs`: fields that a mixture must have too."""
    return GgufArchitecture(
        "nemotron_h",
        needs=(*OF_STATES, KEY_HEADS, WIDTH, EPSILON, *needs),
        foretells=bool(needs),
        read=read_nemotron_h,
        used=frozenset((*OF_STATES, EPSILON, "attention.layer_norm_epsilon", *_POSITIONS)),
        lists=frozenset({KEY_HEADS, WIDTH}),
    )


_POSITIONS = ("rope.scaling.finetuned", "rope.dimension_count", "rope.freq_base")
"""Fields that say nothing where no layer turns by positions."""
_WITHOUT_ATTENTION = (EPSILON, "context_length", "attention.head_count", WIDTH)
"""Fields that say nothing, or that are read here, where no layer attends."""
_BY_SIGMOID = 2
"""GGUF's number of this way to score experts."""
_SIGMOID = {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0}
"""Settings of mixtures whose files say the rest."""
_KNOWN: dict[str, GgufArchitecture | Callable[[GgufHeader], GgufArchitecture | None]] = {
    "arcee": GgufArchitecture("arcee", turns=True),
    "cohere2": GgufArchitecture("cohere2", {"tie_word_embeddings": True}, needs=("logit_scale",)),
    "command-r": GgufArchitecture("cohere", {"tie_word_embeddings": True, "logit_scale": 1.0}),
    "deepseek2": _deepseek,
    "dots1": GgufArchitecture("dots1", _SIGMOID, needs=("expert_shared_count",)),
    "ernie4_5": GgufArchitecture("ernie4_5"),
    "exaone4": _exaone,
    "falcon-h1": GgufArchitecture(
        "falcon_h1", needs=OF_STATES, read=read_falcon_h1, used=frozenset(OF_STATES)
    ),
    "gemma": GgufArchitecture("gemma", {"tie_word_embeddings": True}, norms=True),
    "gemma4": GgufArchitecture(
        "gemma4_text",
        {"tie_word_embeddings": True},
        needs=(*OF_KINDS, KEY_HEADS, PATTERN, WINDOW, WIDTH),
        read=read_gemma_4,
        used=frozenset((*OF_KINDS, *TURNED_OF_KINDS, PATTERN, SHARED, PER_LAYER, KEY_HEADS, WIDTH)),
        lists=frozenset({KEY_HEADS, WIDTH}),
        by_kinds=True,
    ),
    "glm4": GgufArchitecture("glm4"),
    "glm4moe": GgufArchitecture(
        "glm4_moe", _SIGMOID, foretells=True, needs=("expert_shared_count",)
    ),
    "gpt-oss": GgufArchitecture("gpt_oss", {"tie_word_embeddings": False}),
    "granite": GgufArchitecture("granite", turns=True),
    "granitehybrid": GgufArchitecture(
        "granitemoehybrid",
        turns=True,
        needs=(*OF_STATES, KEY_HEADS, "feed_forward_length"),
        read=read_granite_hybrid,
        used=frozenset((*OF_STATES, "rope.scaling.finetuned")),
        lists=frozenset({KEY_HEADS}),
    ),
    "granitemoe": _granite_mixture,
    "hunyuan-dense": GgufArchitecture("hunyuan_v1_dense"),
    "jamba": GgufArchitecture(
        "jamba",
        needs=(*OF_MAMBA_1, KEY_HEADS, "expert_count"),
        read=read_jamba,
        used=frozenset(OF_MAMBA_1),
        lists=frozenset({KEY_HEADS}),
    ),
    "kimi-linear": GgufArchitecture(
        "kimi_linear",
        {"q_lora_rank": None, "tie_word_embeddings": False},
        needs=(
            *(KEY_HEADS, CONVOLUTION, KDA_HEAD, "rope.dimension_count", "expert_count"),
            *("attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla"),
            *("expert_shared_count", "expert_gating_func"),
        ),
        read=read_kimi_linear,
        used=frozenset((CONVOLUTION, KDA_HEAD, LEADING, *_POSITIONS)),
        lists=frozenset({KEY_HEADS}),
    ),
    "lfm2": GgufArchitecture(
        "lfm2",
        needs=(SHORT, KEY_HEADS),
        read=read_short_convolutions,
        used=frozenset({SHORT}),
        lists=frozenset({KEY_HEADS}),
    ),
    "lfm2moe": GgufArchitecture(
        "lfm2_moe",
        needs=(SHORT, KEY_HEADS, "expert_count"),
        read=read_short_convolutions,
        used=frozenset({SHORT}),
        lists=frozenset({KEY_HEADS}),
    ),
    "llama": _llama,
    "llama4": GgufArchitecture(
        "llama4_text",
        needs=("expert_count", "expert_feed_forward_length", MIXTURES),
        read=read_llama_4,
        used=frozenset({MIXTURES, WINDOW, PATTERN}),
    ),
    "mamba": _mamba,
    "mamba2": GgufArchitecture(
        "mamba2",
        needs=(*OF_STATES, EPSILON),
        read=read_mamba_2,
        used=frozenset((*OF_STATES, *_WITHOUT_ATTENTION)),
    ),
    "minicpm3": GgufArchitecture(
        "minicpm3",
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
        needs=("attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count"),
    ),
    "mistral3": _mistral,
    "nemotron_h": _nemotron_h(),
    "nemotron_h_moe": _nemotron_h("expert_count", "expert_shared_feed_forward_length"),
    "olmo2": _olmo,
    "olmoe": GgufArchitecture("olmoe", {"norm_topk_prob": False}),
    "qwen35": _delta_net("qwen3_5_text"),
    "qwen35moe": _delta_net("qwen3_5_moe_text", "feed_forward_length"),
    "qwen3next": _delta_net("qwen3_5_moe_text", "feed_forward_length"),  # with its projections
    "seed_oss": GgufArchitecture("seed_oss"),
    "smollm3": GgufArchitecture("smollm3", {"no_rope_layer_interval": 4}, turns=True),
}


def architecture_of(header: GgufHeader) -> GgufArchitecture | None:
    """The facts about a file's architecture; None where transformers' reader has them itself."""
    known = _KNOWN.get(header.architecture)
    return known(header) if callable(known) else known


def processor_of(header: GgufHeader, config: dict[str, Any]) -> Any:
    """The processor of transformers' that undoes what a file's writer did to its numbers."""
    own = architecture_of(header)
    if own is None:
        made = reading.TENSOR_PROCESSORS.get(header.architecture, reading.TensorProcessor)
    elif own.turns:
        made = reading.LlamaTensorProcessor
    elif own.norms:
        made = reading.Gemma2TensorProcessor
    else:
        made = reading.TensorProcessor
    return made(config=config)
