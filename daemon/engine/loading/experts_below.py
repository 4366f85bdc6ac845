"""Experts whose matrices host memory holds, taken from a folder's files without passing a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from daemon.engine.loading.weights import open_weights
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.files import Packed
from daemon.engine.quantised.place import PackedPlaces
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.schemes import Quantisation
from daemon.models.shape import ModelError

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class ExpertsBelow:
    """Weights that host memory may hold."""

    packed: Packed  # on the host: what lies in blocks, and plain matrices

    def plain(self, packed: Packed, device: torch.device) -> Packed:
        """Those that are not among the `packed` ones of a device, moved there."""
        names = self.packed.keys() - packed.keys()
        return {name: partial(_moved, self.packed[name], device) for name in names}


@contextmanager
def open_experts(
    folder: Path,
    tell: Callable[[float], None],
    dtype: torch.dtype,
    held_as: torch.dtype,
    quantisation: Quantisation | None,
) -> Iterator[ExpertsBelow]:
    """All that `open_weights` opens, for the host; plain matrices `held_as`. Raises ModelError."""
    opened = open_weights(folder, _CPU, tell, dtype, held_as, quantisation)
    with opened as (_, packed):
        yield ExpertsBelow(packed)


def divide(folder: Path, model: torch.nn.Module, places: PackedPlaces, num_layers: int) -> set[str]:
    """Say of each layer's experts which the host holds, the last ones; the names of their layers.
    They are as many as `num_layers` have.

    Raises ModelError for a model without experts that may be divided, or with fewer layers.
    """
    modules = {name: model.get_submodule(name) for name in places.experts.values()}
    found = {name: it for name, it in modules.items() if isinstance(it, QuantisedExperts)}
    if fault := beyond(len(found), num_layers):
        raise ModelError(f"{folder}: {fault}")
    sizes = [len(experts.gate_up) for experts in found.values()]
    names = set[str]()
    for (name, experts), count in zip(found.items(), in_ram_of(sizes, num_layers), strict=True):
        size = len(experts.gate_up)
        experts.in_ram = tuple(range(size - count, size))
        names |= {f"{name}.{la}.{it}" for la in ("gate_up", "down") for it in experts.in_ram}
    return names


def _moved(take: Callable[[], QuantisedWeight], device: torch.device) -> QuantisedWeight:
    weight = take()
    return QuantisedWeight(weight.format, weight.data.to(device), weight.columns)


def in_ram_of(layers: Sequence[int], on_cpu: int) -> list[int]:
    """Experts in host memory of each layer, where `layers` counts those of each: in all as many as
    `on_cpu` layers have, and the same share of each layer.
    """
    shares = [on_cpu * count / max(len(layers), 1) for count in layers]
    found, owed = list[int](), 0.0
    for share, count in zip(shares, layers, strict=True):
        owed += share
        found.append(min(int(owed + 1e-9), count))
        owed -= found[-1]
    return found


def beyond(num_layers: int, on_cpu: int) -> str:
    """Why so many layers' experts cannot lie in host memory; empty: they can."""
    if not num_layers:
        return "model.experts_on_cpu is for a mixture of experts, which this model is not"
    if on_cpu > num_layers:
        said = f"model.experts_on_cpu = {on_cpu} is more than its {num_layers} layers with experts"
        return f"{said}: lower it"
    return ""
