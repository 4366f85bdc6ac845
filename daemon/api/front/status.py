"""The body of `/status`: the model and its load, from the runtime's newest messages."""

from collections import deque
from itertools import zip_longest

from daemon.api.model import CurrentModel
from daemon.api.replies.answers import InstanceBusy, StatusAnswer
from daemon.core.values.snapshot import InstanceStatus
from daemon.protocol.api import Gauges
from daemon.protocol.control import GpuStatus

RATE_MESSAGES = 6
"""Messages over which tokens/s are measured: about five seconds."""


class ServerStatus:
    """The newest `Gauges`, and the rate of tokens over the last few of them."""

    def __init__(self, model: CurrentModel) -> None:
        self._model = model
        self._gauges: Gauges | None = None
        self._heard: deque[tuple[float, int]] = deque(maxlen=RATE_MESSAGES)

    def update(self, gauges: Gauges, now_s: float) -> None:
        """Take the runtime's message and its monotonic time."""
        self._gauges = gauges
        self._heard.append((now_s, gauges.counters.output_tokens))

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second of late; 0 before two messages came."""
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
            running=sum(instance.running for instance in instances),
            waiting=gauges.waiting if gauges is not None else 0,
            kv_used_bytes=sum(instance.kv_used_bytes for instance in instances),
            kv_total_bytes=sum(instance.kv_total_bytes for instance in instances),
            output_tokens_per_s=self.tokens_per_s,
            instances=instances,
        )


def _instances(gauges: Gauges) -> list[InstanceBusy]:
    pairs = zip_longest(gauges.instances, gauges.gpus[: len(gauges.instances)])
    return [_instance(status, gpu) for status, gpu in pairs]


def _instance(status: InstanceStatus, gpu: GpuStatus | None) -> InstanceBusy:
    return InstanceBusy(
        name=status.name,
        device=status.device,
        device_name=gpu.name if gpu is not None else None,
        state=status.state,
        running=status.running,
        waiting=status.waiting,
        kv_used_bytes=status.kv_used * status.kv_block_bytes,
        kv_total_bytes=status.kv_blocks * status.kv_block_bytes,
    )
