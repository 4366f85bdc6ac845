"""What is served where kernels are not trusted: torch's own operators, slower and right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from daemon.engine.cuda import attention, ops
from daemon.engine.families import ALL, DRAW, EDIT, NONE
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import choose_backend, triton_backend
from daemon.engine.sampler import Sampler
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.on_host import HostSamplerOps, SplitSamplerOps
from daemon.engine.verify.kernels.choose_families import by_torch, subject_of
from daemon.engine.verify.kernels.recurrent_layers import recurrent_layers
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.worker.start import assemble, sampler_ops_of, split
from daemon.models.shape import ModelShape
from daemon.protocol.worker import Load
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver
from tests.engine.interpreting import Interpreting
from tests.engine.tiny import CONTEXT_LEN, FUSED, VOCAB_SIZE, greedy, reference, save

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
BLOCK_SIZE, NUM_BLOCKS = 8, 32


def loaded(name: str, folder: Path, **changes: Any) -> tuple[Load, Any, ModelShape]:
    """A tiny model as a worker has it before it chooses how to compute."""
    save(name, folder)
    sizes = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "max_slots": 3}
    lengths = {"max_len": CONTEXT_LEN, "max_batch_tokens": 8}
    fields: dict[str, Any] = {"device": "cpu", "dtype": "float32", **sizes, **lengths}
    load = Load(str(folder), **{**fields, **changes})
    return load, load_model(folder, "float32", CPU), shape_here(folder)


def test_each_family_by_torch_and_graphs_that_are_wrong(interpreting: Interpreting) -> None:
    program = "from tests.engine.verify.kernels.parts import main; main()"
    assert interpreting.output(program) == "right"


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_a_gpu_s_backend_without_its_kernels_says_what_transformers_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, kernel in ((ops, "add_norm"), (ops, "place"), (attention, "write_kv")):
        monkeypatch.setattr(module, kernel, None)
    with torch.inference_mode():
        load, model, shape = loaded(name, tmp_path / name)
        backend = triton_backend(torch.float32, ALL, lambda *_: None)
        verdict = TrialVerdict(fused=name in FUSED, compiled=True)
        engine = assemble(model, shape, load, lambda *_: None, backend, verdict)
        assert engine.model.fused == (name in FUSED) and not engine.model.compiled
        driver, prompts = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS))), ([5, 9, 100, 3, 7], [8, 22])
        rows = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
        # One's prompt in two parts, beside what the other one draws.
        for counts in ((2, 2), (3, 1), (1, 1), (1, 1)):
            work = list(zip(rows, counts, strict=True))
            driver.take(work, engine.run(driver.plan(work)))
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.outputs == greedy(reference(name), prompt, len(row.outputs))


@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear", "granite_hybrid", "jamba", "lfm2"])
def test_kernels_of_states_are_tried_in_the_sizes_of_the_model(name: str, tmp_path: Path) -> None:
    _, model, shape = loaded(name, tmp_path / name)
    (sizes,) = recurrent_layers(model)
    kept = {(part.num_units, part.unit_numbers) for layer in shape.layer_states for part in layer}
    tried = {(sizes.num_channels, sizes.taps - 1)}
    if sizes.rule:
        tried.add((sizes.num_heads, sizes.sizes[0] * sizes.sizes[1]))
    assert tried == kept


def test_all_kernels_or_none_have_names_that_a_trial_tells_apart() -> None:
    names = {
        triton_backend(torch.float32, some, lambda *_: None).name
        for some in (NONE, frozenset({"norm"}), frozenset({"qkv"}), ALL)
    }
    assert len(names) == 4
    assert choose_backend(CUDA, torch.bfloat16, by_torch=ALL).name == "torch"


def drawn(ops: Any) -> list[list[int]]:
    """Some steps of four kinds of rows, of which one may only say even tokens."""
    sampler = Sampler(VOCAB_SIZE, "cpu", (1,), ops)
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 2.0, "logit_bias": ((7, 4.0),), "min_tokens": 2},
    )
    for slot, kind in enumerate(kinds):
        sampler.join(slot, SamplingParams(seed=slot, **kind), 3, [4, 5, 5])
    masks = np.full((1, -(-VOCAB_SIZE // 32)), 0x55555555, np.int32)
    chance = torch.Generator().manual_seed(1)
    found = []
    for step in range(4):
        logits = torch.randn(4, VOCAB_SIZE, generator=chance) * 2
        positions = [3 + step] * 4
        draws = sampler.sample(logits, range(4), positions, Allowed(np.array([1]), masks))
        found.append(draws.tokens.tolist())
    assert all(step[1] % 2 == 0 for step in found)
    return found


def test_draws_and_edits_on_the_host_are_those_of_a_cpu() -> None:
    expected = drawn(sampler_ops_of(VOCAB_SIZE, CPU))
    assert drawn(HostSamplerOps(VOCAB_SIZE)) == expected
    # One of the two trusted: neither may call what the other one has.
    for some in (frozenset({DRAW}), frozenset({EDIT})):
        ops = split(sampler_ops_of(VOCAB_SIZE, CPU), HostSamplerOps(VOCAB_SIZE), some)
        assert isinstance(ops, SplitSamplerOps)
        assert drawn(ops) == expected
    assert isinstance(sampler_ops_of(VOCAB_SIZE, CUDA, ALL), HostSamplerOps)


def test_no_kernel_is_tried_where_none_may_be_used(tmp_path: Path) -> None:
    load, model, shape = loaded("llama", tmp_path / "llama", device="cuda:0", kernels="torch")
    told: dict[str, str] = {}
    assert by_torch(load, model, shape, pytest.fail, told.__setitem__) == ALL
    assert set(told.values()) == {"engine.kernels = 'torch'"} and told.keys() == ALL
    load, *rest = loaded("llama", tmp_path / "other")
    assert by_torch(load, *rest, pytest.fail, pytest.fail) == NONE


@pytest.mark.parametrize("name", ["qwen3", "gpt_neox"])
def test_kernels_are_tried_in_the_shapes_of_the_model(name: str, tmp_path: Path) -> None:
    subject = subject_of(*loaded(name, tmp_path / name, device="cuda:0", compress=True))
    assert subject.compress and subject.max_blocks == CONTEXT_LEN // BLOCK_SIZE + 1
    assert (subject.num_heads, subject.hidden, subject.gated) == (4, 64, 96)
    assert (VOCAB_SIZE, 64, False) in subject.products
    if name == "qwen3":
        assert subject.head_norms and subject.rotary_dim == subject.head_dim == 32
        assert {(4 * 32 + 2 * 2 * 32, 64, False), (192, 64, False)} <= set(subject.products)
    else:
        assert not subject.head_norms and (subject.head_dim, subject.rotary_dim) == (16, 4)
