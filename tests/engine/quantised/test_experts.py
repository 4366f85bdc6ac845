"""Experts of mixtures: found in checkpoints, chosen, and computed in groups as one by one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import linear
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    GptOssConfig,
    GraniteMoeConfig,
    Lfm2MoeConfig,
    MiniMaxM2Config,
    MixtralConfig,
    Qwen3MoeConfig,
)
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeSparseMoeBlock
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeMoE
from transformers.models.lfm2_moe.modeling_lfm2_moe import (
    Lfm2MoeSparseMoeBlock,
    Lfm2MoeTopKRouter,
)
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2SparseMoeBlock
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter

from daemon.engine.cpu import expert_calls
from daemon.engine.cpu.choose_products import possible
from daemon.engine.cpu.expert_calls import ExpertRows
from daemon.engine.cpu.experts import MOST_TOKENS, ExpertProducts, KeptBuffers, can_group
from daemon.engine.cpu.matrix_dots import have_matrices
from daemon.engine.cpu.product_implementations import (
    ROUNDED,
    SIZES,
    ProductWay,
    ProductWays,
    always,
)
from daemon.engine.cpu.team import Team
from daemon.engine.layers.mlp import Mixture
from daemon.engine.layers.routers import Router, router_of, shared_of
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import requantise
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.verify.model.judge import Finding
from daemon.engine.verify.model.trial import _Trial
from daemon.engine.worker.start import start
from daemon.models.gguf_index import read_index
from daemon.protocol.worker import Load
from tests.engine.cpu import test_step_programs
from tests.engine.quantised import five_models
from tests.engine.quantised.random_blocks import random_weight
from tests.engine.quantised.test_models import check_greedy_text
from tests.zoo.axes import variants
from tests.zoo.build import build
from tests.zoo.variant import Variant

CPU = torch.device("cpu")
WIDTH, INNER, EXPERTS, CHOSEN = 128, 64, 5, 2
COUNTS = (1, 2, 7, 40, MOST_TOKENS + 3)
MIXTURE = "qwen3, experts"


pytestmark = pytest.mark.usefixtures("seeded")


def config(**changes: Any) -> MixtralConfig:
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_experts_per_tok": CHOSEN}
    return MixtralConfig(**{**sizes, "num_local_experts": EXPERTS, **changes})


def experts(name: str) -> QuantisedExperts:
    """Experts of one format, whose gate and rows above it are weights of their own."""
    made = QuantisedExperts(MixtralExperts(config()))
    for seed, (gate_up, down) in enumerate(zip(made.gate_up, made.down, strict=True)):
        gate_up.weights = [random_weight(name, INNER, WIDTH, 3 * seed + one) for one in range(2)]
        down.weights = [random_weight(name, WIDTH, INNER, 3 * seed + 2)]
    return made


def clamped_experts(name: str, apart: bool) -> QuantisedExperts:
    """gpt-oss's, in one tensor for gates and ups that take turns, or in one for each."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_local_experts": EXPERTS}
    original = GptOssExperts(GptOssConfig(**sizes, swiglu_limit=0.5))
    for parameter in original.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    made = QuantisedExperts(original.requires_grad_(False), apart)
    rows = [INNER, INNER] if apart else [2 * INNER]
    for seed, (gate_up, down) in enumerate(zip(made.gate_up, made.down, strict=True)):
        gate_up.weights = [
            random_weight(name, count, WIDTH, 3 * seed + place) for place, count in enumerate(rows)
        ]
        down.weights = [random_weight(name, WIDTH, INNER, 3 * seed + 2)]
    return made


@pytest.mark.parametrize("apart", [False, True])
def test_groups_compute_clamped_gates_and_biases(apart: bool, team: Team) -> None:
    one_by_one = clamped_experts("MXFP4", apart)
    weights = [weight for layer in one_by_one.layers for weight in layer.weights]
    way = ProductWay.FLOATS_TOGETHER
    assert can_group(one_by_one)
    together = ExpertProducts(one_by_one, team, always(weights, way), KeptBuffers())
    for count in COUNTS:
        states = torch.randn(count, WIDTH)
        for chosen, shares in routes(count):
            expected = one_by_one(states, chosen, shares)
            found = together(states, chosen, shares)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


