"""/metrics: parsed by the library's own parsers, and true of what was done."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from daemon.api.metrics.answers import SHORT_S
from daemon.api.metrics.engines import COUNTERS
from daemon.api.metrics.gaps import Gaps
from daemon.core.values.snapshot import (
    Counters,
    Due,
    ExpertStatus,
    InstanceStatus,
    StageStatus,
    StateStatus,
)
from daemon.protocol.api import Gauges, Generate, RequestRejected
from daemon.protocol.control import GpuStatus
from daemon.state.pause import NO_PAUSES, Cause, one_more
from daemon.state.reserved import LendingStatus, PeakStatus, ReservedStatus
from daemon.wire.columns import int32
from tests.api.scripted import MODEL, ScriptedRuntime, two_and_no_more
from tests.api.waiting import until_ready
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process(folder: Path) -> AsyncIterator[ScriptedRuntime]:
    """A process of this module's own: its counts begin at none."""
    async with ScriptedRuntime(folder, body_limit_bytes=200_000) as runtime:
        await until_ready(runtime.url)
        yield runtime


DOCS = Path(__file__).parents[2] / "docs"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

GPU = InstanceStatus(
    name="gpu0",
    role="mixed",
    device="cuda:0",
    state="ready",
    policy="mlfq",
    running=3,
    waiting=2,
    kv_blocks=100,
    kv_free=40,
    kv_held=30,
    kv_cached=20,
    kv_fenced=10,
    kv_block_bytes=4096,
    block_map=int32().astype("u1"),
    steps_in_flight=1,
    steps=50,
    step_s=0.02,
    batch_rows=3,
    batch_tokens=19,
    swap="proactive",
    host_blocks=40,
    host_held=10,
    out_blocks=7,
    ahead_blocks=3,
    ahead_used=2,
    in_blocks=5,
    link_s=0.25,
    levels=(3, 2, 0),
    fallbacks=(("decode", "it was not done within 60 s"),),
    drained=True,
    remote_kvs=2,
    remote_kv_blocks=9,
    step_p99_s=0.125,
    kv_written=0.25,
    batch_budget=64,
    newest_tokens=(64, 32, 16, 16),
)
SAID = GpuStatus(power_w=300.0, temperature_c=61, busy_percent=97, memory_used_bytes=1 << 30)
STAGES = StageStatus(9.0, (8.0, 7.0), 2.0, (1.5, 1.9))
EXPERTS = ExpertStatus(
    on_device=96,
    in_ram=32,
    bytes_in_ram=1 << 20,
    chosen_on_device=700,
    chosen_in_ram=41,
    exchanged=5,
)
PAUSES = one_more(one_more(NO_PAUSES, Cause.SWAPPED, 0.25, 3), Cause.SWAPPED, 99.0)
ELSEWHERE = frozenset(
    {
        *("rejected", "finished", "aborted", "failed", "cached_tokens"),  # counted with answers
        *("ttft_count", "ttft_sum_s", "tpot_count", "tpot_sum_s"),  # histograms of answers
        *("swaps_out", "swaps_in", "prediction_count", "prediction_error_sum", "pauses"),
        *("prediction_errors", "predictions_near"),
        "due",  # below, as these are
        "handoff_sum_s",
    }
)
"""Counters that are shown in another way."""
GAUGES = Gauges(
    Counters(
        prompt_tokens=40,
        output_tokens=90,
        worker_deaths=1,
        pauses=PAUSES,
        due=(Due(2.0, 7, 1), Due(0.0, 3, 0)),
        handoffs=4,
        handoff_sum_s=0.5,
        handoffs_failed=2,
        sent_blocks=30,
        sent_bytes=122_880,
        flips=3,
    ),
    6,
    (GPU,),
    0.003,
    (SAID,),
)


