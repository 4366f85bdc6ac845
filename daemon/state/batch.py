"""One step of one instance, as columns: the work that a worker is to compute.

A step is just `{sequence: num_tokens}`: prefill, chunk, recompute and decode are one idea.
"""

import msgspec
import numpy as np

from daemon.wire.columns import Column, int32

_NONE = msgspec.field(default_factory=int32)

MOST_BESIDE_DRAFTS = 32
"""Most tokens of a step that has drafts, these among them. Beyond that step times differ from the
measured ones (a CPU's programs end there), and looking for drafts takes time for each row."""


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The plan of one step: B rows, in order; changes to the block table come first.

    The worker applies, in this order: `left`, `joined`, the table changes, the copies, the step.
    A slot is a row of the worker's own table and stays with a sequence from joining to leaving.

    Swap copies run beside the step: blocks go out as the steps before this one left them, and
    come in for steps that name this plan, or a later one, as the plan they await. A plan may have
    swap copies and no rows.
    """

    instance: int
    step: int
    slots: Column  # int32 [B]
    starts: Column  # int32 [B]: tokens already in the KV cache = position of the first one computed
    counts: Column  # int32 [B]: tokens computed in this step
    samples: Column  # uint8 [B]: 1 where the last computed token's logits are sampled
    fed: Column  # uint8 [B]: 1 where tokens are named; 0 where the worker uses its own last token
    table_slots: Column = _NONE  # int32 [K]: block table changes (slot, index in its row, block)
    table_indices: Column = _NONE  # int32 [K]
    table_blocks: Column = _NONE  # int32 [K]
    copy_sources: Column = _NONE  # int32 [C]: blocks copied before the step (copy-on-write)
    copy_targets: Column = _NONE  # int32 [C]
    left_slots: Column = _NONE  # int32 [L]: slots whose sequence left since the last plan
    joined_slots: Column = _NONE  # int32 [J]: slots taken since the last plan
    joined_sequences: Column = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))  # [J]
    out_blocks: Column = _NONE  # int32 [O]: device blocks ...
    out_places: Column = _NONE  # ... copied to host blocks
    in_places: Column = _NONE  # int32 [I]: host blocks ...
    in_blocks: Column = _NONE  # ... copied to device blocks
    awaits: int = 0  # the plan up to which swap copies must be done before the step; 0: none
    drafts: Column = _NONE  # int32 [B]: drafted tokens behind a row's own, if any has drafts
    times: int = (
        1  # steps in one plan: each a token further, with what the last sampled; decodes alone
    )

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step, drafts included."""
        return self.times * (int(self.counts.sum()) + int(self.drafts.sum()))
