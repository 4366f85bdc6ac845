"""The experts of a layer of which some lie in host memory, and are computed there by the CPU.

The others lie on the device that computes steps. The host reads which experts a step chose, sends
the states down, queues the device's products, computes its own experts' meanwhile, and sends what
they made up again: all on the stream of the step. What the experts of a token made is added up in
one place and one order, so that its numbers do not depend on where an expert lies, where both
devices compute alike.

Each layer counts how often its experts are chosen. `exchange` swaps the bytes of an expert that is
chosen often and lies in host memory with those of one on the device that is chosen less often. Both
write in place: products and their addresses stay.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from daemon.engine.batch.download import download
from daemon.engine.batch.upload import upload
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight

MOST_TOKENS = 512
"""Tokens that are computed together."""
_WORTH = 1.25
"""Times as often that an expert must be chosen as the one whose place it takes."""
_FEWEST = 16.0
"""Choices of a layer's expert, below which nothing is exchanged for it: they may be chance."""
_STEPS_BETWEEN = 64
"""Steps behind which a pair is exchanged, though more are waiting."""
_KEPT_CHOICES = 4096.0
"""Choices of an expert, on average, at which all counts are halved: the load may have changed."""


@dataclass(frozen=True, slots=True)
class ExpertParts:
    """A layer's experts by where they lie; None where there are none."""

    on_device: QuantisedExperts | None
    in_ram: QuantisedExperts | None


@dataclass(slots=True)
class ExpertUse:
    """How often experts were chosen, by where they lay: pairs of a token and an expert."""

    on_device: int = 0
    in_ram: int = 0
    exchanged: int = 0  # experts that took another's place on the device


