"""The served model against transformers' own plain forward pass, position by position.

Nothing of the daemon judges here: the reference is the folder loaded by transformers, with its
eager attention and its own mask, one text at a time and without a cache. The served side is the
daemon's own way from a folder to an engine and its steps; logits are taken where the engine
computes them.
"""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.loading.resolve import resolve_here
from daemon.engine.worker.start import start
from daemon.models.consistent import checked_shape
from daemon.protocol.worker import Load
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver, Running
from tests.zoo.sizes import CONTEXT_LEN, VOCAB_SIZE

BLOCK_SIZE = 8
NUM_BLOCKS = 2048
TEXT_LEN = 160
NUM_TEXTS = 3
TOLERANCE = 2e-5
"""For float32: the largest difference of any logit, relative to the largest logit of its text.

Decays of delta nets are differences of long sums in transformers' code: its own float32 is further
from its float64 than this. What is beyond the bound is therefore held against float64, and must be
within the bound of that, or no further from it than transformers' float32 is.
"""
ROUNDING = {0.5: 1.5, 0.95: 2.0}
"""For bfloat16: how many times as far from float32 as transformers' own bfloat16 is, by quantile of
the positions. Rounding may choose another expert at one of them: the farthest says little."""

_SCORED = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=0)
_PLAIN = SamplingParams(temperature=0.0, ignore_eos=True)


def texts() -> list[list[int]]:
    """Texts of random tokens, none of which ends or pads anything."""
    chooser = random.Random(7)
    return [[chooser.randrange(2, VOCAB_SIZE) for _ in range(TEXT_LEN)] for _ in range(NUM_TEXTS)]


def reference(folder: Path, dtype: torch.dtype) -> list[torch.Tensor]:
    """transformers' logits float32 [TEXT_LEN, vocab] of each text."""
    try:
        return _logits(folder, dtype)
    except RuntimeError:  # torch multiplies no groups of such rows: one expert after the other
        return _logits(folder, dtype, experts_implementation="eager")


def _logits(folder: Path, dtype: torch.dtype, **named: str) -> list[torch.Tensor]:
    config = AutoConfig.from_pretrained(folder)
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = cls.from_pretrained(
        folder, config=config, dtype=dtype, attn_implementation="eager", **named
    ).eval()
    with torch.inference_mode():
        return [
            model(input_ids=torch.tensor([text]), use_cache=False).logits[0].float()
            for text in texts()
        ]


class _Float64(TorchFunctionMode):
    """A mode in which code that asks for float32 computes in float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `function` with the other type."""
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return function(*map(_wider, args), **named)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def exact_reference(
    folder: Path, change: Callable[[Any], None] = lambda _model: None
) -> list[torch.Tensor]:
    """As `reference`, float64, where transformers' code asks for float32 too; of a model to which
    `change` was done.
    """
    config = AutoConfig.from_pretrained(folder)
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = cls.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    model.double()
    change(model)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), _Float64():
            found = [
                model(input_ids=torch.tensor([text]), use_cache=False).logits[0] for text in texts()
            ]
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(one.dtype == torch.float64 for one in found)
    return found


@dataclass
class Seen:
    """The engine's model, and all logits that it computes."""

    model: Any
    rows: list[tuple[int, int, torch.Tensor]] = field(default_factory=list)
    """Slot, position and logits [vocab]."""

    @property
    def experts(self) -> Any:
        """As the engine's model."""
        return self.model.experts

    def alike(self, count: int, other: int) -> bool:
        """As the engine's model."""
        alike: bool = self.model.alike(count, other)
        return alike

    def logits(self, batch: FlatBatch, *rest: Any) -> torch.Tensor:
        """The logits of a step without prompt log-probabilities."""
        logits: torch.Tensor = self.model.logits(batch, *rest)
        self._note(batch, logits)
        return logits

    def states(self, batch: FlatBatch, *rest: Any) -> torch.Tensor:
        """The states of a step with them, from which logits are computed a few at a time."""
        states: torch.Tensor = self.model.states(batch, *rest)
        self._note(batch, self.head(states))
        return states

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """As the engine's model."""
        logits: torch.Tensor = self.model.head(states)
        return logits

    def _note(self, batch: FlatBatch, logits: torch.Tensor) -> None:
        rows = np.searchsorted(batch.row_offsets, batch.sampled_tokens, "right") - 1
        slots, positions = batch.slots[rows], batch.positions[batch.sampled_tokens]
        for slot, position, row in zip(slots.tolist(), positions.tolist(), logits, strict=True):
            self.rows.append((slot, position, row.float().clone()))


