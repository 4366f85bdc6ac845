"""Decode steps as CUDA graphs: captured once for a number of rows, replayed with new inputs.

Launching a step's some 300 kernels one by one costs the host milliseconds; a replay costs tens of
microseconds. A graph names memory, not values: its inputs are the slots of its rows and how many
tokens each has, and everything else (last tokens, block tables) is read from the slots' own tables
on the device. Rows beyond a batch's own are padding: without tokens, they attend to nothing and
write nothing.

The first replay of each graph is compared with the same step launched kernel by kernel. Where they
differ, what was launched is used, and no graph any more.

A decoder's last matrix product is left outside, and the graphs write their outputs into a shared
buffer: logits of their own would be hundreds of megabytes.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from daemon.base.logs import in_a_line
from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.upload import upload
from daemon.engine.cuda.attention import CudaAttention, DeviceSingles
from daemon.engine.cuda.triton import DecodeRows, prepare_decode
from daemon.engine.families import GRAPHS, Fallen, unheard
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.forward import Alone, Forward
from daemon.engine.sampler.rules import DrawRules

log = logging.getLogger(__name__)

Work = Callable[[], None]
Capture = Callable[[Work], Work]
"""Captures work on the device: returns a function that repeats it on the same memory."""

MAX_ROWS = 512
"""Most rows of a graph: above, a step is long enough to hide its launches."""
TOLERANCE = 0.02
"""Largest distance of a replayed row from the launched one, relative to its length."""
_SPANS = (8192, 32_768)
"""Tokens of the longest row, where more are possible.

Attention splits the longest context that there may be over programs: thousands of them would only
find that their row is short.
"""


def padded_sizes(max_rows: int) -> list[int]:
    """Numbers of rows that are captured, up to `max_rows`; finer where a row more costs more."""
    sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 64, 16), *range(64, MAX_ROWS + 1, 32)]
    largest = min(max_rows, MAX_ROWS)
    return [*(size for size in sizes if size < largest), largest]


def padded_spans(max_tokens: int) -> list[int]:
    """Lengths of the longest row that are captured, up to `max_tokens`."""
    return [*(span for span in _SPANS if span < max_tokens), max_tokens]


def cuda_capture() -> Capture:
    """Capture into graphs that share their memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    # One of its own: torch deals streams out again and again, and other threads hold some.
    own = torch.cuda.Stream(priority=-1)

    def capture(work: Work) -> Work:
        # Once for real first: what is compiled or allocated at a first call may not be captured.
        work()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads go on with copies meanwhile, on streams of their own.
            with torch.cuda.graph(graph, pool=pool, stream=own, capture_error_mode="thread_local"):
                work()
        except RuntimeError:
            # torch stays on the stream that it captured, which no step's end is awaited on.
            torch.cuda.set_stream(stream)
            raise
        return graph.replay

    return capture


