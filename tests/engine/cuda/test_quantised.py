"""Quantised models with the backend of a GPU, whose kernels Triton interprets."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from daemon.engine.families import EXPERTS, NONE, ByTorch
from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import torch_backend
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.verify.model.wide import widened
from daemon.engine.worker.start import assemble
from daemon.memory.sizing import gpu_panel_bytes
from daemon.models.embedded import ensure_converted
from daemon.models.formats import FORMATS
from daemon.models.weights import count_weights
from daemon.protocol.worker import Load
from tests.engine.interpreting import Interpreting
from tests.engine.loading.gguf_files import write
from tests.engine.loading.test_gguf import medium
from tests.engine.quantised.test_models import CHECKPOINTS

pytest.importorskip("triton")

from daemon.engine.cuda.block_implementations import (
    MultipliedBlocks,
    UnpackedBlocks,
    block_candidates,
    new_panel,
)
from daemon.engine.cuda.candidates import SCRATCH_CELLS, DeviceRoom, new_scratch
from daemon.engine.cuda.products import JoinedProduct
from daemon.engine.cuda.quantised import BlockProduct, products

SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_local_experts": 3}
PROGRAM = """
import sys
from pathlib import Path
import torch
from daemon.engine.cuda.candidates import DeviceRoom
from daemon.engine.cuda.products import choose_products
from daemon.protocol.worker import Load
from tests.engine.driver import Driver
from tests.engine.cuda.test_products import FalseMeter
from tests.engine.quantised.test_models import greedy, unpacked
from tests.gpu.interpreted_engine import interpreted

PROMPTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8]
folder, num_outputs, ways = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32)
expected = [greedy(unpacked(folder), prompt)[:num_outputs] for prompt in PROMPTS]
with torch.inference_mode():
    engine = interpreted(load)
assert engine.model.fused and engine.model.compiled
products = engine.model._forward.products()


def text():
    driver = Driver(8, list(range(32)))
    rows = [driver.add(slot, prompt) for slot, prompt in enumerate(PROMPTS)]
    work = [(one, one.num_prompt_tokens) for one in rows]
    with torch.inference_mode():
        for _ in range(num_outputs):
            driver.take(work, engine.run(driver.plan(work)))
            work = [(one, 1) for one in rows]
    return [one.outputs for one in rows]


for way in ways:
    broken = ["unpacked"] if way == "torch" else []
    meter = FalseMeter(lambda name, _: 0.5 if name.startswith(way) else 1.0, broken)
    chosen = choose_products(products, [2, 16], meter, DeviceRoom(4, 99 << 10))
    assert chosen and all(names[2].startswith(way) for names in chosen.values()), chosen
    assert text() == expected, way
print("equal", engine.model.weight_bytes)
"""


def equal_text(interpreting: Interpreting, folder: Path, num_outputs: int, *ways: str) -> int:
    """The bytes of the model's weights, if it has its text with products in each of some ways."""
    printed = interpreting.output(PROGRAM, str(folder), str(num_outputs), *ways)
    said, _, size_bytes = printed.partition(" ")
    assert said == "equal"
    return int(size_bytes)


def weight(name: str, rows: int, columns: int) -> QuantisedWeight:
    size_bytes = FORMATS[name].row_bytes(columns)
    data = torch.empty((rows, size_bytes), dtype=torch.uint8, device="meta")
    return QuantisedWeight(FORMATS[name], data, columns)


def test_what_is_unpacked_has_room_for_the_largest_weight_or_a_part_of_it() -> None:
    small, large = weight("Q4_K", 100, 512), weight("Q8_0", 128_256, 8192)
    assert new_panel([small], torch.bfloat16).nbytes == 2 * 112 * 512
    assert new_panel([small, large], torch.bfloat16).nbytes == gpu_panel_bytes(large.size_bytes)
    wide = weight("Q4_0", 8, 1 << 24)
    assert new_panel([small, wide], torch.bfloat16).nbytes == 2 * 16 * wide.columns


