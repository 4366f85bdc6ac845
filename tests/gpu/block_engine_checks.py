"""Engines of a small GGUF file, started as a worker starts, against its numbers in transformers."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.report import Check
from daemon.engine.loading.convert import convert
from daemon.models.embedded import ensure_converted
from tests.engine.loading.gguf_files import CONTEXT_LEN, VOCAB_SIZE, unpacked, write
from tests.gpu.engine_checks import CHUNK, LENGTHS, started
from tests.gpu.engine_runs import load_message
from tests.gpu.scored import answer_checks

FORMATS = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q4_1")


def block_engine_checks(device: str, num_tokens: int = 24) -> Iterator[Check]:
    """Layers in a mix of formats, in float32 and bfloat16."""
    with tempfile.TemporaryDirectory() as place:
        chance = random.Random(5)
        path = write(Path(place, "mixed.gguf"), lambda _name: chance.choice(FORMATS))
        folder = ensure_converted(path, Path(place, "cache"), convert, lambda _share: None)
        references = {
            "float32": unpacked(path).to(device),
            "bfloat16": unpacked(path).bfloat16().to(device),
        }
        prompts = [[chance.randrange(VOCAB_SIZE) for _ in range(count)] for count in LENGTHS]
        for dtype in references:
            message = load_message(folder, device, dtype, 128, 8, CONTEXT_LEN)
            with torch.inference_mode():
                run = started(message).run
                yield from answer_checks(
                    "mixed GGUF", dtype, run, references, prompts, num_tokens, CHUNK
                )
