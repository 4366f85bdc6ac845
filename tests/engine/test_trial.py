"""Nothing false is served: every model is tried on its device, and faults are found."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from daemon.engine import attention_torch
from daemon.engine.attention_torch import TorchAttention
from daemon.engine.cpu import program
from daemon.engine.loader import load_model
from daemon.engine.metadata import FlatBatch
from daemon.engine.modules import Modules
from daemon.engine.protocol import Load
from daemon.engine.resolve import shape_here
from daemon.engine.rotary import RotaryTable
from daemon.engine.start import assemble
from daemon.engine.step import Engine
from daemon.engine.trial import script
from daemon.engine.trial.script import Room
from daemon.models import supported
from daemon.models.shape import ModelError, ModelShape
from tests.engine.process import cpu_load

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.1,
}
OLDER = {"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512}
SERVED = "trial: the fused decoder; "


def save(folder: Path, model_type: str, **fields: Any) -> Path:
    """A folder with a random model of a type."""
    torch.manual_seed(3)
    loader: Any = AutoModelForCausalLM
    loader.from_config(CONFIG_MAPPING[model_type](**fields)).float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


class Tries:
    """Assembles engines of folders as a worker does, with verdicts in a folder of its own."""

    def __init__(self, place: Path) -> None:
        self._cache = place / "cache"
        self.stages: list[tuple[str, float]] = []

    def load(self, folder: Path, **changes: Any) -> Load:
        fields = {"block_size": 8, "num_blocks": 96, "max_len": 512, "num_threads": 1}
        return cpu_load(str(folder), cache=str(self._cache), **{**fields, **changes})

    def engine(self, folder: Path, shape: ModelShape | None = None, **changes: Any) -> Engine:
        load = self.load(folder, **changes)
        self.stages = []
        with torch.inference_mode():
            model = load_model(folder, load.dtype, torch.device("cpu"))
            shape = shape or shape_here(folder)
            return assemble(model, shape, load, lambda *stage: self.stages.append(stage))

    @property
    def tried(self) -> bool:
        """Whether the last engine was tried, or believed."""
        return "trial" in [stage for stage, _share in self.stages]

    @property
    def kept(self) -> list[Path]:
        return sorted((self._cache / "trials").glob("*.json"))


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    torch.set_num_threads(1)
    return Tries(tmp_path)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("trial") / "llama", "llama", **COMMON)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its queries grow by 7 % from position 300 on; its modules are those of a Llama."""
    rope = {**YARN, "original_max_position_embeddings": 300}
    place = tmp_path_factory.mktemp("trial") / "yarn"
    return save(place, "ministral3", **COMMON, rope_parameters=rope)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["", "int8"])
def test_what_grows_far_out_is_left_to_the_modules(
    yarn: Path, dtype: str, kv_dtype: str, tries: Tries, caplog: pytest.LogCaptureFixture
) -> None:
    """Rounding to bfloat16 is larger than the fault, and may not hide it."""
    engine = tries.engine(yarn, dtype=dtype, kv_dtype=kv_dtype)
    assert not engine.model.fused
    assert "the fused decoder would be wrong" in caplog.text


