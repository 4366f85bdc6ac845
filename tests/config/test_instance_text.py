"""Instances as text: what is written reads as it was, and what cannot be meant is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.instance_text import (
    devices_of,
    format_instance,
    num_ranks,
    num_stages,
    parse_instance,
    placed,
    rank_devices,
    sums_on_gpus,
)
from daemon.config.load import load
from daemon.config.schema import InstanceSpec
from daemon.state.role import Role

roles = st.sampled_from([role.value for role in Role])
numbers = st.lists(st.integers(0, 9999), min_size=1, max_size=8, unique=True)


@st.composite
def specs(draw: st.DrawFn) -> InstanceSpec:
    """Any instance that can be written."""
    chosen = draw(numbers)
    count = len(chosen)
    device = "cuda:" + ",".join(map(str, chosen)) if count > 1 or draw(st.booleans()) else "cpu"
    parallel = draw(st.sampled_from(["tp", "pp"])) + str(count) if count > 1 else ""
    return InstanceSpec(device, draw(roles), parallel=parallel)


@given(specs())
def test_what_is_written_reads_as_it_was(spec: InstanceSpec) -> None:
    assert parse_instance(format_instance(spec)) == spec


@given(st.text(st.sampled_from("cpuda:,0123tpmixedfl "), max_size=24))
def test_any_text_is_an_instance_or_refused_with_a_sentence(text: str) -> None:
    try:
        spec = parse_instance(text)
    except ValueError as error:
        sentence = str(error)
    else:
        sentence = format_instance(spec)
        assert parse_instance(sentence) == spec
    assert sentence and "\n" not in sentence


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("cpu", InstanceSpec("cpu")),
        ("cpu:mixed", InstanceSpec("cpu")),
        ("cuda:3:decode", InstanceSpec("cuda:3", "decode")),
        ("cuda:3:tp1", InstanceSpec("cuda:3")),
        ("cuda:0,1:tp2", InstanceSpec("cuda:0,1", parallel="tp2")),
        ("cpu:tp3", InstanceSpec("cpu", parallel="tp3")),
        ("cuda:2,0,1:pp3:prefill", InstanceSpec("cuda:2,0,1", "prefill", parallel="pp3")),
    ],
)
def test_texts_and_what_they_mean(text: str, spec: InstanceSpec) -> None:
    assert parse_instance(text) == spec


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the device must be cpu or cuda:N, got ''"),
        ("gpu", "the device must be cpu or cuda:N, got 'gpu'"),
        ("cuda:01", "the device must be cpu or cuda:N, got 'cuda:01'"),
        ("cuda:0,", "the device must be cpu or cuda:N, got 'cuda:0,'"),
        ("cuda:0,1,0:tp3", "the device 'cuda:0,1,0' names a GPU twice"),
        ("cuda:0,cpu", "cuda:0,cpu are 2 devices: say tp2 or pp2, how they work together"),
        ("cuda:0,cpu:tp2", "a GPU and the CPU share no layers as tp2: say pp2"),
        ("cuda:0,1", "cuda:0,1 are 2 devices: say tp2 or pp2, how they work together"),
        ("cuda:0,1:tp4", "tp4 takes 4 devices, and cuda:0,1 is 2"),
        ("cuda:1:pp2", "pp2 takes 2 devices, and cuda:1 is 1"),
        ("cpu:tp17", "tp17 is beyond the 16 ranks that an instance may have"),
        ("cuda:0,1:pp17", "pp17 is beyond the 16 ranks that an instance may have"),
        ("cpu:mixd", "'mixd' is none; did you mean 'mixed'?"),
        ("cpu:tp0", "'tp0' is none"),
        ("cpu:tp2:pp2", "then one tpN or ppN, then a role (mixed, prefill, decode): 'pp2' is none"),
        ("cpu:mixed:tp1", "'cpu:mixed:tp1' goes on behind its role: 'tp1'"),
    ],
)
def test_what_cannot_be_meant_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_instance(text)
    assert told in str(caught.value)
    refused = text.rpartition(":")[2]
    assert f"did you mean {refused!r}" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "devices", "by_rank", "sums"),
    [
        ("cuda:3", "cuda:3", "cuda:3", False),
        ("cpu:tp2", "cpu cpu", "cpu cpu", False),
        ("cuda:2,0:tp2", "cuda:2 cuda:0", "cuda:2 cuda:0", True),
        ("cuda:2,0,1:pp3", "cuda:2 cuda:0 cuda:1", "cuda:1 cuda:2 cuda:0", False),
        ("cuda:0,cpu:pp2", "cuda:0 cpu", "cpu cuda:0", False),
    ],
)
def test_each_rank_has_its_device(text: str, devices: str, by_rank: str, *, sums: bool) -> None:
    """The last stage is the first rank."""
    spec = parse_instance(text)
    assert devices_of(spec) == tuple(devices.split())
    assert rank_devices(spec) == tuple(by_rank.split())
    assert sums_on_gpus(spec) == sums
    if num_ranks(spec) > 1:
        load(None, {"instance": [{"device": spec.device, "parallel": spec.parallel}]})


def test_ranks_and_stages_are_counted() -> None:
    assert num_stages(parse_instance("cpu:pp2")) == 2
    assert num_stages(parse_instance("cpu:tp2")) == num_stages(parse_instance("cpu")) == 1
    assert num_ranks(parse_instance("cpu:tp3")) == 3
    assert num_ranks(parse_instance("cpu:tp1")) == num_ranks(parse_instance("cuda:4")) == 1
    assert placed(parse_instance("cpu:tp3")) == "cpu:tp3"


def test_instances_that_divide_the_model_unlike_may_have_roles() -> None:
    ranks = {"device": "cpu", "parallel": "tp2", "role": "prefill"}
    other = {"device": "cpu", "role": "decode", "name": "two"}
    config = load(None, {"instance": [ranks, other]}).config
    assert [spec.role for spec in config.instance] == ["prefill", "decode"]
    assert config.scheduler.roles == "auto"
