"""The work of a step, in the few numbers that its time depends on (Vidur section 4.3)."""

import msgspec
import numpy as np

from daemon.state.batch import Batch
from daemon.wire.columns import ONE, all_true


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """One step: decodes are rows of one token, each draft is one, and chunks are rows of more."""

    num_decodes: int
    decode_context: int  # tokens that all decodes together attend to, their own included
    chunks: tuple[tuple[int, int], ...] = ()  # (tokens of the chunk, tokens before it)
    num_samples: int = 0  # rows whose logits are sampled
    times: int = 1  # steps in one, each a token further; the numbers above are of the first

    @property
    def num_tokens(self) -> int:
        """Tokens that the linear layers see."""
        if not self.chunks:
            return self.num_decodes * self.times
        return self.num_decodes + sum([count for count, _ in self.chunks])

    @property
    def once(self) -> "StepWork":
        """The mean work of each of its `times`."""
        if self.times == 1:
            return self
        context = self.decode_context + self.num_decodes * (self.times - 1) // 2
        return StepWork(self.num_decodes, context, self.chunks, self.num_samples)

    def prompts(self) -> tuple[int, int]:
        """(tokens, pairs) of all chunks; a chunk of n after s others has (s+n)^2 - s^2 pairs."""
        tokens = pairs = 0
        for count, before in self.chunks:
            tokens += count
            pairs += count * (count + 2 * before)
        return tokens, pairs


NO_WORK = StepWork(0, 0)


def work_of(batch: Batch) -> StepWork:
    """The work of a planned step."""
    counts, starts = batch.counts, batch.starts
    samples = batch.samples
    num_samples = samples.size if all_true(samples) else int(np.count_nonzero(samples))
    attended = int(np.add.reduce(starts))
    num_drafts = 0
    if batch.drafts.size:
        drafts = batch.drafts.astype(np.int64)
        num_drafts = int(drafts.sum())
        num_samples += num_drafts
        attended += int((drafts * (starts + ONE) + drafts * (drafts - 1) // 2).sum())
    (longer,) = (counts > ONE).nonzero()
    if not longer.size:
        num_decodes = counts.size + num_drafts
        return StepWork(num_decodes, attended + num_decodes, (), num_samples)
    before = starts[longer].tolist()
    chunks = tuple(zip(counts[longer].tolist(), before, strict=True))
    num_decodes = counts.size - len(chunks) + num_drafts
    context = attended - sum(before) + num_decodes
    return StepWork(num_decodes, context, chunks, num_samples)