class Served:
    """A folder served as the daemon serves it, its answers forced to be given texts."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Raises ModelError where the daemon refuses the folder."""
        shape = checked_shape(folder, folder / "cache", resolve_here)
        load = Load(
            model=str(folder),
            device="cpu",
            dtype=dtype,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_slots=NUM_TEXTS + 1,
            max_len=min(shape.context_len, CONTEXT_LEN - 8),
            max_batch_tokens=64,
            num_threads=torch.get_num_threads(),
            cache=str(folder / "cache"),
        )
        with torch.inference_mode():
            engine, *_ = start(load, lambda _stage, _done: None)
        self.fused = engine.model.fused
        self.seen = Seen(engine.model)
        self._engine = dataclasses.replace(engine, model=self.seen)  # type: ignore[arg-type]
        self._plans = Driver(BLOCK_SIZE, [])
        self._plans.fit(engine)
        self._plans.free_blocks = list(range(self._plans.apart))
        random.Random(3).shuffle(self._plans.free_blocks)
        self._texts = texts()

    def add(self, slot: int, num_prompt_tokens: int, scored: bool) -> Running:
        """The slot's text begins to be computed; `scored`: all of its prompt's logits are told."""
        prompt = self._texts[slot][:num_prompt_tokens]
        return self._plans.add(slot, prompt, _SCORED if scored else _PLAIN)

    def step(self, work: list[tuple[Running, int]]) -> None:
        """Compute a step; whatever was drawn, the texts go on as they are written."""
        with torch.inference_mode():
            self._plans.take(work, self._engine.run(self._plans.plan(work)))
            for running, _count in work:
                if running.outputs:
                    forced = self._texts[running.slot][running.num_computed]
                    running.tokens[-1] = forced
                    self._engine.slots.last_token[running.slot] = forced


def serve(folder: Path, dtype: str) -> Served:
    """All texts computed: prompts in uneven chunks beside others, decoding past all thresholds."""
    served = Served(folder, dtype)
    short = served.add(1, 5, False)
    served.step([(short, 5)])
    middle = served.add(0, 41, True)
    for count in (7, 1, 13, 20):
        served.step([(short, 1), (middle, count)])
    for _ in range(22):
        served.step([(middle, 1), (short, 1)])
    _long(served, [short])
    return served


def serve_shortly(folder: Path, dtype: str) -> Served:
    """The longest text alone: enough to see that a model is another one."""
    served = Served(folder, dtype)
    _long(served, [])
    return served


def _long(served: Served, beside: list[Running]) -> None:
    long = served.add(2, 150, True)
    for count in (61, 37, 1, 51):
        served.step([*((one, 1) for one in beside), (long, count)])
    for _ in range(6):
        served.step([(long, 1), *((one, 1) for one in beside)])


@dataclass(frozen=True)
class Verdict:
    """How far what is served is from the reference, and where; -1: at a quantile of positions."""

    distance: float
    slot: int
    position: int
    allowed: float

    @property
    def equal(self) -> bool:
        return self.distance <= self.allowed


def distances(rows: list[tuple[int, int, torch.Tensor]], like: list[torch.Tensor]) -> np.ndarray:
    """The distance of each row from the reference; infinite where it is no number."""
    largest = [one.abs().max() for one in like]
    found = [
        float((logits - like[slot][position]).abs().max() / largest[slot])
        for slot, position, logits in rows
    ]
    return np.nan_to_num(np.array(found), nan=np.inf)


class Oracle:
    """The results of transformers for a folder, and the allowed differences."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._folder = folder
        self.float32 = reference(folder, torch.float32)
        self._rounded = None if dtype == "float32" else reference(folder, getattr(torch, dtype))

    @cached_property
    def float64(self) -> list[torch.Tensor]:
        return exact_reference(self._folder)

    def judge(self, served: Served) -> Verdict:
        """How far what was served is from what transformers computes."""
        return self.judge_rows(served.seen.rows)

    def judge_rows(self, rows: list[tuple[int, int, torch.Tensor]]) -> Verdict:
        """As `judge`, of slots, positions and logits."""
        missing = {(2, position) for position in range(156)} - {(s, p) for s, p, _ in rows}
        assert not missing, f"positions without logits: {sorted(missing)[:5]}"
        found = distances(rows, self.float32)
        if self._rounded is None:
            allowed = TOLERANCE
            if found.max() > TOLERANCE:
                own = distances(self._at(rows, self.float32), self.float64)
                found, allowed = distances(rows, self.float64), max(allowed, float(own.max()))
            worst = int(found.argmax())
            return Verdict(float(found[worst]), rows[worst][0], rows[worst][1], allowed)
        own = distances(self._at(rows, self._rounded), self.float32)
        verdicts = [
            Verdict(
                float(np.quantile(found, share)), -1, -1, times * float(np.quantile(own, share))
            )
            for share, times in ROUNDING.items()
        ]
        return max(verdicts, key=lambda one: one.distance / one.allowed)

    @staticmethod
    def _at(
        rows: list[tuple[int, int, torch.Tensor]], other: list[torch.Tensor]
    ) -> list[tuple[int, int, torch.Tensor]]:
        """What `other` has where `rows` are."""
        return [(slot, at, other[slot][at]) for slot, at, _ in rows]