def routes(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Experts and shares of so many tokens: any, and all the same ones."""
    some = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(count)])
    return [(one, torch.rand(count, CHOSEN)) for one in (some, some[:1].expand(count, -1))]


@pytest.mark.parametrize("name", ["Q8_0", "BF16", "int4/64", "fp8/32"])
def test_groups_compute_what_experts_do_one_by_one(name: str, team: Team) -> None:
    one_by_one = experts(name)
    weights = [weight for layer in one_by_one.layers for weight in layer.weights]
    ways = {way for size in (1, 64) for way in possible(weights[0], size, False, True)}
    assert can_group(one_by_one) and len(ways) >= 2
    for way in ways | set(possible(weights[0], 1, True, True)):
        for layer in one_by_one.layers:
            layer.rounds = way in ROUNDED
        together = ExpertProducts(one_by_one, team, always(weights, way), KeptBuffers())
        assert {id(one) for one in together.weights} == {id(one) for one in weights}
        for count in COUNTS:
            states = torch.randn(count, WIDTH)
            for chosen, shares in routes(count):
                expected = one_by_one(states, chosen, shares)
                found = together(states, chosen, shares)
                errors = (found - expected).abs().amax(1) / expected.abs().max()
                # What differs in a last bit may be rounded to another integer, at a few tokens.
                close = {ProductWay.BFLOAT16_BY_MATRICES: 3e-2} | dict.fromkeys(ROUNDED, 1e-2)
                assert errors.max() < close.get(way, 1e-4), (way, count)
                if count > 2 and way in ROUNDED:
                    assert errors.median() < 1e-4, (way, count)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (ProductWay.ROUNDED_TOGETHER, ProductWay.FLOATS_SINGLY),
        (ProductWay.FLOATS_TOGETHER, ProductWay.ROUNDED_TOGETHER),
        (ProductWay.ROUNDED_SINGLY, ProductWay.BFLOAT16_BY_MATRICES),
    ],
)
def test_layers_are_computed_in_ways_of_their_own(
    wide: ProductWay, narrow: ProductWay, team: Team
) -> None:
    if ProductWay.BFLOAT16_BY_MATRICES in (wide, narrow) and not have_matrices():
        pytest.skip("no matrices on this processor")
    one_by_one = experts("Q8_0")
    of_width = {WIDTH: wide, INNER: narrow}
    chosen_ways = {("Q8_0", width): (way,) * len(SIZES) for width, way in of_width.items()}
    together = ExpertProducts(one_by_one, team, ProductWays(chosen_ways), KeptBuffers())
    for layer in one_by_one.layers:
        layer.rounds = of_width[layer.in_features] in ROUNDED
    for count in (1, 9, 130):
        states = torch.randn(WIDTH, count).T
        for chosen, shares in routes(count):
            expected = one_by_one(states, chosen, shares)
            found = together(states, chosen, shares)
            error = (found - expected).abs().max() / expected.abs().max()
            assert error < (3e-2 if narrow is ProductWay.BFLOAT16_BY_MATRICES else 2e-3), count


def test_nothing_of_a_token_reaches_others(team: Team) -> None:
    one_by_one = experts("Q8_0")
    weights = [weight for layer in one_by_one.layers for weight in layer.weights]
    together = ExpertProducts(
        one_by_one, team, always(weights, ProductWay.ROUNDED_TOGETHER), KeptBuffers()
    )
    states, (chosen, shares) = torch.randn(9, WIDTH), routes(9)[0]
    clean = together(states, chosen, shares)
    states[4] = torch.nan
    found = together(states, chosen, shares)
    others = torch.arange(9) != 4
    assert torch.equal(found[others], clean[others]) and found[4].isnan().all()
    assert together(states[:0], chosen[:0], shares[:0]).shape == (0, WIDTH)


def test_experts_that_differ_are_computed_one_by_one() -> None:
    ordered, mixed, odd = experts("Q8_0"), experts("Q8_0"), experts("Q8_0")
    weight = random_weight("int4/64", WIDTH, INNER)
    mixed.down[1].weights = [weight]
    order = torch.randperm(INNER, dtype=torch.int32)
    for layer in ordered.down:
        layer.weights = [type(weight)(weight.format, weight.data, INNER, order)]
    odd.gated = nn.Identity()
    assert not any(can_group(one) for one in (ordered, mixed, odd))


def route(logits: torch.Tensor, router: Router, team: Team) -> ExpertRows:
    rows = ExpertRows.of(len(logits), router.num_chosen, logits.shape[1], 1)
    scores, scale = logits.clone(), torch.tensor([router.scale, router.added])
    team.run(expert_calls.routed(scores, rows, router, scale))
    return rows


def routers() -> list[Router]:
    """Each kind of choice."""
    correction = torch.linspace(-0.2, 0.3, 36)[torch.randperm(36)]
    usual = Router(torch.eye(36), CHOSEN, False)
    return [
        usual,
        replace(usual, to_one=True),
        replace(usual, correction=correction, to_one=True, scale=2.5),
        replace(usual, sigmoid=True, scale=1.5),
        replace(usual, sigmoid=True, to_one=True, added=0.1),
        replace(usual, sigmoid=True, correction=correction, to_one=True),
        replace(usual, sigmoid=True, correction=correction, groups=6, kept_groups=2, num_chosen=5),
        replace(usual, groups=4, kept_groups=3, to_one=True, num_chosen=7),
    ]


def test_tokens_are_routed_as_torch_does(team: Team) -> None:
    logits = torch.randn(50, 36) * 2
    for router in routers():
        chosen, shares = router(logits)
        rows = route(logits, router, team)
        assert torch.equal(rows.chosen.long(), chosen), router
        torch.testing.assert_close(rows.shares, shares, rtol=1e-5, atol=1e-7)


def test_any_logits_choose_experts_that_exist(team: Team) -> None:
    logits = torch.zeros(6, EXPERTS)
    logits[1] = torch.nan
    logits[2], logits[3, 1:], logits[4] = torch.inf, -torch.inf, 88.0
    logits[5, 3] = 1.0
    for router in routers():
        some = replace(router, correction=None, groups=1, kept_groups=1, num_chosen=CHOSEN)
        chosen = route(logits, some, team).chosen
        assert bool(((chosen >= 0) & (chosen < EXPERTS)).all())
    rows = route(logits, Router(torch.eye(EXPERTS), CHOSEN, True), team)
    assert bool(((rows.chosen >= 0) & (rows.chosen < EXPERTS)).all())
    assert rows.chosen[0].tolist() == [0, 1] and rows.chosen[5].tolist() == [3, 0]
    assert rows.shares[3].tolist() == [1.0, 0.0]


class Block(nn.Module):
    """A router and its experts."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate = gate
        self.experts = nn.Identity()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As blocks of transformers do."""
        flat = states.flatten(0, 1)
        _, shares, chosen = self.gate(flat)
        return self.experts(flat, chosen, shares).view(states.shape)  # type: ignore[no-any-return]


class Beside(Block):
    """With an MLP that every token takes."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__(gate)
        self.shared_expert = nn.Identity()
        self.share = 1.0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The MLP's output is added."""
        return super().forward(states) + self.share * self.shared_expert(states)


@pytest.mark.parametrize("alike", [0.0, 1.0, 1.5, 1.75, 3.0])
def test_a_router_is_known_however_alike_its_rows_are(alike: float) -> None:
    own: Any = config(n_group=3, topk_group=2, routed_scaling_factor=1.5)
    own.norm_topk_prob, own.num_local_experts = True, 6
    own.num_experts, own.use_expert_bias = 6, False
    generator = torch.Generator().manual_seed(1)
    for gate, added in ((Glm4MoeTopkRouter(own), 0.0), (Lfm2MoeTopKRouter(own), 1e-6)):
        nn.init.normal_(gate.weight, generator=generator)
        gate.weight.data += alike * torch.randn(gate.weight.shape[1], generator=generator)
        found = router_of(Block(gate))
        assert found is not None and found.sigmoid and found.added == added, type(gate)


def test_a_router_is_known_by_what_it_chooses() -> None:
    gate = MixtralTopKRouter(config())
    nn.init.normal_(gate.weight)
    found = router_of(Block(gate))
    assert found is not None and found.to_one and found.num_chosen == CHOSEN
    scaled = MixtralTopKRouter(config())
    nn.init.normal_(scaled.weight)
    scaled.forward = lambda states: _scaled(MixtralTopKRouter.forward(scaled, states))  # type: ignore[method-assign]
    assert router_of(Block(scaled)) is None
    lost = Block(gate)
    lost.shared_expert = nn.Identity()
    assert router_of(lost) is None, "its output is not added"
    beside = Beside(gate)
    found = router_of(beside)
    assert found is not None and shared_of(beside) == (beside.shared_expert, None)
    beside.share = 0.5
    assert router_of(beside) is None
    glm: Any = config(n_group=3, topk_group=2, routed_scaling_factor=1.5)
    glm.norm_topk_prob, glm.num_local_experts = True, 6
    grouped = Glm4MoeTopkRouter(glm)
    nn.init.normal_(grouped.weight)
    nn.init.normal_(grouped.e_score_correction_bias)
    found = router_of(Block(grouped))
    assert found is not None and found.sigmoid and found.correction is not None
    assert (found.groups, found.kept_groups, found.scale) == (3, 2, 1.5)


@pytest.mark.parametrize(
    ("block_type", "config_type", "sizes"),
    [
        (MiniMaxM2SparseMoeBlock, MiniMaxM2Config, {"num_local_experts": 6}),
        (GraniteMoeMoE, GraniteMoeConfig, {"num_local_experts": 6}),
        (Ernie4_5_MoeSparseMoeBlock, Ernie4_5_MoeConfig, {"moe_num_experts": 6}),
        (Lfm2MoeSparseMoeBlock, Lfm2MoeConfig, {"num_experts": 6}),
    ],
)
def test_a_family_s_router_is_two_calls_that_choose_as_it_does(
    block_type: Any, config_type: Any, sizes: dict[str, int], team: Team
) -> None:
    made = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 32, **sizes}
    block = block_type(config_type(**made, num_experts_per_tok=2, moe_k=2))
    for tensor in (*block.parameters(), *block.buffers()):
        nn.init.normal_(tensor)
    found = router_of(block)
    assert found is not None and found.groups == found.kept_groups
    states = torch.randn(20, 32)
    rows = route(linear(states, found.weight), found, team)
    chosen, shares = found(states)
    assert rows.chosen.sort().values.tolist() == chosen.sort().values.tolist()
    torch.testing.assert_close(rows.shares.sort().values, shares.sort().values)


