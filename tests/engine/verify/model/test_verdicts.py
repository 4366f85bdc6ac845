"""A trial fits any pool, is paid once, and its verdict holds for what was tried and no more."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.engine.verify.model import kept, script
from daemon.engine.verify.model.script import TrialRoom
from tests.engine.verify.model.tries import COMMON, SERVED, Tries, save


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    torch.set_num_threads(1)
    return Tries(tmp_path)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("trial") / "llama", "llama", **COMMON)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 1, "max_slots": 1, "max_len": 3},
        {"num_blocks": 4, "max_slots": 2, "max_len": 1},
        {"num_blocks": 2, "max_slots": 1, "max_batch_tokens": 1},
        {"num_blocks": 3, "max_slots": 2, "block_size": 16},
        {"num_blocks": 600, "block_size": 1, "dtype": "bfloat16"},
    ],
)
def test_a_small_pool_is_enough_and_is_left_clean(
    changes: dict[str, Any], llama: Path, tries: Tries
) -> None:
    engine = tries.engine(llama, **changes)
    assert engine.model.fused and tries.tried
    assert not engine.cache.raw.any()
    assert not engine.slots.block_table.any() and not engine.slots.last_token.any()


def test_a_trial_says_what_it_cost_and_is_done_once(
    llama: Path, tries: Tries, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "daemon")
    first = tries.engine(llama)
    assert tries.tried and first.model.fused
    shares = [share for _stage, share in tries.stages]
    assert shares == sorted(shares) and shares[-1] < 0.9
    (line,) = [one.message for one in caplog.records if one.message.startswith(SERVED)]
    assert "logits at positions up to 511 against transformers' own in " in line
    caplog.clear()
    second = tries.engine(llama)
    assert not tries.tried and second.model.fused
    assert "trial: passed before, the fused decoder" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"kv_dtype": "int8"},
        {"block_size": 16},
        {"max_len": 256},
        {"max_slots": 4},
    ],
)
def test_a_verdict_holds_for_what_was_tried(
    changes: dict[str, Any], llama: Path, tries: Tries
) -> None:
    tries.engine(llama)
    tries.engine(llama, **changes)
    assert tries.tried and len(tries.kept) == 2


def test_a_verdict_holds_for_one_processor(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries.engine(llama)
    monkeypatch.setattr(kept, "processor", lambda: "of another machine")
    tries.engine(llama)
    assert tries.tried and len(tries.kept) == 2


def test_a_verdict_holds_for_one_configuration_and_its_weights(
    tries: Tries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, change in {
        "a": {},
        "b": {"rms_norm_eps": 1e-4},
        "c": {"tie_word_embeddings": True},
    }.items():
        tries.engine(save(tmp_path / name, "llama", **COMMON, **change))
        assert tries.tried
    monkeypatch.setattr("daemon.engine.verify.model.kept.version_of", lambda _name: "another")
    tries.engine(tmp_path / "a")
    assert tries.tried and len(tries.kept) == 4


@pytest.mark.parametrize("text", [b"", b"\0", b"[]", b'{"key":"","result":{}}', b"foreign"])
def test_a_verdict_that_is_corrupt_or_foreign_is_not_believed(
    text: bytes, llama: Path, tries: Tries
) -> None:
    tries.engine(llama)
    (kept,) = tries.kept
    whole = kept.read_bytes()
    if text == b"foreign":
        key = kept.stem.encode()
        text = whole.replace(key, key[::-1]).replace(b"true", b"false")
    kept.write_bytes(text)
    tries.engine(llama)
    assert tries.tried and kept.read_bytes() == whole


def test_nothing_is_kept_where_nothing_can_be(llama: Path, tries: Tries, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert tries.engine(llama).model.fused


def test_a_script_covers_every_border_within_its_budget() -> None:
    room = TrialRoom(16, 1000, 8, 8192, 4096, 1000)
    waves = script.write(room, 128, [300, 4096], 7)
    near, far = waves
    assert not near.shifted and far.shifted
    assert sum(len(one.tokens) for one in near.sequences) <= 128
    reached = [range(one.first, one.first + len(one.tokens)) for one in far.sequences]
    for border in (300, 4096, 8191):
        assert any(border in span and border - 1 in span for span in reached)
    for one in (*near.sequences, *far.sequences):
        assert sum(one.counts) == len(one.tokens) and 7 not in one.tokens
    slots = [one.slot for one in near.sequences]
    assert len(set(slots)) == len(slots)


def test_a_large_model_is_tried_with_fewer_tokens() -> None:
    assert script.budget_tokens(135_000_000, False, False) == 222
    assert script.budget_tokens(135_000_000, False, True) == 111
    assert script.budget_tokens(8_000_000_000, False, False) == 48
    assert script.budget_tokens(8_000_000_000, True, True) == 256


def test_borders_are_numbers_that_speak_of_positions() -> None:
    fields = {
        "rope_parameters": {"original_max_position_embeddings": 4096, "factor": 8.0},
        "max_position_embeddings": 32768,
        "attention_chunk_size": 512,
        "sliding_window": None,
        "max_window_layers": 28,
        "hidden_size": 64,
        "is_context": True,
    }
    assert script.thresholds(fields, 32768) == [512, 4096]
