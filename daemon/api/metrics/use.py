"""Metrics of how well memory and steps are used, and of what is kept for answers by predictions.

The latter are there only for instances whose policy does so: the `synced` ones.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from daemon.api.metrics.names import ENGINE, MODEL, PREFIX
from daemon.protocol.api import Gauges


def use_metrics(gauges: Gauges, model: str) -> Iterator[Metric]:
    """How full the pools and the newest steps of each instance are."""
    written = _gauge("kv_cache_written_perc", "Share of the KV pool that holds tokens' KV.")
    steps = _gauge("engine_budget_usage_perc", "Tokens of the newest steps, of all they may have.")
    for one in gauges.instances:
        labels = [model, one.name]
        written.add_metric(labels, one.kv_written)
        if budget := one.batch_budget * len(one.newest_tokens):
            steps.add_metric(labels, sum(one.newest_tokens) / budget)
    yield from (written, steps)


def reserved_metrics(gauges: Gauges, model: str) -> Iterator[Metric]:
    """Who waits for room, what is lent, and how full the pool will be."""
    ready = _gauge(
        "num_requests_ready", "Answers that hold the KV of their prompts and wait for room."
    )
    lent = _gauge("kv_blocks_lent", "Reserved KV blocks that others use until they are needed.")
    peak = _gauge("kv_future_peak_perc", "The most that will be held, as a share of the KV pool.")
    for one in gauges.instances:
        labels, reserved = [model, one.name], one.reserved
        if reserved is None:
            continue
        ready.add_metric(labels, reserved.ready)
        if reserved.lending is not None:
            lent.add_metric(labels, reserved.lending.num_blocks)
        if reserved.peak is not None and one.kv_blocks:
            peak.add_metric(labels, reserved.peak.num_blocks / one.kv_blocks)
    yield from (family for family in (ready, lent, peak) if family.samples)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
