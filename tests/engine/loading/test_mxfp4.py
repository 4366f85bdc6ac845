"""gpt-oss as it is published: all experts of a layer in one tensor of MXFP4 blocks, with biases;
and in GGUF files, where gates and what they gate are tensors of their own.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import check_weights, load_model
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.worker.start import start
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import ModelError, read_json
from daemon.models.weights import count_weights
from daemon.protocol.worker import Load
from tests.engine.loading.gguf_files import LAYERS, write
from tests.engine.loading.test_gguf import logits
from tests.engine.quantised.test_models import check_text_of
from tests.zoo.build import build
from tests.zoo.variant import Variant

pytestmark = pytest.mark.usefixtures("seeded")
STACKS = ("gate_up_proj", "down_proj")
CPU = torch.device("cpu")
LEFT_OUT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder of a small gpt-oss, and transformers' model of the numbers that its blocks are."""
    folder = tmp_path_factory.mktemp("oss") / "model"
    build(Variant("gpt_oss", "published", {"hidden_size": 64, "intermediate_size": 96}), folder)
    path = folder / "model.safetensors"
    stored, numbers = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(4)
    for name, tensor in load_file(path).items():
        if not name.endswith(STACKS):
            stored[name] = numbers[name] = tensor
            continue
        experts, columns, rows = tensor.shape
        sides = experts, rows, columns // 32
        blocks = torch.randint(256, (*sides, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 125, sides, dtype=torch.uint8, generator=generator)
        scales[0, 0, 0] = 0  # its power of two has no exponent of its own
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        numbers[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float()
    model.load_state_dict(numbers)
    save_file(stored, path)
    said = read_json(folder / "config.json")
    said["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": LEFT_OUT}
    (folder / "config.json").write_text(json.dumps(said))
    return folder, model.eval()


def test_logits_are_those_of_the_numbers(published: tuple[Path, Any]) -> None:
    folder, reference = published
    model: Any = load_model(folder, "float32", CPU)
    experts = [one for one in model.modules() if isinstance(one, QuantisedExperts)]
    assert len(experts) == reference.config.num_hidden_layers
    model.set_attn_implementation("eager")
    tokens = torch.arange(3, 60).unsqueeze(0)
    with torch.inference_mode():
        wanted, found = (each(input_ids=tokens).logits for each in (reference, model))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_folder_in_blocks_has_the_text_of_its_numbers(
    published: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, reference = published
    load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(tmp_path))
    with torch.inference_mode():
        engine, *_ = start(load, lambda _stage, _done: None)
    assert engine.model.fused and engine.model.compiled
    check_text_of(engine, reference)


def test_blocks_count_as_they_are_kept(published: tuple[Path, Any]) -> None:
    folder, reference = published
    counted = count_weights(folder, read_quantisation(folder, read_json(folder / "config.json")))
    held = [parameter for name, parameter in reference.named_parameters() if name.endswith(STACKS)]
    assert counted.num_params == sum(each.numel() for each in reference.parameters())
    assert counted.packed_params == sum(each.numel() for each in held)
    assert counted.packed_bytes == counted.packed_params * 17 // 32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda named: named.pop(next(iter(named)).replace("blocks", "scales")), "is missing"),
        (lambda named: named.update({next(iter(named)): torch.zeros(2, 3, 1, 8).byte()}), "shape"),
    ],
)
def test_stacks_that_are_not_whole_are_refused(
    published: tuple[Path, Any], tmp_path: Path, change: Any, said: str
) -> None:
    source, _ = published
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    stored = load_file(source / "model.safetensors")
    stored = dict(sorted(stored.items(), key=lambda item: not item[0].endswith("_blocks")))
    change(stored)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        check_weights(tmp_path)


NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
OF_LAYERS = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
OF_LAYERS |= {
    f"{file}.{kind}": f"{own}.{kind}"
    for kind in ("weight", "bias")
    for file, own in (
        *((f"attn_{part}", f"self_attn.{part}_proj") for part in "qkv"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate_inp", "mlp.router"),
    )
}


def of_a_file(path: Path, folder: Path) -> Any:
    """transformers' model with the numbers of a GGUF file, put where gpt-oss has them."""
    numbers = {
        tensor.name: torch.from_numpy(np.copy(gguf.dequantize(tensor.data, tensor.tensor_type)))
        for tensor in gguf.GGUFReader(path).tensors
    }
    state = {own: numbers.pop(name) for name, own in NAMES.items()}
    for layer in range(LAYERS):
        file, own = f"blk.{layer}.", f"model.layers.{layer}."
        state |= {own + name: numbers.pop(file + of) for of, name in OF_LAYERS.items()}
        for kind, name in (("weight", "gate_up_proj"), ("bias", "gate_up_proj_bias")):
            gate, up = (numbers.pop(f"{file}ffn_{part}_exps.{kind}") for part in ("gate", "up"))
            rows = torch.stack((gate, up), 2).flatten(1, 2)
            state[f"{own}mlp.experts.{name}"] = rows.mT if kind == "weight" else rows
        down = numbers.pop(f"{file}ffn_down_exps.weight")
        state[f"{own}mlp.experts.down_proj"] = down.mT
    assert not numbers
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), attn_implementation="eager"
    )
    model.float().load_state_dict(state)
    return model.eval()


def mixed(name: str) -> str:
    return "MXFP4" if "exps" in name else "Q8_0"


def test_a_gguf_file_is_computed_with_its_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", mixed, "gpt-oss")
    convert(path, tmp_path / "folder")
    model: Any = load_model(tmp_path / "folder", "float32", CPU)
    model.set_attn_implementation("eager")
    reference = of_a_file(path, tmp_path / "folder")
    assert reference.config.sliding_window == 16
    rope = reference.config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["truncate"]) == ("yarn", 32.0, False)
    torch.testing.assert_close(logits(model), logits(reference), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", ["ffn_up_exps.bias", "ffn_gate_exps.weight", "attn_sinks"])
def test_a_gguf_file_that_lacks_a_part_is_refused(missing: str, tmp_path: Path) -> None:
    names = [f"blk.1.{missing}", f"blk.1.{missing}.weight"]
    path = write(tmp_path / "tiny.gguf", mixed, "gpt-oss", skip=names)
    with pytest.raises(ModelError, match="lacks the tensor"):
        convert(path, tmp_path / "folder")
