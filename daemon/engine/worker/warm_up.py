"""The first steps and copies, before requests come: kernels load and workspaces grow."""

from collections.abc import Sequence
from queue import SimpleQueue

import msgspec
import numpy as np
import torch

from daemon.cost.curve import Curve
from daemon.cost.forward_size import forward_size
from daemon.engine.batch.streams import StreamError
from daemon.engine.layers.ranks import from_all, on_all, on_any
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.sampler import Sampler
from daemon.engine.step.step import Engine
from daemon.engine.swap.link import SwapLink
from daemon.engine.worker.warm_times import WarmTimes
from daemon.protocol.worker import Copied, Join, Load, Plan
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import Column, int32

_DECODE_STEPS = 4
_DRAFTS = 7
"""Drafts of the steps that show what a draft takes."""
_PROMPT_TOKENS = 256
"""Tokens of the prompt whose time is taken."""
_CPU_PROMPT_TOKENS = 64
"""Tokens of every prompt on a CPU, where nothing is compiled by size and time goes by tokens."""
_SHORT_TOKENS = 4
"""Tokens of a prompt for the kernels of short chunks."""
_SIZES_FROM = 16
"""Tokens of the smallest step that may be the target forward size."""
_SIZE_ROUNDS = 3
_SIZES_S = 2.0
"""Time after which no longer prompt is measured, so that a start stays short."""
_COPIED_BLOCKS = 32
_COPY_ROUNDS = 4


_KINDS = (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.9))


