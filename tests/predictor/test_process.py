"""The real process over its socket: what it predicts, learns, keeps, and survives."""

import json
import os
import signal
from pathlib import Path

import pytest

from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.store_file import from_bytes
from daemon.protocol.predictor import Ask, Ended
from tests.predictor.child import Child


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "predict" / "tiny.lengths"


def num_rows(store: Path) -> int:
    kept, fault = from_bytes(store.read_bytes())
    assert not fault
    return len(kept)


def test_it_predicts_in_order_and_learns_from_what_ended(store: Path) -> None:
    with Child(store) as child:
        for request in range(3):
            child.send(Ask(request, "What is an owl?", 9, 1000))
        first = [child.receive() for _ in range(3)]
        assert [one.request for one in first] == [0, 1, 2]
        assert {one.num_tokens for one in first} == {ConditionalMean.FIRST}
        assert all(one.high_tokens >= one.num_tokens and one.took_s > 0.0 for one in first)
        for request in range(3):
            child.send(Ended(request, 40))
        assert child.ask(3, "What is a heron?").num_tokens == 40
    assert not child.said


def test_what_was_cut_short_or_never_asked_teaches_nothing(store: Path) -> None:
    with Child(store) as child:
        child.teach(0, "one", 0)
        child.send(Ended(77, 5))
        assert child.ask(1, "two").num_tokens == ConditionalMean.FIRST
    assert not store.exists(), "nothing was learned, so nothing is written"


@pytest.mark.parametrize("kind", ["mean", "features"])
def test_a_successor_knows_what_its_predecessor_learned(store: Path, kind: str) -> None:
    with Child(store, kind) as child:
        for request in range(20):
            child.teach(request, "A question?", 70)
    assert num_rows(store) == 20
    assert store.stat().st_mode & 0o777 == 0o600
    with Child(store, kind) as child:
        assert child.ask(0, "A question?").num_tokens == 70


def test_features_tell_questions_apart_whose_prompts_are_of_one_length(store: Path) -> None:
    brief, long = "Answer in one word: is it wet?", "Write a long story about the sea."
    with Child(store, "features") as child:
        for request in range(0, 160, 2):
            child.teach(request, brief, 4)
            child.teach(request + 1, long, 600)
        assert child.ask(900, brief).num_tokens < 30
        assert child.ask(901, long).num_tokens > 200


def test_a_damaged_store_is_set_aside_and_begun_anew(store: Path) -> None:
    with Child(store) as child:
        child.teach(0, "one", 70)
    whole = store.read_bytes()
    store.write_bytes(whole[:-9])
    with Child(store) as child:
        assert child.ask(0, "one").num_tokens == ConditionalMean.FIRST
        child.send(Ended(0, 5))
    assert "tiny.lengths.corrupt" in child.said and "damaged" in child.said
    aside = store.with_name("tiny.lengths.corrupt")
    assert aside.read_bytes() == whole[:-9]
    assert num_rows(store) == 1


def test_sigterm_ends_it_as_hanging_up_does(store: Path) -> None:
    child = Child(store)
    child.teach(0, "one", 70)
    child.ask(1, "two")  # the ending before it has been taken
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 0 and not child.said
    assert num_rows(store) == 1
    child.hang_up()


def test_a_store_that_cannot_be_read_or_written_costs_no_prediction(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Child(tmp_path / "file" / "tiny.lengths") as child:
        child.teach(0, "one", 70)
        assert child.ask(1, "one").num_tokens == 70
    assert "nothing is saved" in child.said and "Traceback" not in child.said


def test_prompts_are_on_disk_only_if_the_configuration_says_so(store: Path) -> None:
    secret = "The password is xyzzy."
    with Child(store, "features") as child:
        child.teach(0, secret, 7)
    assert [path.name for path in store.parent.iterdir()] == [store.name]
    assert b"xyzzy" not in store.read_bytes()
    with Child(store, "features", keep_text=True) as child:
        child.teach(0, secret, 7)
        child.teach(1, "never ended", 0)
    (texts,) = set(store.parent.iterdir()) - {store}
    (record,) = map(json.loads, texts.read_text(encoding="utf-8").splitlines())
    assert (record["prompt"], record["num_output_tokens"]) == (secret, 7)
    assert texts.stat().st_mode & 0o777 == 0o600


def test_without_leave_no_prompts_stay_on_disk(store: Path) -> None:
    with Child(store, keep_text=True) as child:
        child.teach(0, "The password is xyzzy.", 7)
    (texts,) = set(store.parent.iterdir()) - {store}
    texts.with_name(f"{texts.name}.1").write_text("an older one")
    with Child(store) as child:
        child.ask(0, "one")
    assert list(store.parent.iterdir()) == [store]


def test_an_answer_as_long_as_its_limit_was_cut(store: Path) -> None:
    with Child(store) as child:
        for request in range(20):
            child.send(Ask(request, "one", 9, 16))
            assert child.receive().num_tokens == 16
            child.send(Ended(request, 16))
        assert child.ask(90, "one").num_tokens == ConditionalMean.FIRST


def test_the_store_is_bounded(store: Path) -> None:
    with Child(store, store_size=5) as child:
        for request in range(12):
            child.teach(request, "one", 70)
    assert num_rows(store) == 5


def test_noisy_is_the_limit_with_an_error(store: Path) -> None:
    with Child(store, kind="noisy:0.5") as child:
        said = []
        for number in range(40):
            child.send(Ask(number, "x", 5, 200))
            said.append(child.receive().num_tokens)
    assert len(set(said)) > 10
    assert 100 < sorted(said)[20] < 400
    with Child(store, kind="noisy:0") as child:
        child.send(Ask(1, "x", 5, 200))
        assert child.receive().num_tokens == 200


def test_it_is_polite(store: Path) -> None:
    with Child(store) as child:
        child.ask(0, "one")
        least = 19  # of all processes; these tests may be nice themselves
        assert os.getpriority(os.PRIO_PROCESS, child.process.pid) == min(
            least, os.getpriority(os.PRIO_PROCESS, 0) + 10
        )
        threads = list(Path(f"/proc/{child.process.pid}/task").iterdir())
        assert len(threads) == 2, "its own, and the log's"
        maps = Path(f"/proc/{child.process.pid}/maps").read_text()
        assert "libtorch" not in maps, "nothing is loaded that this kind does not need"


def test_any_text_is_taken(store: Path) -> None:
    texts = ["", "\0", "é" * 8000, "line\n" * 1000, "\U0001f989", "a" * 8000]
    with Child(store, "features") as child:
        assert all(child.ask(request, text).num_tokens for request, text in enumerate(texts))
