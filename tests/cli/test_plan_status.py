"""The self-driving plan in `llmd ctl status` and `llmd-top`: plan, prediction and truth."""

import msgspec

from daemon.cli.status import as_text
from daemon.protocol.plan import PlanStatus
from tests.cli import served
from tui.moves import plan_line

PLAN = PlanStatus(
    settings="sarathi",
    before="vllm",
    state="kept",
    measured_before=0.6,
    predicted=0.8,
    measured=0.79,
)
WORDS = "vllm -> sarathi: 60% before, 80% predicted, 79% measured, kept"


def test_plan_prediction_and_truth_are_shown() -> None:
    served.CHOSEN[:] = ["vllm"]
    driven = msgspec.structs.replace(served.snapshot(), plan=PLAN)
    assert f"plan {WORDS}" in as_text(driven).splitlines()
    assert plan_line(PLAN).plain == f"plan {WORDS}"
    assert "plan" not in as_text(served.snapshot())


def test_a_plan_without_truth_and_one_not_made_have_their_words() -> None:
    assert "not measured yet" in msgspec.structs.replace(PLAN, measured=-1.0).words
    assert PlanStatus(settings="vllm", note="too few").words == "vllm: too few"
    assert PlanStatus(note="the daemon is not ready").words == "the daemon is not ready"