def warm(sampler: Sampler, dtype: torch.dtype) -> None:
    """Sample in every way there is, from logits of `dtype`; before any sequence takes a slot."""
    logits = torch.zeros(2, sampler.vocab_size, dtype=dtype, device=sampler.device)
    masks = np.full((1, -(-sampler.vocab_size // 32)), -1, np.int32)
    for kind in _KINDS:
        sampler.join(0, kind, 1)
        edited = msgspec.structs.replace(kind, frequency_penalty=0.5, logprobs=1)
        sampler.join(1, edited, 1, [0])
        # One row of the logits themselves, one of a copy.
        sampler.sample(logits, [0, 1], [1, 1], Allowed(np.array([1]), masks))
    for slot in (0, 1):
        sampler.leave(slot)


def warm_up(engine: Engine, load: Load) -> WarmTimes:
    """Run a prompt and a few decode steps; what they take, and the target forward size where `load`
    asks for it.

    It scribbles on blocks of the still empty pool and leaves its slot again.
    """
    times = _measured(engine, load)
    if not load.finds_size:
        return times
    return msgspec.structs.replace(times, forward_tokens=measure_size(engine, load))


def touch(engine: Engine, load: Load) -> None:
    """Compute a few tokens with all weights, where what steps take is known.

    It scribbles and leaves as `warm_up` does.
    """
    blocks = _most_blocks(engine)
    room = min(blocks * load.block_size, load.max_len, load.max_batch_tokens)
    length = min(room, _SHORT_TOKENS)
    join = Join(0, 0, length, SamplingParams(temperature=0.0, ignore_eos=True), int32())
    engine.run(_plan(0, length, np.zeros(length, np.int32), _cells(engine, blocks), (join,)))
    engine.run(_plan(0, 1, int32([0]), (), (), left=(0,)))


def _measured(engine: Engine, load: Load) -> WarmTimes:
    ranks, on_gpu = engine.backend.ranks, engine.cache.blocks.is_cuda
    if on_all(ranks, on_gpu):  # who is told tokens on a GPU waits for one that draws them there
        warm(engine.sampler, engine.cache.dtype)
    on_gpu = on_any(ranks, on_gpu)  # all take the same steps
    blocks = _most_blocks(engine)
    room = min(blocks * load.block_size, load.max_len)
    longest = load.max_batch_tokens if on_gpu else _CPU_PROMPT_TOKENS
    length = max(1, min(longest, load.max_batch_tokens, room - _DECODE_STEPS))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    join = Join(0, 0, length, sampling, int32())
    engine.run(_plan(0, length, np.zeros(length, np.int32), _cells(engine, blocks), (join,)))
    times = [
        engine.run(_plan(length + step, 1, int32(), (), ())).elapsed_s
        for step in range(min(_DECODE_STEPS, room - length))
    ]
    step_s = min(times, default=0.0)
    row_s = 0.0 if on_gpu else _row_s(engine, length, room, step_s)
    again = min(length, _PROMPT_TOKENS)
    prompt_s = engine.run(_plan(0, again, np.zeros(again, np.int32), (), ())).elapsed_s
    short = min(length, _SHORT_TOKENS)
    engine.run(_plan(0, short, np.zeros(short, np.int32), (), ()))
    engine.run(_plan(0, 1, int32([0]), (), (), left=(0,)))
    return WarmTimes(step_s, max(0.0, prompt_s - step_s) / again, row_s)


def _row_s(engine: Engine, start: int, room: int, step_s: float) -> float:
    """Seconds that a drafted token adds to a decode step of `step_s`; as many as a decoded one."""
    most = min(_DRAFTS, room - start - 1)
    count = next((n for n in range(most, 0, -1) if engine.model.alike(1, 1 + n)), 0)
    if count == 0:
        return 0.0
    plan = _plan(start, 1, int32(), (), ())
    drafts = msgspec.structs.replace(plan.batch, drafts=int32([count]))
    plan = msgspec.structs.replace(plan, batch=drafts, drafts=np.zeros(count, np.int32))
    fastest_s = min(engine.run(plan).elapsed_s for _ in range(_DECODE_STEPS))
    return max(0.0, fastest_s - step_s) / count


def measure_size(engine: Engine, load: Load) -> int:
    """The target forward size, 0 if prompts are too short to show it: each takes twice as many
    tokens as the last.

    Nothing else may compute meanwhile: one slow step looks as if throughput had levelled off.
    Scribbles on the empty pool and leaves its slot again.
    """
    blocks = _most_blocks(engine)
    most = min(blocks * load.block_size, load.max_len, load.max_batch_tokens)
    length = min(most, _SIZES_FROM)
    join = Join(0, 0, most, SamplingParams(temperature=0.0, ignore_eos=True), int32())
    engine.run(_plan(0, length, np.zeros(length, np.int32), _cells(engine, blocks), (join,)))
    times: dict[int, float] = {}
    spent_s = 0.0
    while length not in times and spent_s <= _SIZES_S:
        plan = _plan(0, length, np.zeros(length, np.int32), (), ())
        # The first step of a size also prepares for it.
        tries = [engine.run(plan).elapsed_s for _ in range(_SIZE_ROUNDS)]
        spent_s += _of_all(engine, sum(tries))
        times[length] = min(tries)
        length = min(most, 2 * length)
    engine.run(_plan(0, 1, int32([0]), (), (), left=(0,)))
    curve = Curve(tuple(times), tuple(times.values()))
    return forward_size(curve, max(times), min(times)).within(load.max_batch_tokens)


def _of_all(engine: Engine, elapsed_s: float) -> float:
    """The longest time of all ranks, which have to go the same way."""
    ranks = engine.backend.ranks
    if ranks is None:
        return elapsed_s
    return max(from_all(ranks, int(1e9 * elapsed_s))) / 1e9


def measure_copy(swap: SwapLink) -> float:
    """Seconds to copy one block to the host pool or back: the mean of both ways, at their fastest.

    As of one of several in a plan that lie apart, as they mostly do. Scribbles on the pool where
    that is compressed. Raises StreamError if a copy fails.
    """
    count = min(_COPIED_BLOCKS, swap.cache.num_blocks, swap.pool.num_blocks)
    places = int32(range(count))
    blocks = int32(places[::-1])
    answers: SimpleQueue[Copied | Exception] = SimpleQueue()
    swap.listen(answers.put, answers.put)
    plan = _plan(0, 1, int32(), (), ()).batch
    fastest = []
    for back in (False, True):
        columns: dict[str, Column] = {"out_blocks": blocks, "out_places": places}
        if back:
            columns = {"in_places": places, "in_blocks": blocks}
        order = msgspec.structs.replace(plan, **columns)
        times = []
        for _ in range(_COPY_ROUNDS):
            swap.order(order)
            copied = answers.get()
            if not isinstance(copied, Copied):
                raise StreamError(f"a first copy to the host pool failed: {copied}") from copied
            times.append(copied.out_s + copied.in_s)
        fastest.append(min(times) / count)
    return sum(fastest) / len(fastest)


def _most_blocks(engine: Engine) -> int:
    """The blocks of each group of layers that one sequence can have."""
    cache, num_cells = engine.cache, engine.slots.block_table.shape[1]
    free = cache.num_blocks - cache.state_pages
    return min(free // max(cache.num_groups, 1), cache.row_blocks(num_cells))


def _cells(engine: Engine, num_blocks: int) -> list[int]:
    """The cells of a row for a sequence of `num_blocks`, and for its states."""
    cache, num_cells = engine.cache, engine.slots.block_table.shape[1]
    width = cache.row_blocks(num_cells)
    cells = [
        group * width + block for group in range(cache.num_groups) for block in range(num_blocks)
    ]
    return cells + list(range(num_cells - cache.state_pages, num_cells))


def _plan(
    start: int,
    count: int,
    inputs: np.ndarray,
    cells: Sequence[int],
    joins: tuple[Join, ...],
    left: tuple[int, ...] = (),
) -> Plan:
    """A step of one sequence in slot 0, which gets blocks 0, 1, ... in `cells` of its row."""
    yes = np.ones(1, np.uint8)
    batch = Batch(
        instance=0,
        step=0,
        slots=int32([0]),
        starts=int32([start]),
        counts=int32([count]),
        samples=yes,
        fed=yes if len(inputs) else np.zeros(1, np.uint8),
        table_slots=int32([0] * len(cells)),
        table_indices=int32(cells),
        table_blocks=int32(range(len(cells))),
        left_slots=int32(left),
        joined_slots=int32([join.slot for join in joins]),
        joined_sequences=np.zeros(len(joins), np.int64),
    )
    return Plan(batch, inputs, joins)
