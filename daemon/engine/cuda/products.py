"""Matrix products on a GPU, each by the implementation that was measured to be fastest here.

For a few rows a product does nothing but read its weight. How near it comes to the memory's
bandwidth differs by shape, rows, device and version of cuBLAS, so it is measured: once, when a
model is loaded.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm

from daemon.engine.cuda.candidates import LIBRARY, MAX_ROWS, DeviceRoom, candidates, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.meter import CudaMeter, Meter, ProductCall
from daemon.engine.cuda.product_implementations import Implementation
from daemon.engine.cuda.triton import add_norm
from daemon.engine.cuda.triton.skinny import Scratch
from daemon.engine.cuda.triton.tiles import power_of_2
from daemon.engine.families import NONE, NORM, PRODUCTS, ByTorch
from daemon.engine.quantised.weight import QuantisedWeight

log = logging.getLogger(__name__)

WORTH = 0.98
"""An implementation must take less than this share of the library's time to replace it."""

_ROTATED_BYTES = 256 << 20
"""Bytes of weights used in rotation while a shape is measured: several times a GPU's L2 cache."""
_RUN_BYTES = 1 << 30
"""Bytes read in each run: a quarter of a millisecond, hundreds of times what events resolve."""
_MAX_CALLS = 16
_NORMED_WIDTH = 1024
_FINALISTS = 2
_FINAL_RUNS = 3


