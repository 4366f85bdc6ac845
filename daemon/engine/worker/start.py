"""From a `Load` message to an engine that has computed its first token."""

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from daemon.base.logs import in_a_line
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.streams import compute_stream
from daemon.engine.families import DRAW, EDIT, GRAPHS, NONE, ByTorch, Fallen, unheard
from daemon.engine.kv.eight_bit import KV_DTYPES, kv_fault
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import BY_ROWS
from daemon.engine.layers.latent import keep_rows
from daemon.engine.layers.ranks import Ranks, from_all, on_all, on_any
from daemon.engine.layers.rotary import settle_rotary
from daemon.engine.layers.stages import StageHead
from daemon.engine.loading.loader import load_model, torch_dtype
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend, choose_backend, on_ranks
from daemon.engine.process import keep_to
from daemon.engine.quantised.mapped import PageReader
from daemon.engine.sampler import Sampler
from daemon.engine.sampler.on_host import HostSamplerOps, SplitSamplerOps
from daemon.engine.sampler.ops import SamplerOps, TorchSamplerOps
from daemon.engine.step.following import (
    FollowingSampler,
    FollowingStage,
    LeadingSampler,
    NoGrammars,
    NoScores,
)
from daemon.engine.step.grammar import SlotGrammars
from daemon.engine.step.scoring import PromptScorer
from daemon.engine.step.step import Engine
from daemon.engine.swap.host_pool import host_block_bytes
from daemon.engine.swap.link import swap_link
from daemon.engine.transfer.watch import AfterLayer, watched
from daemon.engine.verify.kernels.choose_families import by_torch
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.verify.model.listen import AskedOfAttention, listen
from daemon.engine.verify.model.reading import check_reading
from daemon.engine.verify.model.served import TrialPool
from daemon.engine.verify.model.trial import fastest
from daemon.engine.worker.warm_times import KeptTimes, WarmTimes
from daemon.engine.worker.warm_up import touch, warm_up
from daemon.memory.layout import agreed, row_blocks, with_state_pages
from daemon.memory.sizing import block_bytes, model_layout, packed_block_bytes
from daemon.models.grammar import Compiler
from daemon.models.rank_shares import shape_of_rank
from daemon.models.shape import ModelError, ModelShape
from daemon.models.stages import shape_of_stage, stage_of
from daemon.protocol.worker import WEIGHTS_END, Load

GPU_RESERVE = 0.9
"""Share of a GPU's free memory for the KV pool, where the daemon did not size it."""

_WARM_UP_BEGIN = 0.9
"""Share of a whole start at which the warm-up begins."""

Progress = Callable[[str, float], None]


def sampler_ops_of(vocab_size: int, device: torch.device, by_torch: ByTorch = NONE) -> SamplerOps:
    """The sampler's operations on a device; of a GPU's kernels not those that torch computes."""
    if device.type != "cuda":
        return TorchSamplerOps(vocab_size)
    if by_torch >= {DRAW, EDIT}:
        return HostSamplerOps(vocab_size)
    from daemon.engine.cuda.sampler_ops import CudaSamplerOps

    return split(CudaSamplerOps(vocab_size, device), HostSamplerOps(vocab_size), by_torch)


def split(ops: SamplerOps, host: SamplerOps, by_torch: ByTorch) -> SamplerOps:
    """A device's ops, but for what the host computes in their place."""
    if not by_torch & {DRAW, EDIT}:
        return ops
    return SplitSamplerOps(host if EDIT in by_torch else ops, host if DRAW in by_torch else ops)


