"""Converters on handmade tables: known times come out, corrupt rows do not, faults have places."""

from pathlib import Path

import pytest

from daemon.cost.profile import Operators, PhaseFit, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.importers import IMPORTERS
from daemon.lab.profiles.models import find_model
from tests.lab.profiles import tables

LAYERS = 80  # of Llama-2-70B


def seconds(profile: Profile, work: StepWork) -> float:
    return step_cost(profile.step).step_s(work)


def test_distserve_numbers_are_only_divided_by_a_thousand(tmp_path: Path) -> None:
    profile = IMPORTERS["distserve"](tables.distserve(tmp_path), "opt-13b", "a100-80g", 1)
    assert isinstance(profile.step, PhaseFit)
    assert profile.step.prefill_s == (0.018, 0.0001, 7e-06 / 1e3)
    assert profile.step.large_batch == 95
    assert seconds(profile, StepWork(2, 200)) == pytest.approx(20.2e-3)
    assert seconds(profile, StepWork(95, 1000)) == pytest.approx(22.7e-3)


def test_distserve_without_the_degree_names_file_and_degree(tmp_path: Path) -> None:
    path = tables.distserve(tmp_path)
    with pytest.raises(ProfileError, match=r"fits\.json: no fit of facebook/opt-13b at .* 3"):
        IMPORTERS["distserve"](path, "opt-13b", "a100-80g", 3)
    path.write_text("{")
    with pytest.raises(ProfileError, match=r"fits\.json: not JSON"):
        IMPORTERS["distserve"](path, "opt-13b", "a100-80g", 1)


def test_distserve_is_of_its_tables_device_alone(tmp_path: Path) -> None:
    path = tables.distserve(tmp_path)
    with pytest.raises(ProfileError, match=r"fits\.json: has fits of a100-80g, not of h200"):
        IMPORTERS["distserve"](path, "opt-13b", "h200", 1)
    named = path.rename(tmp_path / "profiler-h200.distserve.json")
    assert IMPORTERS["distserve"](named, "opt-13b", "h200", 1).name == "opt-13b@h200"
    with pytest.raises(ProfileError, match="has fits of h200, not of a100-80g"):
        IMPORTERS["distserve"](named, "opt-13b", "a100-80g", 1)


def test_points_are_those_that_were_fitted(tmp_path: Path) -> None:
    """Of handmade tables: every token count, and every cell of attention; of Splitwise, shapes."""
    vidur = IMPORTERS["vidur"](tables.vidur(tmp_path), "llama-2-70b", "a100-80g", 2)
    assert vidur.fit.num_points == len(tables.TOKENS) + 5 * 3 + 6 * 3
    splitwise = IMPORTERS["splitwise"](tables.splitwise(tmp_path), "llama-2-70b", "h100", 2)
    assert splitwise.fit.num_points == 2 * 9
    kernels = IMPORTERS["aiconfigurator"](tables.aiconfigurator(tmp_path), "opt-13b", "h200", 1)
    assert kernels.fit.num_points == 8 + 4 * 4 + 10 * 3


def test_vidur_steps_are_sums_of_operators_over_layers(tmp_path: Path) -> None:
    profile = IMPORTERS["vidur"](tables.vidur(tmp_path), "llama-2-70b", "a100-80g", 2)
    layer_ms = tables.tiled_ms(256) + 1e-7 * 256 * 256 + 2 * 0.05
    chunk = StepWork(0, 0, ((256, 0),), 1)
    assert seconds(profile, chunk) == pytest.approx((LAYERS * layer_ms + 0.01) / 1e3, rel=0.03)
    layer_ms = tables.tiled_ms(16) + 0.01 + 1e-6 * 16 * 1000 + 2 * 0.05
    decodes = StepWork(16, 16 * 1000)
    assert seconds(profile, decodes) == pytest.approx((LAYERS * layer_ms + 0.01) / 1e3, rel=0.03)
    assert profile.fit.num_points > 0 and 0.0 < profile.fit.mape < 0.1
    assert profile.fit.noise_sigma == pytest.approx(0.03)


def test_vidur_attention_at_another_degree_follows_the_heads(tmp_path: Path) -> None:
    folder = tables.vidur(tmp_path)
    attention = folder / "compute/a100/meta-llama/Llama-2-70b-hf/attention.csv"
    lines = attention.read_text().splitlines()
    moved = [line.replace("2,", "4,", 1) if line.startswith("2,") else line for line in lines]
    two = IMPORTERS["vidur"](folder, "llama-2-70b", "a100-80g", 2).step
    attention.write_text("\n".join(moved) + "\n")
    wider = IMPORTERS["vidur"](folder, "llama-2-70b", "a100-80g", 2).step
    assert isinstance(two, Operators) and isinstance(wider, Operators)
    assert wider.prefill_s(256, 0) == pytest.approx(2 * two.prefill_s(256, 0), rel=1e-3)
    assert wider.decode_s(16, 512) == pytest.approx(two.decode_s(32, 512), rel=1e-3)


