"""Checkpoints with towers for images: their text model is served, and the towers are not read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4VisionConfig,
    Llama4Config,
    Llama4TextConfig,
    Llama4VisionConfig,
    Mistral3Config,
    Mistral4Config,
    MistralConfig,
    PixtralVisionConfig,
    Qwen3_5Config,
    Qwen3_5TextConfig,
    Qwen3_5VisionConfig,
    SiglipVisionConfig,
)

from daemon.engine.loading.resolve import resolve_here, shape_here
from daemon.models.consistent import checked_shape
from daemon.models.containers import text_names
from daemon.models.shape import ModelError
from tests.shapes import SIZES
from tests.zoo.build import randomise
from tests.zoo.oracle import TOLERANCE, distances, serve, texts
from tests.zoo.sizes import CONTEXT_LEN, VOCAB_SIZE

TEXT: dict[str, Any] = {
    **SIZES,
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_LEN,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def gemma3() -> Gemma3Config:
    kinds = ["sliding_attention", "full_attention"]
    text = Gemma3TextConfig(**TEXT, sliding_window=24, layer_types=kinds)
    vision = SiglipVisionConfig(**VISION)
    return Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)


def mistral3() -> Mistral3Config:
    text = MistralConfig(**TEXT, sliding_window=None)
    return Mistral3Config(text_config=text, vision_config=PixtralVisionConfig(**VISION, head_dim=8))


def gemma4() -> Gemma4Config:
    """Layers with unlike heads and inputs of their own, the last without keys of its own."""
    text = Gemma4TextConfig(
        **{**TEXT, "num_hidden_layers": 3},
        global_head_dim=32,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        num_kv_shared_layers=1,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
    )
    vision = Gemma4VisionConfig(**{**VISION, "head_dim": 8, "num_key_value_heads": 2})
    return Gemma4Config(text_config=text, vision_config=vision, audio_config=None)


def llama4() -> Llama4Config:
    text = Llama4TextConfig(
        **TEXT,
        attention_chunk_size=24,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
        floor_scale=16,
        num_local_experts=4,
        intermediate_size_mlp=48,
    )
    sizes = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
    return Llama4Config(text_config=text, vision_config=Llama4VisionConfig(**VISION, **sizes))


def qwen3_5() -> Qwen3_5Config:
    """A gated delta net beside attention; positions of images are no affair of texts."""
    text = Qwen3_5TextConfig(
        **TEXT,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    sizes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    vision = Qwen3_5VisionConfig(**sizes, out_hidden_size=32, num_position_embeddings=16)
    return Qwen3_5Config(text_config=text, vision_config=vision)


def mistral4() -> Mistral3Config:
    """Latent rows, and queries that grow with their positions."""
    text = Mistral4Config(
        **{**TEXT, "num_key_value_heads": 4, "head_dim": 24},
        q_lora_rank=16,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        rope_parameters={
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    )
    return Mistral3Config(text_config=text, vision_config=PixtralVisionConfig(**VISION, head_dim=8))


CONTAINERS = {
    "gemma3": gemma3,
    "gemma4": gemma4,
    "llama4": llama4,
    "mistral3": mistral3,
    "qwen3_5": qwen3_5,
    "mistral4": mistral4,
}


def saved(name: str, folder: Path) -> Any:
    """A random container, written as a folder."""
    torch.manual_seed(1)
    config = CONTAINERS[name]()
    cls: Any = AutoModelForImageTextToText._model_mapping[type(config)]
    model = cls._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        randomise(model)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.mark.parametrize("name", CONTAINERS)
def test_its_answers_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([text])).logits[0].float() for text in texts()]
    rows = serve(tmp_path, "float32").seen.rows
    assert len(rows) > 200 and distances(rows, expected).max() <= TOLERANCE


def test_towers_count_in_no_memory(tmp_path: Path) -> None:
    saved("gemma3", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    towers = [name for name in stored if text_names(tmp_path)(name) is None]
    of_text = [tensor.numel() for name, tensor in stored.items() if name not in towers]
    assert len(towers) > 10 and shape_here(tmp_path).num_params == sum(of_text)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.vision_tower.encoder.layers.0.norm.weight", None),
        ("vision_tower.head.weight", None),
        ("model.visual.blocks.0.attn.qkv.weight", None),
        ("multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("model.audio_tower.conv.weight", None),
        ("model.embed_vision.embedding_projection.weight", None),
    ],
)
def test_names_of_its_tensors(stored: str, name: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {}}')
    assert text_names(tmp_path)(stored) == name
    (tmp_path / "config.json").write_text("{}")
    assert text_names(tmp_path)(stored) == stored


def test_a_tensor_of_neither_part_is_refused(tmp_path: Path) -> None:
    saved("gemma3", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored["language_model.model.layers.0.self_attn.q_proj.bias"] = torch.ones(64)
    save_file(stored, file, {"format": "pt"})
    checked_shape(tmp_path, tmp_path / "cache", resolve_here)
    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        serve(tmp_path, "float32")


def test_a_text_model_without_a_causal_class_is_refused(tmp_path: Path) -> None:
    saved("gemma3", tmp_path)
    file = tmp_path / "config.json"
    told = json.loads(file.read_text())
    told["text_config"]["is_encoder_decoder"] = True
    file.write_text(json.dumps(told))
    with pytest.raises(ModelError, match="it is an encoder-decoder"):
        checked_shape(tmp_path, tmp_path / "cache", resolve_here)
