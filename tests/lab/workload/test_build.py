"""Whole workloads: what is kept, when it comes, and what a seed decides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.lab.workload.build import build, names
from daemon.lab.workload.workload import SloClass, Workload, WorkloadError, WorkloadSpec, asked_rate
from tests.lab.workload.samples import AZURE, LENGTHS, MOONCAKE, written

PAIR = (SloClass("a", 0.5), SloClass("b", 0.5))


def _built(max_len: int = 2048, **spec: Any) -> Workload:
    return build(WorkloadSpec(**spec), max_len)


def _same_lengths(a: Workload, b: Workload) -> bool:
    return np.array_equal(a.prompt_tokens, b.prompt_tokens) and np.array_equal(
        a.output_tokens, b.output_tokens
    )


@pytest.mark.parametrize("name", [name for name, _ in names()])
def test_every_named_workload_builds(name: str) -> None:
    workload = _built(4096, name=name, requests=300, arrivals="poisson", rate=5.0)
    assert len(workload) == 300 == workload.slo_class.size
    assert workload.arrival_s[0] > 0 and (np.diff(workload.arrival_s) >= 0).all()
    total = workload.prompt_tokens + workload.output_tokens
    assert workload.prompt_tokens.min() >= 1 and workload.output_tokens.min() >= 1
    assert total.max() <= 4096
    assert name in workload.label and "poisson at 5 requests/s" in workload.label


def test_names_come_with_a_line_each() -> None:
    assert len({name for name, _ in names()}) == len(names()) >= 10
    assert all(0 < len(line) <= 100 and "\n" not in line for _, line in names())


def test_the_shipped_azure_trace_is_the_published_one() -> None:
    workload = _built(20_000, name="azure-conv")
    assert len(workload) == 19_366 and workload.num_dropped == 0
    assert workload.prompt_tokens.mean() == pytest.approx(1154.7, abs=0.1)
    assert workload.output_tokens.mean() == pytest.approx(211.1, abs=0.1)
    assert np.median(workload.prompt_tokens) == 1020  # Splitwise, section III-B
    assert np.median(workload.output_tokens) == 129
    assert workload.arrival_s[[0, -1]] == pytest.approx([0, 3501.721937])


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"arrivals": "poisson", "rate": 3.0}, 3.0),
        ({"arrivals": "closed", "rate": 3.0}, None),
        ({"rate": 3.0}, 3.0),
        ({"rate_scale": 2.0}, 8.0),
        ({}, 4.0),
    ],
)
def test_the_asked_rate_is_no_draws_own(
    tmp_path: Path, spec: dict[str, Any], asked: float | None
) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [f'{{"timestamp": {250 * n}, "input_length": 4, "output_length": 2}}' for n in range(9)]
    path.write_text("\n".join(rows) + "\n")
    whole = WorkloadSpec(trace=path, **spec)
    workload = build(whole, 2048)
    assert asked_rate(whole, workload) == asked
    if spec.get("arrivals") == "poisson":
        assert workload.rate != asked


def test_drops_come_before_the_first_n_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path, LENGTHS)
    workload = _built(trace=path, requests=2, rate=1.0)
    assert workload.prompt_tokens.tolist() == [18, 11] and workload.num_dropped == 1
    whole = _built(trace=path, rate=1.0)
    assert whole.prompt_tokens.tolist() == [18, 11, 26, 2000] and whole.num_dropped == 1
    assert "(1 dropped)" in whole.label


def test_a_request_without_an_answer_is_dropped_too(tmp_path: Path) -> None:
    workload = _built(trace=written(tmp_path, AZURE))
    assert workload.output_tokens.tolist() == [44, 55] and workload.num_dropped == 2


def test_a_trace_keeps_its_times_from_its_first_kept_request(tmp_path: Path) -> None:
    late = AZURE.replace("374,44", "374000,44")
    workload = _built(5000, trace=written(tmp_path, late))
    assert workload.arrival_s == pytest.approx([0, 2.9999999])


def test_a_trace_is_made_faster_or_stretched_to_a_rate(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)
    own = _built(5000, trace=path)
    assert own.arrival_s == pytest.approx([0, 1.0000001, 4])
    assert _built(5000, trace=path, rate_scale=4.0).arrival_s == pytest.approx(own.arrival_s / 4)
    stretched = _built(5000, trace=path, rate=0.1)
    assert stretched.rate == pytest.approx(0.1)
    assert _built(5000, trace=path, rate=0.1, requests=1).arrival_s.tolist() == [0]
    assert stretched.arrival_s / stretched.arrival_s[-1] == pytest.approx(own.arrival_s / 4)


def test_a_process_replaces_a_traces_times_and_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path, MOONCAKE)
    own, replaced = _built(trace=path), _built(trace=path, arrivals="uniform", rate=2.0)
    assert replaced.arrival_s.tolist() == [0.5, 1.0, 1.5]
    assert _same_lengths(own, replaced)
    assert own.prefixes == replaced.prefixes == [(7, 8), (7, 8), ()]
    assert own.prefix_block == 512


def test_skew_of_a_trace_keeps_prompts_and_replaces_answers(tmp_path: Path) -> None:
    path = written(tmp_path, LENGTHS)
    workload = _built(8192, trace=path, name="skew", rate=1.0)
    assert workload.prompt_tokens.tolist() == [3742, 18, 11, 26, 2000]
    outputs = workload.output_tokens
    assert (((outputs >= 16) & (outputs <= 64)) | ((outputs >= 800) & (outputs <= 1500))).all()


def test_closed_has_no_rate(tmp_path: Path) -> None:
    workload = _built(trace=written(tmp_path, AZURE), arrivals="closed")
    assert not workload.arrival_s.any() and workload.rate == float("inf")
    assert "closed" in workload.label


def test_a_seed_decides_everything() -> None:
    asked = {"name": "sharegpt", "requests": 500, "arrivals": "gamma:4", "rate": 3.0}
    first, again = (_built(**asked, seed=7, classes=PAIR) for _ in range(2))
    other = _built(**asked, seed=8, classes=PAIR)
    assert first.label == again.label and _same_lengths(first, again)
    assert np.array_equal(first.arrival_s, again.arrival_s)
    assert np.array_equal(first.slo_class, again.slo_class)
    assert not _same_lengths(first, other)
    assert not np.array_equal(first.arrival_s, other.arrival_s)
    assert not np.array_equal(first.slo_class, other.slo_class)


def test_lengths_times_and_classes_do_not_disturb_each_other() -> None:
    base = _built(name="skew", requests=500, rate=3.0)
    for change in ({"arrivals": "burst:4"}, {"rate": 9.0}, {"classes": PAIR}):
        assert _same_lengths(
            base, _built(**{"name": "skew", "requests": 500, "rate": 3.0} | change)
        )
    classed = _built(name="skew", requests=500, rate=3.0, classes=PAIR)
    elsewhere = _built(name="alpaca", requests=500, rate=3.0, classes=PAIR)
    assert np.array_equal(classed.arrival_s, elsewhere.arrival_s)
    assert np.array_equal(classed.slo_class, elsewhere.slo_class)


def test_the_three_streams_are_unrelated() -> None:
    firsts = []
    for seed in range(400):
        one = _built(name="alpaca", requests=1, rate=1.0, classes=PAIR, seed=seed)
        firsts.append((one.arrival_s[0], np.log(one.prompt_tokens[0]), one.slo_class[0]))
    assert np.abs(np.corrcoef(np.array(firsts).T) - np.eye(3)).max() < 0.2


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    short = _built(name="lphd", requests=700, rate=1.0)
    long = _built(name="lphd", requests=5000, rate=1.0)
    assert np.array_equal(long.prompt_tokens[:700], short.prompt_tokens)
    assert np.array_equal(long.arrival_s[:700], short.arrival_s)


def test_draws_beyond_the_context_are_counted() -> None:
    workload = _built(512, name="sharegpt", requests=1000, rate=1.0)
    assert len(workload) == 1000
    assert workload.num_dropped / (1000 + workload.num_dropped) == pytest.approx(0.36, abs=0.04)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "give --trace FILE or --workload NAME"),
        ({"name": "nothing"}, "unknown workload 'nothing'; known are alpaca, "),
        ({"name": "sharegot"}, "did you mean 'sharegpt'"),
        ({"name": "sharegpt"}, "poisson arrivals need a rate: give --rate R"),
        ({"name": "lphd", "arrivals": "gamma:4"}, "gamma:4 arrivals need a rate: give --rate R"),
        ({"name": "sharegpt", "rate": -1.0}, "rate: must be"),
        ({"name": "sharegpt", "rate": float("nan")}, "rate: must be"),
        ({"name": "sharegpt", "rate": 1.0, "requests": -1}, "must not be below 0"),
        ({"name": "sharegpt", "rate": 1.0, "seed": -1}, "must not be below 0"),
        ({"name": "sharegpt", "rate_scale": 2.0}, "has none; use --rate"),
        ({"name": "azure-conv", "rate_scale": 2.0, "rate": 1.0}, "give one of them"),
        (
            {"name": "azure-conv", "rate_scale": 2.0, "arrivals": "poisson"},
            "leave arrivals out",
        ),
        ({"name": "azure-conv", "requests": 30_000}, "asked for 30000"),
        ({"name": "bookcorpus", "rate": 1.0, "max_len": 40}, "needs a longer context"),
        ({"name": "alpaca", "rate": 1.0, "max_len": 1}, "holds no prompt"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_reason(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        _built(**spec)


def test_a_trace_and_a_name_exclude_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)
    with pytest.raises(WorkloadError, match="not both"):
        _built(trace=path, name="alpaca")
    with pytest.raises(WorkloadError, match="cannot be stretched"):
        _built(trace=written(tmp_path, MOONCAKE.replace("250", "0"), "b"), requests=2, rate=1.0)
    with pytest.raises(FileNotFoundError):
        _built(trace=tmp_path / "none")


def test_answers_drift_from_their_own_length_to_so_many_times_it() -> None:
    spec = {"name": "sharegpt", "requests": 200, "arrivals": "closed"}
    plain, grown = _built(4096, **spec), _built(4096, **spec, drift=4.0)
    assert np.array_equal(plain.prompt_tokens, grown.prompt_tokens)
    ratios = grown.output_tokens / plain.output_tokens
    roomy = grown.prompt_tokens + grown.output_tokens < 4096
    assert ratios[0] == 1.0 and ratios[roomy][-1] == pytest.approx(4.0, abs=0.2)
    assert ratios[roomy & (plain.output_tokens > 50)].tolist() == pytest.approx(
        (4.0 ** np.linspace(0, 1, 200))[roomy & (plain.output_tokens > 50)].tolist(), rel=0.02
    )
    assert (grown.prompt_tokens + grown.output_tokens).max() <= 4096
    shrunk = _built(4096, **spec, drift=0.01)
    assert shrunk.output_tokens.min() == 1 and shrunk.output_tokens[0] == plain.output_tokens[0]
    assert "answers drift to 4 times" in grown.label and "drift" not in plain.label


def test_prompts_of_a_group_begin_alike() -> None:
    spec = {"name": "sharegpt", "requests": 300, "arrivals": "closed"}
    plain, shared = _built(**spec), _built(**spec, shared_prefix=128, prefix_groups=3)
    assert _same_lengths(plain, shared)
    assert shared.prefix_block == 128 and set(shared.prefixes) == {(0,), (1,), (2,)}
    assert shared.prefixes == _built(**spec, shared_prefix=128, prefix_groups=3).prefixes
    assert "128 prompt tokens shared in 3 groups" in shared.label


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"drift": 0.0}, "drift: must be a finite number above 0"),
        ({"drift": float("inf")}, "drift: must be a finite number above 0"),
        ({"shared_prefix": -1}, "shared_prefix must not be below 0"),
        ({"prefix_groups": 0}, "prefix_groups not below 1"),
        ({"prefix_groups": 2}, "without shared_prefix"),
    ],
)
def test_drifts_and_prefixes_that_cannot_be(changes: dict[str, float], fault: str) -> None:
    with pytest.raises(WorkloadError, match=fault):
        _built(name="sharegpt", arrivals="closed", **changes)


def test_a_trace_with_prefixes_of_its_own_shares_no_others(tmp_path: Path) -> None:
    trace = written(tmp_path, MOONCAKE)
    with pytest.raises(WorkloadError, match="says itself which prompts begin alike"):
        _built(1 << 20, trace=trace, shared_prefix=64)
