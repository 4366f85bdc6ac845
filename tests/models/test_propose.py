"""Instances that a model could have on real machines: what fits, on which cards, and how fast."""

import msgspec
import pytest

from benchmarks.sizing import MODELS
from daemon.config.card_links import CardSeat
from daemon.config.cuda import Card, Devices
from daemon.config.find import find
from daemon.config.instance_text import parse_instance, placed
from daemon.config.load import load
from daemon.memory.experts import ExpertShape
from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.state_layout import SSM, StatePart
from daemon.models.choose import choose_instances
from daemon.models.propose import (
    EACH_TOKENS,
    NO_NCCL,
    READ_SHARE,
    Proposal,
    Workstation,
    grouped,
    machine_of,
    propose,
    stage_layers_on,
    told,
)
from daemon.models.shape import ModelError, ModelShape
from daemon.models.stages import rank_parts
from daemon.runtime.model import with_instances
from tests.models.machines import NAMES, machine
from tests.shapes import LLAMA_3_8B

GIB = 1 << 30
CONFIG = load().config
LLAMA_70B = MODELS["Llama-3.1-70B"]


def on(name: str, model: ModelShape, ram_gib: int = 0) -> tuple[Proposal, ...]:
    return propose(CONFIG, model, machine_of(machine(name), ram_gib * GIB, 80e9))


def texts(proposals: tuple[Proposal, ...]) -> list[str]:
    return [" ".join(each.instances) for each in proposals]


@pytest.mark.parametrize("name", NAMES)
def test_what_can_be_served_now_is_what_serves_without_being_told(name: str) -> None:
    """A model that fits each card of every machine is an instance on each of them."""
    model = msgspec.structs.replace(LLAMA_3_8B, context_len=8192)
    proposals = propose(CONFIG, model, machine_of(machine(name), 64 * GIB, 80e9))
    found = choose_instances(find(CONFIG, model, machine(name)), proposals)
    assert found.why_several == ""
    texts = tuple(spec.device for spec in found.instances)
    served = next(each for each in proposals if each.instances == texts)
    assert len(served.instances) == len(machine(name).cards)
    assert list(told(proposals, found.instances))[-1] == f"can be served: {served}"
    assert served.longest == 8192 and served.token_s > 0.0


def test_cards_in_pairs_compute_together_in_pairs() -> None:
    pairs = ["cuda:0,1:tp2", "cuda:2,3:tp2", "cuda:4,5:tp2", "cuda:6,7:tp2"]
    assert grouped(machine_of(machine("nvlink-pairs"), 0), 2)[1][0].device == "cuda:2"
    assert " ".join(pairs) in texts(on("nvlink-pairs", LLAMA_70B))
    two = machine("four-l40s")
    assert [[card.device for card in group] for group in grouped(machine_of(two, 0), 2)] == [
        ["cuda:0", "cuda:1"],
        ["cuda:2", "cuda:3"],
    ]


@pytest.mark.parametrize("name", ["four-l40s", "nvlink-pairs", "dgx-a100"])
def test_a_model_that_fits_no_card_is_served_split(name: str) -> None:
    """By the best proposal; where NCCL is missing, by the best one of stages."""
    proposals = on(name, LLAMA_70B)
    found = choose_instances(find(CONFIG, LLAMA_70B, machine(name)), proposals)
    assert all("," in text for text in proposals[0].instances)
    assert [placed(spec) for spec in found.instances] == list(proposals[0].instances)
    assert str(proposals[0]) in "\n".join(found.lines())
    assert all(one.fault.startswith("too little memory: needs") for one in found.candidates)
    devices = msgspec.structs.replace(machine(name), nccl=False)
    proposals = propose(CONFIG, LLAMA_70B, machine_of(devices, 0))
    found = choose_instances(find(CONFIG, LLAMA_70B, devices), proposals)
    assert {spec.parallel[:2] for spec in found.instances} == {"pp"}
    waiting = {each.waits_for for each in proposals if ":tp" in each.instances[0]}
    assert waiting == {NO_NCCL}


def test_a_model_that_fits_nothing_is_the_cpu_s() -> None:
    assert on("two-3090", LLAMA_70B) == ()
    found = find(CONFIG, LLAMA_70B, machine("two-3090"))
    assert choose_instances(found, ()) == found and found.why_cpu