def _scaled(said: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return said[0], said[1] * 2, said[2]


def engine_of(folder: Path, cache: Path, exact: bool = True) -> Any:
    load = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(cache), exact=exact)
    with torch.inference_mode():
        return start(load, lambda _stage, _done: None)[0]


@pytest.mark.parametrize("form", ["Q8_0", "GPTQ, in an order", "FP8, blocks", "int4", "NVFP4"])
def test_a_mixture_is_served_from_blocks(form: str, tmp_path: Path) -> None:
    folder, _ = five_models.write(MIXTURE, form, tmp_path)
    engine = engine_of(folder, tmp_path / "trials")
    ordered = "order" in form
    assert engine.model.fused and engine.model.compiled is not ordered
    kinds = {type(one) for one in engine.model._forward.products()}
    assert (QuantisedExperts if ordered else ExpertProducts) in kinds
    check_greedy_text(engine, folder)
    model = load_model(folder, "float32", CPU)
    held = {id(one): one.size_bytes for _, la in quantised_layers(model) for one in la.weights}
    plain = sum(one.nbytes for one in model.parameters())
    # Some plain layers (a head that no format holds) are there twice.
    assert sum(held.values()) + plain <= engine.model.weight_bytes <= sum(held.values()) + 2 * plain


@pytest.mark.parametrize("family", ["qwen2_moe", "glm4_moe", "granitemoehybrid"])
def test_what_stands_beside_experts_is_a_part_of_a_program(family: str, tmp_path: Path) -> None:
    """An MLP for all tokens, in a share of their own or whole, in the block or beside it; groups
    and corrections of scores; behind attention or Mamba 2.
    """
    sizes = ("hidden_size", "intermediate_size", "moe_intermediate_size")
    shared = ("shared_expert_intermediate_size", "shared_intermediate_size")
    fields: dict[str, Any] = dict.fromkeys((*sizes, *shared), 64)
    if family == "granitemoehybrid":
        fields["layer_types"] = ["linear_attention", "full_attention"]
    build(Variant(family, "beside", fields), tmp_path / "plain")
    folder = tmp_path / "made"
    requantise(tmp_path / "plain", folder, "int8", lambda _share: None)
    for exact in (True, False):
        engine = engine_of(folder, tmp_path / "trials", exact=exact)
        assert engine.model.fused and engine.model.compiled
        mixtures = [layer.mlp for layer in engine.model._forward.layers]
        assert all(mlp.shared and mlp.router for mlp in mixtures if isinstance(mlp, Mixture))
        if exact:
            check_greedy_text(engine, folder)


