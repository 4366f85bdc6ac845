"""Weights of two bytes on a CPU: held so, and computed with in float32."""

import copy
from pathlib import Path

import pytest
import torch

from daemon.engine.worker.start import start
from daemon.protocol.worker import Load
from tests.engine.driver import Driver
from tests.engine.tiny import CONTEXT_LEN, greedy, reference

NUM_TOKENS = 12
PROMPTS = ([5, 9, 2, 6, 5, 3, 5, 8, 9], [7, 9, 3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3", "opt", "gpt_neox"])
def test_answers_are_those_of_the_numbers_in_float32(name: str, dtype: str, tmp_path: Path) -> None:
    narrow = copy.deepcopy(reference(name)).to(getattr(torch, dtype))
    narrow.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    load = Load(
        model=str(tmp_path / "model"),
        device="cpu",
        dtype="float32",
        block_size=8,
        num_blocks=64,
        max_slots=4,
        max_len=CONTEXT_LEN,
        max_batch_tokens=32,
        cache=str(tmp_path / "cache"),
        weight_dtype=dtype,
    )
    with torch.inference_mode():
        engine, *_ = start(load, lambda _stage, _done: None)
        driver = Driver(8, list(range(64)))
        running = [driver.add(slot, prompt) for slot, prompt in enumerate(PROMPTS)]
        work = [(one, one.num_prompt_tokens) for one in running]
        for _ in range(NUM_TOKENS):
            driver.take(work, engine.run(driver.plan(work)))
            work = [(one, 1) for one in running]
    wide = narrow.float()
    expected = [greedy(wide, prompt, NUM_TOKENS) for prompt in PROMPTS]
    assert [one.outputs for one in running] == expected
    wide_bytes = sum(one.nbytes for one in wide.parameters())
    assert engine.model.weight_bytes < 0.75 * wide_bytes
