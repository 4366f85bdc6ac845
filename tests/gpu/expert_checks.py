"""Grouped products of experts: tiles, products over blocks, and sums."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda.triton.expert_products import BlockStack, grouped_product
from daemon.engine.cuda.triton.expert_sums import clamped_mul, summed_shares
from daemon.engine.cuda.triton.expert_tiles import TILE_ROWS, ExpertTiles, sorted_tiles, tiles_of
from daemon.engine.quantised.experts import ClampedGate
from daemon.engine.quantised.unpack import unpack
from daemon.models.formats import WeightFormat
from tests.gpu.block_checks import BF16, FP16, FP32, IN_BLOCKS, LIMITS, guarded_blocks, sum_error
from tests.soak import tries

_GUARDED = 2
_EXPERTS = 5
_CHOSEN = 2


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of some tokens."""

    name: str
    chosen: torch.Tensor  # int64 [T, k]
    num_experts: int


def expert_checks(device: str) -> Iterator[Check]:
    """Tiles, products over every format, and sums in every type."""
    some = routings(device)
    for routing in (*some, *_large_routings(device)):
        yield _tiles_check(routing)
    for seed, form in enumerate(IN_BLOCKS):
        few = some[seed % len(some)]
        yield from _block_checks(form, seed, few, device)
    for dtype in (FP32, BF16, FP16):
        yield from _sum_checks(dtype, device)


def routings(device: str) -> list[Routing]:
    """A token alone, tokens of all experts, of all but some, and of a single one."""
    chance = torch.Generator().manual_seed(0)
    some = torch.stack([torch.randperm(_EXPERTS, generator=chance)[:_CHOSEN] for _ in range(7)])
    lacking = torch.stack([torch.randperm(3, generator=chance)[:_CHOSEN] for _ in range(6)]) + 1
    return [
        Routing("any experts", some.to(device), _EXPERTS),
        Routing("one token", some[:1].to(device), _EXPERTS),
        Routing("experts without tokens", lacking.to(device), _EXPERTS),
        Routing("one expert", torch.full((18, 1), 3, device=device), _EXPERTS),
    ]


def _large_routings(device: str) -> list[Routing]:
    """More pairs than a program looks at together, and more experts than pairs."""
    chance = torch.Generator().manual_seed(1)
    many = torch.randint(0, 7, (700, 3), generator=chance)
    few = torch.randint(0, 40, (5, 4), generator=chance)
    last = torch.full((40, 1), 6)
    return [
        Routing("2100 pairs", many.to(device), 7),
        Routing("more experts than pairs", few.to(device), 40),
        Routing("the last expert", last.to(device), 7),
        Routing("no tokens", many[:0].to(device), 7),
    ]


def _tiles_check(routing: Routing) -> Check:
    """Each pair once, in the order of pairs, in a tile of its expert; -1 behind all."""
    wrong = 0
    for rows in TILE_ROWS:
        found = sorted_tiles(routing.chosen, routing.num_experts, rows)
        wrong += _faults(found, routing)
    return Check(f"expert tiles of {routing.name}, faults", wrong, 0)


def _faults(found: ExpertTiles, routing: Routing) -> int:
    assert found.pairs is not None
    flat = routing.chosen.flatten().cpu()
    tiles = found.pairs.view(-1, found.rows).cpu().tolist() if len(flat) else []
    experts = found.experts.cpu().tolist() if len(flat) else []
    expected: list[tuple[int, list[int]]] = []
    for expert in range(routing.num_experts):
        pairs = torch.nonzero(flat == expert).flatten().tolist()
        for first in range(0, len(pairs), found.rows):
            part = pairs[first : first + found.rows]
            expected.append((expert, part + [len(flat)] * (found.rows - len(part))))
    used = list(zip(experts, tiles, strict=True))[: len(expected)]
    behind = experts[len(expected) :]
    return len([expert for expert in behind if expert != -1]) + (used != expected)


def _block_checks(form: WeightFormat, seed: int, routing: Routing, device: str) -> Iterator[Check]:
    """Rows that fill no tile, of columns that fill none."""
    columns = form.block_len * (3 if form.block_len < 256 else 1)
    outputs = 7 if routing.chosen.shape[0] == 1 else 71
    held = [
        guarded_blocks(form, outputs, columns, seed + one).to(device) for one in range(_EXPERTS)
    ]
    addresses = torch.tensor([data.data_ptr() for data in held], device=device)
    stack = BlockStack(form, addresses, outputs, columns)
    numbers = torch.stack([unpack(form, data) for data in held])
    dtype = (FP32, BF16, FP16)[seed % 3]
    yield from _product_checks(f"{form.name}", stack, numbers, routing, dtype)


def _product_checks(
    name: str, stack: BlockStack, numbers: torch.Tensor, routing: Routing, dtype: torch.dtype
) -> Iterator[Check]:
    """Of tokens' rows with a bias, of pairs' own without, in the tiles that are chosen."""
    device, flat = numbers.device, routing.chosen.flatten()
    chance = torch.Generator().manual_seed(3)
    bias = torch.randn(_EXPERTS, stack.rows, generator=chance).to(device, dtype)
    tiles = tiles_of(routing.chosen, routing.num_experts)
    for rows, added in ((len(routing.chosen), bias), (len(flat), None)):
        guarded = torch.full((rows + 2, stack.columns), torch.nan, dtype=dtype, device=device)
        states = guarded[1:-1]
        states.copy_(torch.randn(states.shape, generator=chance))
        each = states.repeat_interleave(len(flat) // rows, 0)
        told = f"grouped {name} of {routing.name}{'' if added is None else ', bias'}"
        found = []
        for _ in range(tries(1, 2)):
            room = torch.full((len(flat), stack.rows + 9), torch.nan, dtype=dtype, device=device)
            grouped_product(stack, states, tiles, added, room[:, 4 : 4 + stack.rows])
            if not torch.cat((room[:, :4], room[:, -5:]), 1).isnan().all():
                yield Check(told, float("nan"), 0.0, "wrote beside its output")
            found.append(room[:, 4 : 4 + stack.rows])
        if not torch.equal(found[0], found[-1]):
            yield Check(told, float("nan"), 0.0, "differs when done again")
        errors = [
            sum_error(found[0][own], each[own], numbers[e], None if added is None else added[e])
            for e in range(_EXPERTS)
            if (own := flat == e).any()
        ]
        yield Check(told, max(errors), LIMITS[dtype])


def _sum_checks(dtype: torch.dtype, device: str) -> Iterator[Check]:
    """Gates of numbers beyond their limit, and sums in shares."""
    chance = torch.Generator().manual_seed(4)
    gate, kind = ClampedGate(1.5, 1.702), str(dtype).removeprefix("torch.")
    for width in (33, 2050):
        states = (2 * torch.randn(3, 2 * width, generator=chance)).to(device, dtype)
        halves = torch.cat((states[:, ::2], states[:, 1::2]), 1)
        expected = gate(states.double())
        for in_turns, given in ((True, states), (False, halves)):
            found = clamped_mul(given, gate.limit, gate.alpha, in_turns)
            error = _relative(found, expected)
            yield Check(f"clamped gates {kind} {width} {in_turns}", error, LIMITS[dtype])
        made = torch.randn(15, width, generator=chance).to(device, dtype)
        shares = torch.rand(5, 3, generator=chance).to(device)
        expected = (made.double().view(5, 3, width) * shares.double().unsqueeze(-1)).sum(1)
        error = _relative(summed_shares(made, shares), expected)
        yield Check(f"summed shares {kind} {width}", error, LIMITS[dtype])


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.abs().max())
