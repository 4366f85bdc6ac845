"""Quantised layers as their formats describe them, where no tool wrote a file: sizes and orders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.engine.quantised.repack import group_order
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.shape import ModelError
from tests.engine.loading.checkpoints.read import taken

GPTQ = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def _w4a16(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True, **weights}}
    config = {"format": "pack-quantized", "config_groups": {"group_0": group}}
    return {"quant_method": "compressed-tensors", **config}


def _words(numbers: torch.Tensor) -> torch.Tensor:
    """int32 [n, K / 8] of half bytes [n, K], the first one lowest."""
    shifts = torch.arange(0, 32, 4)
    eights = numbers.long().view(len(numbers), -1, 8)
    return (eights << shifts).sum(2).int()


def _read(
    folder: Path, said: dict[str, Any], tensors: dict[str, torch.Tensor], *beside: str
) -> QuantisedWeight:
    """The weight of a folder with these tensors, and some that nobody should take `beside` them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": said}))
    stored = {f"a.b.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    others = {f"a.b.{name}": torch.ones(1) for name in beside} | {"a.c.weight": torch.zeros(4)}
    save_file({**stored, **others}, folder / "model.safetensors")
    with taken(folder) as (weights, meter):
        assert (list(weights), meter.count_bytes) == (["a.b.weight"], 0)
        made = weights["a.b.weight"]()
        assert meter.count_bytes == sum(one.nbytes for one in stored.values())
    return made


@pytest.mark.parametrize(("rows", "columns"), [(1024, 4096), (8, 128)])
def test_many_rows_are_brought_over_in_strips(rows: int, columns: int, tmp_path: Path) -> None:
    numbers = torch.randint(0, 16, (rows, columns))
    scales, zeros = (
        torch.rand(rows, columns // 128).half(),
        torch.randint(0, 16, (rows, columns // 128)),
    )
    parts = {"qweight": _words(numbers).T, "qzeros": _words(zeros.T), "scales": scales.T}
    made = _read(tmp_path, {**GPTQ, "group_size": 128}, parts)
    assert made.format.name == "int4/128"
    wide = [one.float().repeat_interleave(128, 1) for one in (scales, zeros)]
    assert torch.equal(made.numbers(), wide[0] * (numbers - wide[1]))


def test_columns_may_be_in_the_order_of_activations(tmp_path: Path) -> None:
    """As compressed tensors stores it; -1 at all columns says that there is no order."""
    rows, columns, group = 24, 256, 64
    numbers, scales = torch.randint(0, 16, (rows, columns)), torch.rand(rows, 4).bfloat16()
    groups = (torch.arange(columns) // group)[torch.randperm(columns)]
    parts = {"weight_packed": _words(numbers), "weight_scale": scales}
    parts |= {"weight_shape": torch.tensor([rows, columns]), "weight_g_idx": groups.int()}
    said = _w4a16(strategy="group", group_size=group, actorder="group")
    made = _read(tmp_path, said, parts)
    assert made.order is not None
    assert torch.equal(made.numbers(), scales.float()[:, groups] * (numbers - 8).float())
    none = _read(tmp_path, said, {**parts, "weight_g_idx": torch.full((columns,), -1)})
    assert none.order is None


@pytest.mark.parametrize("columns", [512, 192])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_a_block_of_fp8_may_be_the_last_and_short(name: str, columns: int, tmp_path: Path) -> None:
    rows = 200
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(2, -(-columns // 128))
    made = _read(tmp_path, FP8, {"weight": weight, name: scales})
    assert made.format.name == ("fp8/64" if columns % 128 else "fp8/128")
    grid = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    assert torch.equal(made.numbers(), grid * weight.float())


@pytest.mark.parametrize("sides", [(), (1,), (6,), (6, 1)])
@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8"])
def test_fp8_has_a_scale_for_all_or_one_for_each_row(
    method: str, sides: tuple[int, ...], tmp_path: Path
) -> None:
    """As vLLM's and FBGEMM's users store it, whose tools need a GPU: by their published layout.

    Scales for states are left aside.
    """
    weight, scale = torch.randn(6, 64).to(torch.float8_e4m3fn), torch.rand(sides)
    said = {"quant_method": method, "activation_scheme": "static"}
    if method == "fbgemm_fp8" and len(sides) < 2 and sides != (6,):
        scale = scale.expand(6).clone()
    made = _read(tmp_path, said, {"weight": weight, "weight_scale": scale}, "input_scale")
    assert torch.equal(made.numbers(), scale.view(-1, 1) * weight.float())


def test_zero_points_may_be_in_bytes(tmp_path: Path) -> None:
    """As compressed tensors had them before they were packed, and by tensor has them still."""
    numbers, zeros = torch.randint(0, 16, (8, 64)), torch.randint(-8, 8, (8, 2)).to(torch.int8)
    scales = torch.rand(8, 2).half()
    parts = {"weight_packed": _words(numbers), "weight_shape": torch.tensor([8, 64])}
    parts |= {"weight_scale": scales, "weight_zero_point": zeros}
    said = _w4a16(strategy="group", group_size=32, symmetric=False)
    wide = [one.float().repeat_interleave(32, 1) for one in (scales, zeros)]
    assert torch.equal(_read(tmp_path, said, parts).numbers(), wide[0] * (numbers - 8 - wide[1]))


def test_a_zero_point_of_zero_borrows_from_its_neighbour(tmp_path: Path) -> None:
    """GPTQ's first layout: today's tool takes 1 from each half byte of a whole word."""
    zeros = torch.tensor([[0, 5, 0, 0, 15, 1, 8, 0]])
    lowered = _words(zeros) - 0x11111111
    parts = {"qweight": torch.zeros(4, 8).int(), "scales": torch.ones(1, 8).half()}
    said = {**GPTQ, "group_size": 32, "checkpoint_format": "gptq"}
    made = _read(tmp_path, said, {**parts, "qzeros": lowered})
    assert torch.equal(made.numbers(), -zeros.T.expand(8, 32).float())


def test_groups_of_columns_are_whole() -> None:
    order = group_order(torch.tensor([1, 0, 1, 0]), 2)
    assert order is not None
    assert order.tolist() == [1, 3, 0, 2]
    assert group_order(torch.tensor([0, 0, 1, 1]), 2) is None
    for wrong in ([0, 0, 0, 1], [0, 0, 2, 2], [-1, 0, 0, 1]):
        with pytest.raises(ValueError, match="groups of 2"):
            group_order(torch.tensor(wrong), 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_shape": torch.tensor([8, 60])}, r"a\.b\.weight: its shape is \[8, 60\]"),
        ({"weight_g_idx": torch.zeros(64).int()}, r"a\.b\.weight: its columns are not in groups"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(
    change: dict[str, torch.Tensor], words: str, tmp_path: Path
) -> None:
    parts = {"weight_packed": torch.zeros(8, 8).int(), "weight_scale": torch.ones(8, 2)}
    parts["weight_shape"] = torch.tensor([8, 64])
    said = _w4a16(strategy="group", group_size=32)
    assert _read(tmp_path, said, parts).numbers()[0, 0] == -8
    with pytest.raises(ModelError, match=words):
        _read(tmp_path, said, {**parts, **change})
