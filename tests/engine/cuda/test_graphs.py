"""Decode steps on padded rows, as GPU workers replay them; the kernels run interpreted."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from daemon.engine.batch.slots import Slots
from daemon.engine.cuda.graphs import MAX_ROWS, DecodeGraphs, padded_sizes, padded_spans
from daemon.engine.cuda.triton import DecodeRows
from daemon.engine.kv.pool import PagedKV
from tests.engine.interpreting import Interpreting
from tests.engine.tiny import save

PROGRAM = """
import sys
from pathlib import Path
import torch
from tests.gpu.interpreted_engine import interpreted
from daemon.engine.cuda import graphs
from daemon.protocol.worker import Load
from tests.engine.step.test_steps_ahead import Ahead, lives
from tests.engine.model.test_exactness import BLOCK_SIZE, NUM_BLOCKS, prompt
from tests.engine.tiny import CONTEXT_LEN, greedy, reference

graphs._SPANS = (8,)
load = Load(sys.argv[1], "cpu", "float32", BLOCK_SIZE, NUM_BLOCKS, 3, CONTEXT_LEN, 8)
with torch.inference_mode():
    engine = interpreted(load)
assert engine.model.fused and engine.backend.name == "triton"
programs = engine.model._programs
ahead = Ahead(engine, 2)
tokens = [prompt(length, length) for length in (7, 3)]
first = ahead.plans.add(1, tokens[0])
ahead.step([(first, 7)])
ahead.step([(first, 1)])
second = ahead.plans.add(2, tokens[1])
ahead.step([(first, 1), (second, 2)])
# A prompt's last token alone: named by the plan, and drawn from by the same program.
ahead.step([(second, 1), (first, 1)])
ahead.step([(first, 1), (second, 1)])
while ahead.flying:
    ahead.read()
assert {step.size for step in programs._steps} == {1, 2}, programs._steps
assert {step.span for step in programs._steps} == {8, 264}, programs._steps
for row, one in zip((first, second), tokens):
    assert row.outputs == greedy(reference("llama"), one, len(row.outputs)), row.outputs
with torch.inference_mode():
    while engine.prepare():
        pass
assert {step.size for step in programs._steps} == {1, 2, 3}
# Three slots, padded: nothing that padding does is seen by the others.
third = ahead.plans.add(0, [5])
ahead.step([(third, 1), (second, 1), (first, 1)])
ahead.read()
assert third.outputs == greedy(reference("llama"), [5], 1)
assert second.outputs == greedy(reference("llama"), tokens[1], 3)
print("equal")
"""


def test_sizes_reach_the_most_rows_and_no_further() -> None:
    assert padded_sizes(1) == [1]
    assert padded_sizes(5) == [1, 2, 4, 5]
    assert padded_sizes(48)[-3:] == [24, 32, 48]
    assert padded_sizes(10_000)[-1] == MAX_ROWS
    for most in range(1, 600):
        sizes = padded_sizes(most)
        assert sizes == sorted(set(sizes)) and sizes[-1] == min(most, MAX_ROWS)


def test_what_a_graph_reads_lies_as_uploads_do() -> None:
    # Kernels are compiled by alignment: a mixed step would compile them anew, while it is awaited.
    rows = DecodeRows.empty(5, torch.zeros((5, 9), dtype=torch.int32))
    assert all(getattr(rows, field.name).data_ptr() % 16 == 0 for field in fields(rows))


def test_spans_reach_the_longest_row_and_no_further() -> None:
    assert padded_spans(4096) == [4096]
    assert padded_spans(8192) == [8192]
    assert padded_spans(131_072) == [8192, 32_768, 131_072]


def test_the_largest_steps_are_got_ready_first() -> None:
    # Graphs share a pool: what a large one used has room for the small ones, not the reverse.
    cache = PagedKV(2, 1, 4, 1, 16, torch.float32, torch.device("cpu"))
    forward: Any = None
    graphs = DecodeGraphs(forward, cache, Slots(8, 4, ()), capture=lambda work: work)
    while graphs.prepare():
        pass
    assert [step.size for step in graphs._steps] == [8, 4, 2, 1]


def test_padded_rows_draw_what_transformers_draws(
    interpreting: Interpreting, tmp_path: Path
) -> None:
    folder = save("llama", tmp_path / "llama")
    assert interpreting.output(PROGRAM, str(folder)) == "equal"