@pytest.mark.parametrize("family", ["lfm2_moe", "jamba", "falcon_h1", "qwen3_next", "kimi_linear"])
def test_packed_layers_beside_states_are_a_part_of_a_program(family: str, tmp_path: Path) -> None:
    """Experts that are chosen with a bias, the products of Mamba 1 and of Kimi's gates, two outputs
    of a layer, and projections in another order.
    """
    sizes = "hidden_size", "intermediate_size", "moe_intermediate_size"
    shared = ("shared_expert_intermediate_size",)
    fields: dict[str, Any] = dict.fromkeys((*sizes, *shared), 64)
    if family in ("qwen3_next", "kimi_linear"):
        fields["layer_types"] = ["linear_attention", "full_attention"]
    if family == "kimi_linear":  # few pages for a state
        fields |= {"linear_head_dim": 32, "linear_num_heads": 1, "kv_lora_rank": 128}
    build(Variant(family, "packed", fields), tmp_path / "plain")
    folder = tmp_path / "made"
    requantise(tmp_path / "plain", folder, "int8", lambda _share: None)
    engine = engine_of(folder, tmp_path / "trials")
    assert engine.model.fused and engine.model.compiled
    check_greedy_text(engine, folder)


def test_what_rounds_and_is_wrong_in_the_straight_decoder_is_served_by_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(trial: Any, made: Any) -> Finding:
        found = true(trial, made)
        return Finding(1.0, 0.0, "in a test") if made.fused else found

    true = _Trial._judged
    monkeypatch.setattr(_Trial, "_judged", judged)
    folder, _ = five_models.write(MIXTURE, "int8", tmp_path)
    engine = engine_of(folder, tmp_path / "trials", exact=False)
    assert not engine.model.fused
    assert any(isinstance(one, ExpertProducts) for one in engine.model._forward.products())