def test_a_pool_of_a_configured_size_is_that_of_all_parts_and_has_to_fit() -> None:
    """16 GiB of keys and values are 32 answers of 4,096 tokens, however many cards hold them."""
    devices = machine("two-3090")

    def served(kv_gib: int) -> tuple[list[str], list[Proposal]]:
        config = load(None, {"memory.kv_bytes": kv_gib * GIB}).config
        proposals = propose(config, LLAMA_3_8B, machine_of(devices, 0))
        found = choose_instances(find(config, LLAMA_3_8B, devices), proposals)
        return [placed(spec) for spec in found.instances], list(proposals)

    together, proposals = served(16)
    assert together in (["cuda:0,1:tp2"], ["cuda:0,1:pp2"])
    assert max(each.answers for each in proposals if "," in each.instances[0]) == 32
    assert served(64) == (["cpu"], []), "no pool of that size fits, and the CPU is tried"


def test_a_configured_instance_has_layers_by_its_devices() -> None:
    cards = (
        Card("NVIDIA A", "", (8, 9), 24 * GIB, 24 * GIB),
        Card("NVIDIA B", "", (8, 9), 12 * GIB, 12 * GIB),
    )
    whole = msgspec.structs.replace(LLAMA_3_8B, num_params=14_000_000_000)
    here = machine_of(Devices(cards), 64 * GIB, 80e9)
    spec = parse_instance("cuda:0,1:pp2")
    first, last = stage_layers_on(CONFIG, whole, spec, here)
    assert first + last == 32 and first > 1.5 * last
    assert stage_layers_on(CONFIG, whole, parse_instance("cuda:1,0:pp2"), here)[0] < 16
    assert stage_layers_on(CONFIG, whole, parse_instance("cuda:0,1:tp2"), here) == ()
    by_rank = rank_parts(whole, spec, (first, last))
    assert [device for device, _ in by_rank] == ["cuda:1", "cuda:0"]
    assert [part.num_layers for _, part in by_rank] == [last, first]
    first, last = stage_layers_on(CONFIG, LLAMA_3_8B, parse_instance("cuda:0,cpu:pp2"), here)
    assert first > 4 * last, "a CPU takes ten times as long, where rates are not known"
    states = msgspec.structs.replace(LLAMA_3_8B, layer_states=(STATES,) * 32)
    with pytest.raises(ModelError, match=r'would count its states otherwise .model.dtype = "float'):
        stage_layers_on(CONFIG, states, parse_instance("cuda:0,cpu:pp2"), here)
    given = msgspec.structs.replace(parse_instance("cuda:0,cpu:pp2"), layers=(20, 12))
    assert stage_layers_on(CONFIG, LLAMA_3_8B, given, here) == (20, 12)
    with pytest.raises(ModelError, match="would count its states otherwise"):
        stage_layers_on(CONFIG, states, given, here)
    with pytest.raises(ModelError, match="cuda:2 cannot have a stage"):
        stage_layers_on(CONFIG, whole, parse_instance("cuda:0,2:pp2"), here)


def test_links_decide_between_ranks_and_stages() -> None:
    """Alone, a token of ranks is as fast as their links allow: NVLink beats what goes over the
    host, and there a bridge costs nothing that stages do not.
    """
    joined, apart = on("two-3090-nvlink", LLAMA_3_8B), on("two-3090", LLAMA_3_8B)
    by_text = [{" ".join(each.instances): each for each in found} for found in (joined, apart)]
    ranks = [found["cuda:0,1:tp2"].token_s for found in by_text]
    stages = [found["cuda:0,1:pp2"].token_s for found in by_text]
    alone = by_text[0]["cuda:0 cuda:1"].token_s
    assert ranks[0] < ranks[1] < alone and ranks[0] < stages[0]
    assert stages[0] == pytest.approx(stages[1], rel=0.01)
    assert stages[1] > alone, "each weight is read, one after the other, and states go over"


