"""Nothing false is served: every model is tried on its device, and faults are found."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import calls, program
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers import attention_torch
from daemon.engine.layers.attention_torch import Singles
from daemon.engine.layers.fuse import recognised
from daemon.engine.layers.modules import Modules
from daemon.engine.layers.ranks import RankError
from daemon.engine.layers.rotary import RotaryTable
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import resolved_of, shape_here
from daemon.engine.model.model import CausalModel
from daemon.engine.verify.model import trial
from daemon.engine.verify.model.judge import Expected, judge
from daemon.engine.verify.model.listen import listen
from daemon.engine.verify.model.served import Part
from daemon.memory.layout import KVHeads
from daemon.models import supported
from daemon.models.shape import ModelError, ModelShape
from tests.engine.verify.model.tries import COMMON, OLDER, YARN, Tries, save


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


def test_numbers_of_four_bytes_are_tried_as_what_rounds_nothing(
    tries: Tries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of experts, too, which are multiplied by the calls of blocks."""
    rounded = list[bool]()

    def heard(parts: list[Part], expected: list[Expected], block_size: int) -> Any:
        rounded.extend(each.rounded is not None for each in expected)
        return judge(parts, expected, block_size)

    monkeypatch.setattr(trial, "judge", heard)
    fields = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    engine = tries.engine(save(tmp_path / "m", "qwen3_moe", **COMMON, **fields), exact=False)
    assert engine.model.fused and rounded and not any(rounded)


@pytest.mark.parametrize(
    ("part", "neutral"), [("layers.1", torch.ones(())), ("layers.0.self_attn", torch.zeros(4))]
)
def test_weights_that_fusing_does_not_know_are_left_to_the_modules(
    part: str, neutral: torch.Tensor, llama: Path
) -> None:
    """They may change nothing in the model that is tried, and something in its fine-tune."""
    base: Any = load_model(llama, "float32", torch.device("cpu")).base_model
    assert recognised(base)
    base.get_submodule(part).register_buffer("scale", neutral)
    assert not recognised(base)


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bfloat16", ""), ("float32", "int8")])
def test_groups_of_layers_are_tried_where_serving_rounds(
    dtype: str, kv_dtype: str, tries: Tries, tmp_path: Path
) -> None:
    """The pool in which all is computed unrounded first has blocks of all layers."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    fields = {**COMMON, "head_dim": 16, "num_hidden_layers": 3, "layer_types": kinds}
    folder = save(tmp_path / "m", "gemma3_text", **fields, sliding_window=24)
    engine = tries.engine(folder, dtype=dtype, kv_dtype=kv_dtype)
    assert engine.cache.num_groups == 3 and engine.model.fused


def test_projections_of_another_shape_are_left_to_the_modules(llama: Path) -> None:
    base: Any = load_model(llama, "float32", torch.device("cpu")).base_model
    attention = base.layers[0].self_attn
    attention.qkv_proj = attention.q_proj
    del attention.q_proj, attention.k_proj, attention.v_proj
    assert not recognised(base)


def test_one_head_of_keys_is_served(tries: Tries, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "gpt_bigcode", **OLDER)
    engine = tries.engine(folder)
    assert engine.cache.blocks.shape[4] == 1 and not engine.model.fused


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    [
        ("diffllama", COMMON, "2 layers ask for attention 4 times"),
        ("doge", COMMON, "it makes attention masks of its own"),
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


SOME_WINDOWS = {"use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("model_type", "fields", "windows"),
    [
        ("llama", {}, ()),
        ("mistral", {"sliding_window": 64}, (64, 64)),
        ("mistral", {"sliding_window": 500}, ()),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9},
            (0, 9),
        ),
        ("gemma2", {"head_dim": 8, "sliding_window": 1}, (1, 0)),
    ],
)
def test_windows_are_read_off_the_masks(
    model_type: str, fields: dict[str, Any], windows: tuple[int, ...]
) -> None:
    config = CONFIG_MAPPING[model_type](**COMMON, **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.inference_mode():
        asked = listen(model, shape_of(config), 500)
    assert asked[:2] == (windows, [])


def test_chunks_are_told_from_windows() -> None:
    kinds = ["chunked_attention", "full_attention"]
    fields = {"attention_chunk_size": 64, "layer_types": kinds, "num_local_experts": 2}
    config = CONFIG_MAPPING["llama4_text"](**COMMON, head_dim=8, **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.inference_mode():
        asked = listen(model, shape_of(config), 500)
        assert asked == ((64, 0), [], frozenset([0])) and asked.sliding == ()
        assert listen(model, shape_of(config), 64) == ((), [], frozenset())


def test_a_mask_with_stripes_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def even(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query - key) % 2 == 0

    striped = partial(modeling_llama.create_causal_mask, and_mask_function=even)
    monkeypatch.setattr(modeling_llama, "create_causal_mask", striped)
    config = CONFIG_MAPPING["llama"](**COMMON)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.inference_mode():
        assert listen(model, shape_of(config), 500).reasons[0] == (
            "its attention masks are no windows"
        )


def test_an_error_about_another_rank_is_no_fault_of_the_model() -> None:
    config = CONFIG_MAPPING["llama"](**COMMON)
    model = LlamaForCausalLM(config)

    def late(*_: Any) -> None:
        raise RankError("rank 1 has ended")

    model.lm_head.register_forward_hook(late)
    with pytest.raises(RankError, match="rank 1 has ended"):
        listen(model, shape_of(config), 64)


def test_a_layer_with_keys_of_its_own_is_not_taken_for_one_without() -> None:
    config = CONFIG_MAPPING["llama"](**COMMON)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    shape = shape_of(config)
    own = KVHeads(shape.num_kv_heads, shape.head_dim)
    shared = msgspec.structs.replace(own, source=0)
    with torch.inference_mode():
        told = msgspec.structs.replace(shape, layer_heads=(own, shared))
        assert "keys of its own" in listen(model, told, 500).reasons[0]
        told = msgspec.structs.replace(shape, layer_heads=(own, KVHeads(1, 77)))
        assert "where its configuration says 4 (1) of 77" in listen(model, told, 500).reasons[0]


def shape_of(config: Any) -> ModelShape:
    """The shape of a model of `COMMON`."""
    sizes = resolved_of(config)
    return ModelShape(
        model_type=config.model_type,
        num_params=1,
        dtype="float32",
        num_layers=2,
        num_heads=4,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        hidden_size=32,
        vocab_size=97,
        context_len=512,
    )


def test_a_model_that_gives_all_logits_is_refused(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step would take those of other tokens for those that it asked for."""
    true = LlamaForCausalLM.forward

    def deaf(self: Any, *states: Any, logits_to_keep: Any = 0, **others: Any) -> Any:
        return true(self, *states, **others)

    monkeypatch.setattr(LlamaForCausalLM, "forward", deaf)
    with pytest.raises(ModelError, match="does not give the logits of chosen tokens alone"):
        tries.engine(llama)


