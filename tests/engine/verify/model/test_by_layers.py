"""Passes side by side, a layer at a time: to the bit what each of them is alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.engine.loading.requantise import requantise
from daemon.engine.model.backend import choose_backend, on_ranks
from daemon.engine.quantised.weight import Unpack
from daemon.engine.ranks.shared_memory import SharedMemoryRanks
from daemon.engine.verify.model import reference, trial, wide
from daemon.engine.verify.model.judge import Expected
from daemon.engine.verify.model.script import WaveSequence
from daemon.engine.verify.model.served import Part
from daemon.models.formats import WeightFormat
from tests.engine.ranks.threads import on_ranks as as_threads
from tests.engine.verify.model.tries import COMMON, Tries, save
from tests.zoo.build import build
from tests.zoo.families import own_variants
from tests.zoo.variant import Variant

_TRIED = [
    WaveSequence(0, np.arange(3, 3 + count) * 7 % 190, first, (count,), 0)
    for count, first in ((19, 0), (1, 0), (9, 100))
]
_BY_LAYERS = (
    "llama", "gemma3_text", "gemma4_text", "gpt_oss", "granitemoehybrid", "kimi_linear",
    "llama4_text", "nemotron_h", "phi3", "qwen3_moe", "qwen3_next",
)  # fmt: skip
_ALONE = {"bloom": len(_TRIED), "rwkv": len(_TRIED), "hrm_text": 2 + len(_TRIED)}
"""Their layers take or give more than states, or compute several times, which shows late."""
_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 96,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
"""Types whose trials are compared, with fields of their own."""


@pytest.mark.parametrize("model_type", [*_BY_LAYERS, *_ALONE])
def test_the_references_of_sequences_are_those_of_each_alone(
    model_type: str, tmp_path: Path
) -> None:
    calls = 0

    def between() -> None:
        nonlocal calls
        calls += 1

    torch.set_num_threads(1)
    build(next(own_variants(model_type), Variant(model_type, "base")), tmp_path / "m")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    with torch.inference_mode(), reference.attention(model, "eager"):
        beside = reference.logits_of(model, _TRIED, between, True)
        told = calls
        alone = reference.logits_of(model, _TRIED, lambda: None, False)
    assert all(torch.equal(*pair) for pair in zip(beside, alone, strict=True))
    count = model.config.num_hidden_layers
    assert told == _ALONE.get(model_type, count + 1)


def test_weights_that_passes_widened_are_narrow_again(tmp_path: Path) -> None:
    """Also those around the layer at which the passes that compute nothing end."""
    torch.set_num_threads(1)
    build(Variant("llama", "base"), tmp_path / "m")
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(tmp_path / "m", dtype=torch.bfloat16).eval()
    found = []
    for side_by_side in (True, False):
        with torch.inference_mode(), reference.attention(model, "eager"), wide.widened(model):
            found.append(reference.logits_of(model, _TRIED, lambda: None, side_by_side))
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_passes_that_look_for_what_layers_told_are_computed_alone(tmp_path: Path) -> None:
    """As a mixture's for the logits of its routers, where its configuration asks for them."""
    torch.set_num_threads(1)
    build(Variant("qwen3_moe", "base"), tmp_path / "m")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    model.config.output_router_logits = True
    with torch.inference_mode(), reference.attention(model, "eager"):
        found = [reference.logits_of(model, _TRIED, lambda: None, way) for way in (True, False)]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


_CHOOSING = ("granitemoehybrid", "qwen3_moe")
"""Those of which not all sequences take all experts."""


class _Seen:
    """What trials compare, and how often they unpack a weight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logits = list[torch.Tensor]()
        self.unpacked, self.all_bytes, self.waves = 0, 0, 0
        self._patch = monkeypatch.setattr
        self._judge, self._remember = trial.judge, wide.Remembering
        self._patch(trial, "judge", self._heard)
        self._patch(wide, "Remembering", self._remembering)

    def _heard(self, parts: list[Part], expected: list[Expected], block_size: int) -> Any:
        served = expected[0].rounded is not None
        if not served:  # products that serve are chosen by their speed
            self.logits += [part.logits for part in parts]
        for each in expected:
            self.logits += [each.exact] + ([] if each.rounded is None else [each.rounded])
        self.waves += served
        return self._judge(parts, expected, block_size)

    def _remembering(self, unpack: Unpack, most_bytes: int, all_bytes: int) -> Any:
        def counted(form: WeightFormat, data: torch.Tensor) -> torch.Tensor:
            self.unpacked += 1
            return unpack(form, data)

        self.all_bytes = all_bytes
        return self._remember(counted, most_bytes, all_bytes)


def _packed(place: Path, model_type: str) -> Path:
    """A folder with a small random model in blocks."""
    folder = place / "packed"
    folder.mkdir()
    fields = {**COMMON, "hidden_size": 64, "intermediate_size": 96, **_OWN[model_type]}
    requantise(save(place / "plain", model_type, **fields), folder, "int8", lambda _share: None)
    return folder


@pytest.mark.parametrize("model_type", _OWN)
def test_each_weight_is_unpacked_once_for_all_sequences_where_few_are_kept(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the trial compares the same numbers as one that keeps all, to the bit."""
    folder = _packed(tmp_path, model_type)
    with monkeypatch.context() as patch:
        kept = _Seen(patch)
        assert Tries(tmp_path / "kept").engine(folder, exact=False).model.fused
    with monkeypatch.context() as patch:
        seen = _Seen(patch)
        patch.setattr(trial, "KEEP_BOTH_BYTES", kept.all_bytes - 1)
        assert Tries(tmp_path / "seen").engine(folder, exact=False).model.fused
    assert len(kept.logits) == len(seen.logits)
    assert all(torch.equal(*pair) for pair in zip(kept.logits, seen.logits, strict=True))
    # To listen, twice for references, and for the decoder in float32 once a wave.
    most = kept.unpacked * (3 + seen.waves)
    assert seen.unpacked == most or (model_type in _CHOOSING and seen.unpacked < most)


def test_ranks_keep_weights_from_one_sequence_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go through no layer after the other, and would unpack each weight for each sequence."""
    folder = _packed(tmp_path, "llama")
    with monkeypatch.context() as patch:
        kept = _Seen(patch)
        Tries(tmp_path / "kept").engine(folder, exact=False)
    seen = _Seen(monkeypatch)
    monkeypatch.setattr(trial, "KEEP_BOTH_BYTES", kept.all_bytes - 1)

    def work(ranks: SharedMemoryRanks) -> bool:
        own = on_ranks(choose_backend(torch.device("cpu"), torch.float32), ranks)
        return Tries(tmp_path / "seen").engine(folder, backend=own, exact=False).model.fused

    assert as_threads(1, work) == [True]
    assert seen.unpacked == kept.unpacked
