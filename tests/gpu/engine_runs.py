"""An engine without a daemon: rows of one length, prefilled in chunks, then decoded together."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from daemon.protocol.worker import Join, Load, Plan, Reply
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import int32

Run = Callable[[Plan], Reply]


class Rows:
    """Sequences in slots 0 .. B-1, and the plans that compute them; blocks lie scattered."""

    def __init__(
        self,
        run: Run,
        prompts: Sequence[list[int]],
        num_tokens: int,
        block_size: int,
        sampling: SamplingParams,
    ) -> None:
        self._run = run
        self._prompts = prompts
        self._computed = [0] * len(prompts)
        self._step = 0
        each = -(-(max(map(len, prompts)) + num_tokens) // block_size)
        blocks = list(range(each * len(prompts)))
        random.Random(0).shuffle(blocks)
        slots = range(len(prompts))
        self._table = (
            int32([slot for slot in slots for _ in range(each)]),
            int32([index for _ in slots for index in range(each)]),
            int32(blocks),
        )
        self._joins = tuple(
            Join(slot, slot, len(prompt), sampling, int32(prompt))
            for slot, prompt in enumerate(prompts)
        )

    def prefill(self, chunk: int) -> list[Reply]:
        """Compute every prompt, up to `chunk` tokens of one row a step; the first tokens drawn."""
        replies = []
        for slot, prompt in enumerate(self._prompts):
            for start in range(0, len(prompt), chunk):
                tokens = prompt[start : start + chunk]
                last = start + len(tokens) == len(prompt)
                replies.append(self._send([slot], [len(tokens)], last, tokens))
        return replies

    def prefill_together(self) -> Reply:
        """Compute every prompt whole, all in one step of mixed lengths."""
        counts = [len(prompt) for prompt in self._prompts]
        tokens = [token for prompt in self._prompts for token in prompt]
        return self._send(list(range(len(counts))), counts, True, tokens)

    def decode(self) -> Reply:
        """One token more of every row."""
        rows = len(self._prompts)
        return self._send(list(range(rows)), [1] * rows, True, [])

    def leave(self) -> None:
        """Give the slots back; a step of one token in slot 0 carries the message."""
        slots = range(len(self._prompts))
        self._computed[0] = 0
        self._send([0], [1], False, [0], left=list(slots))

    def _send(
        self,
        slots: list[int],
        counts: list[int],
        sampled: bool,
        tokens: list[int],
        left: Sequence[int] = (),
    ) -> Reply:
        starts = [self._computed[slot] for slot in slots]
        batch = Batch(
            instance=0,
            step=self._step,
            slots=int32(slots),
            starts=int32(starts),
            counts=int32(counts),
            samples=np.full(len(slots), sampled, np.uint8),
            fed=np.full(len(slots), bool(tokens), np.uint8),
            table_slots=self._table[0],
            table_indices=self._table[1],
            table_blocks=self._table[2],
            copy_sources=int32(),
            copy_targets=int32(),
            left_slots=int32(left),
            joined_slots=int32([join.slot for join in self._joins]),
            joined_sequences=np.array([join.sequence for join in self._joins], np.int64),
        )
        reply = self._run(Plan(batch, int32(tokens), self._joins))
        self._table, self._joins = (int32(), int32(), int32()), ()
        self._step += 1
        for slot, count in zip(slots, counts, strict=True):
            self._computed[slot] += count
        return reply


def load_message(
    folder: Path, device: str, dtype: str, num_blocks: int, max_slots: int, max_len: int
) -> Load:
    """The daemon's message to a worker, with blocks of 16 tokens and a short warm-up."""
    return Load(
        model=str(folder),
        device=device,
        dtype=dtype,
        block_size=16,
        num_blocks=num_blocks,
        max_slots=max_slots,
        max_len=max_len,
        max_batch_tokens=64,
    )
