"""Work beside the steps: CUDA's streams, or threads where there is no GPU."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import torch

Work = Callable[[], None]


class StreamError(Exception):
    """Work that was queued on a stream failed; the message says how."""


class WorkEvent(Protocol):
    """A point in a stream's work."""

    def synchronize(self) -> None:
        """Return once all work before it is done. Raises StreamError if it failed."""

    def seconds_since(self, earlier: Any) -> float:
        """Time from an earlier event of the same kind of stream; both are reached."""


class Stream(Protocol):
    """A queue of work that is done in order."""

    def run(self, work: Work) -> None:
        """Queue work."""

    def wait(self, event: Any) -> None:
        """Have what is queued from now on wait for another stream's event."""

    def record(self) -> Any:
        """An event behind all that is queued so far."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of steps and of copies of blocks out and in."""

    compute: Stream
    outs: Stream
    ins: Stream

    def close(self) -> None:
        """Finish what is queued and end the threads, if there are any."""
        for stream in (self.outs, self.ins):
            if isinstance(stream, ThreadStream):
                stream.close()


def streams_of(device: torch.device) -> Streams:
    """Two streams of their own beside the current one; on a CPU one thread copies both ways."""
    compute = compute_stream(device)
    if device.type == "cuda":
        outs, ins = (CudaStream(torch.cuda.Stream(device)) for _ in range(2))
        return Streams(compute, outs, ins)
    thread = ThreadStream("swap")
    return Streams(compute, thread, thread)


def compute_stream(device: torch.device) -> Stream:
    """The stream of steps: the device's current one, or the calling thread."""
    if device.type == "cuda":
        return CudaStream(torch.cuda.current_stream(device))
    return Here()


class ThreadEvent:
    """A point in a thread's work, with its time."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._time_s = 0.0
        self._fault: BaseException | None = None

    def reach(self, fault: BaseException | None = None) -> None:
        """Mark it as reached by the thread, or the thread's work before it as failed."""
        self._time_s = time.perf_counter()
        self._fault = fault
        self._reached.set()

    def synchronize(self) -> None:
        """See `WorkEvent`."""
        self._reached.wait()
        if self._fault is not None:
            raise StreamError(f"{type(self._fault).__name__}: {self._fault}") from self._fault

    def seconds_since(self, earlier: "ThreadEvent") -> float:
        """See `WorkEvent`."""
        return self._time_s - earlier._time_s


class ThreadStream:
    """A thread that does what is queued; after a failure it does nothing more."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Work | ThreadEvent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Work) -> None:
        """See `Stream`."""
        self._queue.put(work)

    def wait(self, event: WorkEvent) -> None:
        """See `Stream`."""
        self._queue.put(event.synchronize)

    def record(self) -> ThreadEvent:
        """See `Stream`."""
        event = ThreadEvent()
        self._queue.put(event)
        return event

    def close(self) -> None:
        """Finish what is queued and end the thread; twice is as good as once."""
        self._queue.put(None)
        self._thread.join()

    def _live(self) -> None:
        fault: BaseException | None = None
        # The mode is a thread's own, and the pool was made in it: nothing else may write to it.
        with torch.inference_mode():
            while (job := self._queue.get()) is not None:
                if isinstance(job, ThreadEvent):
                    job.reach(fault)
                elif fault is None:
                    try:
                        job()
                    except Exception as error:  # noqa: BLE001 - raised where it is synchronized
                        fault = error


class Here:
    """The calling thread as a stream: all that was queued is done."""

    def run(self, work: Work) -> None:
        """See `Stream`."""
        work()

    def wait(self, event: WorkEvent) -> None:
        """See `Stream`."""
        event.synchronize()

    def record(self) -> ThreadEvent:
        """See `Stream`."""
        event = ThreadEvent()
        event.reach()
        return event


class CudaEvent:
    """A point in a CUDA stream's work; synchronizing sleeps instead of spinning."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.recorded = torch.cuda.Event(enable_timing=True, blocking=True)
        self.recorded.record(stream)
        self._device = stream.device

    def synchronize(self) -> None:
        """See `WorkEvent`."""
        # A thread begins on device 0, where it would make a needless context.
        with torch.cuda.device(self._device):
            self.recorded.synchronize()

    def seconds_since(self, earlier: "CudaEvent") -> float:
        """See `WorkEvent`."""
        with torch.cuda.device(self._device):
            return earlier.recorded.elapsed_time(self.recorded) / 1e3


class CudaStream:
    """A stream of a GPU."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Work) -> None:
        """See `Stream`; copies and kernels that `work` starts go to this stream."""
        # A thread begins on device 0, and leaving a stream alone would make a context there.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            work()

    def wait(self, event: CudaEvent) -> None:
        """See `Stream`."""
        self._stream.wait_event(event.recorded)

    def record(self) -> CudaEvent:
        """See `Stream`."""
        return CudaEvent(self._stream)
