"""The sampler on a device against the sampler on the CPU: the same seeds draw the same tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.sampler import SampledTokens, Sampler
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.worker.warm_up import warm
from daemon.state.request import SamplingParams
from tests.gpu.attempts import attempted

DIFFERENT_SHARE = 1e-3
"""The tolerance where top-p sums 100,000 terms, which round differently on each device: a token at
its border may be in or out. All else is the same to the last bit.
"""
LOGPROB_ERROR = 1e-3
EOS = (2,)
PROMPT = [1, 2, 3, 4, 5, 4]

KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.9},
    "cold": {"temperature": 2e-5},
    "top-k": {"top_k": 40},
    "top-k wide": {"top_k": 20_000, "temperature": 2.0},
    "top-p": {"top_p": 0.9},
    "top-p narrow": {"top_p": 0.02},
    "top-p wide": {"temperature": 3.0, "top_p": 0.95},
    "min-p": {"min_p": 0.05},
    "min-p low": {"min_p": 1e-9},
    "all filters": {"temperature": 1.5, "top_k": 300, "top_p": 0.8, "min_p": 0.01},
    "penalties": {
        "temperature": 0.8,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logit_bias": ((7, 4.0), (9, -100.0), (7, 5.0)),
        "min_tokens": 4,
        "stop_token_ids": (11,),
    },
    "greedy penalties": {"temperature": 0.0, "frequency_penalty": 0.7, "min_tokens": 2},
}


@dataclass(frozen=True, slots=True)
class Case:
    """How much is drawn."""

    vocab: int
    rows: int
    steps: int
    dtype: torch.dtype
    scale: float  # standard deviation of the logits

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.rows} x {self.vocab} {kind} scale {self.scale:g}"

    def logits(self, seed: int) -> torch.Tensor:
        """One step's, on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(self.rows, self.vocab, generator=generator)
        return (values * self.scale).to(self.dtype)


SMALL = (Case(2503, 4, 1, torch.float32, 3.0),)
LARGE = (
    Case(128_256, 64, 8, torch.bfloat16, 4.0),
    Case(50_257, 33, 4, torch.float32, 2.0),
    Case(151_936, 16, 4, torch.float16, 0.5),
    Case(262_144, 8, 4, torch.bfloat16, 8.0),
)


def sampler_checks(device: str) -> Iterator[Check]:
    """Sampled tokens, log-probabilities, broken rows, rows that are alone, and who waits."""
    cases = LARGE if device.startswith("cuda") else SMALL
    for case in cases:
        yield from draw_checks(case, device)
    parts: dict[str, Callable[[Case, str], Iterator[Check]]] = {
        "log-probabilities": _logprobs,
        "broken": _broken,
        "alone": _alone,
        "waits": _waits,
    }
    for name, part in parts.items():
        yield from attempted(f"sample {name}", partial(part, cases[0], device))


def draw_checks(case: Case, device: str) -> Iterator[Check]:
    """Shares of drawn tokens that differ from the CPU's, for each kind of row and over all."""
    steps = [case.logits(step) for step in range(case.steps)]
    shares = []
    for name, fields in KINDS.items():
        work = partial(_draws, name, fields, case, steps, device)
        for check in attempted(f"sample {name} {case}", work):
            shares.append(check.error)
            yield check
    share = sum(shares) / len(shares)
    yield Check(f"sample of all kinds {case}", share, DIFFERENT_SHARE, "of the draws")


def sampler_of(vocab: int, device: str) -> Sampler:
    """The sampler of a device, the GPU's through the interpreter where that is the CPU."""
    from daemon.engine.cuda.sampler_ops import CudaSamplerOps

    return Sampler(vocab, device, EOS, CudaSamplerOps(vocab, torch.device(device)))


def _draws(
    name: str, fields: dict[str, object], case: Case, steps: list[torch.Tensor], device: str
) -> Iterator[Check]:
    """An answer in every row; each device counts its own tokens."""
    samplers = (Sampler(case.vocab, "cpu", EOS), sampler_of(case.vocab, device))
    for slot in range(case.rows):
        sampling = SamplingParams(**fields | {"seed": slot})
        for sampler in samplers:
            sampler.join(slot, sampling, len(PROMPT), PROMPT)
    rows, different = np.arange(case.rows), 0
    for step, logits in enumerate(steps):
        positions = np.full(case.rows, len(PROMPT) + step)
        here = samplers[0].sample(logits, rows, positions).tokens
        there = samplers[1].sample(logits.to(device), rows, positions).tokens.cpu()
        different += int((here != there).sum())
    share = different / (case.rows * case.steps)
    # With few draws, one that falls over a border may be more than its share.
    limit = max(DIFFERENT_SHARE, 1.0 / (case.rows * case.steps)) if "top_p" in fields else 0.0
    yield Check(f"sample {name} {case}", share, limit, "of the draws")


