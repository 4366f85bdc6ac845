"""Metrics of GPUs, as far as their driver says anything: what is unknown is left out."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from daemon.api.metrics.names import ENGINE, MODEL, PREFIX
from daemon.protocol.api import Gauges

READINGS: dict[str, tuple[str, str, float]] = {
    "power_w": ("device_power_watts", "What the device draws.", 1.0),
    "power_limit_w": ("device_power_limit_watts", "What it may draw.", 1.0),
    "temperature_c": ("device_temperature_celsius", "How warm it is.", 1.0),
    "memory_used_bytes": ("device_memory_used_bytes", "Its memory in use, by anyone.", 1.0),
    "memory_total_bytes": ("device_memory_total_bytes", "Its memory.", 1.0),
    "busy_percent": ("device_busy_ratio", "Share of the time in which a kernel ran.", 0.01),
}
"""The driver's readings by field: the metric, what it is, and its unit in the field's."""


def device_metrics(gauges: Gauges, model: str) -> Iterator[GaugeMetricFamily]:
    """A gauge for each reading that any device has."""
    for field, (name, text, unit) in READINGS.items():
        family = GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
        for one, gpu in zip(gauges.instances, gauges.gpus, strict=False):
            reading = getattr(gpu, field, None)
            if reading is not None:
                family.add_metric([model, one.name], reading * unit)
        if family.samples:
            yield family
