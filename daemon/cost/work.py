"""The work of a step, in the few numbers that its time depends on (Vidur section 4.3)."""

import msgspec
import numpy as np

from daemon.state.batch import Batch
from daemon.wire.columns import ONE


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """One step: decodes are rows of one token, each draft is one, and chunks are rows of more."""

    num_decodes: int
    decode_context: int  # tokens that all decodes together attend to, their own included; in a
    # profile of layers with windows in the mean of these (`within_windows`)
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
    num_samples, attended = int(np.count_nonzero(batch.samples)), int(np.add.reduce(batch.starts))
    return work_of_rows(batch, batch.slots.size, num_samples, attended)


def within_windows(work: StepWork, batch: Batch, windows: tuple[int, ...]) -> StepWork:
    """The work of a planned step of a model whose groups of layers have these windows (0: all
    tokens). Its decodes attend to as many tokens as in the mean of the groups, of a sequence longer
    than a window to those in it alone. Chunks stay: their times are measured by what is before.
    """
    if not any(windows) or not work.num_decodes:
        return work
    decodes = batch.counts == ONE
    drafts = batch.drafts[decodes] if batch.drafts.size else np.zeros(1, np.int32)
    contexts = batch.starts[decodes] + 1.0 + drafts / 2.0
    context = sum(
        ((1 + drafts) * np.minimum(contexts, window or np.inf)).sum() for window in windows
    )
    return msgspec.structs.replace(work, decode_context=round(context / len(windows)))


def work_of_rows(batch: Batch, num_prompts: int, num_samples: int, attended: int) -> StepWork:
    """The same, of which more is known: only the last `num_prompts` rows may have more tokens than
    one, and all rows have `attended` tokens before those that are computed.
    """
    num_drafts = 0
    if batch.drafts.size:
        drafts, starts = batch.drafts.astype(np.int64), batch.starts
        num_drafts = int(drafts.sum())
        num_samples += num_drafts
        attended += int((drafts * (starts + ONE) + drafts * (drafts - 1) // 2).sum())
    num_decodes = batch.slots.size + num_drafts
    if not num_prompts:
        return StepWork(num_decodes, attended + num_decodes, (), num_samples)
    rows = zip(
        batch.counts[-num_prompts:].tolist(), batch.starts[-num_prompts:].tolist(), strict=True
    )
    chunks = tuple([chunk for chunk in rows if chunk[0] > 1])
    num_decodes -= len(chunks)
    context = attended - sum([before for _, before in chunks]) + num_decodes
    return StepWork(num_decodes, context, chunks, num_samples)