def _mixed(case: Case, device: str) -> tuple[Sampler, Allowed]:
    """Every kind of row by turns, and a grammar's mask for the last."""
    sampler = sampler_of(case.vocab, device)
    kinds = list(KINDS.values())
    for slot in range(case.rows):
        sampling = SamplingParams(**kinds[slot % len(kinds)] | {"seed": slot, "logprobs": slot % 6})
        sampler.join(slot, sampling, len(PROMPT), PROMPT)
    words = np.random.default_rng(0).integers(1, 2**31, (1, -(-case.vocab // 32)), np.int32)
    return sampler, Allowed(np.array([case.rows - 1]), words)


def _read(case: Case, device: str, logits: torch.Tensor) -> SampledTokens:
    sampler, allowed = _mixed(case, device)
    positions = np.full(case.rows, len(PROMPT))
    drawn = sampler.sample(logits.to(device), np.arange(case.rows), positions, allowed)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return drawn.read()


def _logprobs(case: Case, device: str) -> Iterator[Check]:
    logits = case.logits(0)
    draws = _read(case, device, logits)
    assert draws.logprobs is not None
    right = logits.double().log_softmax(-1)
    chosen = right.gather(1, torch.from_numpy(draws.tokens).long().unsqueeze(1)).flatten()
    ids = torch.from_numpy(draws.logprobs.top_ids).long().view(case.rows, -1)
    values = torch.from_numpy(draws.logprobs.top_values).view(ids.shape)
    best = right.topk(ids.shape[1]).values
    error = (torch.from_numpy(draws.logprobs.chosen) - chosen).abs().max()
    yield Check("sample log-probabilities chosen", float(error), LOGPROB_ERROR)
    error = torch.maximum((values - best).abs(), (right.gather(1, ids) - best).abs()).max()
    yield Check("sample log-probabilities best", float(error), LOGPROB_ERROR)


def _broken(case: Case, device: str) -> Iterator[Check]:
    """NaN, infinity or nothing at all ends a row, and changes no other."""
    logits = case.logits(0)
    before = _read(case, device, logits)
    logits[0, 5], logits[1, case.vocab - 1], logits[2] = torch.nan, torch.inf, -torch.inf
    after = _read(case, device, logits)
    wrong = set(after.broken.tolist()) ^ {0, 1, 2} | set(before.broken.tolist())
    yield Check("sample broken rows", len(wrong), 0, "rows")
    changed = int((after.tokens[3:] != before.tokens[3:]).sum()) + int(after.tokens[:3].any())
    yield Check("sample broken rows change others", changed, 0, "tokens")


def _alone(case: Case, device: str) -> Iterator[Check]:
    """A row draws the same bits by itself as among all the others."""
    logits = case.logits(1)
    together = _read(case, device, logits)
    sampler, allowed = _mixed(case, device)
    different = 0
    for row in range(case.rows):
        only = Allowed(np.array([0]), allowed.masks) if row in allowed.rows else None
        one = logits[row : row + 1].to(device)
        token = int(sampler.sample(one, [row], [len(PROMPT)], only).tokens[0])
        different += token != together.tokens[row]
    yield Check("sample alone or together", different, 0, "tokens")


def _waits(case: Case, device: str) -> Iterator[Check]:
    """On a GPU torch raises an error where it would wait; and the draw is queued behind long work
    before that is done.
    """
    warm(sampler_of(case.vocab, device), case.dtype)
    sampler, allowed = _mixed(case, device)
    logits, rows = case.logits(0).to(device), np.arange(case.rows)
    if not device.startswith("cuda"):
        drawn = sampler.sample(logits, rows, np.full(case.rows, len(PROMPT)), allowed)
        yield Check("sample has tokens", len(drawn.read().tokens) - case.rows, 0)
        return
    sampler.sample(logits, rows, np.full(case.rows, len(PROMPT)), allowed)
    busy, done = torch.randn(8192, 8192, device=device), torch.cuda.Event()
    busy = busy @ busy  # once before: the library makes itself ready
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):  # about 0.4 s of work
            busy = busy @ busy
        sampler.leave(0)
        sampler.join(0, SamplingParams(**KINDS["penalties"]), len(PROMPT), [*PROMPT, 7])
        drawn = sampler.sample(logits, rows, np.full(case.rows, len(PROMPT) + 1), allowed)
        done.record()
        queued_early = not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    done.synchronize()
    yield Check("sample waits for the device", 0.0 if queued_early else 1.0, 0)
    wrong = int((drawn.tokens.cpu().numpy() != drawn.read().tokens).sum())
    yield Check("sample reads what was drawn", wrong, 0, "tokens")
