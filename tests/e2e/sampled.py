"""What seeds draw by transformers' numbers, computed in a process that does nothing else.

`python -m tests.e2e.sampled FOLDER COUNT` reads a prompt's token ids and some seeds as JSON from
its input, and prints for each seed COUNT tokens at temperature 1 and, for each of these, how far
the second best score is from the best, noise included. An end token does not end an answer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from daemon.engine.worker.torch_stubs import leave_out


class Sampled(NamedTuple):
    """The answer of a seed, and how close each draw was."""

    tokens: list[int]
    gaps: list[float]


def sampled(folder: str, prompt: list[int], seeds: list[int], count: int) -> list[Sampled]:
    """The answers of seeds, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.sampled", folder, str(count)],
        input=json.dumps([prompt, seeds]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return [Sampled(*answer) for answer in json.loads(done.stdout)]


def main(folder: str, count: int) -> None:
    """Compute and print them."""
    leave_out()
    import numpy as np
    import torch

    from daemon.engine.sampler.noise import keys, noise
    from tests.engine.gguf_files import unpacked

    model = unpacked(Path(folder) / "model.gguf")
    prompt, seeds = json.load(sys.stdin)
    found = []
    for seed in seeds:
        tokens, gaps = list[int](), list[float]()
        for _ in range(count):
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + tokens])).logits[0, -1].numpy()
            place = keys(np.array([seed], np.uint64), np.array([len(prompt) + len(tokens)]))
            scores = logits - logits.max() + noise(place, np.arange(len(logits)))
            second, best = np.argsort(scores)[-2:].tolist()
            tokens.append(best)
            gaps.append(float(scores[best] - scores[second]))
        found.append(Sampled(tokens, gaps))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
