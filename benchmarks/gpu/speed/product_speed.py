"""How near matrix products of few rows come to the device's limits, in every way there is."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.limits import PRODUCT_OPERATIONS, Limits
from benchmarks.gpu.timing import host_seconds
from daemon.engine.cuda.candidates import LIBRARY, DeviceRoom, candidates, new_scratch
from daemon.engine.cuda.compiling import compile_all
from daemon.engine.cuda.meter import CudaMeter, Meter, ProductCall
from daemon.engine.cuda.product_implementations import Implementation
from daemon.engine.cuda.products import Product, calls, choose_products, in_front
from tests.gpu.product_checks import SHAPES_8B

_RUNS = 3
_WEIGHTS_BYTES = 512 << 20
"""Of each shape: enough for several layers, so that none is found in the device's cache."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    shapes: tuple[tuple[int, int], ...]  # out_features, in_features
    rows: tuple[int, ...]
    max_layers: int


FULL = Sizes(SHAPES_8B, (1, 2, 4, 8, 16, 32, 64, 128, 256), 16)
TINY = Sizes(((16, 512),), (1, 20), 2)


def product_figures(device: str, tiny: bool, limits: Limits) -> Iterator[Figure]:
    """What was chosen for each shape and number of rows, beside the library; all ways in `raw`.

    Products follow each other directly here. Ours may begin while the one in front still runs.
    """
    sizes = TINY if tiny else FULL
    place = torch.device(device)
    room = room_of(place)
    meter = meter_on(place)
    products = {shape: _layers(shape, sizes, place) for shape in sizes.shapes}
    if place.type == "cuda":
        firsts = [group[0] for group in products.values()]
        compile_all(firsts, sizes.rows, room, new_scratch(place))
    with torch.inference_mode():
        everything = [product for group in products.values() for product in group]
        choose_s = host_seconds(lambda: choose_products(everything, sizes.rows, meter, room))
        yield Figure("choose_products, kernels compiled", choose_s, "s")
        for group in products.values():
            for rows in sizes.rows:
                yield product_figure(group, rows, meter, room, limits)
            yield _overlap(group, sizes.rows[0], meter, room, limits)


def room_of(place: torch.device) -> DeviceRoom:
    """What a device offers; a CPU passes for a small one."""
    if place.type == "cuda":
        return DeviceRoom.of(place)
    return DeviceRoom(processors=1, shared_bytes=232_448)


def meter_on(place: torch.device) -> Meter:
    """What measures there."""
    return CudaMeter() if place.type == "cuda" else HostMeter()


def product_figure(
    group: Sequence[Product], rows: int, meter: Meter, room: DeviceRoom, limits: Limits
) -> Figure:
    """The chosen way's rate against what binds: reading the weight, or arithmetic."""
    first, states = group[0], group[0].new_states(rows).normal_()
    ways = first.candidates(rows, room, new_scratch(states.device))
    operands = states, first.held, first.bias
    usable = [way for way in ways if meter.usable(way, *operands, first.default)]
    times = {way.name: _seconds(way, group, states, meter) for way in usable}
    chosen = first.ways[rows]
    library = first.default.name
    chosen_s, library_s = times[chosen.name], times[library]
    best = min(times, key=times.__getitem__)
    operations = PRODUCT_OPERATIONS * rows * first.out_features * first.in_features
    limit_s = max(first.size_bytes / limits.bytes_per_s, operations / limits.operations_per_s)
    bound = first.size_bytes / limits.bytes_per_s == limit_s
    work, unit = (first.size_bytes / 1e9, "GB/s") if bound else (operations / 1e12, "TFLOP/s")
    kind = "" if first.default is LIBRARY else f" {first.kind}"
    return Figure(
        f"product{kind} {rows} x {first.in_features} x {first.out_features}",
        work / chosen_s,
        unit,
        work / limit_s,
        f"{chosen.name}; {library} {100 * limit_s / library_s:.1f} %, best {best}",
        raw={f"{name}_s": seconds for name, seconds in times.items()},
    )


def _overlap(
    group: list[Product], rows: int, meter: Meter, room: DeviceRoom, limits: Limits
) -> Figure:
    """A product behind a small kernel, both together: what beginning early gains."""
    first, scratch = group[0], new_scratch(group[0].weight.device)
    out_features, in_features = first.weight.shape
    states = torch.randn(rows, in_features, device=first.weight.device).to(first.weight.dtype)
    chosen, before = first.ways[rows], in_front(states)
    late = candidates(rows, out_features, in_features, replace(room, early=False), scratch)
    same = next(way for way in late if way.name == chosen.name)
    early_s = _seconds(chosen, group, states, meter, before)
    late_s = _seconds(same, group, states, meter, before)
    return Figure(
        f"add_norm + product {rows} x {in_features} x {out_features}",
        first.weight.nbytes / 1e9 / early_s,
        "GB/s",
        limits.bytes_per_s / 1e9,
        f"{chosen.name}; {1e6 * early_s:.1f} us, not early {1e6 * late_s:.1f} us",
        raw={"early_s": early_s, "late_s": late_s},
    )


def _seconds(
    way: Implementation,
    group: Sequence[Product],
    states: torch.Tensor,
    meter: Meter,
    before: Callable[[], object] | None = None,
) -> float:
    queued = calls(way, list(group), states, before)
    return statistics.median(meter.seconds(queued) for _ in range(_RUNS))


def _layers(shape: tuple[int, int], sizes: Sizes, place: torch.device) -> list[Product]:
    """As many layers of a shape as a measurement takes in turns, with random weights."""
    out_features, in_features = shape
    count = min(sizes.max_layers, -(-_WEIGHTS_BYTES // (2 * out_features * in_features)))
    weights = torch.randn(count, *shape, device=place, dtype=torch.bfloat16)
    return [Product(torch.nn.Parameter(one, requires_grad=False), None) for one in weights]


class HostMeter(CudaMeter):
    """A `Meter` for the CPU, where kernels are interpreted: to test, not to learn speeds from."""

    def seconds(self, calls: Sequence[ProductCall]) -> float:
        """See `Meter`; one call speaks for all."""
        return host_seconds(calls[0])
