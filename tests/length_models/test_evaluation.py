"""The benchmark of predictors: it asks before it tells, and its figures are the textbook's."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.answers import Answers, load, prompt_hash, save
from benchmarks.make_answers import Row, answered_before, collected, described
from benchmarks.predictors import (
    KINDS,
    NUM_FOLDS,
    PredictedAnswers,
    folds,
    predicted,
    predicted_unseen,
    rank_correlation,
    score,
    splits,
    table,
)
from benchmarks.prompt_texts import KINDS as PROMPT_KINDS
from benchmarks.prompt_texts import generated
from benchmarks.studies.predictor_gain import BASELINE, Bench, Told
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.prediction import Asked, Prediction
from daemon.length_models.store_file import packed
from tests.length_models.made import stream


@pytest.fixture
def answers() -> Answers:
    """200 requests, one a second, each answered in two and a half; a source is a topic."""
    made = stream(200)
    asked = [one for one, _ in made]
    times_s = np.arange(200, dtype=np.float64)
    return Answers(
        prompt_hash=np.zeros((200, 8), np.uint8),
        prompt_tokens=np.array([one.num_prompt_tokens for one in asked], np.int32),
        output_tokens=np.array([length for _, length in made], np.int32),
        max_tokens=np.full(200, 4096, np.int32),
        asked_s=times_s,
        ended_s=times_s + 2.5,
        features=np.stack([one.features for one in asked if one.features is not None]),
        vectors=packed(np.stack([one.vector for one in asked if one.vector is not None])),
        source=np.array([f"topic {np.argmax(one.features)}" for one in asked]),
        model=np.array("nobody"),
        features_s=np.array(1e-5),
        encode_s=np.array(1e-3),
    )


def test_every_predictor_is_measured(answers: Answers) -> None:
    late = np.arange(200) >= 140
    scores = {kind: score(answers, kind, predicted(answers, kind), late) for kind in KINDS}
    assert scores["oracle"].mae_tokens == 0.0
    assert set(scores["oracle"].accuracy.values()) == {1.0}
    assert scores["oracle"].rank_correlation == pytest.approx(1.0)
    assert scores["adversary"].rank_correlation == pytest.approx(-1.0, abs=0.01)
    assert scores["retrieval"].mae_tokens < 0.5 * scores["mean"].mae_tokens
    assert scores["noisy:0.5"].relative_error == pytest.approx(0.45, abs=0.2)
    text = table(answers, "late", late, list(scores.values()))
    assert all(kind in text for kind in KINDS)


def test_a_source_stays_in_one_fold_and_is_asked_about_unseen(answers: Answers) -> None:
    fold_of = folds(answers)
    assert all(np.unique(fold_of[answers.source == one]).size == 1 for one in answers.source)
    assert np.unique(fold_of).size == NUM_FOLDS
    runs = {"seen": predicted(answers, "features"), "unseen": predicted_unseen(answers, "features")}
    said = {
        (name, topic): np.median(
            [run.said[row].middle for row in np.flatnonzero(answers.source == topic) if row > 140]
        )
        for name, run in runs.items()
        for topic in ("topic 0", "topic 3")
    }
    assert said["seen", "topic 0"] < 40 < 400 < said["seen", "topic 3"]
    assert said["unseen", "topic 0"] > 40 and said["unseen", "topic 3"] < 400


def test_every_table_stands_with_and_without_cut_answers(answers: Answers) -> None:
    cut = dataclasses.replace(answers, max_tokens=np.where(np.arange(200) % 5, 4096, 1))
    found = splits(cut, ["mean", "oracle"])
    assert {title: int(rows.sum()) for title, (rows, _) in found.items()} == {
        "split by time": 60,
        "split by time, none cut": 48,
        "split by source": 200,
        "split by source, none cut": 160,
    }
    assert all(scores[1].mae_tokens == 0.0 for _, scores in found.values())
    alone = dataclasses.replace(cut, source=np.array(["one"] * 200))
    assert set(splits(alone, ["mean"])) == {"split by time", "split by time, none cut"}


def test_an_answer_is_learned_when_it_ended_and_not_before(answers: Answers) -> None:
    said = predicted(answers, "mean").said
    assert said[0] == said[1] == said[2], "the first answer ends at 2.5 s"
    assert said[3] != said[2]
    assert said[3].middle == answers.output_tokens[0]


def test_figures_are_those_reckoned_by_hand(answers: Answers) -> None:
    truth = answers.output_tokens[-2:]
    said = [Prediction(1, 1)] * 198 + [
        Prediction(int(truth[0]) + 6, 10_000),
        Prediction(10_000, 10_000),
    ]
    found = score(
        answers, "x", PredictedAnswers(said, np.ones(200), 1.0, 1.0), np.arange(200) >= 198
    )
    assert found.mae_tokens == pytest.approx((6 + 10_000 - truth[1]) / 2)
    assert found.relative_error == pytest.approx(
        (6 / truth[0] + (10_000 - truth[1]) / truth[1]) / 2
    )
    assert (found.below, found.above) == (1.0, 0.0)
    assert found.predict_s == 1.0


def test_the_baseline_of_the_gain_swaps_as_the_policies_do(answers: Answers) -> None:
    """Else what swapping gains would be told as what the order gains."""
    bench = Bench(answers, benched())
    reports = [bench.report(name, 0, float("inf"), "constant") for name in (BASELINE, "srtf")]
    assert all(report.swaps for report in reports), "both move blocks"


def test_predictors_of_the_gain_see_prompts_and_learn_as_answers_end(answers: Answers) -> None:
    bench = Bench(answers, benched(drift=2.0, cold=True))
    shown = bench.drawn(0)
    model = ConditionalMean()
    told = Told(model, "mean", shown)
    said = [told.predict(Asked(7)) for _ in shown]
    assert len({one.middle for one in said}) == 1, "nothing ended"
    told.observe(Asked(7, guess=said[3].guess), 9)
    (only,) = model._classes
    assert only == shown[3].num_prompt_tokens.bit_length()
    plain = Bench(answers, benched()).drawn(0)
    stretched = [one.truth / other.truth for one, other in zip(shown, plain, strict=True)]
    assert stretched == [1.0] * 30 + [2.0] * 30


def benched(drift: float = 1.0, cold: bool = False) -> argparse.Namespace:
    made: dict[str, object] = {"profile": "opt-13b@a100-80g", "kv_bytes": 1e9, "load": 0.9}
    return argparse.Namespace(requests=60, drift=drift, cold=cold, **made)


def test_rank_correlation_with_ties() -> None:
    a = np.array([1.0, 2.0, 2.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1.0)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    assert rank_correlation(a, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.9487, abs=1e-4)
    assert rank_correlation(a, np.ones(4)) == 0.0


def test_the_file_comes_back_as_it_was(answers: Answers, tmp_path: Path) -> None:
    save(answers, tmp_path / "sub" / "answers.npz")
    again = load(tmp_path / "sub" / "answers.npz")
    assert np.array_equal(again.vectors, answers.vectors)
    assert np.array_equal(again.source, answers.source)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["answers.npz"]


def test_prompts_are_made_by_seed_and_never_twice() -> None:
    some = list(generated(300, seed=5))
    assert some == list(generated(300, seed=5)) != list(generated(300, seed=6))
    assert len({text for _, text in some}) == 300
    assert {kind for kind, _ in some} == set(PROMPT_KINDS)


def test_prompts_come_from_files_of_every_form(tmp_path: Path) -> None:
    forms = {
        "a.json": '[{"instruction": "from json"}]',
        "b.jsonl": '{"prompt": "from jsonl"}\n\n',
        "c.csv": 'id,question\n1,"from, csv"\n',
        "d.txt": "from text\n\nfrom json\n",
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
    found = collected([tmp_path / name for name in forms], 0, seed=0)
    assert sorted(text for _, text in found) == [
        "from json",
        "from jsonl",
        "from text",
        "from, csv",
    ]
    (tmp_path / "e.csv").write_text("id\n1\n")
    with pytest.raises(SystemExit, match=r"e\.csv: a row has none of the columns"):
        collected([tmp_path / "e.csv"], 0, seed=0)


def test_the_data_set_keeps_no_text() -> None:
    rows = [Row("made", f"prompt {n}", 5 + n, 50 + n, float(n), n + 1.0) for n in range(3)]
    found = described("nobody", rows, 512, vectors=False)
    assert found.output_tokens.tolist() == [50, 51, 52]
    assert found.vectors.shape == (3, 0)
    assert np.array_equal(found.prompt_hash[1], prompt_hash("prompt 1"))
    assert found.asked()[0].vector is None
    assert not any(b"prompt" in getattr(found, name).tobytes() for name in ("source", "model"))


def test_answers_that_a_file_has_are_counted_in_tokens(tmp_path: Path) -> None:
    path = tmp_path / "said.json"
    path.write_text(
        '[{"instruction": "Name a colour.", "output": "Red.", "generator": "g", "dataset": "d"}]'
    )
    model, rows = answered_before(path, seed=0)
    assert model == "g"
    (row,) = rows
    assert (row.source, row.text, row.output_tokens) == ("d", "Name a colour.", 2)
    assert row.prompt_tokens == 4
