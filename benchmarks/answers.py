"""The data set of real answers: lengths, features and embeddings of prompts; no text.

One row a request, in the order in which they were asked.
"""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.store_file import unpacked

DEFAULT = Path(__file__).parent / "data" / "answers.npz"
HASH_BYTES = 8


@dataclass(frozen=True)
class Answers:
    """N requests."""

    prompt_hash: npt.NDArray[np.uint8]  # [N, 8]: of SHA-256 of the prompt's text
    prompt_tokens: npt.NDArray[np.int32]  # [N]
    output_tokens: npt.NDArray[np.int32]  # [N]
    max_tokens: npt.NDArray[np.int32]  # [N]
    asked_s: npt.NDArray[np.float64]  # [N], rising
    ended_s: npt.NDArray[np.float64]  # [N]
    features: Float32  # [N, F]
    vectors: npt.NDArray[np.int8]  # [N, D], packed; D is 0 where there was no encoder
    source: npt.NDArray[np.str_]  # [N]: the generator's or file's name
    model: npt.NDArray[np.str_]  # []: what answered
    features_s: npt.NDArray[np.float64]  # []: mean time to find one prompt's features
    encode_s: npt.NDArray[np.float64]  # []: likewise its embedding, one at a time

    def __len__(self) -> int:
        return self.prompt_tokens.size

    def asked(self) -> list[Asked]:
        """Every request as predictors see it, with the truth for those that claim to know it."""
        vectors = unpacked(self.vectors) if self.vectors.shape[1] else None
        return [
            Asked(
                int(self.prompt_tokens[i]),
                int(self.max_tokens[i]),
                self.features[i],
                None if vectors is None else vectors[i],
                truth=int(self.output_tokens[i]),
            )
            for i in range(len(self))
        ]


def prompt_hash(text: str) -> npt.NDArray[np.uint8]:
    """[8]: enough to tell prompts apart, too little to tell what they say."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[:HASH_BYTES], np.uint8)


def save(answers: Answers, path: Path) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {one.name: getattr(answers, one.name) for one in fields(Answers)}
    unfinished = path.with_suffix(".part.npz")
    np.savez_compressed(unfinished, **columns)
    unfinished.replace(path)


def load(path: Path) -> Answers:
    """Read the file."""
    with np.load(path) as columns:
        return Answers(**{one.name: columns[one.name] for one in fields(Answers)})