def test_candidates_read_blocks_for_few_rows_and_fit_their_scratch() -> None:
    meta, room = torch.device("meta"), DeviceRoom(84, 99 << 10)
    scratch, large = new_scratch(meta), weight("Q4_K", 28_672, 4096)
    default = UnpackedBlocks(new_panel([large], torch.bfloat16))
    for rows in (1, 2, 3, 4, 5, 16, 33, 64):
        ways = block_candidates(rows, large, default, room, scratch)
        assert ways[0] is default and len({way.name for way in ways}) == len(ways) > 1
        ours = [way for way in ways if isinstance(way, MultipliedBlocks)]
        assert len(ours) == len(ways) - 1 and all(way.tile.rows >= rows for way in ours)
        for way in ours:
            along_rows, along_outputs = way.tile.count(rows, large.rows)
            cells = along_rows * along_outputs * way.splits * way.tile.rows * way.tile.outputs
            assert way.splits == 1 or cells <= SCRATCH_CELLS


def test_a_layer_without_blocks_stays_as_it_is() -> None:
    plain = QuantisedLinear(256, 8, None, [weight("F16", 8, 256)])
    mixed = QuantisedLinear(256, 16, None, [weight("F16", 8, 256), weight("Q4_K", 8, 256)])
    packed = QuantisedLinear(256, 8, None, [weight("Q4_K", 8, 256)])
    made = products([plain, mixed, packed], torch.bfloat16)
    assert made(plain) is plain and made(mixed) is mixed
    assert isinstance(made(packed), BlockProduct)
    assert products([plain], torch.bfloat16)(plain) is plain


def test_a_checkpoint_has_the_text_of_its_numbers(
    interpreting: Interpreting, tmp_path: Path
) -> None:
    folder = shutil.copytree(CHECKPOINTS / "model-gptq-order", tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    equal_text(interpreting, folder, 2, "unpacked", "blocks 64x16", "torch")


@pytest.mark.parametrize(("architecture", "fused"), [("qwen2", True), ("qwen3moe", False)])
def test_a_trial_passes_where_states_are_narrow(
    architecture: str, fused: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", medium, architecture, tied=True)
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    load = Load(str(folder), "cpu", "bfloat16", 8, 64, 2, 64, 16, cache=str(tmp_path / "trials"))
    model, shape = load_model(folder, "bfloat16", torch.device("cpu")), shape_here(folder)
    with torch.inference_mode(), widened(model):
        assert model.get_input_embeddings()(torch.tensor([3])).dtype is torch.float32
    with torch.inference_mode():
        engine = assemble(model, shape, load, lambda *_: None, torch_backend())
    assert engine.model.fused is fused


def mixtral_experts(first: str) -> QuantisedExperts:
    """Experts of which the first has gates in a format that may differ from the others'."""
    experts = QuantisedExperts(MixtralExperts(MixtralConfig(**SIZES)))
    for number, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        gate_up.weights = [weight("Q4_K" if number else first, 256, 256), weight("Q4_K", 256, 256)]
        down.weights = [weight("Q6_K", 256, 256)]
    return experts


@pytest.mark.parametrize(("first", "by_torch"), [("Q5_K", NONE), ("Q4_K", frozenset({EXPERTS}))])
def test_experts_that_differ_or_are_not_trusted_have_products_of_their_own(
    first: str, by_torch: ByTorch
) -> None:
    experts = mixtral_experts(first)
    plain = QuantisedLinear(256, 8, None, [weight("Q4_K", 8, 256)])
    made = products([plain, experts], torch.bfloat16, by_torch)
    found = made(experts)
    assert isinstance(found, QuantisedExperts) and isinstance(made(plain), BlockProduct)
    assert {type(layer) for layer in found.gate_up} == {JoinedProduct}
    assert {type(layer) for layer in found.down} == {BlockProduct}
    assert {type(layer) for layer in experts.layers} == {QuantisedLinear}, "for the modules"


@pytest.mark.soak
def test_a_gguf_file_has_the_text_of_its_numbers_and_stays_in_its_blocks(
    interpreting: Interpreting, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", medium)
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    counted = count_weights(folder)
    plain_bytes = 4 * (counted.num_params - counted.packed_params)
    found = equal_text(interpreting, folder, 2, "blocks 64x16")
    assert found == counted.packed_bytes + plain_bytes
