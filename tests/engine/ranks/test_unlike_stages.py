"""Stages whose layers are of unlike kinds: each tries its own part, and all go the same way."""

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    NemotronHConfig,
    PreTrainedConfig,
    Qwen3_5TextConfig,
)

from daemon.models.quantised_folder import ensure_quantised
from daemon.protocol.worker import Ready
from tests.engine.ranks.group import RankGroup, assert_as_one
from tests.engine.ranks.test_shards import prompts, tiny_load
from tests.engine.ranks.test_stages import answer_as_one, answers_to
from tests.engine.tiny import CONFIGS, deeper, random_model, save_model

_LOCAL = ["sliding_attention"] * 2
_DELTA = ["linear_attention", "full_attention"]
_GLM = Glm4MoeConfig(
    **deeper(3),
    head_dim=16,
    moe_intermediate_size=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
)
_GEMMA = Gemma3TextConfig(
    **deeper(4),
    head_dim=16,
    sliding_window=9,
    layer_types=["sliding_attention", "full_attention"] * 2,
)
_GPT_OSS = GptOssConfig(
    **deeper(4), head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
)
_LLAMA4 = Llama4TextConfig(
    **deeper(4),
    head_dim=16,
    attention_chunk_size=16,
    layer_types=["chunked_attention", "full_attention"] * 2,
    no_rope_layers=[1, 0, 1, 0],
    floor_scale=5,
    attn_scale=0.5,
    num_local_experts=4,
    intermediate_size_mlp=96,
    moe_layers=[2, 3],
)
_QWEN35 = Qwen3_5TextConfig(
    **deeper(5),
    head_dim=32,
    layer_types=[*_DELTA, "linear_attention", *_DELTA],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)
_GRANITE = GraniteMoeHybridConfig(
    **deeper(4),
    shared_intermediate_size=96,
    layer_types=_DELTA * 2,
    num_local_experts=0,
    position_embedding_type="nope",
    embedding_multiplier=3.0,
    residual_multiplier=0.3,
    mamba_n_heads=8,
    mamba_d_head=16,
    mamba_n_groups=2,
    mamba_d_state=16,
    mamba_expand=2,
)
# The last stage has no convolution, and nothing in its pages of states.
_LFM2 = Lfm2Config(
    **deeper(3),
    layer_types=["conv", "full_attention", "full_attention"],
    block_auto_adjust_ff_dim=False,
)
_NEMOTRON = NemotronHConfig(
    **deeper(7),
    head_dim=16,
    layers_block_type=[*_DELTA, "mlp", "linear_attention", "mlp", "full_attention", "mlp"],
    mamba_num_heads=4,
    mamba_head_dim=16,
    n_groups=2,
    ssm_state_size=8,
    time_step_min=0.01,
)
# Its code asks for a layer's kind by a number, of which the second stage counts from 0.
_JAMBA = JambaConfig(
    **deeper(5),
    attn_layer_period=2,
    attn_layer_offset=1,
    num_experts=2,
    mamba_d_state=8,
    use_mamba_kernels=False,
)
# Four layers with a window before one without, in one stage; one of each in the other.
_GEMMA4 = Gemma4TextConfig(
    **{**deeper(6), "num_key_value_heads": 4},
    head_dim=16,
    global_head_dim=32,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    sliding_window=9,
    layer_types=[*_LOCAL, *_LOCAL[1:], "full_attention", *_LOCAL[1:], "full_attention"],
    enable_moe_block=True,
    num_experts=4,
    top_k_experts=2,
    moe_intermediate_size=32,
    hidden_size_per_layer_input=0,
)
CASES: dict[str, tuple[PreTrainedConfig, tuple[int, ...]]] = {
    "qwen3_5": (_QWEN35, (2, 3)),
    "deepseek_v3": (CONFIGS["deepseek_v3"], (1, 2)),
    "gemma4": (_GEMMA4, (4, 2)),
    "granite_hybrid": (_GRANITE, (2, 2)),
    "lfm2": (_LFM2, (2, 1)),
    "falcon_h1": (CONFIGS["falcon_h1"], (1, 1)),
    "mamba": (CONFIGS["mamba"], (1, 1)),
    "nemotron_h": (_NEMOTRON, (3, 4)),
    "jamba": (_JAMBA, (3, 2)),
    "glm4_moe": (_GLM, (1, 2)),
    "gemma3": (_GEMMA, (2, 2)),
    "gpt_oss": (_GPT_OSS, (2, 2)),
    "llama4": (_LLAMA4, (2, 2)),
}
"""Models, and the layers of each stage: dense ones before mixtures, windows before none, more
states or more windows in one stage than in the other.
"""
_QUICK = {"qwen3_5", "glm4_moe"}
_APART = {"gpt_oss"}


@pytest.mark.parametrize(
    "name",
    [name if name in _QUICK else pytest.param(name, marks=pytest.mark.soak) for name in CASES],
)
def test_unlike_stages_give_the_text_of_the_whole_model(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    answer_as_one(*CASES[name], quick, tmp_path, apart=name in _APART)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["qwen3_5", "granite_hybrid", "deepseek_v3", "lfm2"])
def test_packed_stages_give_the_text_of_one_worker(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    config, stage_layers = CASES[name]
    plain = save_model(random_model(config, 5), tmp_path / "model")
    folder = ensure_quantised(plain, "int8", tmp_path / "cache", lambda _share: None)
    found = []
    for layers in (stage_layers, ()):
        load = tiny_load(folder, tmp_path, stage_layers=layers, num_host_blocks=64)
        with RankGroup(load, len(layers) or 1, **quick) as group:
            readies = group.ready()
            assert all(isinstance(ready, Ready) for ready in readies), readies
            found.append(answers_to(group))
    assert_as_one(*found)


def test_a_stage_hands_states_to_one_that_computes_in_another_type(
    quick: dict[str, str], tmp_path: Path
) -> None:
    """As a GPU's does to the CPU's: no token is further from the best than rounding leads."""
    whole = random_model(LlamaConfig(**deeper(4)), 5)
    sizes = {"stage_layers": (3, 1), "num_host_blocks": 64}
    load = tiny_load(save_model(whole, tmp_path / "model"), tmp_path, **sizes)
    group = RankGroup(load, 2, **quick)
    group.loads[1] = msgspec.structs.replace(load, rank=1, world_size=2, dtype="bfloat16")
    with group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        for tokens, (answer, _) in zip(prompts(), answers_to(group), strict=True):
            logits = whole(torch.tensor([tokens + answer])).logits[0, len(tokens) - 1 : -1]
            missing = logits.max(-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
            assert bool((missing < 0.2 * logits.std(-1)).all())
