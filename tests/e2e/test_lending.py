"""Texts stay the same where memory is lent and answers are longer than predicted.

The embedded model computes; the predictor `mean` errs by what it remembers. Every text
is compared with that of the same request alone.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from daemon.journal.records import FILE_NAME
from tests.e2e.exact import Case, ask_all, text_of
from tests.e2e.live import LiveDaemon
from tests.e2e.loans import loans_of
from tests.e2e.memories import remember
from tests.e2e.prompts import LENGTHS, LICENCE, licence_ids
from tests.e2e.reference import Answer
from tests.hangs import HANG_S

MODEL = "SmolLM2-135M-Instruct"
BLOCKS = ["--set", "memory.block_size=8", "--set", "scheduler.prefix_cache=false"]


class Prompts:
    """Stretches of the licence as a daemon's tokenizer has them."""

    def __init__(self, daemon: LiveDaemon) -> None:
        tokenizer = Tokenizer.from_file(str(Path(daemon.model()["root"]) / "tokenizer.json"))
        text = tokenizer.encode(LICENCE.read_text(), add_special_tokens=False).ids
        self._stretches = dict(zip(LENGTHS, licence_ids(text), strict=True))

    def case(self, num_prompt_tokens: int, num_tokens: int) -> Case:
        """To be answered with so many tokens; nobody knows which."""
        return Case("", Answer(self._stretches[num_prompt_tokens], [0] * num_tokens, []))


async def until_decoding(daemon: LiveDaemon, count: int) -> None:
    """Wait until so many answers have begun and are not over."""
    async with asyncio.timeout(HANG_S):
        while True:
            seen = await asyncio.to_thread(daemon.snapshot)
            if [one.state for one in seen.sequences].count("decode") >= count:
                return
            await asyncio.sleep(0.01)


async def one_after_another(daemon: LiveDaemon, asked: Sequence[Case]) -> list[str]:
    """Texts of answers, each of which begins when those before it have."""
    answers: list[asyncio.Task[list[dict[str, Any]]]] = []
    for number, case in enumerate(asked):
        await until_decoding(daemon, number)
        answers.append(asyncio.create_task(ask_all(daemon.url, MODEL, [case], at_once=1)))
    return [text_of(one) for answer in answers for one in await answer]


@pytest.mark.soak
async def test_a_borrower_that_is_late_leaves_for_its_lender_and_goes_on_with_the_same_text(
    tmp_path: Path,
) -> None:
    """The lender lends to a borrower what the short one leaves no room for. The borrower, four
    times as long as predicted, goes on in what the short one leaves, until its lender needs what it
    lent.
    """
    remember(tmp_path, MODEL, {17: 72, 33: 20, 10: 16})
    flags = ["--policy", "synced", "--predictor", "mean", "--kv-blocks", "22", *BLOCKS]
    with LiveDaemon(*flags, folder=tmp_path) as daemon:
        prompts = Prompts(daemon)
        asked = [prompts.case(17, 80), prompts.case(33, 20), prompts.case(10, 64)]
        alone = await ask_all(daemon.url, MODEL, asked, at_once=1)
        assert daemon.idle_snapshot().counters.preemptions == 0
        assert await one_after_another(daemon, asked) == [text_of(one) for one in alone]
        seen = daemon.idle_snapshot()
    assert not seen.instances[0].kv_used
    loans = loans_of(tmp_path / "journal" / FILE_NAME)
    assert loans.made and loans.left_again, loans
    assert loans.grown, "lenders and borrowers were predicted anew"