def start(
    load: Load,
    progress: Progress,
    fallen: Fallen = unheard,
    after_layer: AfterLayer | None = None,
    ranks: Ranks | None = None,
) -> tuple[Engine, WarmTimes]:
    """The engine, and what its steps take.

    `fallen` is called with each family of GPU kernels that is not used, now and later;
    `after_layer` after each layer of steps that are computed layer by layer. `ranks`: those that
    compute the model together, where `load` says that there are several. Raises ModelError,
    HostPoolError, RankError and others.
    """
    keep_to(load.cpus)
    torch.set_num_threads(load.num_threads or len(os.sched_getaffinity(0)))
    device = torch.device(load.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    stages = _StartStages(progress)
    stages.stage("weights", 0.0)
    shape = _own_shape(shape_here(Path(load.model)), load)
    with PageReader() as reader:
        model = load_model(
            Path(load.model),
            load.dtype,
            device,
            stages.read,
            weight_dtype=load.weight_dtype,
            ranks=ranks,
            experts_on_cpu=load.experts_on_cpu,
            reader=reader,
        )
        check_reading(model, Path(load.model))
        torchs = by_torch(
            load, model, shape, lambda _family: stages.stage("self-test", 0.7), fallen
        )
        backend = _backend(load, torchs, fallen, after_layer, ranks)
        kept = KeptTimes(model, load, backend)
        engine = assemble(model, shape, load, stages.stage, backend)
        stages.stage("warm-up", _WARM_UP_BEGIN)
        times = kept.read()
        if times is not None:
            touch(engine, load)
    if times is None:  # only now: reading would be a part of what steps take
        times = warm_up(engine, load)
        kept.keep(times)
    engine.model.experts.reset()  # those steps' tokens were random
    return engine, times


class _StartStages:
    """The progress of a start, which reads weights even when later stages have begun."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._latest = "", 0.0

    def stage(self, stage: str, share: float) -> None:
        """Tell that a stage has come so far."""
        self._latest = stage, share
        self._progress(stage, share)

    def read(self, done: float) -> None:
        """Tell, from any thread, the share of the weights that is read."""
        stage, share = self._latest
        if stage == "weights":
            share = WEIGHTS_END * done
        elif stage == "warm-up":
            share = _WARM_UP_BEGIN + (1.0 - _WARM_UP_BEGIN) * done
        self._progress(stage, share)


def _backend(
    load: Load,
    torchs: ByTorch,
    fallen: Fallen,
    after_layer: AfterLayer | None,
    ranks: Ranks | None,
) -> Backend:
    """The backend of a worker, but for what torch computes."""
    if ranks is not None:  # no graph has captured what ranks do together
        torchs |= {GRAPHS}
    backend = choose_backend(torch.device(load.device), torch_dtype(load.dtype), torchs, fallen)
    if ranks is not None:
        backend = on_ranks(backend, ranks)
    return backend if after_layer is None else watched(backend, after_layer)


def _own_shape(shape: ModelShape, load: Load) -> ModelShape:
    """The shape of this worker's part of a model. Raises ModelError."""
    if load.stage_layers:
        return shape_of_stage(shape, stage_of(load.rank, load.world_size), load.stage_layers)
    return shape_of_rank(shape, load.rank, load.world_size)


def assemble(
    model: Any,
    shape: ModelShape,
    load: Load,
    progress: Progress,
    backend: Backend | None = None,
    verdict: TrialVerdict | None = None,
) -> Engine:
    """An engine around transformers' `model`, which lies on its device; it may not be used after.

    `backend`: the fastest for the device if not given. `verdict`: in which ways the model may be
    computed; a trial finds out if not given. Raises HostPoolError, and ModelError where
    the daemon must say how large the KV pool is, or no way to compute the model gives its logits.
    """
    device = torch.device(load.device)
    try:
        settle_rotary(model, load.max_len)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        said = f"its rotary positions cannot be computed: {in_a_line(error)}"
        raise ModelError(f"{load.model}: {said}") from error
    backend = backend or choose_backend(device, torch_dtype(load.dtype))
    keep_rows(model, torch_dtype(load.dtype), BY_ROWS)
    progress("kv cache", WEIGHTS_END)
    asked = _asked(model, shape, load, backend.ranks)
    cache = _kv_cache(load, shape, device, asked, backend.ranks)
    progress("host pool", 0.75)
    # Packing knows one shape of blocks; places are the same on all ranks.
    compress = load.compress and on_all(backend.ranks, cache.is_uniform)
    num_places = _host_bytes(load, shape) // host_block_bytes(cache, compress)
    num_places = _least(backend.ranks, num_places)
    swap = swap_link(cache, num_places, compress, backend.by_torch)
    num_cells = cache.num_groups * row_blocks(load.max_len, load.block_size)
    num_cells += cache.state_pages
    own = backend.sampler_ops or (lambda size: sampler_ops_of(size, device, backend.by_torch))
    slots = Slots(load.max_slots, num_cells, shape.eos_token_ids, device)
    follows = backend.ranks is not None and backend.ranks.rank > 0
    found = fastest(model, shape, load, TrialPool(cache, slots, backend), progress, verdict)
    head = model.get_output_embeddings()
    if isinstance(head, StageHead):
        head.trial.goes_on = False
    made = FollowingStage if follows and load.stage_layers else Engine
    return made(
        model=found,
        cache=cache,
        slots=slots,
        sampler=_sampler(shape, own(shape.vocab_size), device, backend.ranks),
        grammars=(NoGrammars if follows else SlotGrammars)(
            lambda: Compiler(Path(load.model), shape.vocab_size, shape.eos_token_ids),
            shape.vocab_size,
            shape.eos_token_ids,
        ),
        scorer=NoScores() if follows and load.stage_layers else PromptScorer(),
        backend=backend,
        swap=swap,
        stream=compute_stream(device),
    )


def _sampler(
    shape: ModelShape, ops: SamplerOps, device: torch.device, ranks: Ranks | None
) -> Sampler:
    """The sampler of a worker; of several ranks the first samples for all."""
    parts = shape.vocab_size, device, shape.eos_token_ids, ops
    if ranks is None:
        return Sampler(*parts)
    return FollowingSampler(ranks, *parts) if ranks.rank else LeadingSampler(ranks, *parts)


def _asked(model: Any, shape: ModelShape, load: Load, ranks: Ranks | None) -> AskedOfAttention:
    """The windows of layers, where the configuration says that any has one: what the model's own
    masks say. None where all layers see all, or the trial will refuse the model.
    """
    nothing = AskedOfAttention((), [])
    if not on_any(ranks, any(shape.windows)):
        return nothing
    asked = listen(model, shape, load.max_len)
    if asked.reasons and ranks is not None:  # of one rank it may be, which the others wait for
        said = f"{shape.model_type} is not supported yet: {asked.reasons[0]}"
        raise ModelError(f"{load.model}: {said}")
    for size in {asked.windows[layer] for layer in asked.chunked}:
        if size % load.block_size:
            said = f"its attention has chunks of {size} tokens, which are no whole blocks"
            raise ModelError(f"{load.model}: {said} of {load.block_size} (memory.block_size)")
    return nothing if asked.reasons else asked


def _kv_cache(
    load: Load,
    shape: ModelShape,
    device: torch.device,
    asked: AskedOfAttention,
    ranks: Ranks | None,
) -> PagedKV:
    kv_dtype = KV_DTYPES[load.kv_dtype]
    if fault := kv_fault(kv_dtype, device):
        raise ModelError(fault)
    kinds = load.dtype, load.kv_dtype or "auto"
    num_blocks, per_block = load.num_blocks, block_bytes(shape, load.block_size, *kinds)
    if not num_blocks:
        if device.type != "cuda":
            raise ModelError("the daemon must size a CPU's KV pool")
        num_blocks = int(GPU_RESERVE * torch.cuda.mem_get_info(device)[0]) // per_block
    if ranks is not None:  # one block table serves all, and cards may be unlike
        num_blocks = min(from_all(ranks, num_blocks))
    layout = model_layout(shape, asked.windows, load.block_size, *kinds, asked.chunked)
    if ranks is not None and shape.beside:
        heard = [asked.windows] * len(shape.beside)
        if load.stage_layers:
            heard = _heard_beside(asked.windows, load, ranks)
        others = (
            model_layout(part, windows, load.block_size, *kinds)
            for part, windows in zip(shape.beside, heard, strict=True)
        )
        layout = agreed(layout, [*others])
        # Numbers may be wider on other devices, and pages beside them smaller.
        layout = with_state_pages(layout, max(from_all(ranks, layout.state_pages)))
    dtype = torch_dtype(load.dtype)
    if not layout.is_plain or shape.beside:
        num_blocks = _least(ranks, num_blocks * per_block // layout.page_bytes)
    if not layout.is_plain:
        return PagedKV.of_layout(num_blocks, layout, dtype, device, kv_dtype)
    (group,) = layout.groups
    sizes = shape.num_layers, load.block_size, group.num_kv_heads, group.head_dim
    return PagedKV(num_blocks, *sizes, dtype, device, kv_dtype, latent=group.latent)


def _heard_beside(windows: Sequence[int], load: Load, ranks: Ranks) -> list[tuple[int, ...]]:
    """The windows of the other stages' layers, as these heard them, in the order of stages."""
    num_stages, own = len(load.stage_layers), stage_of(load.rank, load.world_size)
    order = [stage_of(rank, num_stages) for rank in range(num_stages)]
    counts = [load.stage_layers[stage] for stage in order]
    here = torch.tensor([[*windows] or [0] * load.stage_layers[own]], dtype=torch.int64)
    whole = ranks.gather(here, counts)[0].tolist()
    ends = [*accumulate(counts)]
    found = {
        stage: tuple(whole[end - count : end])
        for stage, count, end in zip(order, counts, ends, strict=True)
    }
    return [found[stage] for stage in range(num_stages) if stage != own]


def _least(ranks: Ranks | None, count: int) -> int:
    """The least of all ranks' counts."""
    return count if ranks is None else min(from_all(ranks, count))


def _host_bytes(load: Load, shape: ModelShape) -> int:
    """Bytes of the host pool that the daemon planned."""
    if load.compress:
        return load.num_host_blocks * packed_block_bytes(shape, load.block_size)
    kinds = load.dtype, load.kv_dtype or "auto"
    return load.num_host_blocks * block_bytes(shape, load.block_size, *kinds)