def test_one_head_of_keys_is_served(tries: Tries, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "gpt_bigcode", **OLDER)
    engine = tries.engine(folder)
    assert engine.cache.blocks.shape[4] == 1 and not engine.model.fused


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    [
        ("diffllama", COMMON, "2 layers ask for attention 4 times"),
        ("nemotron", COMMON, "does not hand on which tokens belong together"),
        ("mistral", {**COMMON, "sliding_window": 64}, "a sliding window of 64 tokens"),
        ("gemma2", {**COMMON, "head_dim": 8, "sliding_window": 512}, "caps attention scores"),
    ],
)
def test_a_model_is_heard_where_its_configuration_is_silent(
    model_type: str,
    fields: dict[str, Any],
    words: str,
    tries: Tries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = save(tmp_path / "m", model_type, **fields)
    monkeypatch.setattr(supported, "refusals", lambda _resolved: iter(()))
    with pytest.raises(ModelError, match=words) as raised:
        tries.engine(folder)
    assert str(folder) in str(raised.value)


def test_an_encoder_is_found_by_its_answers_too(
    tries: Tries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"}
    folder = save(tmp_path / "m", "electra", **fields, embedding_size=32)
    monkeypatch.setattr(supported, "refusals", lambda _resolved: iter(()))
    with pytest.raises(ModelError, match="would be answered wrongly"):
        tries.engine(folder)


def test_other_heads_than_the_pool_has_are_refused(llama: Path, tries: Tries) -> None:
    import msgspec

    shape = msgspec.structs.replace(shape_here(llama), num_kv_heads=4)
    with pytest.raises(ModelError, match=r"has 4 heads \(2 of keys\) of 8 .* says 4 \(4\) of 8"):
        tries.engine(llama, shape)


Break = Callable[[pytest.MonkeyPatch], None]


def lost_scale(patch: pytest.MonkeyPatch) -> None:
    """Attention with scores that are 5 % too small."""
    true = attention_torch.scaled_dot_product_attention

    def scaled(*states: Any, scale: float, **others: Any) -> torch.Tensor:
        return true(*states, scale=0.95 * scale, **others)

    patch.setattr(attention_torch, "scaled_dot_product_attention", scaled)


def swapped_heads(patch: pytest.MonkeyPatch) -> None:
    """Query heads that read another head of keys than their own."""
    true = attention_torch.attend_causally

    def swapped(query: Any, keys: Any, values: Any, *rest: Any) -> torch.Tensor:
        return true(query, keys.flip(1), values.flip(1), *rest)

    patch.setattr(attention_torch, "attend_causally", swapped)


def position_late(patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens that stand one position too far."""
    true = Modules.logits

    def late(self: Any, tokens: Any, positions: Any, *rest: Any) -> torch.Tensor:
        return true(self, tokens, positions + (len(tokens) == 1), *rest)

    patch.setattr(Modules, "logits", late)


def mixed_company(patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens that read their neighbour's context."""
    true = TorchAttention._prepare_singles

    def mixed(self: Any, batch: FlatBatch, device: torch.device) -> None:
        true(self, batch, device)
        self._context = self._context.roll(1, 0)

    patch.setattr(TorchAttention, "_prepare_singles", mixed)


def lost_border(patch: pytest.MonkeyPatch) -> None:
    """Chunks behind others that do not see the token before them."""
    true = attention_torch.causal_bias

    def lost(query: torch.Tensor, start: int) -> torch.Tensor:
        bias = true(query, start)
        bias[:, start - 1] = -torch.inf
        return bias

    patch.setattr(attention_torch, "causal_bias", lost)


def short_context(patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens that do not see themselves once a block is full."""
    true = TorchAttention._prepare_singles

    def short(self: Any, batch: FlatBatch, device: torch.device) -> None:
        true(self, batch, device)
        starts = torch.from_numpy(batch.starts[batch.single_rows])
        for row, start in enumerate(starts.tolist()):
            if start % 8 == 0 and start:
                self._bias[row, ..., start] = -torch.inf

    patch.setattr(TorchAttention, "_prepare_singles", short)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "broken",
    [lost_scale, swapped_heads, position_late, mixed_company, lost_border, short_context],
)
def test_a_fault_of_the_paged_path_is_found(
    broken: Break, dtype: str, llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.engine.backend._compiled", no_kernels)
    broken(monkeypatch)
    # A Llama's modules have the fault as well as the fused decoder, or alone.
    monkeypatch.setattr("daemon.engine.trial.choose.fuse", lambda *_: None)
    with pytest.raises(ModelError, match="would be answered wrongly: ") as raised:
        tries.engine(llama, dtype=dtype)
    assert str(llama) in str(raised.value)
    assert not tries.kept


def no_kernels() -> Any:
    raise ImportError("not here")


def test_another_kind_of_rope_is_not_fused(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = RotaryTable.angles

    def stretched(self: Any, positions: torch.Tensor) -> Any:
        return true(self, positions // 2)

    monkeypatch.setattr(RotaryTable, "angles", stretched)
    assert not tries.engine(llama).model.fused


def test_compiled_steps_that_are_wrong_are_not_used(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true = program.DecodePrograms.logits

    def doubled(self: Any, batch: FlatBatch) -> torch.Tensor:
        return true(self, batch) * (1.01 if len(batch.tokens) == 2 else 1.0)

    monkeypatch.setattr(program.DecodePrograms, "logits", doubled)
    engine = tries.engine(llama)
    assert engine.model.fused and not engine.model.compiled
    assert "the fused decoder would be wrong: in compiled steps, " in caplog.text
    again = tries.engine(llama)
    assert not tries.tried and again.model.fused and not again.model.compiled


def test_compiled_steps_are_tried_at_the_longest_contexts(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true = program._Program.prepare

    def clipped(self: Any, tokens: torch.Tensor, batch: FlatBatch) -> None:
        true(self, tokens, batch)
        np.minimum(self._lens, 250, out=self._lens)

    monkeypatch.setattr(program._Program, "prepare", clipped)
    assert not tries.engine(llama).model.compiled
    assert "would be wrong: in compiled steps behind the longest contexts" in caplog.text


def test_without_memory_for_float32_rounding_is_assumed(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("daemon.engine.trial.wide._wide_linear", full)
    assert tries.engine(llama, dtype="bfloat16").model.fused
    assert caplog.text.count("no memory for float32") == 1
    swapped_heads(monkeypatch)
    monkeypatch.setattr("daemon.engine.trial.choose.fuse", lambda *_: None)
    with pytest.raises(ModelError, match="would be answered wrongly: "):
        tries.engine(llama, dtype="bfloat16", block_size=16)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 1, "max_slots": 1, "max_len": 3},
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
    caplog.set_level(logging.INFO)
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
    monkeypatch.setattr("daemon.engine.trial.kept._version", lambda _name: "another")
    tries.engine(tmp_path / "a")
    assert tries.tried and len(tries.kept) == 4


@pytest.mark.parametrize("text", [b"", b"\0", b"[]", b'{"key":"","verdict":{}}', b"foreign"])
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
    room = Room(16, 1000, 8, 8192, 4096, 1000)
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
    assert script.budget_tokens(135_000_000, False) == 222
    assert script.budget_tokens(8_000_000_000, False) == 48
    assert script.budget_tokens(8_000_000_000, True) == 256


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
