"""A model folder's weights, loaded to their device a tensor at a time, and counted.

transformers renames, converts and places a checkpoint's tensors. For each it takes anything that
gives the tensor when it is sliced, and it slices them in a few threads of its own. By itself it
would slice the mapped file. That is right for a CPU, where the file's pages are the weights; they
are only read ahead here. For a GPU it is slow, see `daemon.engine.cuda.weights`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import safe_open

from daemon.engine.quantised.cut import Cut, CutSlice, cut_weight, read_cut
from daemon.engine.quantised.files import GgufWeights, Packed, PlainNumbers, narrow_weights
from daemon.engine.quantised.mapped import PageReader
from daemon.engine.quantised.safetensors import packed_weights
from daemon.engine.quantised.stored import (
    CHUNK_BYTES,
    LoadMeter,
    Stored,
    chunks,
    read_exactly,
    stored_tensors,
)
from daemon.models.containers import text_names
from daemon.models.quantised_layers import tensors_aside
from daemon.models.schemes import Quantisation
from daemon.models.weights import folder_layers, weight_files


class Slice(Protocol):
    """A tensor that is not loaded yet, as transformers takes it."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The tensor, loaded now; `index` is `...`."""


@contextmanager
def open_weights(
    folder: Path,
    device: torch.device,
    tell: Callable[[float], None],
    dtype: torch.dtype = torch.float32,
    narrow: torch.dtype | None = None,
    quantisation: Quantisation | None = None,
    cuts: Mapping[str, Cut] = MappingProxyType({}),
    reader: PageReader | None = None,
) -> Iterator[tuple[dict[str, Slice], Packed]]:
    """Every tensor of a model folder by its name, and those that may stay as they are stored.

    They load to `device` and may be taken while the context is open; on the way out all that was
    sent has arrived. `tell` gets the share that is loaded so far. `dtype`: of numbers that come
    out of blocks; `narrow`: in which a CPU holds weights; `quantisation`: how those of safetensors
    files are stored; `cuts`: of which tensors only a part is taken; `reader`: reads what stays in
    its file, which then may go on outside of the context. Raises ModelError.
    """
    with ExitStack() as stack:
        paths, name_of = weight_files(folder), text_names(folder)
        stored: dict[str, Stored] = {}
        for path in paths:
            file = os.open(path, os.O_RDONLY)
            stack.callback(os.close, file)
            stored |= stored_tensors(path, file, name_of)
        gguf = GgufWeights(folder, device, dtype, cuts)
        total_bytes = gguf.size_bytes + sum(tensor.size_bytes for tensor in stored.values())
        meter = LoadMeter(total_bytes, tell)
        gguf.tells(meter, reader)
        weights: dict[str, Slice] = dict(gguf.plain)
        packed = dict(gguf.packed)
        if device.type == "cuda" and not cuts:
            from daemon.engine.cuda.weights import WeightSender

            sender = stack.enter_context(WeightSender(stored, device, meter))
            weights |= {name: sender.slice(name) for name in stored}
        else:
            weights |= _mapped_slices(paths, stored, meter, stack, name_of, cuts)
            if narrow is not None:
                packed |= narrow_weights(stored, narrow, meter, cuts, reader)
        layers = folder_layers(folder, quantisation)
        quantised = packed_weights(layers, stored, meter, device)
        for name in tensors_aside(layers, stored):
            weights.pop(name)
        for name, take in quantised.items():
            sides = layers[name].rows, layers[name].columns
            whole = PlainNumbers(take, sides, dtype)
            weights[name] = CutSlice(whole, cuts[name]) if name in cuts else whole
        cut = {
            name: partial(cut_weight, quantised[name], cuts[name], name)
            for name in cuts.keys() & quantised.keys()
        }
        yield weights, packed | quantised | cut


def _mapped_slices(
    paths: Sequence[Path],
    stored: Mapping[str, Stored],
    meter: LoadMeter,
    stack: ExitStack,
    name_of: Callable[[str], str | None],
    cuts: Mapping[str, Cut],
) -> dict[str, Slice]:
    mapped = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
    return {
        name: MappedSlice(stored[name], file.get_slice(inside), meter, cuts.get(name))
        for file in mapped
        for inside in file.keys()  # noqa: SIM118 - it is no dict
        if (name := name_of(inside)) is not None
    }


class MappedSlice:
    """A view of the mapped file, whose pages have been read: a disk is faster so than by faults."""

    def __init__(
        self, stored: Stored, mapped: Slice, meter: LoadMeter, cut: Cut | None = None
    ) -> None:
        """`cut`: the part that is taken; None: all."""
        self._stored = stored
        self._mapped = mapped
        self._meter = meter
        self._cut = cut

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See `Slice`."""
        if self._cut is not None:
            return self._part(self._cut)
        scratch = memoryview(bytearray(min(CHUNK_BYTES, self._stored.size_bytes)))
        for start, count in chunks(self._stored):
            read_exactly(self._stored.file, start, scratch[:count])
            self._meter.add(count)
        return self._mapped[index]

    def _part(self, cut: Cut) -> torch.Tensor:
        """Rows where they lie, or columns, which are copied: the others' pages are not kept."""
        if cut.rows is None:
            return read_cut(self._stored, cut, self._meter)
        first, last = cut.rows
        self._meter.add(self._stored.size_bytes * cut.size // self._stored.shape[0])
        return self._mapped[first:last]
