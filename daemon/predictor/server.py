"""The predictor's loop: asks in, predictions out, and what was learned to disk now and then."""

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from daemon.config.schema import PredictConfig
from daemon.length_models.errors import PredictorError
from daemon.length_models.prediction import Float32
from daemon.predictor.errors import EncoderError
from daemon.predictor.keeper import Keeper
from daemon.predictor.request_predictor import RequestPredictor
from daemon.protocol.predictor import Ask, Estimate, ToPredictor
from daemon.wire.blocking import BlockingChannel

log = logging.getLogger(__name__)

SAVE_S = 60.0
"""Seconds between saves: a crash loses what was learned since the last."""


MOST_TOGETHER = 32
"""Messages that are read at once, so that the prompts among them are encoded together."""


class Server:
    """Messages in, messages out, in their order."""

    def __init__(
        self, channel: BlockingChannel, predictor: RequestPredictor, keeper: Keeper
    ) -> None:
        self._channel = channel
        self._predictor = predictor
        self._keeper = keeper
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToPredictor).decode
        self._is_open = True

    def run(self) -> None:
        """Answer until the channel ends; save once a minute, and at the end."""
        save_at_s = time.monotonic() + SAVE_S
        while self._is_open:
            if self._channel.wait(save_at_s - time.monotonic()):
                self._take(list(self._waiting()))
            if time.monotonic() >= save_at_s:
                self._keeper.save()
                save_at_s = time.monotonic() + SAVE_S
        self._keeper.save()

    def _waiting(self) -> Iterator[ToPredictor]:
        """The messages that have come: at least one, unless the channel ends."""
        for _ in range(MOST_TOGETHER):
            payload = self._receive()
            if payload is None:
                self._is_open = False
                return
            yield self._decode(payload)
            if not self._channel.wait(0.0):
                return

    def _take(self, messages: Sequence[ToPredictor]) -> None:
        """Handle messages; a request's fault costs only its own prediction."""
        vectors = self._predictor.vectors(
            [message for message in messages if isinstance(message, Ask)]
        )
        for message in messages:
            if isinstance(message, Ask):
                self._send(self._estimated(message, vectors))
                continue
            try:
                self._predictor.learn(message)
            except Exception:
                log.exception("nothing was learned from request %d", message.request)

    def _estimated(self, ask: Ask, vectors: Iterator[Float32 | None]) -> Estimate:
        """The estimate; its time has the encoding of all prompts that are encoded with it."""
        began_s = time.perf_counter()
        try:
            found = self._predictor.predict(ask, next(vectors))
        except Exception:
            log.exception("request %d cannot be predicted", ask.request)
            return Estimate(ask.request, 0, 0, time.perf_counter() - began_s)
        return Estimate(ask.request, found.middle, found.high, time.perf_counter() - began_s)

    def _receive(self) -> bytes | None:
        with contextlib.suppress(ConnectionResetError):
            return self._channel.receive()
        return None

    def _send(self, message: Estimate) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # reading finds the end
            self._channel.send(self._encode(message))


def serve(sock: socket.socket, config_json: str, store: Path) -> int:
    """Serve as the configuration says; the exit status."""
    config = msgspec.json.decode(config_json, type=PredictConfig)
    keeper = Keeper(store, config)
    try:
        predictor = RequestPredictor(config, keeper)
    except (EncoderError, PredictorError) as error:
        log.error("%s", error)
        return 1
    Server(BlockingChannel(sock), predictor, keeper).run()
    return 0
