"""docs/sizing.md shows what the formula says, of models that are counted right."""

import pytest

from benchmarks.sizing import BEGIN, END, MODELS, PAGE, pool, tables
from daemon.config.load import flatten, load

PUBLISHED = {
    "SmolLM2-135M": 134_515_008,
    "Qwen3-0.6B": 596_049_920,
    "SmolLM2-1.7B": 1_711_376_384,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Llama-3.1-8B": 8_030_261_248,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Gemma-3-12B": 11_766_034_176,
    "Gemma-3-27B": 27_009_346_304,
    "Qwen3-32B": 32_762_123_264,
    "Llama-3.1-70B": 70_553_706_496,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "GLM-4.7-Flash": 29_943_390_976,
    "Gemma-4-E4B": 7_463_013_376,
    "Gemma-4-26B-A4B": 25_233_141_760,
    "Gemma-4-31B": 30_697_345_280,
}
"""Parameters, as the models' own files sum up."""


def test_the_page_shows_what_the_formula_says() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == tables(), "python -m benchmarks.sizing --write"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_of_its_files(name: str) -> None:
    assert MODELS[name].num_params == PUBLISHED[name]


def test_a_larger_card_and_smaller_numbers_hold_more() -> None:
    model = MODELS["Llama-3.1-8B"]
    sizes = [pool(model, card, "auto", 0.5) for card in (16, 24, 32, 48)]
    assert sizes[0] is None
    counts = [size.num_blocks for size in sizes if size is not None]
    assert counts == sorted(set(counts)) and len(counts) == 3
    packed = pool(model, 24, "int8", 0.5)
    assert packed is not None and packed.num_blocks > 1.9 * counts[0]


def test_the_values_it_names_exist() -> None:
    known = flatten(load().config)
    text = PAGE.read_text(encoding="utf-8")
    for key in (
        *("memory.kv_dtype", "memory.utilization", "memory.cpu_fraction", "model.max_len"),
        *("scheduler.max_running", "scheduler.max_batch_tokens", "scheduler.max_waiting"),
        *("server.allowed_hosts", "server.body_limit_bytes", "server.host"),
    ):
        assert key in text and key in known
