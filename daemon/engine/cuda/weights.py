"""Weights from files to a GPU, at the rate of the link.

`tensor.to("cuda")` of a mapped file is a copy of pageable memory: it passes through one small
buffer of the driver's, page fault by page fault, and the caller waits for it. Here each thread that
asks for tensors reads them into pinned buffers of its own, and while one is sent the other fills;
several threads together keep the link busy. What `fuse` merges is put back to back at once, so that
merging copies nothing and leaves no holes between the weights.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

from daemon.engine.layers.fuse import MERGED
from daemon.engine.quantised.stored import CHUNK_BYTES, LoadMeter, Stored, chunks, read_exactly


class WeightSender:
    """Loads tensors to one GPU, from any thread; a context, which ends when all have arrived."""

    def __init__(
        self, stored: Mapping[str, Stored], device: torch.device, meter: LoadMeter
    ) -> None:
        self._stored = stored
        self._device = device
        self._meter = meter
        self._places = TensorPlaces(stored, device)
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)

    def slice(self, name: str) -> "SentSlice":
        """A tensor to be loaded when it is sliced."""
        return SentSlice(lambda: self._send(name))

    def _send(self, name: str) -> torch.Tensor:
        with torch.cuda.device(self._device):  # a thread begins with the first GPU as its own
            if not hasattr(self._own, "staging"):
                self._own.staging = Staging(pinned, torch.cuda.Event)
            tensor = self._places.take(name)
            flat = tensor.view(-1).view(torch.uint8)
            self._own.staging.send(self._stored[name], flat, self._meter)
        return tensor


class SentSlice:
    """See `daemon.engine.loading.weights.Slice`; copies go to the device's default stream."""

    def __init__(self, send: Callable[[], torch.Tensor]) -> None:
        self._send = send

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The tensor, which later work on the same stream finds complete."""
        return self._send()[index]


def pinned(size_bytes: int) -> torch.Tensor:
    """A buffer uint8 [size] that the GPU reads by itself."""
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


class Staging:
    """A thread's two buffers. `buffer(size)` makes a buffer, `event()` says when it was sent."""

    def __init__(self, buffer: Callable[[int], torch.Tensor], event: Callable[[], Any]) -> None:
        self._buffers = buffer(CHUNK_BYTES), buffer(CHUNK_BYTES)
        self._sent = event(), event()
        self._turn = 0

    def send(self, stored: Stored, target: torch.Tensor, meter: LoadMeter) -> None:
        """Read a tensor and queue its copies to `target` uint8 [size]. Raises ModelError."""
        done = 0
        for start, count in chunks(stored):
            buffer, sent = self._buffers[self._turn][:count], self._sent[self._turn]
            self._turn = 1 - self._turn
            sent.synchronize()  # what the buffer held before has left it
            read_exactly(stored.file, start, memoryview(buffer.numpy()))
            target[done : done + count].copy_(buffer, non_blocking=True)
            sent.record()
            done += count
            meter.add(count)


class TensorPlaces:
    """Memory for tensors on a device: each has its own, or its part of a merged one."""

    def __init__(self, stored: Mapping[str, Stored], device: torch.device) -> None:
        self._stored = stored
        self._device = device
        self._together = _groups(stored)
        self._free: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> torch.Tensor:
        """An uninitialised tensor to load a weight into, of its shape and dtype."""
        with self._lock:
            if name not in self._free:
                self._free |= self._allocate(self._together.get(name, (name,)))
            return self._free.pop(name)

    def _allocate(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        tensors = [self._stored[name] for name in names]
        shape = tensors[0].shape
        if len(names) > 1:
            shape = (sum(tensor.shape[0] for tensor in tensors), *shape[1:])
        whole = torch.empty(shape, dtype=tensors[0].dtype, device=self._device)
        if len(names) == 1:
            return {names[0]: whole}
        parts = whole.split([tensor.shape[0] for tensor in tensors])
        return dict(zip(names, parts, strict=True))


def _groups(stored: Mapping[str, Stored]) -> dict[str, tuple[str, ...]]:
    """For each weight that will be merged, the names of the merged weights, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for name in stored:
        for layers in MERGED:
            head, layer, tail = name.rpartition(f".{layers[0]}.weight")
            names = tuple(f"{head}.{member}.weight" for member in layers)
            if layer and not tail and _alike([stored.get(name) for name in names]):
                found |= dict.fromkeys(names, names)
    return found


def _alike(tensors: list[Stored | None]) -> bool:
    """Whether matrices can be merged: all are there, of one dtype and as many columns."""
    kinds = {tensor and (tensor.dtype, len(tensor.shape), tensor.shape[1:]) for tensor in tensors}
    return len(kinds) == 1 and None not in kinds and all(len(o.shape) == 2 for o in tensors if o)
