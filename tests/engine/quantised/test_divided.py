"""Experts divided between a step's device and host memory: the text of all on one device."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.engine.loading.experts_below import in_ram_of
from daemon.engine.loading.loader import load_model
from daemon.engine.quantised import stored
from daemon.engine.quantised.divided import DividedExperts, parts_of
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.models.shape import ModelError
from daemon.protocol.worker import Load
from tests.engine.quantised import five_models
from tests.engine.quantised.test_experts import WIDTH, clamped_experts, experts, routes
from tests.engine.quantised.test_models import check_greedy_text

MIXTURE = "qwen3, experts"
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("seeded")


def engine_of(folder: Path, cache: Path, on_cpu: int) -> Engine:
    load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(cache))
    load = msgspec.structs.replace(load, experts_on_cpu=on_cpu)
    with torch.inference_mode():
        return start(load, lambda _stage, _done: None)[0]


@pytest.mark.parametrize(("form", "on_cpu"), [("Q4_K", 1), ("MXFP4", 2)])
def test_a_packed_mixture_has_its_text_before_and_behind_exchanges(
    form: str, on_cpu: int, tmp_path: Path
) -> None:
    folder, _ = five_models.write(MIXTURE, form, tmp_path)
    engine = engine_of(folder, tmp_path / "trials", on_cpu)
    divided = engine.model.experts
    assert engine.model.fused and not engine.model.compiled
    assert (divided.num_on_device, divided.num_in_ram) == (12 - 6 * on_cpu, 6 * on_cpu)
    assert divided.use.on_device == divided.use.in_ram == 0 < divided.bytes_in_ram
    check_greedy_text(engine, folder)
    use = divided.use
    assert use.on_device + use.in_ram == sum(layer.counts.sum() for layer in divided.layers)
    assert use.in_ram > 0 and (use.on_device > 0) is (on_cpu == 1)
    while engine.prepare():
        pass
    assert (divided.use.exchanged > 0) is (on_cpu == 1)
    check_greedy_text(engine, folder)


def test_what_host_memory_holds_is_told_as_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that says nothing for long is ended: experts are most of a mixture."""
    monkeypatch.setattr(stored, "_TELL_EVERY_S", 0.0)
    folder, _ = five_models.write(MIXTURE, "Q4_K", tmp_path)
    whole, below = list[float](), list[float]()
    load_model(folder, "float32", CPU, whole.append)
    load_model(folder, "float32", CPU, below.append, experts_on_cpu=2)
    assert max(below) == pytest.approx(max(whole), rel=0.05)


def test_a_plain_mixture_has_its_text(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(five_models.MODELS[MIXTURE].config)
    model.float().save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    engine = engine_of(tmp_path / "plain", tmp_path / "trials", 1)
    held = load_model(tmp_path / "plain", "float32", CPU, experts_on_cpu=1)
    kinds = {
        weight.format.name
        for module in held.modules()
        if isinstance(module, QuantisedExperts)
        for layer in module.layers
        for weight in layer.weights
    }
    assert kinds == {"F32"}
    check_greedy_text(engine, tmp_path / "plain")
    assert engine.model.experts.use.in_ram > 0


@pytest.mark.parametrize("biased", [False, True])
def test_an_exchange_moves_weights_and_biases_and_changes_no_bit(biased: bool) -> None:
    made = clamped_experts("MXFP4", apart=True) if biased else experts("Q8_0")
    whole = {count: routes(count)[0] for count in (1, 7, 40)}
    states = {count: torch.randn(count, WIDTH) for count in whole}
    with torch.inference_mode():
        expected = {count: made(states[count], *route) for count, route in whole.items()}
        made.in_ram = (2, 3, 4)
        divided = DividedExperts(made, parts_of(made), lambda part: part)
        for _ in range(3):
            for count, route in whole.items():
                assert torch.equal(divided(states[count], *route), expected[count])
            below = np.flatnonzero(divided.in_ram)
            divided.exchange(int(below[0]), int(np.flatnonzero(~divided.in_ram)[0]))
        assert divided.use.exchanged == 3 and divided.in_ram.sum() == 3


def test_experts_are_exchanged_where_they_are_chosen_clearly_more_often() -> None:
    made = experts("Q8_0")
    made.in_ram = (3, 4)
    divided = DividedExperts(made, parts_of(made), lambda part: part)
    divided.counts[:] = [50, 40, 60, 45, 10]
    assert divided.wanted() is None, "a little more is worth no copies"
    divided.counts[4] = 80
    assert divided.wanted() == (40.0, 4, 1)


def test_layers_share_what_lies_in_ram() -> None:
    assert in_ram_of([8, 8, 8], 1) == [2, 3, 3]
    assert in_ram_of([8, 8, 8], 3) == [8, 8, 8]


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    folder, _ = five_models.write(MIXTURE, "Q8_0", tmp_path)
    with pytest.raises(ModelError, match="experts_on_cpu = 3 is more than its 2 layers"):
        load_model(folder, "float32", CPU, experts_on_cpu=3)
    dense = AutoModelForCausalLM.from_config(five_models.MODELS["qwen2, biases"].config)
    dense.save_pretrained(tmp_path / "dense")
    (tmp_path / "dense" / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is for a mixture of experts"):
        load_model(tmp_path / "dense", "float32", CPU, experts_on_cpu=1)