class Product(nn.Module):
    """states [T, in_features] times weight [out_features, in_features]^T, plus bias.

    Until `choose_products` has seen it, the library computes it. Nothing waits, tunes or compiles
    here, so CUDA graphs can hold it; all products of a process belong on one stream.
    """

    plain: Implementation = LIBRARY
    """The implementation that is right by definition."""
    default: Implementation = LIBRARY
    """The implementation that serves every number of rows, and that others must beat."""
    max_rows = MAX_ROWS
    """Rows from which on only the library competes."""

    def __init__(self, weight: Any, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.held = weight  # what ways read
        self.bias = bias
        self.out_features, self.in_features = weight.shape
        self.ways: tuple[Implementation, ...] = ()

    @property
    def weight(self) -> torch.Tensor:
        """The numbers [out_features, in_features]."""
        held: torch.Tensor = self.held
        return held

    @property
    def kind(self) -> str:
        """How the weight's numbers are held."""
        return str(self.held.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weight."""
        return int(self.held.nbytes)

    def new_states(self, rows: int) -> torch.Tensor:
        """Room for `rows` rows, as implementations take them."""
        weight = self.held
        return torch.empty((rows, self.in_features), dtype=weight.dtype, device=weight.device)

    def candidates(self, rows: int, room: DeviceRoom, scratch: Scratch) -> list[Implementation]:
        """Implementations worth measuring for `rows` rows, the library's first."""
        return candidates(rows, self.out_features, self.in_features, room, scratch)

    def can_be_measured(self, by_torch: ByTorch) -> bool:
        """Whether there is anything to choose from."""
        return PRODUCTS not in by_torch and bool(self.held.is_contiguous())

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., in_features] to [..., out_features]."""
        rows = states.numel() // self.in_features
        if rows >= len(self.ways) or not states.is_contiguous():
            return self.default(states, self.held, self.bias)
        flat = states.view(rows, self.in_features)
        product = self.ways[rows](flat, self.held, self.bias)
        return product.view(*states.shape[:-1], self.out_features)

    # Nothing hooks into these layers, and looking for hooks takes the host's time.
    __call__ = forward


class JoinedProduct(nn.Module):
    """Products of the same states, whose results stand beside each other."""

    def __init__(self, parts: Sequence[Product]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)

    @property
    def weight(self) -> torch.Tensor:
        """The numbers [out_features, in_features]; a copy."""
        return torch.cat([part.weight for part in self.parts])

    @property
    def weights(self) -> list[QuantisedWeight]:
        """The quantised weights."""
        return [weight for part in self.parts for weight in getattr(part, "weights", ())]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., in_features] to [..., out_features]."""
        return torch.cat([part(states) for part in self.parts], -1)

    __call__ = forward


@dataclass(frozen=True, slots=True, order=True)
class ProductShape:
    """The shape that products computed alike share."""

    out_features: int
    in_features: int
    has_bias: bool
    kind: str  # of the weight

    @staticmethod
    def of(product: Product) -> "ProductShape":
        """The shape of a product."""
        sizes = product.out_features, product.in_features
        return ProductShape(*sizes, product.bias is not None, product.kind)


Choice = dict[ProductShape, dict[int, str]]
"""Names of the implementations, by shape and measured number of rows."""


def choose_products(
    products: Iterable[object],
    rows: Sequence[int],
    meter: Meter | None = None,
    room: DeviceRoom | None = None,
    by_torch: ByTorch = NONE,
) -> Choice:
    """Measure how each shape is best computed for each number of rows, and note it in `products`.

    Layers that are no `Product`, nor made of some, are left alone. Measured are the powers of two
    that hold `rows`; numbers in between are computed as the next larger one is, those above a
    product's `max_rows` by the library. `meter` and `room` are the device's own unless given. No
    kernel of the families `by_torch` is called. Takes about a second for a model of 8B, and more
    the first time, when kernels are compiled.
    """
    began_s = time.perf_counter()
    groups = _groups(products, by_torch)
    rows = sorted({power_of_2(count) for count in rows if 0 < count <= MAX_ROWS})
    if not groups or not rows:
        return {}
    device = next(iter(groups.values()))[0].new_states(0).device
    room = DeviceRoom.of(device) if room is None else room
    scratch = new_scratch(device)
    chosen: Choice = {}
    with torch.inference_mode(), warnings.catch_warnings():
        # torch calls a choice of cuBLASLt experimental, once.
        warnings.simplefilter("ignore", UserWarning)
        if meter is None:
            compile_all([group[0] for group in groups.values()], rows, room, scratch)
            meter = CudaMeter()
        compiled_s = time.perf_counter()
        for shape, group in groups.items():
            found = _choose(group, rows, meter, room, scratch, by_torch)
            for product in group:
                product.ways = spread(found, group[0].default)
                product.default = group[0].default
            chosen[shape] = {count: way.name for count, way in found.items()}
    log.info(
        "products: %.1f s to compile, %.1f s to measure; %s",
        compiled_s - began_s, time.perf_counter() - compiled_s, summary(chosen),
    )  # fmt: skip
    return chosen


def spread(
    found: Mapping[int, Implementation], default: Implementation = LIBRARY
) -> tuple[Implementation, ...]:
    """An implementation for each number of rows up to the largest measured; 0 is the library's."""
    ways: list[Implementation] = [default]
    for count in sorted(found):
        ways += [found[count]] * (count + 1 - len(ways))
    return tuple(ways)


def summary(chosen: Choice) -> str:
    """The choice in one line; neighbours that are computed alike stand together."""
    parts = []
    for shape, names in sorted(chosen.items()):
        runs: list[list[int]] = []
        counts = sorted(names)
        for before, count in zip([None, *counts], counts, strict=False):
            if before is not None and names[before] == names[count]:
                runs[-1].append(count)
            else:
                runs.append([count])
        said = [f"{_range(run)} {names[run[0]]}" for run in runs]
        parts.append(f"{shape.out_features}x{shape.in_features}: {', '.join(said)}")
    return "; ".join(parts)


def _range(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _groups(products: Iterable[object], by_torch: ByTorch) -> dict[ProductShape, list[Product]]:
    groups: dict[ProductShape, list[Product]] = {}
    for product in products:
        for part in product.parts if isinstance(product, JoinedProduct) else (product,):
            if isinstance(part, Product) and part.can_be_measured(by_torch):
                groups.setdefault(ProductShape.of(part), []).append(part)
    return groups


def _choose(
    group: list[Product],
    rows: Sequence[int],
    meter: Meter,
    room: DeviceRoom,
    scratch: Scratch,
    by_torch: ByTorch,
) -> dict[int, Implementation]:
    """The fastest implementation for each number of rows. Where not even the library computes the
    product, the plain one takes its place.
    """
    first = group[0]
    found: dict[int, Implementation] = {}
    for count in rows:
        if count > first.max_rows:
            break
        states = first.new_states(count).normal_()
        if not found and first.default is not first.plain:
            operands = states, first.held, first.bias
            if not meter.usable(first.default, *operands, first.plain):
                first.default = first.plain
        ways = first.candidates(count, room, scratch)
        found[count] = _fastest(group, states, ways, meter, in_front(states, by_torch))
    return found


def _fastest(
    group: list[Product],
    states: torch.Tensor,
    ways: list[Implementation],
    meter: Meter,
    before: Callable[[], object],
) -> Implementation:
    """Time each implementation once, the best again in alternation; the library wins near ties."""
    library, *others = ways
    operands = states, group[0].held, group[0].bias
    usable = [way for way in others if meter.usable(way, *operands, library)]
    # The library is right by definition, even where its result has infinite numbers.
    queued = {way.name: calls(way, group, states, before) for way in (library, *usable)}
    once = {name: meter.seconds(called) for name, called in queued.items()}
    usable.sort(key=lambda way: once[way.name])
    finalists = [library, *usable[:_FINALISTS]]
    runs = [[meter.seconds(queued[way.name]) for way in finalists] for _ in range(_FINAL_RUNS)]
    times = [median(column) for column in zip(*runs, strict=True)]
    best = min(range(len(finalists)), key=times.__getitem__)
    return finalists[best] if times[best] < WORTH * times[0] else library


def in_front(states: torch.Tensor, by_torch: ByTorch = NONE) -> Callable[[], object]:
    """A small kernel such as stands before every product of a decoder, which ours may overlap."""
    narrow = states[:, :_NORMED_WIDTH].contiguous()
    weight, out = torch.ones_like(narrow[0]), torch.empty_like(narrow)
    if NORM in by_torch:
        return partial(rms_norm, narrow, weight.shape, weight, 1e-5)
    return partial(add_norm, narrow, None, weight, 1e-5, out)


def calls(
    way: Implementation,
    group: list[Product],
    states: torch.Tensor,
    before: Callable[[], object] | None = None,
) -> list[ProductCall]:
    """Calls that find no weight in the device's cache, where the layers are large enough."""
    size = group[0].size_bytes
    taken = group[: min(_MAX_CALLS, -(-_ROTATED_BYTES // size))]
    count = max(len(taken), min(_MAX_CALLS, -(-_RUN_BYTES // size)))
    return [
        ProductCall(way, states, product.held, product.bias, before)
        for product in islice(cycle(taken), count)
    ]