async def scrape(http: aiohttp.ClientSession, accept: str = "") -> Samples:
    """Every sample; each may come only once, and so may each family."""
    async with http.get("/metrics", headers={"Accept": accept} if accept else {}) as got:
        assert got.status == 200
        open_format = got.headers["Content-Type"].startswith("application/openmetrics-text")
        text = await got.text()
    assert open_format == (accept == OPENMETRICS)
    families = list((parse_openmetrics if open_format else parse)(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    samples = [(one.name, tuple(sorted(one.labels.items()))) for f in families for one in f.samples]
    assert len(set(samples)) == len(samples)
    values = [one.value for family in families for one in family.samples]
    return dict(zip(samples, values, strict=True))


def value(samples: Samples, name: str, **labels: str) -> float:
    """The one sample of this name with these labels, among others that it may have."""
    (found,) = [
        number
        for (one, has), number in samples.items()
        if one == f"llmd:{name}" and labels.items() <= dict(has).items()
    ]
    return found


async def complete(http: aiohttp.ClientSession, **fields: Any) -> int:
    """Ask for a completion and read all of it; the status."""
    body = {"model": MODEL, "prompt": "hello world", "max_tokens": 5, **fields}
    async with http.post("/v1/completions", json=body) as got:
        await got.read()
        return got.status


async def test_answers_are_counted_and_timed(runtime: ScriptedRuntime, http):
    before = await scrape(http)
    runtime.cached = 2
    assert await complete(http, n=2) == 200
    assert await complete(http, stream=True) == 200
    assert await complete(http, temperature=9) == 400
    runtime.reject = RequestRejected(0, "queue_full", "no", 2.2)
    assert await complete(http) == 429
    streamed = {"model": MODEL, "prompt": "hello world", "max_tokens": 5, "stream": True}
    runtime.reject, runtime.fail_at = None, 3
    assert await complete(http) == 500
    runtime.script, runtime.fail_at = two_and_no_more, None
    async with http.post("/v1/completions", json=streamed) as answer:
        assert answer.status == 200  # the error comes as an event
        await answer.content.readline()
        runtime.fail_at = 1
        await answer.read()
    after = await scrape(http)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    prompt = len(runtime.of(Generate)[0].tokens)
    assert grown("request_success_total", finished_reason="length") == 3
    assert grown("request_success_total", finished_reason="error") == 2
    assert grown("request_success_total", finished_reason="abort") == 0
    assert grown("time_to_first_token_seconds_count") == 5
    assert grown("inter_token_latency_seconds_count") == 3 * 4 + 2 * 1
    assert grown("request_time_per_output_token_seconds_count") == 3
    assert grown("e2e_request_latency_seconds_count") == 3
    assert grown("request_queue_time_seconds_count") == 5
    assert grown("request_generation_tokens_sum") == 15
    assert grown("request_prompt_tokens_sum") == 3 * prompt
    assert grown("prefix_cache_queries_total") == 5 * prompt
    assert grown("prefix_cache_hits_total") == 10
    rejected = "requests_rejected_total"
    assert value(after, rejected, status="429", kind="queue_full") == 1
    assert value(after, rejected, status="500", kind="engine_error") == 2
    whole, first = "e2e_request_latency_seconds_sum", "time_to_first_token_seconds_sum"
    assert grown(whole) > 0 < grown(first)


async def test_a_client_that_leaves_is_an_abort(runtime: ScriptedRuntime, http):
    before = value(await scrape(http), "request_success_total", finished_reason="abort")
    runtime.paused = True
    task = asyncio.create_task(complete(http, stream=True))
    await runtime.until(Generate)
    task.cancel()
    async with asyncio.timeout(HANG_S):
        while value(await scrape(http), "request_success_total", finished_reason="abort") == before:
            await asyncio.sleep(0.02)


async def test_what_the_runtime_counts_and_holds(runtime: ScriptedRuntime, http):
    runtime.send(GAUGES)
    async with asyncio.timeout(HANG_S):
        while not (samples := await scrape(http)).get(LAG):
            await asyncio.sleep(0.02)
    gpu = {"engine": "gpu0", "model_name": MODEL}
    assert value(samples, "prompt_tokens_total", model_name=MODEL) == 40
    assert value(samples, "generation_tokens_total") == 90
    assert value(samples, "worker_deaths_total") == 1
    assert value(samples, "num_requests_running", **gpu) == 3
    assert value(samples, "num_requests_waiting", **gpu) == 2
    assert value(samples, "num_requests_held_back") == 4
    assert value(samples, "kv_cache_usage_perc", **gpu) == 0.4
    blocks = {state: value(samples, "kv_blocks", state=state) for state in STATES}
    assert blocks == {"free": 40, "cached": 20, "held": 30, "fenced": 10}
    assert value(samples, "host_cache_usage_perc", **gpu) == 0.25
    assert value(samples, "swapped_blocks_total", direction="out") == 7
    assert value(samples, "uploaded_ahead_blocks_total", outcome="ordered") == 3
    assert value(samples, "uploaded_ahead_blocks_total", outcome="used") == 2
    assert value(samples, "swap_link_busy_seconds_total", **gpu) == 0.25
    swapped = {"cause": "swapped", "model_name": MODEL}
    assert value(samples, "pause_seconds_count", **swapped) == 4
    assert value(samples, "pause_seconds_sum", **swapped) == 99.75
    assert value(samples, "pause_seconds_bucket", **swapped, le="0.25") == 3
    assert value(samples, "pause_seconds_count", cause="behind_prompt") == 0
    for slo, kept, missed in (("2", 7, 1), ("request", 3, 0)):
        assert value(samples, "deadlines_total", slo=slo, outcome="kept") == kept
        assert value(samples, "deadlines_total", slo=slo, outcome="missed") == missed
    assert value(samples, "kernel_fallback", **gpu, family="decode") == 1
    assert value(samples, "queue_level_sequences", level="0") == 3
    assert value(samples, "policy_info", policy="mlfq", swap="proactive", role="mixed") == 1
    for counted, number in {"": 4, "_failed": 2}.items():
        assert value(samples, f"handoffs{counted}_total", model_name=MODEL) == number
    assert value(samples, "handoff_seconds_count") == 4
    assert value(samples, "handoff_seconds_sum") == 0.5
    assert value(samples, "transfer_blocks_total") == 30
    assert value(samples, "transfer_bytes_total") == 122_880
    assert value(samples, "flips_total") == 3
    assert value(samples, "role_info", **gpu, role="mixed") == 1
    assert value(samples, "engine_drained", **gpu) == 1
    assert value(samples, "remote_kvs", **gpu) == 2
    assert value(samples, "remote_kv_blocks", **gpu) == 9
    assert value(samples, "engine_step_p99_seconds", **gpu) == 0.125
    assert value(samples, "engine_up", **gpu) == value(samples, "ready") == 1
    assert value(samples, "device_power_watts", **gpu) == 300
    assert value(samples, "device_busy_ratio", **gpu) == 0.97
    assert not [name for name, _labels in samples if "device_power_limit" in name]  # unknown
    assert not [name for name, _labels in samples if name.startswith("llmd:power_")]
    assert value(samples, "kv_cache_written_perc", **gpu) == 0.25
    assert value(samples, "engine_budget_usage_perc", **gpu) == 0.5
    assert not {name[5:] for name, _labels in samples} & KEPT, "its policy keeps nothing"
    assert value(samples, "http_connections") >= 1 and value(samples, "sse_streams") == 0


KEPT = {"num_requests_ready", "kv_blocks_lent", "kv_future_peak_perc"}
RESERVED = ReservedStatus(
    ready=4, lending=LendingStatus(2, 3, 12, 1), peak=PeakStatus(num_blocks=90, num_steps=7)
)
POWER = {
    "watts": 243.5,
    "cap_watts": 260.0,
    "energy_j": 1e6,
    "cap_binding_share": 0.5,
    "joules_per_token": 0.25,
}
MOVES = ("handoffs", "handoff_sum_s", "handoffs_failed", "sent_blocks", "sent_bytes", "flips")
LAG = ("llmd:event_loop_lag_seconds_count", (("process", "runtime"),))
STATES = ("free", "cached", "held", "fenced")


async def test_counts_never_fall_and_both_formats_agree(runtime: ScriptedRuntime, http):
    def counts(samples: Samples) -> Samples:
        ends = ("_total", "_count", "_bucket", "_sum")
        return {key: number for key, number in samples.items() if key[0].endswith(ends)}

    runtime.send(GAUGES)
    before = counts(await scrape(http))
    for step in range(3):
        told = {"output_tokens": 99 + step, "worker_deaths": 1, "pauses": PAUSES}
        told |= dict.fromkeys(MOVES, 999999) | {"due": GAUGES.counters.due}
        more = Counters(prompt_tokens=50 + step, **told)
        lost = msgspec.structs.replace(GPU, state="lost" if step == 1 else "ready", kv_blocks=0)
        runtime.send(Gauges(more, 0, (lost,), 0.0))
        await complete(http, stream=bool(step))
        after = counts(await scrape(http))
        assert not [key for key, number in before.items() if after.get(key, -1) < number]
        assert after != before
        before = after
    named = {name for name, _labels in await scrape(http, OPENMETRICS)}
    assert named == {name for name, _labels in await scrape(http)}
    for odd in (
        "application/openmetrics-text;version=abc",
        "*/*;q=x",
        ";,=",
        "text/plain;version=",
    ):
        async with http.get("/metrics", headers={"Accept": odd}) as got:
            assert got.status == 200


async def test_every_counter_of_the_core_is_shown():
    fields = {field.name for field in msgspec.structs.fields(Counters)}
    assert fields == COUNTERS.keys() | ELSEWHERE
    assert not COUNTERS.keys() & ELSEWHERE


async def test_the_documents_name_what_exists(runtime: ScriptedRuntime, http):
    all_known = msgspec.structs.replace(SAID, memory_total_bytes=1 << 33, power_limit_w=700.0)
    states = StateStatus(pages=197, snapshots=2, made=9, hits=5, hit_tokens=8000)
    kept = {"reserved": RESERVED, "states": states, "experts": EXPERTS, "stages": STAGES}
    capped = msgspec.structs.replace(GPU, **POWER, **kept)
    runtime.send(msgspec.structs.replace(GAUGES, instances=(capped,), gpus=(all_known,)))
    await complete(http, temperature=9)
    names: set[str] = set()
    async with asyncio.timeout(HANG_S):
        while "llmd:device_power_limit_watts" not in names:
            names = {name for name, _labels in await scrape(http)}
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    for expression in asked:
        found = re.findall(r"(?:llmd:|process_)\w+", re.sub(r"by \([^)]*\)", "", expression))
        assert found, expression
        assert set(found) <= names, expression
    described = set(re.findall(r"`llmd:(\w+)", (DOCS / "api.md").read_text()))
    shown = {re.sub(r"_(bucket|count|sum)$", "", name[5:]) for name in names if "llmd:" in name}
    shown |= {"predictions_total"}  # this process makes none
    assert described == shown, f"docs/api.md must have rows for exactly: {sorted(shown)}"


async def test_the_times_of_stages_are_shown(runtime: ScriptedRuntime, http):
    staged = msgspec.structs.replace(GPU, stages=STAGES)
    runtime.send(msgspec.structs.replace(GAUGES, instances=(staged,)))
    samples: Samples = {}
    async with asyncio.timeout(HANG_S):
        while "llmd:stage_steps_seconds_total" not in {name for name, _labels in samples}:
            samples = await scrape(http)
    assert value(samples, "stage_steps_seconds_total", engine="gpu0") == 9.0
    for stage, computed_s in (("0", 8.0), ("1", 7.0)):
        assert value(samples, "stage_computed_seconds_total", engine="gpu0", stage=stage) == (
            computed_s
        )


async def test_experts_are_shown_where_some_lie_in_host_memory(runtime: ScriptedRuntime, http):
    divided = msgspec.structs.replace(GPU, experts=EXPERTS)
    runtime.send(msgspec.structs.replace(GAUGES, instances=(divided,)))
    samples: Samples = {}
    async with asyncio.timeout(HANG_S):
        while "llmd:experts" not in {name for name, _labels in samples}:
            samples = await scrape(http)
    gpu = {"engine": "gpu0"}
    for place, held, chosen in (("device", 96, 700), ("ram", 32, 41)):
        assert value(samples, "experts", **gpu, place=place) == held
        assert value(samples, "experts_chosen_total", **gpu, place=place) == chosen
    assert value(samples, "experts_ram_bytes", **gpu) == 1 << 20
    assert value(samples, "experts_exchanged_total", **gpu) == 5


async def test_power_is_shown_where_it_is_known(runtime: ScriptedRuntime, http):
    capped = msgspec.structs.replace(GPU, **POWER)
    runtime.send(msgspec.structs.replace(GAUGES, instances=(capped,)))
    samples: Samples = {}
    async with asyncio.timeout(HANG_S):
        while "llmd:power_watts" not in {name for name, _labels in samples}:
            samples = await scrape(http)
    gpu = {"engine": "gpu0"}
    assert value(samples, "power_watts", **gpu) == 243.5
    assert value(samples, "power_cap_watts", **gpu) == 260.0
    assert value(samples, "power_cap_binding_ratio", **gpu) == 0.5
    assert value(samples, "energy_joules_total", **gpu) == 1e6
    assert value(samples, "energy_joules_per_token", **gpu) == 0.25


async def test_what_is_kept_by_predictions_is_shown(runtime: ScriptedRuntime, http):
    keeping = msgspec.structs.replace(GPU, reserved=RESERVED)
    runtime.send(msgspec.structs.replace(GAUGES, instances=(keeping,)))
    samples: Samples = {}
    async with asyncio.timeout(HANG_S):
        while not {name[5:] for name, _labels in samples} >= KEPT:
            samples = await scrape(http)
    assert value(samples, "num_requests_ready", engine="gpu0") == 4
    assert value(samples, "kv_blocks_lent", engine="gpu0") == 12
    assert value(samples, "kv_future_peak_perc", engine="gpu0") == 0.9


async def test_many_gaps_are_the_library_s_own_histogram():
    gaps = np.random.default_rng(1).gamma(2.0, 0.02, 20_000).tolist() + list(SHORT_S) + [0.0, 99.0]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    folded = Gaps("gap_seconds", "Gaps.", "tiny", SHORT_S)
    ours.register(folded)
    plain = Histogram("gap_seconds", "Gaps.", ["model_name"], registry=theirs, buckets=SHORT_S)
    for index, gap in enumerate(gaps):
        folded.pending.append(gap)
        plain.labels("tiny").observe(gap)
        if index % 7000 == 0:
            folded.fold()

    def samples(registry: CollectorRegistry) -> dict[str, float]:
        lines = generate_latest(registry).decode().splitlines()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line[0] != "#" and "_created" not in line
        }

    assert samples(ours) == pytest.approx(samples(theirs))
