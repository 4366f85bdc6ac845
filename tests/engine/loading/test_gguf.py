"""GGUF files are served as they are: the same numbers as transformers unpacks of them."""

import copy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import load_model
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.files import GgufWeights
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.worker.start import start
from daemon.models.embedded import ensure_converted, model_folder
from daemon.models.formats import FORMATS as KNOWN
from daemon.models.gguf_index import read_index
from daemon.models.shape import ModelError
from daemon.models.weights import count_weights
from daemon.protocol.worker import Load
from tests.engine.loading.gguf_files import VOCAB_SIZE, unpacked, write
from tests.engine.quantised.test_models import check_text_of

CPU = torch.device("cpu")
FORMATS = [name for name in KNOWN if "/" not in name and name != "F32"]


def medium(name: str) -> str:
    """As Q4_K_M mixes: some matrices have more bits than others."""
    return "Q6_K" if "attn_v" in name or "ffn_down" in name or name == "output.weight" else "Q4_K"


def loaded(path: Path, cache: Path) -> Any:
    folder = ensure_converted(path, cache, convert, lambda _share: None)
    model: Any = load_model(folder, "float32", CPU)
    model.set_attn_implementation("eager")
    return model


def logits(model: Any) -> torch.Tensor:
    tokens = torch.randint(2, VOCAB_SIZE, (2, 19), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_is_computed_with_the_numbers_that_transformers_unpacks(
    form: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", lambda _name: form)
    model, reference = loaded(path, tmp_path / "cache"), unpacked(path)
    assert len(list(quantised_layers(model))) == 2 * 7 + 2
    torch.testing.assert_close(logits(model), logits(reference), rtol=1e-5, atol=1e-5)
    for name, layer in quantised_layers(model):
        numbers = torch.cat([weight.numbers() for weight in layer.weights])
        assert torch.equal(numbers, reference.get_submodule(name).weight), name


@pytest.mark.parametrize("tied", [False, True], ids=["two ends", "tied"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_architectures_and_mixes_of_formats(architecture: str, tied: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", medium, architecture, tied)
    model, reference = loaded(path, tmp_path / "cache"), unpacked(path)
    assert model.config.model_type == architecture
    torch.testing.assert_close(logits(model), logits(reference), rtol=1e-5, atol=1e-5)


def smallest(name: str) -> str:
    """As mixes of two and three bits are: kinds of matrices have formats of their own."""
    kinds = {"ffn_up": "IQ2_S", "attn_v": "Q4_K"}
    return next((form for kind, form in kinds.items() if kind in name), "IQ3_XXS")


def test_a_mix_of_two_and_three_bits_is_served_and_no_gpu_takes_it(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", smallest, "qwen3")
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(tmp_path / "trials"))
    with torch.inference_mode():
        engine, *_ = start(load, lambda _stage, _done: None)
    assert engine.model.fused and engine.model.compiled
    check_text_of(engine, unpacked(path))
    with pytest.raises(ModelError, match="stored as IQ3_XXS, which llmd reads on a CPU alone"):
        GgufWeights(folder, torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize("named", ["first part", "folder"])
def test_a_split_file_has_the_logits_of_the_whole(named: str, tmp_path: Path) -> None:
    whole = loaded(write(tmp_path / "whole.gguf", medium), tmp_path / "cache")
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "tiny.gguf", medium, parts_of=8)
    (folder / "mmproj-F16.gguf").write_bytes(b"a tower")
    path = folder / "tiny-00001-of-00003.gguf" if named == "first part" else folder
    made = model_folder(str(path), tmp_path / "cache", convert)
    index = read_index(made)
    assert index is not None and len(index.further_bytes) == 2
    assert {tensor.part for tensor in index.tensors} == {0, 1, 2}
    model: Any = load_model(made, "float32", CPU)
    model.set_attn_implementation("eager")
    assert torch.equal(logits(model), logits(whole))
    (folder / "tiny-00003-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is another file now"):
        load_model(made, "float32", CPU)


@pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe"])
def test_experts_stay_in_the_file_with_their_own_numbers(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", medium, architecture)
    model = loaded(path, tmp_path / "cache")
    stored = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in _tensors(path)}
    for layer in range(2):
        mlp = model.model.layers[layer].mlp
        assert isinstance(mlp.experts, QuantisedExperts)
        parts = [stored[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")]
        assert len(mlp.experts.gate_up) == len(mlp.experts.down) == len(parts[0]) == 6
        for expert in range(6):
            gate, up, down = (part[expert] for part in parts)
            gate_up = mlp.experts.gate_up[expert].weight.numpy()
            assert np.array_equal(gate_up, np.concatenate([gate, up]))
            assert np.array_equal(mlp.experts.down[expert].weight.numpy(), down)
        router = stored[f"blk.{layer}.ffn_gate_inp.weight"]
        assert np.array_equal(mlp.gate.weight.numpy(), router)
        if architecture == "qwen2moe":
            shared = stored[f"blk.{layer}.ffn_gate_shexp.weight"]
            assert np.array_equal(mlp.shared_expert.gate_proj.weight.numpy(), shared)
    expected = logits(_plain(model.config, stored))
    close = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits(model), expected, rtol=0.0, atol=close)
    assert not any(one.ndim > 2 for one in model.parameters())


def _tensors(path: Path) -> Any:
    return gguf.GGUFReader(path).tensors


def _plain(config: Any, stored: dict[str, np.ndarray]) -> Any:
    """transformers' own model of a mixture, filled by hand with the numbers of its file."""
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(copy.deepcopy(config), attn_implementation="eager").float().eval()
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    }
    state = {}
    for name, numbers in stored.items():
        *block, own, kind = name.split(".")
        layer = f"model.layers.{block[1]}." if block else ""
        tensor = torch.from_numpy(numbers.copy())
        if own in names:
            one = names[own]
            state[f"{layer}{one}.{kind}"] = tensor[None] if own.endswith("inp_shexp") else tensor
        elif own == "ffn_down_exps":
            state[f"{layer}mlp.experts.down_proj"] = tensor
        elif own == "ffn_gate_exps":
            up = torch.from_numpy(stored[name.replace("gate", "up")].copy())
            state[f"{layer}mlp.experts.gate_up_proj"] = torch.cat((tensor, up), 1)
    model.load_state_dict(state)
    return model


def test_nothing_of_a_files_weights_is_written_again(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", medium)
    model = loaded(path, tmp_path / "cache")
    (folder,) = (tmp_path / "cache" / "models").glob("tiny-*")
    written = [one for one in folder.iterdir() if not one.is_symlink()]
    assert sum(one.stat().st_size for one in written) < path.stat().st_size / 4
    assert not list(folder.glob("*.safetensors"))
    counted = count_weights(folder)
    assert counted.num_params == sum(
        tensor.numel() for tensor in unpacked(path).state_dict().values()
    )
    held = {id(one): one for _, layer in quantised_layers(model) for one in layer.weights}
    assert counted.packed_bytes == sum(one.size_bytes for one in held.values())


def test_a_file_that_moves_is_found_where_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", medium)
    first = logits(loaded(path, tmp_path / "cache"))
    moved = path.rename(tmp_path / "elsewhere.gguf")
    assert torch.equal(logits(loaded(moved, tmp_path / "cache")), first)


def test_a_file_that_is_gone_or_another_one_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", medium)
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    assert read_index(folder) is not None
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"tiny.gguf is another file now: it has 4 bytes"):
        load_model(folder, "float32", CPU)
    path.unlink()
    with pytest.raises(ModelError, match=r"tiny.gguf: No such file"):
        load_model(folder, "float32", CPU)


def test_a_format_that_nobody_reads_is_named(tmp_path: Path) -> None:
    def odd(name: str) -> str:
        return "NVFP4" if "ffn_up" in name else "Q4_0"

    path = write(tmp_path / "tiny.gguf", odd)
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight is stored as NVFP4, and llmd "):
        convert(path, tmp_path / "folder")


def llama_3_factors(factor: float) -> np.ndarray:
    """As llama.cpp writes them of a Llama 3.1 with these heads."""
    frequencies = 1.0 / 1e4 ** (np.arange(0, 64, 2) / 64)
    lengths = 2 * np.pi / frequencies
    smooth = np.clip((8192 / lengths - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_scaled_rotary_frequencies_are_those_of_the_file(factor: float, tmp_path: Path) -> None:
    factors = llama_3_factors(factor)
    assert factors.max() == pytest.approx(factor) and factors.min() == 1
    path = write(tmp_path / "tiny.gguf", medium, rope_factors=factors)
    model = loaded(path, tmp_path / "cache")
    rotary = model.model.rotary_emb
    plain = 1.0 / 1e4 ** (torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(
        rotary.inv_freq, plain / torch.from_numpy(factors), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_other_factors_are_refused(architecture: str, tmp_path: Path) -> None:
    odd = np.linspace(1, 3, 32).astype(np.float32)
    path = write(tmp_path / "tiny.gguf", medium, architecture, rope_factors=odd)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight scales its rotary positions"):
        convert(path, tmp_path / "folder")
