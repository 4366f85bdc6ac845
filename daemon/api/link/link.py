"""The API process's link to the runtime: requests out, tokens in."""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from daemon.api.answer.choice import AnswerChoice
from daemon.api.answer.job import Job
from daemon.api.link.predictions import Predictions
from daemon.api.metrics.metrics import Metrics
from daemon.api.replies.errors import ApiError, invalid, rejection, unavailable
from daemon.api.text.logprobs import Rows, by_row, requested
from daemon.models.grammar import BROKEN_OFF
from daemon.protocol.api import (
    AbortRequest,
    FromApi,
    RequestRejected,
    SequenceEnded,
    SequenceStarted,
    ToApi,
    Tokens,
)
from daemon.protocol.predictor import Ask
from daemon.protocol.worker import PromptLogprobs
from daemon.state.request import NO_PLACE, FinishReason, request_of
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder
from daemon.wire.faults import faults
from daemon.wire.pulse import Alive, Ping

log = logging.getLogger(__name__)

_LENGTH = int(FinishReason.LENGTH)


class RuntimeLink:
    """The link. It feeds choices right from the channel's callback: no task wakes for a token."""

    def __init__(
        self,
        sock: socket.socket,
        handlers: Mapping[type, Callable[[Any], None]],
        on_lost: Callable[[], None],
        settled: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        """`handlers` take the messages that are about no request, by their types."""
        self.lost = False
        self.predictions: Predictions | None = None
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            **handlers,
            Tokens: self._tokens,
            PromptLogprobs: self._prompt_logprobs,
            SequenceStarted: self._started,
            SequenceEnded: lambda end: self._finished(end.sequence, end.reason, end.error),
            RequestRejected: self._rejected,
            Ping: lambda _ping: self.tell(Alive(settled())),
        }
        self._on_lost = on_lost
        self._metrics = metrics
        self._encode = encoder().encode
        self._decode = decoder(ToApi).decode
        self._next_request = 1
        self._faults = faults("api.")
        self._choices: dict[int, AnswerChoice] = {}
        self._jobs: dict[int, Job] = {}
        self._channel = Channel(sock, self._frame, self._closed)

    def submit(self, job: Job) -> None:
        """Send the job's requests. Raises ApiError 503 without a runtime."""
        if self._faults.strikes("api.crash"):
            os.abort()
        if self._faults.strikes("api.hang"):
            while True:
                pass
        if self.lost:
            raise unavailable("the runtime is gone")
        first = self._next_request
        self._next_request += len(job.work.prompts)
        messages = job.begin(first, self.tell, self._forget)
        self._choices.update(job.choices)
        self._jobs.update(dict.fromkeys(job.requests, job))
        for message in messages:
            self.tell(message)
        if self.predictions is not None:
            for prompt, message in zip(job.work.prompts, messages, strict=True):
                size = message.tokens.size
                self.predictions.ask(Ask(message.request, prompt.words, size, message.max_tokens))

    def drop(self, job: Job) -> None:
        """Abort what still runs of a job; a second call does nothing."""
        for request in sorted(job.requests):
            self.tell(AbortRequest(request))
        for sequence in list(job.choices):
            job.leave(sequence)

    def tell(self, message: FromApi) -> None:
        """Send a message; without a runtime it is lost."""
        self._channel.send(self._encode(message))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _forget(self, choice: AnswerChoice) -> None:
        self._choices.pop(choice.sequence, None)
        request = request_of(choice.sequence)
        job = self._jobs.get(request)
        self._metrics.answers.ended(choice, time.monotonic())
        if job is not None and request not in job.requests:
            del self._jobs[request]
            if self.predictions is not None:
                self.predictions.ended(request, job.num_output_tokens(request))

    def _fail(self, job: Job, error: ApiError) -> None:
        job.fail(error)
        self.drop(job)

    def _closed(self, error: str) -> None:
        self.lost = True
        log.debug("the runtime closed the channel: %s", error)
        for job in set(self._jobs.values()):
            self._fail(job, unavailable("the runtime is gone"))
        self._on_lost()

    def _frame(self, payload: bytes) -> None:
        message = self._decode(payload)
        self._handlers[type(message)](message)

    def _prompt_logprobs(self, message: PromptLogprobs) -> None:
        job = self._jobs.get(request_of(message.sequence))
        if job is not None:
            job.prompt_logprobs(message)

    def _started(self, message: SequenceStarted) -> None:
        sequence, num_cached_tokens = message.sequence, message.num_cached_tokens
        choice = self._choices.get(sequence)
        if choice is not None:
            self._metrics.answers.started(choice.clock, num_cached_tokens, time.monotonic())
            self._jobs[request_of(sequence)].started(sequence, num_cached_tokens)

    def _tokens(self, message: Tokens) -> None:
        choices, metrics, now = self._choices, self._metrics.answers, time.monotonic()
        logprobs = by_row(message.logprobs)
        columns = zip(
            message.sequences.tolist(),
            message.tokens.tolist(),
            message.reasons.tolist(),
            strict=True,
        )
        for row, (sequence, token, reason) in enumerate(columns):
            choice = choices.get(sequence)
            if reason > _LENGTH:  # the sequence failed; the row's token means nothing
                self._finished(sequence, reason, dict(message.errors).get(row, ""))
            elif choice is not None:
                clock = choice.clock
                if choice.num_tokens:
                    metrics.gaps_s.append(now - clock.last_s)
                else:
                    metrics.first_token(clock, now)
                clock.last_s = now
                self._take(choice, token, reason, logprobs, row)
        metrics.frame_done()

    def _take(
        self, choice: AnswerChoice, token: int, reason: int, logprobs: Rows, row: int
    ) -> None:
        try:
            if logprobs and row in logprobs:
                choice.take(token, reason, requested(token, logprobs[row], self._depth(choice)))
            else:
                choice.take(token, reason)
        except Exception:
            log.exception("a token could not be delivered", extra=self._log_fields(choice))
            self._broken(choice)

    def _broken(self, choice: AnswerChoice) -> None:
        # One stream's fault must not end the others, nor the channel.
        choice.cut = "error"
        job = self._jobs.get(request_of(choice.sequence))
        if job is not None:
            self._fail(job, ApiError(500, "the answer could not be decoded"))

    def _log_fields(self, choice: AnswerChoice) -> dict[str, str]:
        """The request id for a log line: the request's own handler does not run here."""
        job = self._jobs.get(request_of(choice.sequence))
        return {"request_id": job.request_id if job is not None else ""}

    def _depth(self, choice: AnswerChoice) -> int:
        job = self._jobs.get(request_of(choice.sequence))
        return job.work.sampling.logprobs if job is not None else -1

    def _finished(self, sequence: int, reason: int, error: str) -> None:
        choice = self._choices.get(sequence)
        if choice is None:
            return
        if reason <= _LENGTH:
            try:
                choice.end(reason)
            except Exception:
                log.exception("an answer could not be ended", extra=self._log_fields(choice))
                self._broken(choice)
            return
        job = self._jobs[request_of(sequence)]
        choice.cut = "abort" if reason == FinishReason.ABORT else "error"
        job.leave(sequence)
        if reason == FinishReason.ABORT:
            self._fail(job, unavailable(error or "the server ended this request", "aborted"))
        else:
            self._fail(job, _engine_error(job, error))

    def _rejected(self, message: RequestRejected) -> None:
        job = self._jobs.get(message.request)
        if job is None:
            return
        for sequence, choice in list(job.choices.items()):
            if request_of(sequence) == message.request:
                choice.cut = ""
                job.leave(sequence)
        kind, text, wait_s = message.kind, message.message, message.retry_after_s
        self._fail(job, rejection(kind, text, wait_s, job.work.field))


def _engine_error(job: Job, error: str) -> ApiError:
    """The client's error for a failed answer: its grammar's fault, or the server's."""
    if job.work.sampling.grammar and error.startswith(BROKEN_OFF):
        field = job.work.bound_by
        why = error.removeprefix(BROKEN_OFF)
        return invalid(f"`{field}` cannot be followed to the end: {why}", field, "invalid_grammar")
    if error == NO_PLACE:
        return unavailable(error, "instance_lost")
    return ApiError(500, error or "the engine failed", code="engine_error")
