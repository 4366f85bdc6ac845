"""The buffers of a decoder's programs, which name them."""

import numpy as np
import torch

from daemon.engine.batch.multi_step import MOST_TIMES
from daemon.engine.cpu.calls import Contexts, Places, SampleColumns
from daemon.engine.cpu.mixtures import mixture_buffers
from daemon.engine.cpu.quantised import StateBuffers
from daemon.engine.cpu.recurrent_calls import StateRows
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.state_places import StatePlaces
from daemon.engine.layers.decoder import Decoder
from daemon.engine.sampler.rules import DrawRules
from daemon.engine.sampler.sample_columns import EDIT_COLUMNS, RULE_COLUMNS

MAX_TOKENS = 128
"""Most tokens for which a program beats torch's products."""

MAX_SAMPLED = 32
"""Most tokens that are sampled: their logits stay in memory."""


class StepBuffers:
    """Buffers of a decoder's programs: each has the first rows of the same buffers.

    Rows that no program used yet take no memory.
    """

    def __init__(self, decoder: Decoder, cache: PagedKV, num_cells: int) -> None:
        """`num_cells`: of a row of the block table, which has a part for each group of layers, and
        one for states.
        """
        num_groups = max(1, cache.num_groups)  # without keys and values one that is never read
        self.tokens, self.sampled = torch.zeros(2, MAX_TOKENS, dtype=torch.int32)
        self.offsets, self.lens = np.zeros((2, MAX_TOKENS), np.int32)
        self.rows = np.arange(MAX_TOKENS, dtype=np.int32)
        self.blocks = np.zeros((num_groups, MAX_TOKENS), np.int32)
        width = cache.row_blocks(num_cells) if cache.num_groups else 1
        self.tables = np.zeros((num_groups, MAX_TOKENS, width), np.int32)
        self.state_rows = (
            StateRows(cache, MAX_TOKENS, StatePlaces.of(cache)) if cache.state_pages else None
        )
        begin = torch.zeros(MAX_TOKENS, dtype=torch.int64)
        self.angles = [rotary.angles(begin) for rotary in decoder.rotary]
        self.places = [Places.of(blocks, self.offsets) for blocks in self.blocks]
        self.products = StateBuffers(MAX_TOKENS)
        self.mixtures = mixture_buffers([layer.mlp for layer in decoder.layers], MAX_TOKENS)
        self.draws = np.zeros((2, MOST_TIMES, MAX_SAMPLED), np.int32)  # tokens, and broken rows
        self.rules = np.zeros((MAX_SAMPLED, RULE_COLUMNS))
        self.keys = np.zeros((MOST_TIMES, MAX_SAMPLED), np.uint64)
        self.edits = np.zeros((MAX_SAMPLED, EDIT_COLUMNS), np.int64)
        self._floats: dict[tuple[str, int], torch.Tensor] = {}

    def contexts(self, count: int) -> list[Contexts]:
        """The contexts of `count` rows in each group of layers."""
        return [Contexts.of(tables, self.rows, self.lens, count) for tables in self.tables]

    def fill(self, rules: DrawRules) -> None:
        """Fill in how the rows of a step sample."""
        count = len(rules.rules)
        self.rules[:count], self.edits[:count] = rules.rules, rules.edits
        self.keys[: rules.times, :count] = rules.keys
        self.draws[1, : rules.times, :count] = 1  # until it is sampled

    def drawing(self, time: int) -> SampleColumns:
        """How rows sample in the `time`-th step."""
        drawn, broken = self.draws[:, time]
        columns = drawn, broken, self.tokens.numpy(), self.edits
        return SampleColumns(self.rules, self.keys[time], *columns)

    def floats(self, name: str, count: int, width: int) -> torch.Tensor:
        """A dense float32 [count, width], the same for every layer of this width: the nearest cache
        holds it.
        """
        if (name, width) not in self._floats:
            self._floats[name, width] = torch.empty(MAX_TOKENS, width)
        return self._floats[name, width][:count]
