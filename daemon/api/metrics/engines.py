"""Metrics of the Core and its instances, from the runtime's newest `Gauges`.

The counts live in the runtime: they outlast workers and API processes.
"""

from collections.abc import Iterator
from itertools import accumulate

from msgspec import UNSET
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from daemon.api.metrics.devices import device_metrics, power_metrics
from daemon.api.metrics.moves import move_metrics
from daemon.api.metrics.names import ENGINE, MODEL, PREFIX
from daemon.api.metrics.use import reserved_metrics, use_metrics
from daemon.core.values.snapshot import ERROR_BOUNDS, Counters, Due, InstanceStatus
from daemon.protocol.api import Gauges
from daemon.state.pause import BOUNDS_S, Cause, Pauses

COUNTERS: dict[str, tuple[str, str]] = {
    "requests": ("requests", "Requests that the runtime took."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that the runtime took."),
    "output_tokens": ("generation_tokens", "Tokens generated."),
    "computed_tokens": ("computed_tokens", "Tokens that went through the model."),
    "recomputed_tokens": ("recomputed_tokens", "Tokens computed again after preemption."),
    "preemptions": ("num_preemptions", "Preemptions of running sequences."),
    "drafts": ("spec_decode_num_drafts", "Times that a row verified drafted tokens."),
    "draft_tokens": ("spec_decode_num_draft_tokens", "Drafted tokens that were verified."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."),
    "handoffs": ("handoffs", "Answers that went on at another instance with their KV."),
    "handoffs_failed": ("handoffs_failed", "Transfers that failed or arrived wrong."),
    "sent_blocks": ("transfer_blocks", "KV blocks that whole transfers between instances carried."),
    "sent_bytes": ("transfer_bytes", "The same in bytes."),
    "flips": ("flips", "Changes of instances' roles."),
    "worker_deaths": ("worker_deaths", "Workers that died or were given up."),
}
"""The Core's counters by field: the metric, and what it counts."""


class EngineMetrics(Collector):
    """The newest `Gauges` as metrics; none before the first one came."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._gauges: Gauges | None = None

    def update(self, gauges: Gauges) -> None:
        """Take the runtime's message."""
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """The metrics, for the library's registry."""
        gauges = self._gauges
        if gauges is None:
            return
        yield from self._counts(gauges.counters)
        yield from self._losses(gauges)
        held_back = GaugeMetricFamily(
            PREFIX + "num_requests_held_back",
            "Answers that wait for another one of their request to compute the prompt.",
            labels=[MODEL],
        )
        queued = sum(status.waiting for status in gauges.instances)
        held_back.add_metric([self._model], gauges.waiting - queued)
        yield held_back
        yield from self._sequences(gauges.instances)
        yield from self._memory(gauges.instances)
        yield from self._snapshots(gauges.instances)
        yield from self._experts(gauges.instances)
        yield from self._stages(gauges.instances)
        yield from self._swapping(gauges.instances)
        yield from self._steps(gauges.instances)
        yield from use_metrics(gauges, self._model)
        yield from reserved_metrics(gauges, self._model)
        yield from move_metrics(gauges, self._model)
        yield from device_metrics(gauges, self._model)
        yield from power_metrics(gauges, self._model)

    def _counts(self, counters: Counters) -> Iterator[Metric]:
        for field, (name, text) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=[MODEL])
            family.add_metric([self._model], getattr(counters, field))
            yield family
        swaps = CounterMetricFamily(
            PREFIX + "swapped_sequences",
            "Sequences whose KV left the device for host memory, or came back; no handoffs.",
            labels=[MODEL, "direction"],
        )
        swaps.add_metric([self._model, "out"], counters.swaps_out)
        swaps.add_metric([self._model, "in"], counters.swaps_in)
        yield swaps
        yield self._due(counters.due)
        yield from self._predictions(counters)
        yield self._pauses(counters.pauses)

    def _due(self, due: tuple[Due, ...]) -> Metric:
        family = CounterMetricFamily(
            PREFIX + "deadlines",
            "Complete answers that had a deadline, by SLO scale and by whether they kept it.",
            labels=[MODEL, "slo", "outcome"],
        )
        for counts in sorted(due, key=lambda each: each.scale):
            slo = f"{counts.scale:g}" if counts.scale else "request"
            family.add_metric([self._model, slo, "kept"], counts.kept)
            family.add_metric([self._model, slo, "missed"], counts.missed)
        return family

    def _predictions(self, counters: Counters) -> Iterator[Metric]:
        error = HistogramMetricFamily(
            PREFIX + "prediction_relative_error",
            "|predicted - true| / true, in tokens, of answers whose length was predicted.",
            labels=[MODEL],
        )
        edges = [*map(str, ERROR_BOUNDS), "+Inf"]
        buckets = list(zip(edges, accumulate(counters.prediction_errors), strict=True))
        error.add_metric([self._model], buckets, counters.prediction_error_sum)
        near = CounterMetricFamily(
            PREFIX + "predictions_within_factor_two",
            "Answers of at least half and at most twice their predicted length.",
            labels=[MODEL],
        )
        near.add_metric([self._model], counters.predictions_near)
        yield from (error, near)

    def _pauses(self, pauses: tuple[Pauses, ...]) -> Metric:
        family = HistogramMetricFamily(
            PREFIX + "pause_seconds",
            "Pauses of answers that had begun, by cause.",
            labels=[MODEL, "cause"],
        )
        edges = [*map(str, BOUNDS_S), "+Inf"]
        for cause, noted in zip(Cause, pauses, strict=True):
            buckets = list(zip(edges, accumulate(noted.by_length), strict=True))
            family.add_metric([self._model, cause.name.lower()], buckets, noted.sum_s)
        return family

    def _losses(self, gauges: Gauges) -> Iterator[Metric]:
        deaths = CounterMetricFamily(
            PREFIX + "api_deaths", "API processes that died or hung.", labels=[MODEL]
        )
        deaths.add_metric([self._model], gauges.api_deaths)
        yield deaths
        dropped = CounterMetricFamily(
            PREFIX + "journal_dropped_events",
            "Events that could not be written to the journal.",
            labels=[MODEL],
        )
        dropped.add_metric([self._model], gauges.journal_dropped)
        yield dropped

    def _sequences(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        running = self._gauge("num_requests_running", "Answers that have a place in a batch.")
        waiting = self._gauge("num_requests_waiting", "Answers that wait for a place.")
        levels = self._gauge("queue_level_sequences", "Answers by level of the queue.", "level")
        info = InfoMetricFamily(
            PREFIX + "policy", "How the instance's answers are ordered.", labels=[MODEL, ENGINE]
        )
        for status in instances:
            running.add_metric([self._model, status.name], status.running)
            waiting.add_metric([self._model, status.name], status.waiting)
            for level, count in enumerate(status.levels):
                levels.add_metric([self._model, status.name, str(level)], count)
            info.add_metric(
                [self._model, status.name],
                {
                    "policy": status.policy,
                    "swap": status.swap,
                    "role": status.role,
                    "device": status.device,
                },
            )
        yield from (running, waiting, levels, info)

    def _memory(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all of them.")
        blocks = self._gauge("kv_blocks", "KV blocks by what they hold.", "state")
        reserved = self._gauge(
            "kv_blocks_reserved", "Free and cached KV blocks that are kept for running answers."
        )
        size = self._gauge("kv_block_bytes", "Size of a KV block.")
        host = self._gauge("host_cache_usage_perc", "As kv_cache_usage_perc, in host memory.")
        host_blocks = self._gauge("host_blocks", "Host blocks by what they hold.", "state")
        for status in instances:
            labels = [self._model, status.name]
            usage.add_metric(labels, _share(status.kv_used, status.kv_blocks))
            by_state = {
                "free": status.kv_free,
                "cached": status.kv_cached,
                "held": status.kv_held,
                "fenced": status.kv_fenced,
            }
            for state, count in by_state.items():
                blocks.add_metric([*labels, state], count)
            reserved.add_metric(labels, status.kv_reserved)
            size.add_metric(labels, status.kv_block_bytes)
            host.add_metric(labels, _share(status.host_held, status.host_blocks))
            host_blocks.add_metric([*labels, "free"], status.host_blocks - status.host_held)
            host_blocks.add_metric([*labels, "held"], status.host_held)
        yield from (usage, blocks, reserved, size, host, host_blocks)

    def _snapshots(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        """Those of instances whose layers keep states."""
        there = self._gauge("state_snapshots", "Snapshots of recurrent states that are cached.")
        made = self._counter("state_snapshots_made", "Snapshots of recurrent states made.")
        hits = self._counter("state_snapshot_hits", "Prompts that went on from a snapshot.")
        tokens = self._counter(
            "state_snapshot_hit_tokens", "Prompt tokens that snapshots spared these."
        )
        for status in instances:
            if status.states is not UNSET:
                labels = [self._model, status.name]
                there.add_metric(labels, status.states.snapshots)
                made.add_metric(labels, status.states.made)
                hits.add_metric(labels, status.states.hits)
                tokens.add_metric(labels, status.states.hit_tokens)
        if there.samples:
            yield from (there, made, hits, tokens)

    def _experts(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        """Those of instances that keep some in host memory."""
        held = self._gauge("experts", "A mixture's experts of all layers.", "place")
        size = self._gauge("experts_ram_bytes", "Bytes of the experts in host memory.")
        chosen = self._counter("experts_chosen", "Experts that tokens were sent to.", "place")
        exchanged = self._counter("experts_exchanged", "Experts moved to the device since used.")
        for status in instances:
            if (experts := status.experts) is not UNSET:
                labels = [self._model, status.name]
                held.add_metric([*labels, "device"], experts.on_device)
                held.add_metric([*labels, "ram"], experts.in_ram)
                size.add_metric(labels, experts.bytes_in_ram)
                chosen.add_metric([*labels, "device"], experts.chosen_on_device)
                chosen.add_metric([*labels, "ram"], experts.chosen_in_ram)
                exchanged.add_metric(labels, experts.exchanged)
        if held.samples:
            yield from (held, size, chosen, exchanged)

    def _stages(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        """Those of instances of pipeline stages."""
        steps = self._counter("stage_steps_seconds", "Time with a step in flight over stages.")
        computed = self._counter(
            "stage_computed_seconds", "Time in which a stage computed, of that.", "stage"
        )
        for status in instances:
            if (stages := status.stages) is not UNSET:
                labels = [self._model, status.name]
                steps.add_metric(labels, stages.steps_s)
                for stage, computed_s in enumerate(stages.computed_s):
                    computed.add_metric([*labels, str(stage)], computed_s)
        if steps.samples:
            yield from (steps, computed)

    def _swapping(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        blocks = self._counter(
            "swapped_blocks", "KV blocks copied to or from the host.", "direction"
        )
        ahead = self._counter(
            "uploaded_ahead_blocks",
            "KV blocks that came back before their sequences had a slot, and those found there.",
            "outcome",
        )
        busy = self._counter("swap_link_busy_seconds", "Time that swap copies took, both ways.")
        for status in instances:
            blocks.add_metric([self._model, status.name, "out"], status.out_blocks)
            blocks.add_metric([self._model, status.name, "in"], status.in_blocks)
            ahead.add_metric([self._model, status.name, "ordered"], status.ahead_blocks)
            ahead.add_metric([self._model, status.name, "used"], status.ahead_used)
            busy.add_metric([self._model, status.name], status.link_s)
        yield from (blocks, ahead, busy)

    def _steps(self, instances: tuple[InstanceStatus, ...]) -> Iterator[Metric]:
        up = self._gauge("engine_up", "Whether the instance's worker can compute.")
        steps = self._counter("engine_steps", "Steps that were planned.")
        seconds = self._gauge("engine_step_seconds", "Smoothed time of a step.")
        rows = self._gauge("engine_batch_sequences", "Sequences in the newest step.")
        tokens = self._gauge("engine_batch_tokens", "Tokens in the newest step.")
        fallback = self._gauge(
            "kernel_fallback", "1 for kernels whose work torch does on this card.", "family"
        )
        for status in instances:
            labels = [self._model, status.name]
            for family, _why in status.fallbacks:
                fallback.add_metric([*labels, family], 1)
            up.add_metric(labels, status.state == "ready")
            steps.add_metric(labels, status.steps)
            seconds.add_metric(labels, status.step_s)
            rows.add_metric(labels, status.batch_rows)
            tokens.add_metric(labels, status.batch_tokens)
        yield from (up, steps, seconds, rows, tokens, fallback)

    def _gauge(self, name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE, *more])

    def _counter(self, name: str, text: str, *more: str) -> CounterMetricFamily:
        return CounterMetricFamily(PREFIX + name, text, labels=[MODEL, ENGINE, *more])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
