"""A running HTTP request: its token streams, and its end."""

import asyncio
import time
from collections.abc import Callable

from daemon.api.answer.choice import AnswerChoice, Clock, Output, PromptOnly
from daemon.api.answer.prepare import Work
from daemon.api.answer.repetition import RepetitionDetector
from daemon.api.answer.shapes import Json, usage
from daemon.api.replies.errors import ApiError
from daemon.api.request_id import current
from daemon.api.text.detokenizer import Detokenizer
from daemon.api.text.text import Text
from daemon.protocol.api import FinishSequence, FromApi, Generate
from daemon.protocol.worker import PromptLogprobs
from daemon.state.request import request_of, sequence_id

Send = Callable[[FromApi], None]


class Job:
    """A request of one handler. The link feeds it tokens; it sends its choices' events back."""

    def __init__(
        self,
        work: Work,
        text: Text,
        output: Output,
        arrived_s: float,
        key: str = "",
    ) -> None:
        """`arrived_s`: when the request's headers were complete, in monotonic seconds. `key`: the
        name of the client's API key, if it has one.
        """
        self.work = work
        self.request_id = current.get()
        self.error: ApiError | None = None
        self.choices: dict[int, AnswerChoice] = {}  # running ones, by sequence
        self.requests: dict[int, int] = {}  # number of running choices of each request
        self._cached: dict[int, int] = {}
        self._num_output_tokens = 0
        self._num_ended_tokens = 0  # of choices that ended in any way
        self._lengths: dict[int, list[int]] = {}  # of each request, of choices that are complete
        self._text = text
        self._output = output
        self._send: Send | None = None
        self._first_request = 0
        self._arrived_s = arrived_s
        self._key = key
        self._forget: Callable[[AnswerChoice], None] | None = None
        loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()

    def begin(
        self, first_request: int, send: Send, forget: Callable[[AnswerChoice], None]
    ) -> list[Generate]:
        """Make the runtime's requests, one for each prompt.

        `send` takes the choices' events, `forget(choice)` is called as each of them ends.
        """
        self._send, self._forget, self._first_request = send, forget, first_request
        return [
            self._begin_prompt(number, first_request + number)
            for number in range(len(self.work.prompts))
        ]

    def started(self, sequence: int, num_cached_tokens: int) -> None:
        """Note that a choice got its place in a batch."""
        # Later streams of a prompt share the first one's blocks; that is no cache hit.
        self._cached.setdefault(request_of(sequence), num_cached_tokens)
        self._settle(self._accepted)

    def prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Take log-probabilities of a prompt's tokens."""
        self.work.echoes[request_of(logprobs.sequence) - self._first_request].take(logprobs)

    def fail(self, error: ApiError) -> None:
        """End with an error, unless it has ended."""
        if self.error is None and not self._done.done():
            self.error = error
        self._settle(self._accepted)
        self._settle(self._done)

    async def accepted(self, timeout_s: float) -> None:
        """Wait until a choice has started, or for `timeout_s`. Raises the job's ApiError."""
        await asyncio.wait({self._accepted}, timeout=timeout_s)
        if self.error is not None:
            raise self.error

    async def finished(self) -> None:
        """Wait until every choice has ended. Raises the job's ApiError."""
        await self._done
        if self.error is not None:
            raise self.error

    @property
    def usage(self) -> Json:
        """Token counts, final once finished."""
        cached = sum(self._cached.values())
        return usage(self.work.num_prompt_tokens, self._num_output_tokens, cached)

    @property
    def num_generated(self) -> int:
        """Output tokens so far, of all choices: what a key is charged for."""
        return self._num_ended_tokens + sum(c.num_tokens for c in self.choices.values())

    def num_output_tokens(self, request: int) -> int:
        """The mean length of a request's answers; 0 while one is incomplete or was broken off."""
        lengths = self._lengths.get(request, ())
        return round(sum(lengths) / self.work.n) if len(lengths) == self.work.n else 0

    # The events of choices.

    def stop_found(self, choice: AnswerChoice) -> None:
        """Tell the runtime that the answer has ended."""
        assert self._send is not None
        self._send(FinishSequence(choice.sequence))

    def ended(self, choice: AnswerChoice) -> None:
        """Note that a choice is complete; with the last one, so is the job."""
        self._num_output_tokens += choice.num_tokens
        self._lengths.setdefault(request_of(choice.sequence), []).append(choice.num_tokens)
        self.leave(choice.sequence)
        if not self.choices:
            self._settle(self._accepted)
            self._settle(self._done)

    def leave(self, sequence: int) -> None:
        """Forget a sequence, which the runtime no longer holds."""
        assert self._forget is not None
        choice = self.choices.pop(sequence, None)
        if choice is None:
            return
        self._num_ended_tokens += choice.num_tokens
        request = request_of(sequence)
        self.requests[request] -= 1
        if not self.requests[request]:
            del self.requests[request]
        self._forget(choice)

    def _begin_prompt(self, number: int, request: int) -> Generate:
        work, prompt = self.work, self.work.prompts[number]
        sent_s = time.monotonic()
        kind = PromptOnly if work.prompt_only else AnswerChoice
        hidden = self._hidden()
        for stream in range(work.n):
            sequence = sequence_id(request, stream)
            self.choices[sequence] = kind(
                index=number * work.n + stream,
                sequence=sequence,
                detokenizer=Detokenizer(self._text.token_bytes, hidden),
                stops=work.stops,
                min_tokens=work.sampling.min_tokens,
                output=self._output,
                ends=self,
                clock=Clock(self._arrived_s, sent_s, len(prompt.tokens)),
                repetition=self._repetition(),
            )
        self.requests[request] = work.n
        return Generate(
            request=request,
            tokens=prompt.tokens,
            max_tokens=work.max_tokens[number],
            n=work.n,
            priority=work.priority,
            sampling=work.sampling,
            # Cached tokens would not be computed, and would have no log-probabilities.
            hashes=b"" if work.sampling.prompt_logprobs >= 0 else prompt.hashes,
            deadline_s=self._arrived_s + work.deadline_s if work.deadline_s else 0.0,
            slo_scale=work.slo_scale,
            request_id=self.request_id,
            key=self._key,
            salt=self._text.salt,
        )

    def _hidden(self) -> frozenset[int]:
        """The tokens without text in an answer: special ones, except the markers of calls and
        thoughts that are read.
        """
        tools = self.work.tools
        hidden = self._text.hidden(self.work.shows_special)
        shown = set(tools.shown) if tools is not None else set()
        return hidden - shown - (self._text.markers.thoughts if self.work.thoughts else set())

    def _repetition(self) -> RepetitionDetector | None:
        most = self.work.max_repeated_tokens
        return RepetitionDetector(most) if most else None

    def _settle(self, future: "asyncio.Future[None]") -> None:
        if not future.done():
            future.set_result(None)
