"""Every profile that comes with llmd: it loads, is sane, round-trips, and is listed truly."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from daemon.cost.profile import Operators, PhaseFit, Profile
from daemon.cost.step_cost import StepCost, step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles import load
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile, names, save_profile
from daemon.lab.profiles.roofline import scaled_to
from daemon.lab.profiles.table import BEGIN, END, listing

ROOT = Path(__file__).resolve().parents[3]
PROMISED = {
    "opt-13b@a100-80g",
    "opt-66b@a100-80g-tp4",
    "llama-2-70b@a100-80g-tp2",
    "llama-2-70b@h100-tp8",
    "llama-2-70b@h200-tp4",
    "llama-3-8b@a100-80g",
    "llama-3-8b@h100",
    "llama-3-8b@h200",
    "opt-13b@h200",
}
EVERY = pytest.mark.parametrize("name", names())


def costs(name: str) -> tuple[Profile, StepCost]:
    profile = load_profile(name)
    return profile, step_cost(profile.step)


def test_the_promised_ones_are_there() -> None:
    assert set(names()) >= PROMISED


@EVERY
def test_sane(name: str) -> None:
    profile, cost = costs(name)
    device, model = profile.device, profile.model
    assert profile.name == name and profile.source and profile.fit.noise_sigma > 0.0
    shared = model.weight_bytes(model.dtype) / profile.num_devices
    assert shared < device.memory_bytes
    # No decode is faster than reading the weights, and no prompt faster than the device's peak.
    assert cost.step_s(StepWork(1, 100, (), 1)) > 0.9 * shared / device.bandwidth_bytes_per_s
    flops = 2 * model.num_params * 2048
    assert cost.step_s(StepWork(0, 0, ((2048, 0),), 1)) > flops / device.flops / profile.num_devices
    assert cost.step_s(StepWork(1, 100, (), 1)) < 0.1


@EVERY
def test_time_grows_with_tokens_decodes_and_context(name: str) -> None:
    _, cost = costs(name)
    prompts = [cost.step_s(StepWork(0, 0, ((n, 0),), 1)) for n in range(2, 4097)]
    chunks = [cost.step_s(StepWork(0, 0, ((256, s),), 1)) for s in range(0, 4096, 32)]
    contexts = [cost.step_s(StepWork(16, 16 * c, (), 16)) for c in range(1, 4096, 32)]
    for times in (prompts, chunks, contexts):
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(times))
    decodes = [cost.step_s(StepWork(n, n * 500, (), n)) for n in range(1, 257)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(decodes)) or (
        isinstance(load_profile(name).step, PhaseFit)  # whose two decode fits meet with a gap
    )


@EVERY
def test_round_trip(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    path = tmp_path / "again.json"
    save_profile(profile, path)
    assert load_profile(str(path)) == profile
    shipped = Path(load.__file__).parent / f"{name}.json"
    assert path.read_bytes() == shipped.read_bytes()
    assert path.stat().st_size < 40_000


def test_opt_13b_is_the_published_fit() -> None:
    profile, cost = costs("opt-13b@a100-80g")
    assert isinstance(profile.step, PhaseFit) and profile.step.large_batch == 95
    assert cost.step_s(StepWork(1, 100, (), 1)) == pytest.approx(0.020, rel=0.02)
    assert cost.step_s(StepWork(0, 0, ((512, 0),), 1)) == pytest.approx(0.0721, rel=0.01)


def test_llama_70b_on_two_a100_is_near_the_published_predictions() -> None:
    _, cost = costs("llama-2-70b@a100-80g-tp2")
    assert cost.step_s(StepWork(0, 0, ((1024, 0),), 1)) == pytest.approx(0.390, rel=0.03)
    assert cost.step_s(StepWork(0, 0, ((2048, 0),), 1)) == pytest.approx(0.733, rel=0.03)
    assert cost.step_s(StepWork(1, 1152, (), 1)) == pytest.approx(0.0567, rel=0.06)


def test_tiles_are_seen_where_they_matter() -> None:
    step = load_profile("llama-2-70b@a100-80g-tp2").step
    assert isinstance(step, Operators)
    assert step.tokens_s(129) > 1.2 * step.tokens_s(128)


@pytest.mark.parametrize("name", ["opt-13b@a100-80g", "llama-2-70b@a100-80g-tp2"])
def test_a_pipeline_shares_the_layers(name: str) -> None:
    whole, staged = load_profile(name), load_profile(f"{name}-pp4")
    assert (staged.name, staged.pp, staged.num_devices) == (f"{name}-pp4", 4, 4 * whole.tp)
    assert staged.model == whole.model
    work = StepWork(8, 4000, ((256, 512),), 9)
    ours, theirs = (step_cost(profile.step).step_s(work) for profile in (staged, whole))
    assert ours == pytest.approx(theirs / 4)
    tokens_bytes = 1000 * whole.model.hidden_size * 2
    link = whole.device.peer_link
    assert staged.stage_s(1000) == pytest.approx(link.latency_s + tokens_bytes / link.bytes_per_s)


def test_a_stage_with_one_layer_more_paces_the_others() -> None:
    whole, staged = load_profile("opt-13b@a100-80g"), load_profile("opt-13b@a100-80g-pp3")
    assert isinstance(whole.step, PhaseFit) and isinstance(staged.step, PhaseFit)
    assert staged.step.decode_s[0] == pytest.approx(whole.step.decode_s[0] * 14 / 40)


def test_the_head_stays_whole() -> None:
    whole, staged = load_profile("llama-3-8b@h200"), load_profile("llama-3-8b@h200-pp2")
    assert isinstance(whole.step, Operators) and isinstance(staged.step, Operators)
    assert staged.step.sampled_s == whole.step.sampled_s
    assert staged.step.tokens_s(512) == pytest.approx(whole.step.tokens_s(512) / 2)


def test_one_stage_is_the_profile_itself() -> None:
    assert load_profile("llama-3-8b@h200-pp1") == load_profile("llama-3-8b@h200")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("opt-13b@a100-80", "did you mean 'opt-13b@a100-80g', .* or"),
        ("zzz", "known are llama-2-70b@a100-80g-tp2"),
        ("opt-13b@a100-80g-pp0", "unknown profile 'opt-13b@a100-80g-pp0'; did you mean"),
        ("opt-13b@a100-80g-pp41", "40 layers do not make 41 stages"),
        ("nowhere/x.json", r"nowhere/x\.json: No such file"),
    ],
)
def test_what_cannot_be_loaded_is_said_clearly(name: str, fault: str) -> None:
    with pytest.raises(ProfileError, match=fault):
        load_profile(name)


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    good = msgspec.to_builtins(load_profile("opt-13b@a100-80g"))
    path.write_bytes(msgspec.json.encode({**good, "speed": 3}))
    with pytest.raises(ProfileError, match=r"mine\.json: not a profile: .*speed"):
        load_profile(str(path))
    path.write_bytes(msgspec.json.encode({**good, "stage_s": {"at": [2, 1], "value": [1, 2]}}))
    with pytest.raises(ProfileError, match=r"mine\.json: not a profile: .*knots must grow"):
        load_profile(str(path))


def test_bandwidth_slows_decodes_and_leaves_prompts() -> None:
    wide = load_profile("llama-3-8b@h200")
    narrow = step_cost(scaled_to(wide, "h100").step)
    cost = step_cost(wide.step)
    decode, prompt = StepWork(1, 1000, (), 1), StepWork(0, 0, ((4096, 0),), 0)
    assert 1.3 < narrow.step_s(decode) / cost.step_s(decode) < 4.8 / 3.35 + 1e-3
    assert narrow.step_s(prompt) == pytest.approx(cost.step_s(prompt))
    with pytest.raises(ProfileError, match="only operators scale"):
        scaled_to(wide, "a100-80g")


def test_the_document_lists_them_as_they_are() -> None:
    document = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    assert BEGIN + listing() + END in document
