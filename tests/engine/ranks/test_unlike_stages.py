"""Stages whose layers are of unlike kinds: each tries its own part, and all go the same way."""

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    PreTrainedConfig,
)

from daemon.protocol.worker import Failed, Ready
from tests.engine.ranks.group import RankGroup
from tests.engine.ranks.test_shards import prompts, tiny_load
from tests.engine.ranks.test_stages import answer_as_one, answer_of
from tests.engine.tiny import deeper, random_model, save_model
from tests.house.source import ROOT

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
CASES: dict[str, tuple[PreTrainedConfig, tuple[int, ...]]] = {
    "glm4_moe": (_GLM, (1, 2)),
    "gemma3": (_GEMMA, (2, 2)),
    "gpt_oss": (_GPT_OSS, (2, 2)),
    "llama4": (_LLAMA4, (2, 2)),
}
"""Models, and the layers of each stage: dense ones before mixtures, windows before none."""


@pytest.mark.parametrize(
    "name", ["glm4_moe", *(pytest.param(name, marks=pytest.mark.soak) for name in [*CASES][1:])]
)
def test_unlike_stages_give_the_text_of_the_whole_model(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    answer_as_one(*CASES[name], quick, tmp_path)


def test_a_stage_hands_states_to_one_that_computes_in_another_type(
    quick: dict[str, str], tmp_path: Path
) -> None:
    """As a GPU's does to the CPU's: no token is further from the best than rounding leads."""
    whole = random_model(LlamaConfig(**deeper(4)), 5)
    load = tiny_load(save_model(whole, tmp_path / "model"), tmp_path, stage_layers=(3, 1))
    group = RankGroup(load, 2, **quick)
    group.loads[1] = msgspec.structs.replace(load, rank=1, world_size=2, dtype="bfloat16")
    with group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        for tokens in prompts():
            answer = answer_of(group, tokens)
            logits = whole(torch.tensor([tokens + answer])).logits[0, len(tokens) - 1 : -1]
            missing = logits.max(-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
            assert bool((missing < 0.2 * logits.std(-1)).all())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt_oss", "gpt_oss cannot be split over ranks yet: transformers has no plan of its"),
        ("llama4", "llama4_text cannot be split over ranks yet: transformers' plan names no layer"),
    ],
)
def test_a_type_whose_layers_cannot_be_cut_is_refused_by_name(
    name: str, said: str, quick: dict[str, str], tmp_path: Path
) -> None:
    """As ranks; as stages it is served."""
    page = (ROOT / "docs" / "instances.md").read_text(encoding="utf-8")
    assert "those of which transformers does not say it (gpt-oss, Llama 4)" in page
    config, _ = CASES[name]
    folder = save_model(random_model(config, 5), tmp_path / "model")
    with RankGroup(tiny_load(folder, tmp_path), 2, **quick) as group:
        for failed in group.ready():
            assert isinstance(failed, Failed) and said in failed.message
