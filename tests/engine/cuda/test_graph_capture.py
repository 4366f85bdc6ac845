"""What becomes of a capture that fails, with a driver that only says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from daemon.engine.cuda.graphs import cuda_capture


def test_steps_go_on_where_they_were_when_a_capture_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["compute"]

    @contextmanager
    def graph(*_arguments: Any, **_how: Any) -> Iterator[None]:
        streams.append("capture")  # torch goes back only where ending the capture succeeds
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda **_how: "own")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    worked: list[str] = []
    with pytest.raises(RuntimeError, match="during capture"):
        cuda_capture()(lambda: worked.append(streams[-1]))
    assert worked == ["compute", "capture"]
    assert streams[-1] == "compute"
