"""Takes the quantised weights of a folder as a worker does, without a model around them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from daemon.engine.quantised.files import Packed
from daemon.engine.quantised.safetensors import packed_weights
from daemon.engine.quantised.stored import LoadMeter, stored_tensors
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import read_json
from daemon.models.weights import folder_layers

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent.name for path in HERE.glob("*/config.json"))


class Counted(LoadMeter):
    """Counts bytes silently."""

    def __init__(self) -> None:
        super().__init__(1, lambda share: None)
        self.count_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Note more bytes."""
        self.count_bytes += num_bytes


@contextmanager
def taken(folder: Path) -> Iterator[tuple[Packed, Counted]]:
    """The folder's quantised weights, and the bytes that were read for them so far."""
    path = folder / "model.safetensors"
    layers = folder_layers(folder, read_quantisation(folder, read_json(folder / "config.json")))
    file = os.open(path, os.O_RDONLY)
    try:
        meter = Counted()
        stored = stored_tensors(path, file, str)
        yield packed_weights(layers, stored, meter, torch.device("cpu")), meter
    finally:
        os.close(file)
