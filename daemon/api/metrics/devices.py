"""Metrics of GPUs and their power; unknown ones are left out."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
"""The driver's readings by field: the metric, its help text, and its unit in the field's."""
POWER: dict[str, tuple[str, str]] = {
    "watts": ("power_watts", "What the instance's card draws."),
    "cap_watts": ("power_cap_watts", "The limit of its power."),
    "cap_binding_share": (
        "power_cap_binding_ratio",
        "Share of the newest look's time in which the limit slowed the card.",
    ),
    "joules_per_token": (
        "energy_joules_per_token",
        "What its card drew in the newest look, over the tokens that it computed.",
    ),
}
"""Figures from llmd-powerd, by field of an instance: the metric, and its help text."""


def power_metrics(gauges: Gauges, model: str) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """A gauge for each figure that any instance has, and the energy as a counter."""
    energy = CounterMetricFamily(
        PREFIX + "energy_joules",
        "What the instance's card drew while the daemon read it.",
        labels=[MODEL, ENGINE],
    )
    for status in gauges.instances:
        if status.energy_j is not None:
            energy.add_metric([model, status.name], status.energy_j)
    if energy.samples:
        yield energy
    for field, (name, text) in POWER.items():
        family = GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
        for status in gauges.instances:
            figure = getattr(status, field)
            if figure is not None:
                family.add_metric([model, status.name], figure)
        if family.samples:
            yield family


def device_metrics(gauges: Gauges, model: str) -> Iterator[GaugeMetricFamily]:
    """A gauge for each reading that any device has."""
    for field, (name, text, unit) in READINGS.items():
        family = GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE])
        for status, gpu in zip(gauges.instances, gauges.gpus, strict=False):
            reading = getattr(gpu, field, None)
            if reading is not None:
                family.add_metric([model, status.name], reading * unit)
        if family.samples:
            yield family
