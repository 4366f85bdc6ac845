"""The registry behind `/metrics`, written by the library."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from daemon.api.metrics.answers import AnswerMetrics
from daemon.api.metrics.engines import EngineMetrics
from daemon.api.metrics.names import MODEL, PREFIX
from daemon.api.replies.errors import ApiError
from daemon.protocol.api import Gauges

LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class _Counts(Collector):
    """Counters that are kept elsewhere."""

    def __init__(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._name, self._text, self._label = name, text, label
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters, for the library's registry."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for kind, number in self._read().items():
            family.add_metric([kind], number)
        yield family


class Metrics:
    """All metrics of the process; `render` answers a scrape."""

    def __init__(self, model: str) -> None:
        disable_created_metrics()  # a second series for each count, which says when it began
        self._registry = CollectorRegistry()
        self._model = model
        self.answers = AnswerMetrics(self._registry, model)
        self._engines = EngineMetrics(model)
        self._registry.register(self._engines)
        ProcessCollector(registry=self._registry)
        self._refused = Counter(
            PREFIX + "requests_rejected",
            "Requests answered with an error, by HTTP status and kind.",
            [MODEL, "status", "kind"],
            registry=self._registry,
        )
        lag = Histogram(
            PREFIX + "event_loop_lag_seconds",
            "How late a timer of the process's event loop fired.",
            ["process"],
            registry=self._registry,
            buckets=LAG_S,
        )
        self._api_lag, self._runtime_lag = lag.labels("api"), lag.labels("runtime")

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read at each scrape."""
        gauge = Gauge(PREFIX + name, text, registry=self._registry)
        gauge.set_function(value)

    def count(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Add counters that are kept elsewhere, by `label`; `read` is called at each scrape."""
        self._registry.register(_Counts(PREFIX + name, text, label, read))

    def refused(self, error: ApiError) -> None:
        """Count a request that was answered with an error."""
        self._refused.labels(self._model, str(error.status), error.code or error.kind).inc()

    def api_lag(self, lag_s: float) -> None:
        """Observe how late a timer of this process fired."""
        self._api_lag.observe(lag_s)

    def gauges(self, gauges: Gauges) -> None:
        """Take the runtime's gauges."""
        self._engines.update(gauges)
        self._runtime_lag.observe(gauges.lag_s)

    def render(self, accept: str) -> tuple[bytes, str]:
        """All metrics, as OpenMetrics where the `Accept` header names it, and the content type."""
        if openmetrics.CONTENT_TYPE_LATEST.partition(";")[0] not in accept:
            return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
        # By its default escaping the library writes samples as `llmd_` and their types as `llmd:`.
        body = openmetrics.generate_latest(self._registry, escaping=openmetrics.ALLOWUTF8)
        return body, openmetrics.CONTENT_TYPE_LATEST
