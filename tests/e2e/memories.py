"""The store of a daemon's predictor, written before it starts: it predicts by that."""

from collections.abc import Mapping
from pathlib import Path

from daemon.length_models.prediction import Asked
from daemon.length_models.store import VectorStore
from daemon.length_models.store_file import to_bytes

NUM_ANSWERS = 1000
"""Answers of each kind, enough that those of a test change no mean by more than a few tokens."""


def remember(folder: Path, model: str, lengths: Mapping[int, int]) -> None:
    """Have a daemon with its state in this folder remember that prompts of so many tokens had
    answers of so many: its predictor `mean` says so of all prompts of the same power of two.
    """
    store = VectorStore()
    for num_prompt_tokens, num_tokens in lengths.items():
        for _ in range(NUM_ANSWERS):
            store.add(Asked(num_prompt_tokens), num_tokens)
    path = folder / "predict" / f"{model}.lengths"
    path.parent.mkdir(parents=True)
    path.write_bytes(to_bytes(store))
