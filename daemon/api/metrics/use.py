"""Metrics of the use of memory and steps, and of blocks reserved by predictions.

The latter exist only for instances with a policy that reserves so: the `synced` ones.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from daemon.api.metrics.names import ENGINE, MODEL, PREFIX
from daemon.protocol.api import Gauges


def use_metrics(gauges: Gauges, model: str) -> Iterator[Metric]:
    """The use of each instance's pool and of its newest steps."""
    written = _gauge("kv_cache_written_perc", "Share of the KV pool that holds tokens' KV.")
    steps = _gauge("engine_budget_usage_perc", "Tokens of the newest steps, of all they may have.")
    for status in gauges.instances:
        labels = [model, status.name]
        written.add_metric(labels, status.kv_written)
        if budget := status.batch_budget * len(status.newest_tokens):
            steps.add_metric(labels, sum(status.newest_tokens) / budget)
    yield from (written, steps)


def reserved_metrics(gauges: Gauges, model: str) -> Iterator[Metric]:
    """Answers that wait for room, lent blocks, and the pool's predicted peak."""
    ready = _gauge(
        "num_requests_ready", "Answers that hold the KV of their prompts and wait for room."
    )
    lent = _gauge("kv_blocks_lent", "Reserved KV blocks that others use until they are needed.")
    peak = _gauge("kv_future_peak_perc", "The most that will be held, as a share of the KV pool.")
    for status in gauges.instances:
        labels, reserved = [model, status.name], status.reserved
        if reserved is None:
            continue
        ready.add_metric(labels, reserved.ready)
        if reserved.lending is not None:
            lent.add_metric(labels, reserved.lending.num_blocks)
        if reserved.peak is not None and status.kv_blocks:
            peak.add_metric(labels, reserved.peak.num_blocks / status.kv_blocks)
    yield from (family for family in (ready, lent, peak) if family.samples)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
