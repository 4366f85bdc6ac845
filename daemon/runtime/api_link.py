"""The runtime's end of one API process: its messages become events, actions become its messages."""

import logging
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from daemon.core.values.actions import Deliver, Finished, Rejected, Started
from daemon.core.values.events import Abort, Event, Finish, Predicted, RequestArrived
from daemon.protocol import api as protocol
from daemon.protocol.control import PredictorStatus
from daemon.protocol.worker import Logprobs, PromptLogprobs, Reply, RowErrors
from daemon.runtime.token_store import TokenStore
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST
from daemon.wire.channel import Channel
from daemon.wire.columns import Int32, decoder, encoder
from daemon.wire.pulse import Alive, Ping

log = logging.getLogger(__name__)

_REQUESTS_PER_PROCESS = 1 << 32


class AskedBy(NamedTuple):
    """The client behind a request, for viewers only: the Core and its journal do not know it."""

    request_id: str = ""
    key: str = ""


_NOBODY = AskedBy()
SCORED_COST = 2
"""Cost of a prompt token whose log-probability is wanted, relative to one without: it adds the
product with the whole vocabulary and the search for the best tokens. Small models take half as
long again.
"""


class ApiLink:
    """The requests of the API process. After a restart the ids of the new process are kept apart.

    `dispatch` takes the events, `lives(settled)` each answer to `ping`. Messages sent while there
    is no process are lost: `connect` begins with a process that knows nothing.
    """

    def __init__(
        self,
        store: TokenStore,
        dispatch: Callable[[Event], None],
        lives: Callable[[bool], None],
    ) -> None:
        self.predictor: PredictorStatus | None = None  # as the process last said
        self._lives = lives
        self._first_request = 0
        self._first_sequence = 0
        self._store = store
        self._dispatch = dispatch
        self._encode = encoder().encode
        self._decode = decoder(protocol.FromApi).decode
        self._live: dict[int, int] = {}  # the Core's request id -> streams that have not ended
        self._clients: dict[int, AskedBy] = {}  # of these requests, for viewers
        self._channel: Channel | None = None
        self._vocab_size = 0  # as the process knows it; 0: not yet

    def connect(self, sock: socket.socket, generation: int) -> None:
        """A new process takes its predecessor's place."""
        self.hang_up()
        self.predictor = None
        self._first_request = generation * _REQUESTS_PER_PROCESS
        self._first_sequence = self._first_request * MAX_SEQUENCES_PER_REQUEST
        self._channel = channel = Channel(sock, self._frame, lambda _: self._closed(channel))

    def hang_up(self) -> None:
        """End its remaining requests and close the channel; may be called twice."""
        if self._channel is not None:
            self._channel.close()
        self.end_all()

    def end_all(self) -> None:
        """End every request that has not ended; the process hears of each."""
        for request in list(self._live):
            self._dispatch(Abort(time.monotonic(), request))

    def client_of(self, sequence: int) -> AskedBy:
        """The client that asked for a sequence."""
        return self._clients.get(sequence // MAX_SEQUENCES_PER_REQUEST, _NOBODY)

    def ping(self) -> None:
        """Ask whether its event loop still hears."""
        self.send(Ping())

    def send(self, message: protocol.ToApi) -> None:
        """Send a message to the process; without a process it is lost."""
        if isinstance(message, protocol.Serving):
            self._vocab_size = message.vocab_size
        if self._channel is not None:
            self._channel.send(self._encode(message))

    def started(self, action: Started) -> None:
        """A sequence got its first place in a batch."""
        own = action.sequence - self._first_sequence
        self.send(protocol.SequenceStarted(own, action.num_cached_tokens))

    def prompt_logprobs(self, prompts: tuple[PromptLogprobs, ...]) -> None:
        """Log-probabilities of prompts, as a worker computed them; ended requests are skipped."""
        for prompt in prompts:
            if prompt.sequence // MAX_SEQUENCES_PER_REQUEST in self._live:
                own = prompt.sequence - self._first_sequence
                self.send(msgspec.structs.replace(prompt, sequence=own))

    def deliver(self, action: Deliver, reply: Reply) -> None:
        """New tokens, in the order of the step's rows."""
        for row in np.flatnonzero(action.reasons).tolist():
            self._ended(int(action.sequences[row]))
        self.send(
            protocol.Tokens(
                action.sequences - self._first_sequence,
                reply.tokens[action.rows],
                action.reasons,
                _select(reply.logprobs, action.rows, reply.tokens.size),
                _renumbered(reply.errors, action.rows),
            )
        )

    def finished(self, action: Finished) -> None:
        """A sequence ended between steps."""
        self._ended(action.sequence)
        own = action.sequence - self._first_sequence
        self.send(protocol.SequenceEnded(own, action.reason, action.error))

    def rejected(self, action: Rejected) -> None:
        """A request was refused."""
        self._store.drop_request(action.request, self._live.pop(action.request))
        self._clients.pop(action.request, None)
        own = action.request - self._first_request
        self.send(protocol.RequestRejected(own, action.kind, action.message, action.retry_after_s))

    def _ended(self, sequence: int) -> None:
        self._store.drop(sequence)
        request = sequence // MAX_SEQUENCES_PER_REQUEST
        self._live[request] -= 1
        if not self._live[request]:
            del self._live[request]
            self._clients.pop(request, None)

    def _frame(self, payload: bytes) -> None:
        now = time.monotonic()
        try:
            message: protocol.FromApi = self._decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            log.exception("the API process sent a message that cannot be read")
            return
        match message:
            case protocol.Generate():
                self._generate(message, now)
            case protocol.FinishSequence():
                own = message.sequence + self._first_sequence
                self._dispatch(Finish(now, own))
            case protocol.AbortRequest():
                self._dispatch(Abort(now, message.request + self._first_request))
            case protocol.PredictedLength():
                self._predicted(message, now)
            case Alive():
                self._lives(message.settled)
            case protocol.Predicting():
                self.predictor = message.status

    def _generate(self, message: protocol.Generate, now: float) -> None:
        """Admit a request to the Core. Tokens outside the vocabulary are refused: they would end
        the worker.
        """
        lowest, highest = int(message.tokens.min()), int(message.tokens.max())
        if lowest < 0 or highest >= self._vocab_size > 0:
            wrong = highest if lowest >= 0 else lowest
            said = f"the prompt has the token {wrong}, and the model has {self._vocab_size}"
            self.send(protocol.RequestRejected(message.request, "unknown_token", said, 0.0))
            return
        self._dispatch(self._arrival(message, now))

    def _arrival(self, message: protocol.Generate, now: float) -> RequestArrived:
        request = message.request + self._first_request
        self._store.add(request, message)
        self._live[request] = message.n
        if message.request_id or message.key:
            self._clients[request] = AskedBy(message.request_id, message.key)
        return RequestArrived(
            now=now,
            request=request,
            num_prompt_tokens=message.tokens.size,
            max_tokens=message.max_tokens,
            n=message.n,
            priority=message.priority,
            hashes=message.hashes,
            prompt_cost=SCORED_COST if message.sampling.prompt_logprobs >= 0 else 1,
            deadline_s=message.deadline_s,
            slo_scale=message.slo_scale,
        )

    def _predicted(self, message: protocol.PredictedLength, now: float) -> None:
        request = message.request + self._first_request
        if request in self._live:
            tokens, high = message.num_tokens, message.high_tokens
            self._dispatch(Predicted(now, request, tokens, high))

    def _closed(self, channel: Channel) -> None:
        """The process is gone, and so are its clients; a successor's stay."""
        if channel is self._channel:
            self.hang_up()


def _renumbered(errors: RowErrors, rows: Int32) -> RowErrors:
    """The errors of these sampled rows, numbered as they are delivered."""
    if not errors:
        return ()
    place = {row: index for index, row in enumerate(rows.tolist())}
    return tuple((place[row], why) for row, why in errors if row in place)


def _select(logprobs: Logprobs | None, rows: Int32, num_rows: int) -> Logprobs | None:
    """The log-probabilities of these sampled rows, renumbered as they are delivered."""
    if logprobs is None or not logprobs.rows.size:
        return None
    place = np.full(num_rows, -1, np.int32)
    place[rows] = np.arange(rows.size, dtype=np.int32)
    kept = np.flatnonzero(place[logprobs.rows] >= 0)
    shape = (logprobs.rows.size, logprobs.top_ids.size // logprobs.rows.size)
    return Logprobs(
        place[logprobs.rows[kept]],
        logprobs.chosen[kept],
        logprobs.top_ids.reshape(shape)[kept].ravel(),
        logprobs.top_values.reshape(shape)[kept].ravel(),
    )
