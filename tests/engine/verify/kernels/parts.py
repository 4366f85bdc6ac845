"""Results without some of the kernels, which fail here, and without wrong graphs.

Run by `test_selftest_serves` in a process of its own, through Triton's interpreter.
"""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from daemon.engine.cuda import attention, graphs, ops
from daemon.engine.cuda.graphs import Work
from daemon.engine.cuda.mixed_attention import mixed
from daemon.engine.families import NONE
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.ops import Ops
from daemon.engine.verify.kernels import graph_cases
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.compare import WrongError, alike
from tests.engine.model.test_backends import batch_of
from tests.engine.verify.kernels.subject import SUBJECT

KERNELS = {
    "norm": (ops, "add_norm"),
    "activation": (ops, "silu_mul"),
    "qkv": (ops, "place"),
    "write": (attention, "write_kv"),
    "decode": (attention, "paged_decode_attention"),
    "prefill": (attention, "paged_prefill_attention"),
}


class Broken:
    """Within, the kernels of some families cannot be called."""

    def __init__(self, families: frozenset[str]) -> None:
        self._held = [(*KERNELS[family], getattr(*KERNELS[family])) for family in families]

    def __enter__(self) -> None:
        for module, name, _ in self._held:
            setattr(module, name, None)

    def __exit__(self, *_: object) -> None:
        for module, name, kernel in self._held:
            setattr(module, name, kernel)


def states(decoder: Decoder, bench: Bench, by_torch: frozenset[str] | None) -> torch.Tensor:
    """The states of a step of a prompt, a part of one, and a single token; None: by torch alone."""
    torch.manual_seed(0)
    cache = bench.pool(16)
    cache.blocks.normal_()
    batch = batch_of([0, 9, 7], [2, 1, 3], bench.subject.block_size)
    torchs = TorchAttention(batch, cache)
    paged: Any = torchs if by_torch is None else mixed(batch, cache, by_torch)
    tokens = torch.arange(len(batch.tokens))
    return decoder.normed(tokens, torch.from_numpy(batch.positions), paged)


def parts() -> None:
    """Each family left to torch alone, or with one that it shares a layer with."""
    bench = Bench(SUBJECT)
    decoder = graph_cases._decoder(bench, NONE)
    expected = states(_with(decoder, Ops()), bench, None)
    for names in (("norm", "activation"), ("qkv",), ("qkv", "write"), ("decode",), ("prefill",)):
        by_torch = frozenset(names)
        with Broken(by_torch):
            found = states(_with(decoder, ops.TritonOps(by_torch)), bench, by_torch)
        alike(f"without {names}", found, expected, 1e-4)


def _with(decoder: Decoder, by: Any) -> Decoder:
    return replace(decoder, ops=by)


def fails(_work: Work) -> Work:
    raise RuntimeError("operation not permitted when stream is capturing")


def replays_nothing(work: Work) -> Work:
    work()
    return lambda: None


def wrong_graphs() -> None:
    """By the family's own case first; then what a step gives whose graph is wrong."""
    bench = Bench(SUBJECT)
    graph_cases.try_graphs(bench, NONE)
    for capture, why in ((fails, "cannot be captured"), (replays_nothing, "something else")):
        graph_cases.capturing = lambda _device, capture=capture: capture
        with pytest.raises(WrongError, match=why):
            graph_cases.try_graphs(bench, NONE)


def served_after() -> None:
    """Steps whose graph replays something else give what is launched, and the next is launched."""
    bench = Bench(msgspec.structs.replace(SUBJECT, head_norms=False))
    decoder = graph_cases._decoder(bench, NONE)
    fallen: list[tuple[str, str]] = []
    results = []
    for capture in (graph_cases._anew, replays_nothing):
        slots = graph_cases.Slots(2, 3, ())
        slots.block_table[:] = np.arange(6).reshape(2, 3)
        programs = graphs.DecodeGraphs(
            decoder, bench.pool(6), slots, capture, lambda *said: fallen.append(said)
        )
        batch = graph_cases._batch(bench, slots, [9, 3], 0)
        assert programs.takes(batch)
        results.append(programs.logits(batch).clone())
        assert programs.takes(batch) is (capture is graph_cases._anew)
        assert programs.prepare() is (capture is graph_cases._anew)
    assert torch.equal(*results)
    assert [family for family, _ in fallen] == ["graphs"]


def main() -> None:
    """Try them all."""
    with torch.inference_mode():
        parts()
        served_after()
        wrong_graphs()
    print("right")
