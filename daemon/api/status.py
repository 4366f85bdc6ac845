"""What is served and how busy it is, from the runtime's newest messages: the body of `/status`."""

from collections import deque
from itertools import zip_longest

from daemon.api.answers import InstanceBusy, StatusAnswer
from daemon.api.model import CurrentModel
from daemon.core.snapshot import InstanceStatus
from daemon.protocol.api import Gauges
from daemon.protocol.control import GpuStatus

RATE_MESSAGES = 6
"""Tokens/s are those between the first and the last of so many messages: about five seconds."""


class ServerStatus:
    """The newest `Gauges`, and how fast the tokens of the last few of them came."""

    def __init__(self, model: CurrentModel) -> None:
        self._model = model
        self._gauges: Gauges | None = None
        self._heard: deque[tuple[float, int]] = deque(maxlen=RATE_MESSAGES)

    def update(self, gauges: Gauges, now_s: float) -> None:
        """Take the runtime's message, which came at this time of a clock that only runs forward."""
        self._gauges = gauges
        self._heard.append((now_s, gauges.counters.output_tokens))

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated in a second, of late; 0 before two messages came."""
        if len(self._heard) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._heard[0], self._heard[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def answer(self, ready: bool) -> StatusAnswer:
        """The body, with zeros and no instances before the first message."""
        model, gauges = self._model, self._gauges
        instances = _instances(gauges) if gauges is not None else []
        return StatusAnswer(
            model=model.name,
            ready=ready,
            detail=model.fault or model.status,
            max_model_len=model.serving.max_len if model.serving is not None else 0,
            uptime_s=gauges.uptime_s if gauges is not None else 0.0,
            running=sum(one.running for one in instances),
            waiting=gauges.waiting if gauges is not None else 0,
            kv_used_bytes=sum(one.kv_used_bytes for one in instances),
            kv_total_bytes=sum(one.kv_total_bytes for one in instances),
            output_tokens_per_s=self.tokens_per_s,
            instances=instances,
        )


def _instances(gauges: Gauges) -> list[InstanceBusy]:
    pairs = zip_longest(gauges.instances, gauges.gpus[: len(gauges.instances)])
    return [_instance(one, gpu) for one, gpu in pairs]


def _instance(one: InstanceStatus, gpu: GpuStatus | None) -> InstanceBusy:
    return InstanceBusy(
        name=one.name,
        device=one.device,
        device_name=gpu.name if gpu is not None else None,
        state=one.state,
        running=one.running,
        waiting=one.waiting,
        kv_used_bytes=one.kv_used * one.kv_block_bytes,
        kv_total_bytes=one.kv_blocks * one.kv_block_bytes,
    )