@pytest.mark.parametrize("form", ["int8", "GPTQ, in an order"])
def test_company_is_no_matter_only_where_nothing_rounds(form: str, tmp_path: Path) -> None:
    folder, _ = five_models.write(MIXTURE, form, tmp_path)
    for exact in (True, False):
        model = engine_of(folder, tmp_path / "trials", exact=exact).model
        assert model.alike(1, 2) is model.alike(8, 12) is exact
        assert model.alike(3, 3)


def mixtral(folder: Path) -> Path:
    """A small Mixtral in FP8, whose tensors have names that the model does not have."""
    made = five_models._model(
        MixtralConfig,
        "",
        False,
        (4, 2),
        head_dim=32,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
    )
    five_models.checkpoint(made, "FP8, blocks", folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    parts = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    renamed = {}
    for name, tensor in tensors.items():
        own = name
        if ".experts." in name:
            for part, short in parts.items():
                own = own.replace(f".{part}.", f".{short}.")
        renamed[own.replace(".mlp.", ".block_sparse_moe.")] = tensor
    save_file(renamed, path, {"format": "pt"})
    return folder


def test_names_of_older_checkpoints_are_found(tmp_path: Path) -> None:
    folder = mixtral(tmp_path / "mixtral")
    model: Any = load_model(folder, "float32", CPU)
    assert all(isinstance(layer.mlp.experts, QuantisedExperts) for layer in model.model.layers)
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.1.block_sparse_moe.experts.3.w3.weight"
    layer = model.model.layers[1].mlp.experts.gate_up[3]
    scales = stored[f"{name}_scale_inv"].repeat_interleave(32, 0).repeat_interleave(32, 1)
    expected = stored[name].float() * scales
    assert torch.equal(layer.weight[len(expected) :], expected)
    check_greedy_text(engine_of(folder, tmp_path / "trials"), folder)


def test_layers_that_a_checkpoint_names_otherwise_are_packed(tmp_path: Path) -> None:
    """Kimi's gates that forget, dense MLPs and shared experts."""
    build(Variant("kimi_linear", "named", {}), tmp_path / "kimi")
    stored = load_file(tmp_path / "kimi" / "model.safetensors")
    assert "model.layers.0.self_attn.f_a_proj.weight" in stored
    model = load_model(tmp_path / "kimi", "float32", CPU, weight_dtype="bfloat16")
    plain = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert not plain
    layer: Any = model.get_submodule("model.layers.0.self_attn.forget_gate.f_a_proj")
    expected = stored["model.layers.0.self_attn.f_a_proj.weight"].bfloat16()
    assert torch.equal(layer.weight, expected.float())


def test_experts_of_which_one_is_plain_stay_as_they_are_stored_in_float32(tmp_path: Path) -> None:
    """Elsewhere all of their layer are unpacked."""
    folder, _ = five_models.write(MIXTURE, "W8A8", tmp_path)
    path = folder / "model.safetensors"
    tensors, said = load_file(path), json.loads((folder / "config.json").read_text())
    one = "model.layers.0.mlp.experts.2.up_proj"
    scale = tensors.pop(f"{one}.weight_scale")
    tensors[f"{one}.weight"] = (tensors[f"{one}.weight"].float() * scale.float()).bfloat16()
    save_file(tensors, path, {"format": "pt"})
    said["quantization_config"]["ignore"].append(one)
    (folder / "config.json").write_text(json.dumps(said))
    numbers = tensors[f"{one}.weight"]
    for dtype in ("float32", "bfloat16"):
        model: Any = load_model(folder, dtype, CPU)
        first, second = (layer.mlp.experts for layer in model.model.layers)
        assert isinstance(second, QuantisedExperts)
        assert isinstance(first, QuantisedExperts) is (dtype == "float32")
        packed = dtype == "float32"
        found = first.gate_up[2].weight if packed else first.gate_up_proj[2]
        assert torch.equal(found[len(found) // 2 :].float(), numbers.float())


def test_modelling_code_may_begin_the_weights_of_a_router(tmp_path: Path) -> None:
    """As that of Arcee's mixtures does, before they are loaded."""
    folder = tmp_path / "float32"
    build(next(iter(variants("afmoe"))), folder)
    loader: Any = AutoModelForCausalLM
    narrow = loader.from_pretrained(folder, dtype=torch.bfloat16)
    narrow.save_pretrained(tmp_path / "narrow")
    (tmp_path / "narrow" / "tokenizer.json").write_text("{}")
    model: Any = load_model(tmp_path / "narrow", "float32", CPU, weight_dtype="bfloat16")
    tokens = torch.randint(5, 60, (1, 9))
    with torch.inference_mode():
        found = model.set_attn_implementation("eager") or model(input_ids=tokens).logits
        expected = narrow.float()(input_ids=tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_steps_of_a_mixture_are_the_same_in_programs(tmp_path: Path) -> None:
    """One of whose layers has no experts."""
    made = five_models.MODELS[MIXTURE].config.to_dict() | {"mlp_only_layers": [1]}
    loader: Any = AutoModelForCausalLM
    mixed = loader.from_config(Qwen3MoeConfig(**made)).float()
    plain = five_models.save_plain(mixed, tmp_path / "plain")
    folder = tmp_path / "made"
    requantise(plain, folder, "int8", lambda _share: None)
    engine = test_step_programs.loaded(folder)
    assert engine.model.compiled
    for counts in ((1,), (1, 1, 1), (5, 1, 2), (9, 20), (33, 31, 1, 1)):
        with torch.inference_mode():
            found, expected = (
                test_step_programs.steps(engine, counts, compiled) for compiled in (True, False)
            )
        torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=2e-4)


def test_experts_are_rounded_as_other_layers_are(tmp_path: Path) -> None:
    made = five_models.MODELS[MIXTURE]
    loader: Any = AutoModelForCausalLM
    source = five_models.save_plain(loader.from_config(made.config).float(), tmp_path / "plain")
    requantise(source, tmp_path / "made", "int4", lambda _share: None)
    index = read_index(tmp_path / "made")
    assert index is not None
    of_experts = [one for one in index.tensors if ".experts." in one.name]
    assert len(of_experts) == 2 * 6 * 3
    assert {one.format.partition("/")[0] for one in of_experts} == {"int4"}
    routers = [one for one in index.tensors if one.name.endswith("mlp.gate.weight")]
    assert {one.format for one in routers} == {"F32"} and len(routers) == 2
    rows = np.fromfile(tmp_path / "made" / "model.blocks", np.uint8)
    assert len(rows) == index.size_bytes
