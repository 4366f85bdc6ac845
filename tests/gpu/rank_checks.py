"""Instances over several devices: two cards as ranks or stages, and a card beside the CPU."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.gpu.report import Check
from daemon.protocol.worker import Failed, Load
from tests.engine.ranks.group import RankGroup
from tests.gpu.engine_checks import CONTEXT, prompts, save
from tests.gpu.engine_runs import Rows, load_message
from tests.gpu.scored import BLOCK_SIZE, GREEDY

NUM_TOKENS = 32
STAGE_LAYERS = 2, 1
SPLIT_TOKENS = 0
"""Tokens that may differ from those of one device: none."""


def rank_checks(device: str) -> Iterator[Check]:
    """The tokens of one device, from those that are here."""
    with tempfile.TemporaryDirectory() as folder:
        save("Llama", Path(folder))
        alone = answers(Path(folder), [device], ())
        for name, devices, stage_layers in cases(device, _num_cards()):
            found = answers(Path(folder), devices, stage_layers)
            yield Check(f"{name}: other tokens", int((found != alone).sum()), SPLIT_TOKENS)


def cases(device: str, num_cards: int) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
    """Each instance's name, the devices of its ranks (the last stage is the first rank), and the
    layers of its stages.
    """
    if num_cards > 1:
        yield "cuda:0,1:tp2", ["cuda:0", "cuda:1"], ()
        yield "cuda:0,1:pp2", ["cuda:1", "cuda:0"], STAGE_LAYERS
    yield f"{device},cpu:pp2", ["cpu", device], STAGE_LAYERS


def answers(
    folder: Path, devices: Sequence[str], stage_layers: tuple[int, ...], dtype: str = "float32"
) -> npt.NDArray[np.int32]:
    """The tokens [step, row] that the ranks on these devices draw, greedily."""
    load = load_message(folder, devices[0], dtype, 128, 8, CONTEXT)
    load = msgspec.structs.replace(load, stage_layers=stage_layers)
    group = RankGroup(load, len(devices))
    group.loads[:] = [on(one, device) for one, device in zip(group.loads, devices, strict=True)]
    with group:
        for ready in group.ready():
            if isinstance(ready, Failed):
                raise RuntimeError(f"a rank did not get ready: {ready.message}")
        rows = Rows(group.run, prompts(), NUM_TOKENS, BLOCK_SIZE, GREEDY)
        replies = [rows.prefill_together()] + [rows.decode() for _ in range(NUM_TOKENS - 1)]
        return np.stack([reply.tokens for reply in replies])


def on(load: Load, device: str) -> Load:
    """A rank's message for another device."""
    return msgspec.structs.replace(load, device=device)


def _num_cards() -> int:
    import torch

    return torch.cuda.device_count()
