"""Drafts of simulated answers: a journal's, and stated ones."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.answer_blocks import NO_BLOCKS, AnswerBlocks
from daemon.lab.simulator.drafts import QuotedDrafts, RecordedDrafts, stated
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioError
from tests.lab.simulator.made import phases, prepared, profile, workload


def test_a_journals_drafts_hold_wherever_they_are_tried() -> None:
    drafts = RecordedDrafts()
    drafts.offered(7, 40, 6)
    drafts.tried(7, 40, 6, 4)
    assert [drafts.offer(7, length) for length in (39, 40, 42, 44, 45)] == [0, 6, 4, 2, 0]
    assert [drafts.accepted(7, 40, count) for count in (2, 6, 9)] == [2, 4, 4]
    assert [drafts.accepted(7, length, 6) for length in (42, 44)] == [2, 0]
    renamed = drafts.of({7: 128})
    assert renamed.accepted(128, 40, 6) == 4 and renamed.offer(7, 40) == 0


def test_untried_drafts_are_accepted_as_often_as_tried_ones() -> None:
    drafts = RecordedDrafts()
    for sequence in range(10):
        drafts.tried(sequence, 20, 1, sequence % 2)
    accepted = [drafts.accepted(99, length, 1) for length in range(1000)]
    assert 400 < sum(accepted) < 600
    assert accepted == [drafts.accepted(99, length, 1) for length in range(1000)]


def test_stated_drafts_have_the_share_and_the_length_that_is_stated() -> None:
    drafts, num = QuotedDrafts(0.3, 20.0, seed=1), 200_000
    quotes = {drafts._quote(0, length) for length in range(1, num)}
    lengths = np.array([end - begin for begin, end in quotes if end])
    assert lengths.mean() == pytest.approx(20.0, rel=0.05)
    assert lengths.sum() / num == pytest.approx(0.3, rel=0.05)
    begin, end = max(quotes, key=lambda quote: quote[1] - quote[0])
    assert [drafts.offer(0, begin + known) for known in (1, 2, 3, 8, 9)] == [0, 2, 4, 14, 14]
    assert drafts.accepted(0, end - 3, 14) == 3 and drafts.accepted(0, end, 14) == 0


@pytest.mark.parametrize("text", ["0.3", "1:20", "0:20", "0.3:0.5", "x:y", "0.3:20:1", "0.3:inf"])
def test_what_states_no_drafts_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="drafts must be SHARE:LENGTH"):
        stated(text, 0)


def test_stated_drafts_shorten_answers_of_a_cpu() -> None:
    requests = workload([0.0, 0.1], [40, 30], [300, 200])
    plan = prepared([profile(phases((0.02, 1e-4, 0.0), (0.02, 1e-4, 0.0)))], requests)

    def ran(drafts: str) -> tuple[RunLog, Core]:
        seen: list[Core] = []
        scenario = msgspec.structs.replace(plan.scenario, drafts=drafts)
        after = Options(after_event=lambda core: seen.__setitem__(slice(None), [core]))
        return run(replace(plan, scenario=scenario), after), seen[0]

    (plain, core), (quoting, drafting) = ran(""), ran("0.5:40")
    assert not core.counters.draft_tokens
    counters = drafting.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens
    assert counters.output_tokens == 500
    saved = plain.instances[0].steps - quoting.instances[0].steps
    assert 0 < saved <= counters.accepted_tokens
    assert (quoting.requests.last_s < plain.requests.last_s).all()


def test_blocks_of_answers_are_told_with_the_next_answer() -> None:
    blocks = AnswerBlocks({(1, 0): b"a" * 16, (2, 0): b"b" * 16, (1, 1): b"c" * 16}, 4)
    blocks.started(1, 3)
    blocks.started(2, 3)
    blocks.delivered([1, 2, 1])
    blocks.hash({1: None})  # the other has ended
    assert (blocks.newest.sequences.tolist(), blocks.newest.at.tolist()) == ([1], [0])
    assert blocks.newest.hashes == b"a" * 16
    blocks.hash({1: None})
    assert blocks.newest is NO_BLOCKS
    blocks.delivered([1, 1, 1])
    blocks.hash({1: None})
    assert blocks.newest.at.tolist() == [1]
