"""What is read of a model folder before anything is loaded, and where GGUF files are kept."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.models import embedded
from daemon.models.shape import ModelError, read_shape
from daemon.models.supported import check_folder, refusals

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, path / "model.safetensors")
    return path


def test_a_shape_is_read_from_json_and_headers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    shape = read_shape(folder)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (3, 4, 2)
    assert (shape.head_dim, shape.hidden_size, shape.vocab_size) == (16, 64, 100)
    assert (shape.context_len, shape.dtype, shape.eos_token_ids) == (256, "bfloat16", (1,))
    assert shape.num_params == 17
    assert shape.weight_bytes("float32") == 68
    assert shape.weight_bytes("bfloat16") == 34
    check_folder(folder)


def test_generation_config_says_what_ends_an_answer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_shape(folder).eos_token_ids == (7, 9)


def test_older_names_of_sizes_are_known(tmp_path: Path) -> None:
    config = {"n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 64, "vocab_size": 10}
    shape = read_shape(folder_of(tmp_path / "m", config))
    assert (shape.num_kv_heads, shape.head_dim, shape.context_len) == (2, 16, 64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sliding_window": 128}, "sliding window of 128"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"kv_lora_rank": 64}, "MLA"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {}}, "images"),
        ({"architectures": ["LlamaModel"]}, "not a causal language model"),
        ({"alibi": True}, "ALiBi"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"attn_logit_softcapping": 50.0}, "caps attention scores"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ],
)
def test_other_models_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    assert list(refusals(LLAMA)) == []
    assert any(words in reason for reason in refusals({**LLAMA, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": None},
        {"sliding_window": 256},
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 128, "layer_types": ["full_attention"] * 3},
    ],
)
def test_a_window_that_hides_nothing_is_fine(change: dict[str, Any]) -> None:
    assert list(refusals({**LLAMA, **change})) == []


def test_missing_and_pickled_files_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        check_folder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        check_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="pickled"):
        check_folder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json does not hold a JSON object"):
        check_folder(folder)


def test_an_index_may_not_leave_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    index = {"weight_map": {"a": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside the folder"):
        read_shape(folder)


def test_starts_at_once_convert_once(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    calls: list[Path] = []

    def convert(source: Path, target: Path) -> None:
        calls.append(source)
        target.mkdir()
        (target / "config.json").write_text("{}")

    found: list[Path] = []

    def find() -> None:
        found.append(embedded.model_folder(str(gguf), tmp_path / "cache", convert))

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [gguf]
    assert len(set(found)) == 1 and (found[0] / "config.json").exists()
    gguf.write_bytes(b"GGUF2")
    assert embedded.converted_folder(gguf, tmp_path / "cache") != found[0]


def test_a_failed_conversion_leaves_no_folder(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"not one")
    with pytest.raises(ModelError, match="could not be converted"):
        embedded.model_folder(str(gguf), tmp_path / "cache")
    assert not embedded.converted_folder(gguf, tmp_path / "cache").exists()


def test_the_embedded_model_is_found_without_importing_it() -> None:
    import sys

    assert embedded.embedded_gguf().suffix == ".gguf"
    assert embedded.EMBEDDED_PACKAGE not in sys.modules