class DividedExperts(nn.Module):
    """Experts of a layer on two devices; see the file's first lines."""

    def __init__(
        self, experts: QuantisedExperts, parts: ExpertParts, make: Callable[[Any], Any]
    ) -> None:
        """`make`: the module that computes a part, by products of where it lies."""
        super().__init__()
        in_ram = np.zeros(len(experts.gate_up), np.bool_)
        in_ram[list(experts.in_ram)] = True
        self.in_ram = in_ram
        self.counts = np.zeros(len(in_ram))
        self.use = ExpertUse()
        self._slots = np.where(in_ram, np.cumsum(in_ram), np.cumsum(~in_ram)) - 1
        self._parts = parts.on_device, parts.in_ram
        self._sides = nn.ModuleList(
            nn.Identity() if part is None else make(part) for part in self._parts
        )
        self._biases = experts.biases
        self.exchanges = _alike(experts.layers)

    def alike(self, count: int, other: int) -> bool:
        """See `QuantisedExperts`."""
        return count == other or all(
            side.alike(count, other) for side in self._sides if hasattr(side, "alike")
        )

    def forward(
        self, states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """See `QuantisedExperts`."""
        route = chosen.cpu().numpy()
        pieces = [states.split(MOST_TOKENS), shares.split(MOST_TOKENS)]
        routes = np.split(route, range(MOST_TOKENS, len(route), MOST_TOKENS))
        found = [self._piece(*piece) for piece in zip(*pieces, routes, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _piece(
        self, states: torch.Tensor, shares: torch.Tensor, route: npt.NDArray[Any]
    ) -> torch.Tensor:
        """[T, width] of `states` [T, width]; `route` [T, k]: experts."""
        in_ram = self.in_ram[route]
        self._count(route, in_ram)
        share = -(-route.size // len(self.in_ram))
        made = states.new_empty(*route.shape, states.shape[1])
        below = self._below(states, route, in_ram, share) if in_ram.any() else None
        if not in_ram.all():
            tokens, places = (upload(it, states.device) for it in np.nonzero(~in_ram))
            which = upload(self._slots[route[~in_ram]], states.device)
            made[tokens, places] = self._sides[0].each(states[tokens], which, share).to(made.dtype)
        if below is not None:
            tokens, places = (upload(it, states.device) for it in np.nonzero(in_ram))
            made[tokens, places] = upload(below().numpy(), states.device).to(made.dtype)
        return (made * shares.unsqueeze(-1)).sum(1).to(states.dtype)

    def _below(
        self, states: torch.Tensor, route: npt.NDArray[Any], in_ram: npt.NDArray[Any], share: int
    ) -> Callable[[], torch.Tensor]:
        """Send states to the host; what waits for them and computes the experts there."""
        sent = download(states)
        arrived = torch.cuda.Event() if states.is_cuda else None
        if arrived is not None:
            arrived.record()

        def compute() -> torch.Tensor:
            if arrived is not None:
                arrived.synchronize()
            tokens = torch.from_numpy(np.nonzero(in_ram)[0])
            which = torch.from_numpy(self._slots[route[in_ram]])
            found: torch.Tensor = self._sides[1].each(sent.float()[tokens], which, share)
            return found

        return compute

    def _count(self, route: npt.NDArray[Any], in_ram: npt.NDArray[Any]) -> None:
        self.counts += np.bincount(route.ravel(), minlength=len(self.counts))
        num_in_ram = int(in_ram.sum())
        self.use.in_ram += num_in_ram
        self.use.on_device += route.size - num_in_ram

    def wanted(self) -> tuple[float, int, int] | None:
        """The exchange that saves most: choices, an expert in host memory, and the one on the
        device whose place it takes. None where none is worth its copies.
        """
        if not self.exchanges or self.in_ram.all() or not self.in_ram.any():
            return None
        often = int(np.where(self.in_ram, self.counts, -1.0).argmax())
        seldom = int(np.where(self.in_ram, np.inf, self.counts).argmin())
        better, worse = self.counts[often], self.counts[seldom]
        if better < max(_FEWEST, _WORTH * worse):
            return None
        return float(better - worse), often, seldom

    @torch.inference_mode()
    def exchange(self, often: int, seldom: int) -> None:
        """Have two experts change places, the one in host memory with the one on the device. Behind
        it all queued steps have read what they read.
        """
        slots = int(self._slots[seldom]), int(self._slots[often])
        parts = [part for part in self._parts if part is not None]
        above, below = (_tensors(*pair) for pair in zip(parts, slots, strict=True))
        for there, here in zip(above, below, strict=True):
            _swap(there, here)
        for side, slot, expert in zip(self._sides, slots, (often, seldom), strict=True):
            side.set_biases(slot, {name: rows[expert] for name, rows in self._biases.items()})
        self._slots[often], self._slots[seldom] = slots
        self.in_ram[often], self.in_ram[seldom] = False, True
        self.use.exchanged += 1

    def forget(self) -> None:
        """Halve counts that have grown old."""
        if self.counts.mean() > _KEPT_CHOICES:
            self.counts /= 2

    @property
    def bytes_in_ram(self) -> int:
        """Bytes of the experts in host memory."""
        part = self._parts[1]
        layers = part.layers if part is not None else ()
        return sum(weight.size_bytes for layer in layers for weight in layer.weights)


class DividedLayers:
    """All divided layers of a model: what is moved between steps, and what was used."""

    def __init__(self, products: Iterable[object]) -> None:
        self.layers = [it for it in products if isinstance(it, DividedExperts)]
        self._steps = 0

    def __bool__(self) -> bool:
        return bool(self.layers)

    def exchange(self) -> bool:
        """Exchange the pair of experts that saves most; False where none is worth it."""
        found = [(wanted, layer) for layer in self.layers if (wanted := layer.wanted()) is not None]
        for layer in self.layers:
            layer.forget()
        if not found:
            return False
        (_saved, often, seldom), layer = max(found, key=lambda it: it[0][0])
        layer.exchange(often, seldom)
        return True

    def after_step(self) -> None:
        """Exchange a pair now and then under a load that leaves no moment between steps."""
        self._steps += 1
        if self._steps % _STEPS_BETWEEN == 0:
            self.exchange()

    def reset(self) -> None:
        """Forget all choices: those of a trial and of first steps are random tokens'."""
        for layer in self.layers:
            layer.counts[:] = 0.0
            layer.use = ExpertUse()

    @property
    def num_on_device(self) -> int:
        """Experts of all divided layers on the device."""
        return sum(int((~layer.in_ram).sum()) for layer in self.layers)

    @property
    def num_in_ram(self) -> int:
        """Experts of all layers in host memory."""
        return sum(int(layer.in_ram.sum()) for layer in self.layers)

    @property
    def bytes_in_ram(self) -> int:
        """Their bytes."""
        return sum(layer.bytes_in_ram for layer in self.layers)

    @property
    def use(self) -> ExpertUse:
        """The choices since the start, in all layers."""
        uses = [layer.use for layer in self.layers]
        return ExpertUse(
            sum(use.on_device for use in uses),
            sum(use.in_ram for use in uses),
            sum(use.exchanged for use in uses),
        )


def parts_of(experts: QuantisedExperts) -> ExpertParts:
    """Experts by where they lie; biases go with them."""
    below = set(experts.in_ram)
    above = [expert for expert in range(len(experts.gate_up)) if expert not in below]

    def part(which: Sequence[int]) -> QuantisedExperts | None:
        return experts.some(which) if which else None

    return ExpertParts(part(above), part(sorted(below)))


def _alike(layers: Sequence[QuantisedLinear]) -> bool:
    """Whether any expert's weights could lie where any other's do."""
    first = len(layers) // 2
    for some in (layers[:first], layers[first:]):
        kinds = {tuple(_kind(weight) for weight in layer.weights) for layer in some}
        if len(kinds) > 1:
            return False
    return True


def _kind(weight: QuantisedWeight) -> tuple[str, torch.Size, bool]:
    return weight.format.name, weight.data.shape, weight.order is None


def _tensors(part: QuantisedExperts, slot: int) -> list[torch.Tensor]:
    """All tensors of an expert's weights."""
    weights = [*part.gate_up[slot].weights, *part.down[slot].weights]
    pairs = [(weight.data, weight.order) for weight in weights]
    return [tensor for pair in pairs for tensor in pair if tensor is not None]


def _swap(there: torch.Tensor, here: torch.Tensor) -> None:
    """Swap two tensors' numbers, `here` on the host; on a GPU in its stream's order."""
    staged = torch.empty(there.shape, dtype=there.dtype, pin_memory=there.is_cuda)
    staged.copy_(there)
    there.copy_(here)
    here.copy_(staged)
