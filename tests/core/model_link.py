"""Blocks on their way between two model workers; what they bring is poison until they land."""

import numpy as np

from daemon.core.values.actions import Send
from tests.core.model_worker import POISON, ModelWorker

WRONG = -9


class Sending:
    """One transfer, and the ends that have not said that it is over."""

    def __init__(self, send: Send, source: ModelWorker, target: ModelWorker, link: int) -> None:
        assert link >= 0
        self.link = link
        assert len(send.blocks) == len(send.targets) > 0
        assert np.unique(send.targets).size == send.targets.size
        self.way = send.source, send.target
        self.ends = {send.source, send.target}
        self.blocks, self._targets = send.blocks, send.targets
        self._source, self._target = source, target
        size, num_last = source.block_size, send.num_groups
        last, rest = divmod(send.num_tokens - (len(send.blocks) - num_last) * size, num_last)
        assert 0 < last <= size and not rest
        fills = np.full(len(send.blocks), size)
        fills[-num_last:] = last
        self._written = np.arange(size) < fills[:, None]
        self._from_host = send.from_host
        if send.from_host:  # a worker waits for the copies that bring it there
            while source.copies:
                source.end_copies()
        if send.at_once:
            for step in source.pending:
                assert step.written.isdisjoint(send.blocks.tolist()), "sent before it is computed"
        self._content = self._read().copy()
        assert not np.isin(self._content, [POISON, WRONG, -1]).any(), "rubbish is sent"
        for block in send.targets.tolist():
            for step in target.pending:
                assert block not in step.named, "a block is written while a step names it"
        target.contents[send.targets] = POISON

    def _read(self) -> np.ndarray:
        pool = self._source.host if self._from_host else self._source.contents
        content: np.ndarray = pool[self.blocks][self._written]
        return content

    def check_source(self) -> None:
        """Check that the blocks read are those that were to be sent."""
        assert np.array_equal(self._read(), self._content), "written while it was sent"

    def land(self, num_right: int) -> int:
        """The blocks are there, the first `num_right` of them right; how many those are."""
        num_right = min(num_right, len(self.blocks))
        size = self._target.block_size
        whole = np.full((len(self.blocks), size), WRONG, np.int32)
        whole[self._written] = self._content
        whole[num_right:] = WRONG
        for row, block in zip(whole, self._targets.tolist(), strict=True):
            for step in self._target.pending:
                assert block not in step.named, "a block is written while a step names it"
            self._target.contents[block] = row
        return num_right
