"""The sampler's kernels against what a CPU computes."""

from itertools import product

import numpy as np
import torch

from daemon.engine.cuda.sampler_ops import CudaSamplerOps
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import SlotColumns
from daemon.engine.sampler.ops import Edited, SamplerOps, TorchSamplerOps
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError, alike
from daemon.state.request import SamplingParams

_DRAWN = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9),
    SamplingParams(top_k=40),
    SamplingParams(temperature=2.0, top_p=0.9),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=1.5, top_k=300, top_p=0.8, min_p=0.01),
)
_EDITED = (
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.3),
    SamplingParams(frequency_penalty=-0.1, logit_bias=((5, 3.0), (6, -100.0)), min_tokens=3),
)
_ENDS = (2, 5)
_PROMPT = np.array([1, 2, 3, 4, 5, 4, 3, 3])
_EDIT_LIMIT = 1e-6
_STEPS = 3


def try_draws(bench: Bench) -> None:
    """Every kind of row in one batch, greedy ones alone, and rows without filters; in the states'
    type, and in float32 as edited rows are: each is a kernel of its own.

    Sums of top-p round differently on each device, so that a token at its border may be in or out:
    a row must be wrong twice, with other logits and another seed.
    """
    vocab = bench.subject.vocab
    here, there = TorchSamplerOps(vocab), CudaSamplerOps(vocab, bench.device)
    dtypes = dict.fromkeys((bench.dtype, torch.float32))
    for dtype, kinds in product(dtypes, (_DRAWN, _DRAWN[:1], _DRAWN[:2])):
        wrong = [_differ(bench, kinds, seed, here, there, dtype) for seed in range(2)]
        if bad := wrong[0] & wrong[1]:
            rows = f"rows {sorted(bad)} of {len(kinds)}"
            raise WrongError(f"draws from {dtype}: {rows} drew other tokens, twice")


def _differ(
    bench: Bench,
    kinds: tuple[SamplingParams, ...],
    seed: int,
    here: SamplerOps,
    there: SamplerOps,
    dtype: torch.dtype,
) -> set[int]:
    """The rows that sample different tokens."""
    columns = SlotColumns(bench.subject.vocab)
    for slot, kind in enumerate(kinds):
        columns.join(slot, kind, False)
    params = columns.rows(np.arange(len(kinds)))
    params["seed"] = np.arange(len(kinds)) + 100 * seed
    logits = (bench.normal(len(kinds), bench.subject.vocab) * 3).to(dtype)
    positions = np.full(len(kinds), 7 + seed)
    found = there.choose(logits, params, positions).cpu()
    expected = here.choose(logits.cpu(), params, positions)
    return set((found != expected).any(0).nonzero().flatten().tolist())


def try_edits(bench: Bench) -> None:
    """Penalties, biases and ends over some steps, then a mask."""
    vocab = bench.subject.vocab
    ops: tuple[SamplerOps, SamplerOps] = (
        TorchSamplerOps(vocab),
        CudaSamplerOps(vocab, bench.device),
    )
    slots = np.array([3, 1])
    for slot, sampling in zip(slots.tolist(), _EDITED, strict=True):
        for op in ops:
            op.join(slot, sampling, len(_PROMPT), _PROMPT, _ENDS)
    rows = np.array([2, 0])  # of a batch in another order than those of the copy
    for step in range(_STEPS):
        logits = bench.normal(3, vocab)
        tokens = torch.tensor([4, 7, step])
        edited = Edited(np.arange(2), rows, slots, np.full(2, len(_PROMPT) + step))
        results = []
        for op, device in zip(ops, ("cpu", bench.device), strict=True):
            copy = logits[torch.from_numpy(rows).to(logits.device)].float().to(device)
            op.edit(copy, logits.to(device), edited)
            op.append(tokens.to(device), edited)
            results.append(copy.cpu())
        _same_logits(f"edited logits, step {step}", results)
    masks = np.random.default_rng(3).integers(-(2**31), 2**31, (2, -(-vocab // 32)))
    allowed = Allowed(np.array([2, 0]), masks.astype(np.int32))
    copies = [logits.float().cpu(), logits.float().clone()]
    for op, copy in zip(ops, copies, strict=True):
        op.forbid(copy, allowed)
    _same_logits("masked logits", [copy.cpu() for copy in copies])


def _same_logits(what: str, results: list[torch.Tensor]) -> None:
    """Check that the same tokens are excluded, and that the other logits are the same."""
    expected, found = results
    if bool((found.isneginf() != expected.isneginf()).any()):
        raise WrongError(f"{what}: other tokens cannot be drawn")
    alike(what, found.nan_to_num(neginf=0.0), expected.nan_to_num(neginf=0.0), _EDIT_LIMIT)
