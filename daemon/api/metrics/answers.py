"""Metrics of answers, observed in the API process, through which their tokens pass.

They restart with each API process, which Prometheus' `rate` handles.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

from daemon.api.answer.choice import REPETITION, AnswerChoice, Clock
from daemon.api.metrics.gaps import MOST_PENDING, Gaps
from daemon.api.metrics.names import MODEL, PREFIX

SHORT_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
LONG_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0)
FIRST_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
REASONS = ("stop", "length", REPETITION, "abort", "error")


class AnswerMetrics:
    """Counts and times of answers; a request with n = 3 has three. Times are monotonic seconds."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(PREFIX + name, text, [MODEL], registry=registry, buckets=buckets)
            return made.labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(PREFIX + name, text, [MODEL], registry=registry).labels(model)

        self._first = histogram(
            "time_to_first_token_seconds", "From the request's headers to a first token.", FIRST_S
        )
        self._pace = histogram(
            "request_time_per_output_token_seconds",
            "Mean time between an answer's tokens, for each answer that is complete.",
            SHORT_S,
        )
        self._whole = histogram(
            "e2e_request_latency_seconds",
            "From the request's headers to the last token, for each answer that is complete.",
            LONG_S,
        )
        self._queued = histogram(
            "request_queue_time_seconds", "From the queue to a place in a batch.", FIRST_S
        )
        self._prompts = histogram(
            "request_prompt_tokens", "Prompt tokens of each answer that is complete.", TOKENS
        )
        self._outputs = histogram(
            "request_generation_tokens", "Tokens of each answer that is complete.", TOKENS
        )
        self._queries = counter(
            "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."
        )
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        ended = Counter(
            PREFIX + "request_success",
            "Answers that ended, by reason; `abort`: the client left, or the server ended it.",
            [MODEL, "finished_reason"],
            registry=registry,
        )
        self._model, self._ended = model, ended
        for reason in REASONS:  # they exist from the first scrape on, at 0
            ended.labels(model, reason)
        self._gaps = Gaps(
            PREFIX + "inter_token_latency_seconds",
            "Time between two tokens of an answer.",
            model,
            SHORT_S,
        )
        registry.register(self._gaps)
        self.gaps_s = self._gaps.pending
        """Takes the times between two tokens of an answer, by `append`."""

    def started(self, clock: Clock, num_cached_tokens: int, now: float) -> None:
        """Note an answer's first place in a batch."""
        self._queued.observe(now - clock.sent_s)
        self._queries.inc(clock.num_prompt_tokens)
        self._hits.inc(num_cached_tokens)

    def first_token(self, clock: Clock, now: float) -> None:
        """Note an answer's first token."""
        clock.first_s = now
        self._first.observe(now - clock.arrived_s)

    def frame_done(self) -> None:
        """Note the end of a step's tokens."""
        if len(self.gaps_s) > MOST_PENDING:
            self._gaps.fold()

    def ended(self, choice: AnswerChoice, now: float) -> None:
        """Note the end of an answer, or that it never began."""
        reason = choice.stop_reason or choice.finish_reason or choice.cut
        if reason:
            self._ended.labels(self._model, reason).inc()
        if not choice.finish_reason:
            return
        clock = choice.clock
        self._whole.observe(now - clock.arrived_s)
        self._prompts.observe(clock.num_prompt_tokens)
        self._outputs.observe(choice.num_tokens)
        if choice.num_tokens > 1:
            self._pace.observe((clock.last_s - clock.first_s) / (choice.num_tokens - 1))
