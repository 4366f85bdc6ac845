"""Quantised models through the engine: the greedy text of the same numbers unpacked."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from daemon.engine.loading.loader import load_model
from daemon.engine.quantised.experts import PARAMETERS, QuantisedExperts
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.protocol.worker import Load
from tests.engine.driver import Driver

CHECKPOINTS = Path(__file__).parents[1] / "loading" / "checkpoints"
MODELS = sorted(path.name for path in CHECKPOINTS.glob("model-*"))
NUM_OUTPUTS = 24


def unpacked(folder: Path) -> Any:
    """transformers' own model in float32, with the numbers that quantised layers have."""
    ours: Any = load_model(folder, "float32", torch.device("cpu"))
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    wanted = {name for name, _ in plain.named_parameters(remove_duplicate=False)}
    tensors = dict(ours.state_dict())
    for name, layer in quantised_layers(ours):
        tensors[f"{name}.weight"] = torch.cat([weight.numbers() for weight in layer.weights])
    for name, module in ours.named_modules():
        if isinstance(module, QuantisedExperts):
            for parameter, layers in PARAMETERS.items():
                of_all = [layer.weight for layer in getattr(module, layers)]
                tensors[f"{name}.{parameter}"] = torch.stack(of_all)
    assert wanted <= tensors.keys()
    plain.float().load_state_dict(tensors, strict=False)
    return plain.eval()


def greedy(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(NUM_OUTPUTS):
            token = model(input_ids=tokens, use_cache=False).logits[0, -1].argmax()
            tokens = torch.cat((tokens, token.view(1, 1)), 1)
    return tokens[0, len(prompt) :].tolist()


def check_greedy_text(engine: Engine, folder: Path) -> None:
    """An engine of a folder draws what transformers does with the numbers of its weights."""
    check_text_of(engine, unpacked(folder))


def check_text_of(engine: Engine, reference: Any) -> None:
    """An engine draws what a model of transformers does."""
    driver = Driver(8, list(range(32)))
    driver.fit(engine)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8]]
    running = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    work = [(one, one.num_prompt_tokens) for one in running]
    with torch.inference_mode():
        for _ in range(NUM_OUTPUTS):
            driver.take(work, engine.run(driver.plan(work)))
            work = [(one, 1) for one in running]
    assert [one.outputs for one in running] == [greedy(reference, prompt) for prompt in prompts]


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_has_the_text_of_its_numbers(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(CHECKPOINTS / name, tmp_path / name)
    (folder / "tokenizer.json").write_text("{}")
    load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(tmp_path / "cache"))
    with torch.inference_mode():
        engine, *_ = start(load, lambda _stage, _done: None)
    assert engine.model.fused and engine.model.compiled
    check_greedy_text(engine, folder)