def test_vidur_errors_name_the_place(tmp_path: Path) -> None:
    folder = tables.vidur(tmp_path)
    path = folder / "compute/a100/meta-llama/Llama-2-70b-hf/mlp.csv"
    lines = path.read_text().splitlines()
    cells = lines[3].split(",")
    path.write_text("\n".join([*lines[:3], ",".join([*cells[:-1], "fast"]), *lines[4:]]))
    with pytest.raises(ProfileError, match=r"mlp\.csv:4: .*'fast' is no number"):
        IMPORTERS["vidur"](folder, "llama-2-70b", "a100-80g", 2)
    with pytest.raises(ProfileError, match=r"too few rows of tensor parallel 8: 0"):
        IMPORTERS["vidur"](folder, "llama-2-70b", "a100-80g", 8)
    path.unlink()
    with pytest.raises(ProfileError, match=r"expected one file .*mlp\.csv, found none"):
        IMPORTERS["vidur"](folder, "llama-2-70b", "a100-80g", 2)


def test_splitwise_drops_the_corrupt_rows(tmp_path: Path) -> None:
    profile = IMPORTERS["splitwise"](tables.splitwise(tmp_path), "llama-2-70b", "h100", 2)
    # The handmade rows of 64 prompts take 1 ms; had they counted, 32,768 tokens would be free.
    many = seconds(profile, StepWork(0, 0, ((512, 0),) * 64))
    assert many == pytest.approx(0.020 + 1e-4 * 32768, rel=0.02)
    assert seconds(profile, StepWork(0, 0, ((1024, 0),))) == pytest.approx(0.1224, rel=0.01)
    assert seconds(profile, StepWork(8, 8 * 576)) == pytest.approx(0.0346, rel=0.01)


def test_splitwise_power_comes_from_a100_and_the_cap_from_h100(tmp_path: Path) -> None:
    power = IMPORTERS["splitwise"](tables.splitwise(tmp_path), "llama-2-70b", "h100", 2).power
    assert power is not None
    assert power.prefill_share(512) == 1.0
    assert power.decode_share(4) == pytest.approx(0.7)
    assert power.prefill_slowdown(0.5) == pytest.approx(1.3)
    assert power.prefill_slowdown(1.0) == power.decode_slowdown(0.5) == 1.0


def test_splitwise_knows_one_model(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="has llama-2-70b on a100-80g, h100 alone"):
        IMPORTERS["splitwise"](tables.splitwise(tmp_path), "opt-13b", "h100", 2)


def test_aiconfigurator_composes_a_layer_from_its_products(tmp_path: Path) -> None:
    profile = IMPORTERS["aiconfigurator"](tables.aiconfigurator(tmp_path), "opt-13b", "h200", 1)
    step = profile.step
    assert isinstance(step, Operators)
    width, ffn = 5120, 20480
    products = [(3 * width, width), (width, width), (ffn, width), (width, ffn)]
    products_s = sum(tables.gemm_ms(512, n, k) for n, k in products) / 1e3
    # Six kernels that only move bytes: 3 us each, and 14 widths and two of the MLP, 2 bytes each.
    moved_s = 6 * 3e-6 + 512 * (14 * width + 2 * ffn) * 2 / (0.8 * 4.8e12)
    assert step.tokens_s(512) == pytest.approx(40 * (products_s + moved_s), rel=0.02)
    assert step.sampled_s(0) == 0.0
    assert step.sampled_s(1) == pytest.approx(tables.gemm_ms(1, 50272, width) / 1e3, rel=0.01)


def test_aiconfigurator_lets_few_heads_stand_for_many(tmp_path: Path) -> None:
    step = IMPORTERS["aiconfigurator"](tables.aiconfigurator(tmp_path), "opt-13b", "h200", 1).step
    assert isinstance(step, Operators)
    # 40 heads are five times the tabulated 8, so that one prompt counts as five.
    assert step.prefill_s(512, 0) == pytest.approx(40 * 5e-10 * 512**2, rel=0.03)
    # A chunk after others: pairs at the pace of the longest prompt, two of them a square.
    more_s = step.prefill_s(512, 1024) - step.prefill_s(512, 0)
    assert more_s == pytest.approx(40 * 2 * 5e-10 * 512 * 1024, rel=0.03)
    assert step.decode_s(16, 512) == pytest.approx(40 * (1e-5 + 1e-9 * 80 * 511), rel=0.05)


def test_aiconfigurator_splits_over_devices(tmp_path: Path) -> None:
    folder = tables.aiconfigurator(tmp_path)
    one, two = (IMPORTERS["aiconfigurator"](folder, "opt-13b", "h200", tp) for tp in (1, 2))
    assert isinstance(one.step, Operators) and isinstance(two.step, Operators)
    assert two.name == "opt-13b@h200-tp2"
    assert 0.5 < two.step.tokens_s(512) / one.step.tokens_s(512) < 0.65
    assert two.step.communication_s(16) == pytest.approx(2 * 40 * 5e-6)
    with pytest.raises(ProfileError, match="40 key heads do not split in 3"):
        IMPORTERS["aiconfigurator"](folder, "opt-13b", "h200", 3)


@pytest.mark.parametrize("kind", sorted(IMPORTERS))
def test_unknown_names_are_answered_with_near_ones(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"unknown model 'opt-13'; did you mean 'opt-13b'"):
        IMPORTERS[kind](tmp_path, "opt-13", "h200", 1)


@pytest.mark.parametrize(
    ("name", "num_params"),
    [
        ("opt-13b", 12_853_473_280),
        ("opt-66b", 65_719_701_504),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
    ],
)
def test_parameters_are_those_published(name: str, num_params: int) -> None:
    assert find_model(name).spec.num_params == num_params
