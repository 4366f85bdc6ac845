"""Metrics of migrations: handoffs, instances' roles, and KV that is left behind.

The counts of it are in `COUNTERS` of `daemon/api/metrics/engines.py`.
"""

from collections.abc import Iterator

from prometheus_client.core import (
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from daemon.api.metrics.names import ENGINE, MODEL, PREFIX
from daemon.protocol.api import Gauges


def move_metrics(gauges: Gauges, model: str) -> Iterator[Metric]:
    """The times of handoffs, and the state of each instance."""
    handoffs = SummaryMetricFamily(
        PREFIX + "handoff_seconds",
        "From leaving one instance until the KV is at the other.",
        labels=[MODEL],
    )
    counters = gauges.counters
    handoffs.add_metric([model], counters.handoffs, counters.handoff_sum_s)
    yield handoffs
    role = InfoMetricFamily(
        PREFIX + "role", "What the instance prefers now.", labels=[MODEL, ENGINE]
    )
    drained = _gauge("engine_drained", "Whether an operator wants the instance idle.")
    remote_kvs = _gauge("remote_kvs", "Answers that left the instance and whose KV is still there.")
    blocks = _gauge("remote_kv_blocks", "KV blocks of them; kv_blocks has them among those held.")
    p99 = _gauge(
        "engine_step_p99_seconds", "What 99 of 100 steps of the last minute did not exceed."
    )
    for status in gauges.instances:
        labels = [model, status.name]
        role.add_metric(labels, {"role": status.role})
        drained.add_metric(labels, status.drained)
        remote_kvs.add_metric(labels, status.remote_kvs)
        blocks.add_metric(labels, status.remote_kv_blocks)
        p99.add_metric(labels, status.step_p99_s)
    yield from (role, drained, remote_kvs, blocks, p99)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
