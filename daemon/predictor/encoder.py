"""The sentence encoder: MiniLM, on one thread, from the files of an optional package.

ALISE Algorithm 1, line 5: a BERT-class encoder makes a vector of each prompt.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from tokenizers import Tokenizer

from daemon.config.encoder import MISSING, encoder_folder
from daemon.length_models.prediction import Float32
from daemon.predictor.errors import EncoderError
from daemon.predictor.linear import Linear, quicker
from daemon.predictor.minilm import Bert

DIM = 384
MAX_TOKENS = 256
"""Longest text that the model was trained on; it reads the beginning of longer ones."""
ROW_TOKENS = 128
"""Tokens that are computed together, but for one text that is longer: beyond, they leave the
processor's cache, and each costs more.
"""


class Encoder:
    """Texts to vectors; alike texts have a large cosine."""

    def __init__(self, linear: type[Linear] | None = None) -> None:
        """Takes a second; `linear`: the kind of products, else the quicker one.

        Raises EncoderError where the package is missing or not as expected.
        """
        folder = encoder_folder()
        if folder is None:
            raise EncoderError(f"this predictor {MISSING}")
        torch.set_num_threads(1)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._bert = Bert(folder, linear or quicker())
        except Exception as error:
            raise EncoderError(
                f"the sentence encoder in {folder} is not usable: {error}"
            ) from error
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> Float32:
        """[N, 384]: the texts' vectors, each of length 1."""
        vectors = list(self.each(texts))
        return np.stack(vectors) if vectors else np.zeros((0, DIM), np.float32)

    def each(self, texts: Sequence[str]) -> Iterator[Float32]:
        """The same one by one, [384] each: a row of texts is computed when its first is asked for,
        so that the first texts of many need not wait for the last.
        """
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        for row in _rows(tokens):
            yield from self._vectors(row)

    @torch.inference_mode()
    def _vectors(self, tokens: list[list[int]]) -> Float32:
        """The mean of each text's token states, scaled to length 1."""
        lengths = [len(ids) for ids in tokens]
        states = self._bert(torch.tensor(list(chain.from_iterable(tokens))), lengths)
        means = torch.stack([part.mean(0) for part in states.split(lengths)])
        vectors: Float32 = torch.nn.functional.normalize(means, dim=1).numpy()
        return vectors


def _rows(tokens: list[list[int]]) -> Iterator[list[list[int]]]:
    """The texts in their order, as many together as fit into a row of tokens."""
    row: list[list[int]] = []
    free = ROW_TOKENS
    for ids in tokens:
        if row and len(ids) > free:
            yield row
            row, free = [], ROW_TOKENS
        row.append(ids)
        free -= len(ids)
    if row:
        yield row
