"""Streams of a model whose layers keep states: by the formula of memory, and as they are run."""

import msgspec

from benchmarks.state_streams import CONTEXT, QWEN_35B_A3B
from daemon.core.core import Core
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.sizing import model_layout
from tests.lab.simulator.made import DEVICE, phases, profile, workload

LIMITS = ScenarioLimits(max_running=16, max_len=CONTEXT, prefix_cache=True)


def _on_a_card_of_24_gb(num_streams: int) -> Prepared:
    """As many streams at once, each of 16,384 tokens at its end; the weights lie on the card."""
    card = msgspec.structs.replace(DEVICE, name="24-gb", memory_bytes=24 << 30)
    step = phases((0.01, 1e-4, 0.0), (0.02, 1e-7, 1e-3))
    one = profile(step, model=QWEN_35B_A3B, device=card)
    group = InstanceGroup(profile=one.name, host_bytes=0.0)
    scenario = Scenario(workload=WorkloadSpec(name="made"), instance=(group,), limits=LIMITS)
    requests = workload([0.0] * num_streams, [CONTEXT - 256] * num_streams, [256] * num_streams)
    scenario = msgspec.structs.replace(scenario, predictor="none")
    return Prepared(scenario, (one,), (group,), CONTEXT, requests)


def test_a_card_carries_as_many_streams_as_the_formula_says() -> None:
    layout = model_layout(QWEN_35B_A3B, (), 16, "bfloat16")
    most, total = 0, 0

    def watch(core: Core) -> None:
        nonlocal most, total
        kv = core.instances[0].kv
        total = max(total, kv.pool.num_blocks)
        most = max(most, core.num_running)
        assert kv.pool.num_held <= kv.pool.num_blocks

    log = run(_on_a_card_of_24_gb(12), Options(after_event=watch))
    by_formula = total // layout.pages_at(CONTEXT)
    print(f"{total} pages, {by_formula} streams, {most} ran at once, {log.requests.preemptions}")
    assert total * layout.page_bytes < 4 << 30
    # A share of the pool is spared for those that run; and they are shorter at first.
    assert by_formula - 1 <= most <= by_formula + 1