def test_unlike_cards_have_as_many_layers_as_suits_them() -> None:
    cards = (
        Card("NVIDIA A", "", (8, 9), 24 * GIB, 24 * GIB),
        Card("NVIDIA B", "", (8, 9), 12 * GIB, 12 * GIB),
    )
    whole = msgspec.structs.replace(LLAMA_3_8B, num_params=14_000_000_000)
    found = propose(CONFIG, whole, machine_of(Devices(cards), 0))
    assert texts(found) == ["cuda:0,1:pp2"], "two of twelve would hold it no more than one does"
    assert found[0].token_s == 0.0 and "times are not known" in str(found[0])


@pytest.mark.parametrize(("name", "is_split"), [("Gemma-3-27B", True), ("Gemma-4-E4B", False)])
def test_stages_are_proposed_of_what_can_be_split_into_them(name: str, *, is_split: bool) -> None:
    """Layers of the one count windows, those of the other read each other's keys."""
    found = " ".join(texts(on("four-l40s", MODELS[name])))
    assert (":pp" in found) == is_split, found


STATES = (StatePart(SSM, 32, 128 * 128, is_float32=True),)  # 2 MiB a layer


def test_answers_that_layers_with_states_or_windows_hold_are_counted_by_pages() -> None:
    """And a decode step reads and writes states, whatever an answer's length."""
    hybrid = msgspec.structs.replace(
        LLAMA_3_8B,
        layer_heads=(NO_KEYS, KVHeads(8, 128)) * 16,
        layer_states=(STATES, ()) * 16,
    )
    windows = msgspec.structs.replace(LLAMA_3_8B, windows=(1024, 0) * 16)
    plain, halves, within = (
        next(each for each in on("two-3090", model) if each.instances == ("cuda:0", "cuda:1"))
        for model in (LLAMA_3_8B, hybrid, windows)
    )
    assert plain.answers < within.answers < 2 * plain.answers < 2 * within.answers
    rate = READ_SHARE * machine("two-3090").cards[0].seat.memory_bytes_per_s
    token_bytes = 2 * 8 * 128 * 2  # of a layer
    half = EACH_TOKENS // 2
    saved = 16 * half * token_bytes - 2 * 16 * (2 << 20)
    assert plain.token_s - halves.token_s == pytest.approx(saved / rate, rel=0.02)
    saved = 16 * (half - 1024 - 2 * CONFIG.memory.block_size) * token_bytes
    assert plain.token_s - within.token_s == pytest.approx(saved / rate, rel=0.02)


def test_what_is_a_little_too_large_takes_the_host_s_memory() -> None:
    cards = (Card("NVIDIA A", "", (8, 9), 12 * GIB, 12 * GIB),)
    found = propose(CONFIG, LLAMA_3_8B, machine_of(Devices(cards), 64 * GIB, 80e9))
    assert texts(found) == ["cpu", "cuda:0,cpu:pp2"] or texts(found) == ["cuda:0,cpu:pp2", "cpu"]
    lines = list(told(found, [parse_instance("cpu")]))
    assert lines[-1].startswith("can be served: cpu: sequences of up to 8,192 tokens, ")
    assert list(told(found, [parse_instance("cpu:tp2")])) == [f"can be served: {found[0]}"]


# A mixture of 30 billion weights, 3 of which a token reads, in 4.5 bits each: 17 GB.
MIXTURE = msgspec.structs.replace(
    LLAMA_3_8B,
    num_params=30_500_000_000,
    packed_params=30_000_000_000,
    packed_bytes=16_875_000_000,
    experts=ExpertShape(
        num_layers=32,
        count=128,
        chosen=8,
        num_params=29_000_000_000,
        packed_params=29_000_000_000,
        packed_bytes=16_312_500_000,
    ),
)


def mixture_on(gib: int, ram_gib: int, **keys: object) -> tuple[Proposal, ...]:
    seat = CardSeat(500e9, 16e9)
    card = Card("NVIDIA A", "", (8, 9), gib * GIB, gib * GIB, seat=seat)
    config = load(None, {f"model.{key}": value for key, value in keys.items()}).config
    return propose(config, MIXTURE, machine_of(Devices((card,)), ram_gib * GIB, 60e9))


