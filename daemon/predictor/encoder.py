"""The sentence encoder: MiniLM, on one thread, from the files of an optional package."""

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer

from daemon.config.encoder import MISSING, encoder_folder
from daemon.length_models.prediction import Float32
from daemon.predictor.errors import EncoderError
from daemon.predictor.minilm import Bert

DIM = 384
MAX_TOKENS = 256
"""Longest text that the model was trained on; it reads the beginning of longer ones."""
_BATCH = 32


class Encoder:
    """Texts to vectors; alike texts have a large cosine."""

    def __init__(self) -> None:
        """Takes a second. Raises EncoderError where the package is missing or not as expected."""
        folder = encoder_folder()
        if folder is None:
            raise EncoderError(f"this predictor {MISSING}")
        torch.set_num_threads(1)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._bert = Bert(folder)
        except Exception as error:
            raise EncoderError(
                f"the sentence encoder in {folder} is not usable: {error}"
            ) from error
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Float32:
        """[N, 384]: the texts' vectors, each of length 1."""
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        vectors = np.zeros((len(tokens), DIM), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))  # little padding
        for first in range(0, len(by_length), _BATCH):
            rows = by_length[first : first + _BATCH]
            vectors[rows] = self._vectors([tokens[i] for i in rows])
        return vectors

    def _vectors(self, tokens: list[list[int]]) -> Float32:
        """The mean of each text's token states, scaled to length 1."""
        ids = torch.zeros((len(tokens), max(map(len, tokens))), dtype=torch.long)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, row_ids in enumerate(tokens):
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
            mask[row, : len(row_ids)] = True
        sums = (self._bert(ids, mask) * mask[:, :, None]).sum(dim=1)
        vectors: Float32 = torch.nn.functional.normalize(sums, dim=1).numpy()
        return vectors
