"""The samples of seeds by transformers' numbers, computed in a process of its own.

`python -m tests.e2e.sampled FOLDER COUNT` reads a prompt's token ids and some seeds as JSON from
its input, and prints for each seed COUNT tokens at temperature 1 and, for each of these, how far
the second best score is from the best, noise included. An end token does not end an answer.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from daemon.engine.worker.torch_stubs import leave_out
from tests.e2e import recorded

MODULE = "tests.e2e.sampled"
AT_ONCE = 200
"""Seeds of one batch."""


class Sampled(NamedTuple):
    """The answer of a seed, and how close each draw was."""

    tokens: list[int]
    gaps: list[float]


def sampled(folder: str, prompt: list[int], seeds: list[int], count: int) -> list[Sampled]:
    """The answers of seeds, as recorded (`tests.e2e.recorded`)."""
    found = recorded.answers(MODULE, folder, count, [prompt, seeds])
    return [Sampled(*answer) for answer in found]


def main(folder: str, count: int) -> None:
    """Compute and print them."""
    leave_out()
    import torch

    from tests.engine.loading.gguf_files import unpacked

    torch.set_grad_enabled(False)
    model = unpacked(Path(folder) / "model.gguf")
    prompt, seeds = json.load(sys.stdin)
    begun = model(torch.tensor([prompt]), use_cache=True)
    found: list[Sampled] = []
    for first in range(0, len(seeds), AT_ONCE):
        found += answers(model, begun, len(prompt), seeds[first : first + AT_ONCE], count)
    json.dump(found, sys.stdout)


def answers(model: Any, begun: Any, length: int, seeds: list[int], count: int) -> list[Sampled]:
    """The answers of some seeds, as one batch, to a prompt of some length that was computed."""
    import numpy as np
    import torch

    from daemon.engine.sampler.noise import keys, noise

    cache = copy.deepcopy(begun.past_key_values)
    cache.batch_repeat_interleave(len(seeds))
    logits = begun.logits[:, -1].expand(len(seeds), -1).numpy()
    tokens, gaps = np.empty((2, count, len(seeds)))
    for at in range(count):
        if at:
            latest = torch.tensor(tokens[at - 1], dtype=torch.int64)[:, None]
            logits = model(latest, past_key_values=cache).logits[:, -1].numpy()
        places = keys(np.array(seeds, np.uint64), np.full(len(seeds), length + at))
        for row, place in enumerate(places):
            scores = logits[row] - logits[row].max() + noise(place, np.arange(logits.shape[1]))
            second, best = np.argpartition(scores, -2)[-2:]
            tokens[at, row], gaps[at, row] = best, scores[best] - scores[second]
    return [
        Sampled(row.astype(int).tolist(), near.tolist())
        for row, near in zip(tokens.T, gaps.T, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