def test_a_mixture_that_is_a_little_too_large_has_some_experts_in_ram() -> None:
    found = mixture_on(12, 64)
    best = found[0]
    assert best.instances == ("cuda:0",) and 0 < best.experts_on_cpu < 32
    assert f"cuda:0 with the experts of {best.experts_on_cpu} layers in RAM" in str(best)
    others = [each for each in found if each.longest == best.longest and each != best]
    assert {text for each in others for text in each.instances} == {"cpu", "cuda:0,cpu:pp2"}
    assert all(best.token_s < each.token_s for each in others)
    less = mixture_on(16, 64)[0]
    assert 0 < less.experts_on_cpu < best.experts_on_cpu and less.token_s < best.token_s
    assert mixture_on(24, 64)[0].experts_on_cpu == 0
    assert all(each.experts_on_cpu == 0 for each in mixture_on(12, 4)), "RAM has no room"


def test_serve_has_experts_in_ram_where_no_card_holds_the_model_and_nothing_was_asked() -> None:
    card = Card("NVIDIA A", "", (8, 9), 12 * GIB, 12 * GIB, seat=CardSeat(500e9, 16e9))
    proposals = mixture_on(12, 64)
    found = choose_instances(find(CONFIG, MIXTURE, Devices((card,))), proposals)
    assert [spec.device for spec in found.instances] == ["cuda:0"]
    config = with_instances(CONFIG, found)
    assert config.model.experts_on_cpu == proposals[0].experts_on_cpu > 0
    told_of = list(told(proposals, found.instances, config.model.experts_on_cpu))
    assert told_of == [f"can be served: {proposals[0]}"]


def test_experts_in_ram_are_proposed_as_configured() -> None:
    (five,) = (each for each in mixture_on(24, 64, experts_on_cpu=5) if each.instances != ("cpu",))
    assert (five.instances, five.experts_on_cpu) == (("cuda:0",), 5)
    found = mixture_on(12, 64, experts_on_cpu="auto")
    assert found[0] == mixture_on(12, 64)[0]


def test_a_step_reads_the_experts_that_its_answers_choose() -> None:
    """One answer 8 of 128 in each layer, many nearly all."""
    dense = msgspec.structs.replace(MIXTURE, experts=None)
    (mixed,), (whole,) = (
        [each for each in on("four-l40s", model) if len(each.instances) == 4]
        for model in (MIXTURE, dense)
    )
    assert MIXTURE.experts is not None
    unread_bytes = (1 - 8 / 128) * MIXTURE.experts.packed_bytes
    rate = READ_SHARE * machine("four-l40s").cards[0].seat.memory_bytes_per_s
    assert whole.token_s - mixed.token_s == pytest.approx(unread_bytes / rate, rel=0.01)
    assert mixed.tokens_per_s == pytest.approx(whole.tokens_per_s, rel=0.1)


def test_a_card_that_holds_it_with_less_context_is_not_slowed_down() -> None:
    longer = msgspec.structs.replace(MIXTURE, context_len=262_144)
    card = Card("NVIDIA A", "", (8, 9), 24 * GIB, 24 * GIB, seat=CardSeat(500e9, 16e9))
    machine = machine_of(Devices((card,)), 64 * GIB, 60e9)
    found = choose_instances(
        find(CONFIG, longer, Devices((card,))), propose(CONFIG, longer, machine)
    )
    assert found.experts_on_cpu == 0 and [spec.device for spec in found.instances] == ["cuda:0"]


def test_cards_that_nobody_may_use_are_not_proposed() -> None:
    old = Card("NVIDIA A", "", (7, 5), 48 * GIB, 48 * GIB)
    taken = Card("NVIDIA B", "", (8, 9), 48 * GIB, 48 * GIB, taken="another has it")
    assert machine_of(Devices((old, taken)), 7) == Workstation((), (), 7)
    fine = Card("NVIDIA C", "", (8, 9), 48 * GIB, 48 * GIB)
    assert machine_of(Devices((fine,), "torch has no CUDA"), 0).places == ()
    assert machine_of(Devices((fine,)), 0, kv_dtype="fp8").places
    ampere, blackwell = (
        msgspec.structs.replace(fine, capability=capability) for capability in ((8, 6), (12, 0))
    )
    assert not machine_of(Devices((ampere,)), 0, kv_dtype="fp8").places
    assert not machine_of(Devices((blackwell,), torch_cuda=(12, 6)), 0).places
    assert machine_of(Devices((ampere, blackwell), torch_cuda=(12, 8)), 0).places[1:]
