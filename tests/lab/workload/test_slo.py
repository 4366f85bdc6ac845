"""Service classes: their text, and how they are dealt out."""

import numpy as np
import pytest

from daemon.lab.workload.slo import assign_classes, parse_class
from daemon.lab.workload.workload import SloClass, WorkloadError


def test_a_class_reads_as_it_is_written() -> None:
    text = "chat:0.8:ttft=1:tpot=0.05:gap=2:normalized-latency=0.2:priority=-2:scale=3"
    assert parse_class(text) == SloClass("chat", 0.8, 1.0, 0.05, 2.0, 0.2, -2, 3.0)
    assert parse_class("batch:0.2") == SloClass("batch", 0.2)
    assert parse_class("all:ttft=0.5") == SloClass("all", 1.0, ttft_s=0.5)
    assert parse_class("all") == SloClass()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chat:much", "'much' is not a number"),
        ("chat:1:0.5", "'0.5' is none of ttft="),
        ("chat:1:jct=3", "'jct=3' is none of"),
        ("chat:ttft=1:ttft=2", "ttft is given twice"),
        ("chat:ttft=inf", "not finite"),
        ("chat:priority=1.5", "whole number"),
    ],
)
def test_faults_show_the_text(text: str, words: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_class(text)
    assert words in str(caught.value) and text in str(caught.value)


def test_classes_come_by_their_shares() -> None:
    classes = tuple(SloClass(name, share) for name, share in (("a", 0.7), ("b", 0.2), ("c", 0.1)))
    drawn = assign_classes(classes, 50_000, np.random.default_rng(3))
    assert drawn.dtype == np.uint8
    assert np.bincount(drawn) / 50_000 == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert np.array_equal(drawn, assign_classes(classes, 50_000, np.random.default_rng(3)))


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ((), "give 1 to"),
        ((SloClass("a", 0.5), SloClass("b", 0.4)), "add up to 0.9"),
        ((SloClass("a", 0.5), SloClass("a", 0.5)), "name of its own"),
        ((SloClass(""),), "name of its own"),
        ((SloClass("a", 0.0), SloClass("b", 1.0)), "share must be"),
        ((SloClass("a", ttft_s=-1.0),), "ttft_s must be"),
        ((SloClass("a", tpot_s=float("nan")),), "tpot_s must be"),
        ((SloClass("a", gap_s=-1.0),), "gap_s must be"),
        ((SloClass("a", scale=-1.0),), "scale must be"),
    ],
)
def test_classes_that_cannot_be_are_refused(classes: tuple[SloClass, ...], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        assign_classes(classes, 3, np.random.default_rng(0))
