"""Quantised models in short memory: the greedy text of the same numbers in float32.

Two workers' pools hold about two of the sequences each, so that they are preempted and computed
again, swapped, and sent from one to the other. What they say is held against transformers' logits
of the same numbers unpacked, at every token, and against a worker that has those as plain weights
and room for all. A token may be another one only where the two best are a near-tie: these are
printed.
"""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.loading.gguf_files import VOCAB_SIZE
from tests.engine.process import WorkerProcess, cpu_load
from tests.engine.quantised.five_models import FORMS, MODELS, save_plain, write
from tests.engine.quantised.short_memory import (
    NUM_BLOCKS,
    NUM_PLACES,
    NUM_SLOTS,
    RECOMPUTED,
    SENT,
    SENT_SWAPPED,
    SWAPPED,
    ShortMemory,
    Side,
)
from tests.engine.transfer.linked_workers import Linked, Two

NEAR_TIE = 1e-4
"""Of the largest logit: as close as that the two best may change places in float32."""
NUM_OUTPUTS = 24
LENGTHS = (37, 20, 5, 12, 31, 3, 17, 26)
QUICK = (("llama, grouped queries", "Q4_K_M"), ("qwen2, biases", "GPTQ, in an order"))
MUST_HAPPEN = [(0, way) for way in (RECOMPUTED, SWAPPED, SENT, SENT_SWAPPED)]
MUST_HAPPEN += [(1, way) for way in (RECOMPUTED, SWAPPED)]
_SIZES: dict[str, Any] = {"block_size": 8, "max_slots": NUM_SLOTS, "num_host_blocks": NUM_PLACES}


def prompts() -> list[list[int]]:
    chance = random.Random(9)
    return [[chance.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def in_short_memory(folder: Path, quick: dict[str, str], **changes: Any) -> list[list[int]]:
    """Texts of a model between two workers, where all that can happen did."""
    with Two(str(folder), quick, num_blocks=NUM_BLOCKS, **_SIZES, **changes) as two:
        story = ShortMemory(two.joined(), prompts(), NUM_OUTPUTS, seed=4)
        texts = story.texts()
    print(dict(story.happened))
    assert all(story.happened[what] > 0 for what in MUST_HAPPEN), story.happened
    return texts


def undisturbed(folder: Path, quick: dict[str, str], **changes: Any) -> list[list[int]]:
    """Texts of a model in one worker where all sequences have room, side by side."""
    sizes = {**_SIZES, "max_slots": len(LENGTHS), "num_blocks": 64}
    with WorkerProcess(**quick) as worker:
        load = cpu_load(str(folder), num_threads=1, **sizes, **changes)
        side = Side(Linked(worker, load), 0)
        running = [side.linked.plans.add(slot, one) for slot, one in enumerate(prompts())]
        for _ in range(NUM_OUTPUTS):
            side.run([(one, len(one.tokens) - one.num_computed) for one in running])
    return [one.tokens for one in running]


def near_ties(reference: Any, texts: list[list[int]]) -> list[str]:
    """Where a text does not have the best token after those before it: near-ties. Fails where it
    is none.
    """
    found = []
    for text, prompt in zip(texts, prompts(), strict=True):
        assert text[: len(prompt)] == prompt and len(text) == len(prompt) + NUM_OUTPUTS
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([text[:-1]]), use_cache=False).logits[0]
        for place in range(len(prompt), len(text)):
            of_token = logits[place - 1]
            gap = float(of_token.max() - of_token[text[place]])
            said = f"token {place} of {text}: {gap:.1e} below the best"
            assert gap <= NEAR_TIE * float(of_token.abs().max()), said
            if gap > 0:
                found.append(said)
    return found


def same_but_for_near_ties(reference: Any, texts: list[list[int]], others: list[list[int]]) -> None:
    """Both are what transformers says; they are the same where neither has a near-tie."""
    ties = [*near_ties(reference, texts), *near_ties(reference, others)]
    print(f"{len(ties)} near-ties", *ties, sep="\n")
    assert texts == others or ties


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.soak)
        for name in MODELS
        for form in FORMS
    ],
)
def test_the_text_is_that_of_the_same_numbers_unpacked(
    name: str, form: str, quick: dict[str, str], tmp_path: Path
) -> None:
    folder, reference = write(name, form, tmp_path)
    texts = in_short_memory(folder, quick)
    plain = undisturbed(save_plain(reference, tmp_path / "unpacked"), quick)
    same_but_for_near_ties(reference, texts, plain)


@pytest.mark.parametrize(
    ("name", "form", "kv_dtype"),
    [
        pytest.param(name, form, kv_dtype, marks=() if case == 0 else pytest.mark.soak)
        for case, (form, name, kv_dtype) in enumerate(
            product(("int8", "Q4_K_M", "AWQ"), MODELS, ("int8", "fp8"))
        )
    ],
)
def test_8_bit_keys_and_values_give_one_text_whatever_happens(
    name: str, form: str, kv_dtype: str, quick: dict[str, str], tmp_path: Path
) -> None:
    folder, _ = write(name, form, tmp_path)
    texts = in_short_memory(folder, quick, kv_dtype=kv_dtype)
    assert texts == undisturbed(folder, quick, kv_dtype=kv_dtype)