def test_code_that_divides_by_a_size_of_nothing_is_refused(tries: Tries, tmp_path: Path) -> None:
    mixture = {"n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 0}
    latent = {"kv_lora_rank": 8, "q_lora_rank": None, "qk_rope_head_dim": 4, "v_head_dim": 8}
    fields = {**COMMON, "num_key_value_heads": 4, **mixture, **latent}
    folder = save(tmp_path / "m", "deepseek_v3", **fields, qk_nope_head_dim=8, n_group=0)
    with pytest.raises(ModelError, match="does not take one row of many tokens: ZeroDivision"):
        tries.engine(folder)


def test_an_encoder_is_found_by_its_mask(
    tries: Tries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"}
    folder = save(tmp_path / "m", "electra", **fields, embedding_size=32)
    monkeypatch.setattr(supported, "refusals", lambda _resolved: iter(()))
    with pytest.raises(ModelError, match="its attention masks are no windows"):
        tries.engine(folder)


def test_other_heads_than_the_pool_has_are_refused(llama: Path, tries: Tries) -> None:
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
    true = Modules.rows

    def late(self: Any, tokens: Any, positions: Any, *rest: Any) -> torch.Tensor:
        return true(self, tokens, positions + (len(tokens) == 1), *rest)

    patch.setattr(Modules, "rows", late)


def mixed_company(patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens that read their neighbour's context."""
    true = Singles._see

    def mixed(self: Any, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        context, bias = true(self, window)
        return context.roll(1, 0), bias

    patch.setattr(Singles, "_see", mixed)


def lost_border(patch: pytest.MonkeyPatch) -> None:
    """Chunks behind others that do not see the token before them."""
    true = attention_torch.causal_bias

    def lost(query: torch.Tensor, start: int, window: int) -> torch.Tensor:
        bias = true(query, start, window)
        bias[:, start - 1] = -torch.inf
        return bias

    patch.setattr(attention_torch, "causal_bias", lost)


def short_context(patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens that do not see themselves once a block is full."""
    true = Singles._see

    def short(self: Any, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        context, bias = true(self, window)
        for row, length in enumerate(self._lens.tolist()):
            if length % 8 == 1 and length > 1:
                bias[row, ..., length - 1] = -torch.inf
        return context, bias

    patch.setattr(Singles, "_see", short)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "broken",
    [lost_scale, swapped_heads, position_late, mixed_company, lost_border, short_context],
)
def test_a_fault_of_the_paged_path_is_found(
    broken: Break, dtype: str, llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.engine.model.backend._compiled", no_kernels)
    broken(monkeypatch)
    # A Llama's modules have the fault as well as the fused decoder, or alone.
    monkeypatch.setattr("daemon.engine.verify.model.trial.fuse", lambda *_, **__: None)
    with pytest.raises(ModelError, match="would be answered wrongly: ") as raised:
        tries.engine(llama, dtype=dtype)
    assert str(llama) in str(raised.value)
    assert not tries.kept


def ends_of_chunks(batch: FlatBatch) -> list[int]:
    counts = batch.counts.tolist()
    return [end - 1 for end, count in zip(np.cumsum(counts), counts, strict=True) if count > 1]


def ends_of_blocks(batch: FlatBatch) -> list[int]:
    return np.flatnonzero(batch.positions % 8 == 7).tolist()


def first_of_all(batch: FlatBatch) -> list[int]:
    return [0] if len(batch.tokens) > 1 else []


@pytest.mark.parametrize(
    ("places", "value", "words"),
    [
        (ends_of_chunks, 0.0, "at the ends of chunks"),
        (ends_of_blocks, 0.0, "in tokens of chunks that end a block"),
        (first_of_all, np.inf, "once in a chunk"),
    ],
)
def test_a_fault_of_few_tokens_is_found_where_serving_rounds(
    places: Callable[[FlatBatch], list[int]],
    value: float,
    words: str,
    llama: Path,
    tries: Tries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what serves has it, not what is computed in float32 before."""
    true = CausalModel.logits

    def broken(self: CausalModel, batch: FlatBatch, slots: Any, cache: PagedKV, *rest: Any) -> Any:
        logits = true(self, batch, slots, cache, *rest).clone()
        if cache.dtype == torch.bfloat16:
            logits[places(batch)] = value
        return logits

    monkeypatch.setattr(CausalModel, "logits", broken)
    with pytest.raises(ModelError, match=words):
        tries.engine(llama, dtype="bfloat16")


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
    true = program.StepPrograms.logits

    def doubled(self: Any, batch: FlatBatch) -> torch.Tensor:
        return true(self, batch) * (1.01 if len(batch.tokens) == 2 else 1.0)

    monkeypatch.setattr(program.StepPrograms, "logits", doubled)
    engine = tries.engine(llama)
    assert engine.model.fused and not engine.model.compiled
    assert "the fused decoder would be wrong: in compiled steps, " in caplog.text
    assert "; it is not used" in caplog.text
    again = tries.engine(llama)
    assert not tries.tried and again.model.fused and not again.model.compiled


def test_compiled_steps_are_tried_at_the_longest_contexts(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true = program._Program.prepare

    def clipped(self: Any, tokens: torch.Tensor, batch: FlatBatch) -> None:
        true(self, tokens, batch)
        lens = self._buffers.lens
        np.minimum(lens, 250, out=lens)

    monkeypatch.setattr(program._Program, "prepare", clipped)
    assert not tries.engine(llama).model.compiled
    assert "would be wrong: in compiled steps behind the longest contexts" in caplog.text


def test_steps_that_are_repeated_are_tried(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose place goes no further, though each of its steps would be right."""
    true = calls.advance

    def stays(*parts: Any) -> Any:
        return 0, *true(*parts)[1:]

    monkeypatch.setattr(calls, "advance", stays)
    assert not tries.engine(llama).model.compiled
    assert "would be wrong: in compiled steps that are repeated" in caplog.text


def test_without_memory_for_float32_rounding_is_assumed(
    llama: Path, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("daemon.engine.verify.model.wide._wide_linear", full)
    assert tries.engine(llama, dtype="bfloat16").model.fused
    assert caplog.text.count("no memory for float32") == 1
    swapped_heads(monkeypatch)
    monkeypatch.setattr("daemon.engine.verify.model.trial.fuse", lambda *_, **__: None)
    with pytest.raises(ModelError, match="would be answered wrongly: "):
        tries.engine(llama, dtype="bfloat16", block_size=16)