class DecodeGraphs:
    """One graph for each padded number of rows and length, captured when it is first wanted."""

    def __init__(
        self,
        forward: Forward,
        cache: PagedKV,
        slots: Slots,
        capture: Capture,
        fallen: Fallen = unheard,
    ) -> None:
        """`fallen` is called where no graph is captured or used any more."""
        self._forward, self._cache, self._slots = forward, cache, slots
        self._capture, self._fallen = capture, fallen
        self._outputs = Outputs()
        num_slots, num_blocks = slots.block_table.shape
        self._sizes = padded_sizes(num_slots)
        self._spans = padded_spans(num_blocks * cache.block_size)
        self._rows = DecodeRows.empty(self._sizes[-1], slots.device_table)
        self._steps: dict[_Padded, _Step] = {}
        self._refused: set[_Padded] = set()  # launched kernel by kernel

    def takes(self, batch: FlatBatch) -> bool:
        """Whether a batch is sequences at one token each, all sampled; captures what it needs."""
        rows = len(batch.counts)
        if not 0 < rows == len(batch.tokens) == len(batch.sampled_tokens) <= self._sizes[-1]:
            return False
        return self._step(self._padded(batch)) is not None

    def logits(self, batch: FlatBatch) -> torch.Tensor:
        """Logits [T, vocab] of a batch that it takes."""
        self._feed(batch)
        step = self._steps[self._padded(batch)]
        step.feed(batch)
        if step.compared:
            step.again()
        else:
            self._compare(step, len(batch.tokens))
        return self._forward.head(self._outputs.first(len(batch.tokens)))

    def repeated(self, batch: FlatBatch, rules: DrawRules) -> None:
        """A graph is launched again for each step."""

    def alone(self, _batch: FlatBatch) -> Alone:
        """None: a graph is one whole."""
        return {}

    def prepare(self) -> bool:
        """Capture the largest size of short rows that is missing; False where none is.

        In their shared memory a small step finds room where a larger one was, not the reverse.
        """
        sizes = (_Padded(size, self._spans[0]) for size in reversed(self._sizes))
        missing = next((padded for padded in sizes if self._missing(padded)), None)
        if missing is not None:
            self._step(missing)
        return missing is not None

    def _missing(self, padded: "_Padded") -> bool:
        return padded not in self._steps and padded not in self._refused

    def _padded(self, batch: FlatBatch) -> "_Padded":
        """The smallest padded sizes that hold a batch."""
        size = self._sizes[bisect_left(self._sizes, len(batch.tokens))]
        longest = int(batch.starts.max()) + 1
        return _Padded(size, self._spans[bisect_left(self._spans, longest)])

    def _step(self, padded: "_Padded") -> "_Step | None":
        """The step of a padded batch; None where there is no memory for it, or no capturing."""
        if self._missing(padded):
            rows = self._rows.first(padded.size, -(-padded.span // self._cache.block_size))
            step = _Step(rows, self._forward, self._cache, self._slots)
            try:
                step.capture(self._capture, self._outputs, self._sizes[-1])
            except torch.OutOfMemoryError as error:
                log.warning("no CUDA graph of %d rows: %s", padded.size, error)
                self._refused.add(padded)
            except RuntimeError as error:
                self._end(f"a step cannot be captured: {in_a_line(error)}")
            else:
                self._steps[padded] = step
        return self._steps.get(padded)

    def _compare(self, step: "_Step", rows: int) -> None:
        """Compute a step launched and replayed; leave the outputs of the replay if it is right.

        Twice is as good as once: a step writes the same keys and values to the same places.
        """
        launched = step.launched()
        step.again()
        if _distance(self._outputs.first(rows), launched[:rows]) > TOLERANCE:
            again = step.launched()
            self._outputs.put(again, self._sizes[-1])
            # What does not repeat itself cannot be compared.
            if _distance(again[:rows], launched[:rows]) <= TOLERANCE:
                self._end("a captured step replays something else than was captured")
        step.compared = True

    def _end(self, why: str) -> None:
        """From now on every step is launched kernel by kernel."""
        log.warning("no more CUDA graphs, steps are launched kernel by kernel: %s", why)
        self._steps.clear()
        self._refused.update(_Padded(*size) for size in product(self._sizes, self._spans))
        self._fallen(GRAPHS, why)

    def _feed(self, batch: FlatBatch) -> None:
        """Tokens that the plan names become their slots' last ones, where the graph reads them."""
        if len(batch.own_tokens) == len(batch.tokens):
            return
        fed = np.setdiff1d(np.arange(len(batch.tokens)), batch.own_tokens)
        slots = batch.slots[fed].astype(np.int64)
        self._slots.take(slots, upload(batch.tokens[fed], self._cache.blocks.device))


class _Padded(NamedTuple):
    """The sizes of a captured step."""

    size: int  # rows
    span: int  # tokens of its longest row, at most


class Outputs:
    """Outputs of the graphs: [largest size, width], made when the first of them computes."""

    def __init__(self) -> None:
        self._states = torch.empty(0)

    def put(self, states: torch.Tensor, largest: int) -> None:
        """Take `states` [rows, width] of a step."""
        if not len(self._states):
            self._states = states.new_empty(largest, states.shape[1])
        self._states[: len(states)].copy_(states)

    def first(self, rows: int) -> torch.Tensor:
        """The outputs of a step's first rows."""
        return self._states[:rows]


class _Step:
    """A decode step of a padded size; its inputs are its own, all other memory is shared."""

    def __init__(self, rows: DecodeRows, forward: Forward, cache: PagedKV, slots: Slots) -> None:
        self._forward, self._cache, self._slots = forward, cache, slots
        self._rows = rows
        self._size = size = len(rows.tokens)
        # Row 0: the slots; row 1: the tokens that each has in the cache, -1 for padding.
        padding = np.stack((np.zeros(size, np.int64), np.full(size, -1, np.int64)))
        self._inputs = upload(padding, cache.blocks.device)
        self.again: Work = _nothing
        """Compute the fed step."""
        self.compared = False

    def capture(self, capture: Capture, outputs: Outputs, largest: int) -> None:
        """Compute padding alone, and capture it."""
        self.again = capture(lambda: outputs.put(self._compute(), largest))

    def feed(self, batch: FlatBatch) -> None:
        """Compute a batch of at most `size` rows, and padding, from now on."""
        inputs = np.zeros((2, self._size), np.int64)
        inputs[1] = -1
        inputs[0, : len(batch.slots)] = batch.slots
        inputs[1, : len(batch.slots)] = batch.starts
        self._inputs.copy_(upload(inputs, self._inputs.device))

    def launched(self) -> torch.Tensor:
        """The fed step computed kernel by kernel: states [size, width] of their own."""
        return self._compute()

    def _compute(self) -> torch.Tensor:
        rows, slots = self._rows, self._slots
        block_size = self._cache.block_size
        prepare_decode(self._inputs, slots.last_token, slots.device_table, block_size, rows)
        singles = DeviceSingles(None, rows.tables, rows.lens)
        paged = CudaAttention(self._cache, rows.blocks, rows.offsets, singles)
        return self._forward.normed(rows.tokens, rows.positions, paged)


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance of a row from the expected one, over that one's length.

    Numbers that are NaN in both are alike.
    """
    lost = found.isnan() & expected.isnan()
    if bool(((found == expected) | lost).all()):
        return 0.0
    found, expected = found.masked_fill(lost, 0.0), expected.masked_fill(lost, 0.0)
    lengths = expected.float().norm(dim=-1).clamp_(min=1e-12)
    away = (found.float() - expected.float()).norm(dim=-1) / lengths
    return float(away.nan_to_num(torch.inf).max())


def _nothing() -> None:
    """Do nothing: used before anything is captured."""
