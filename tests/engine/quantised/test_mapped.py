"""Pages of mapped files are read in a thread of their own, while others compute."""

import threading
import time
from pathlib import Path

import pytest
import torch

from daemon.engine.quantised.mapped import MappedFile, PageReader
from daemon.engine.quantised.stored import LoadMeter

SIZE_BYTES, HALF_BYTES = 3 << 20, 3 << 19


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.write_bytes(bytes(range(256)) * (SIZE_BYTES // 256))
    return made


class Held:
    """Shares that are told, by whom; the first teller goes on when it is let go."""

    def __init__(self) -> None:
        self.tellers: list[str] = []
        self.began, self.go = threading.Event(), threading.Event()

    def tell(self, _share: float) -> None:
        self.tellers.append(threading.current_thread().name)
        self.began.set()
        self.go.wait()


def test_what_is_wanted_later_is_taken_before_it_is_read(path: Path) -> None:
    held = Held()
    meter = LoadMeter(SIZE_BYTES, held.tell)
    with PageReader() as reader:
        file = MappedFile(path, meter, reader)
        first = file.part(0, HALF_BYTES, later=True)
        assert held.began.wait(60) and held.tellers == ["pages"]
        second = file.part(HALF_BYTES, HALF_BYTES, later=True)  # the thread is still at the first
        assert torch.equal(first, second) and int(second[255]) == 255
        assert meter.done_bytes == HALF_BYTES
        held.go.set()
    assert meter.done_bytes == SIZE_BYTES, "on the way out all is read"


def test_what_is_wanted_now_is_read_by_who_takes_it(path: Path) -> None:
    held = Held()
    held.go.set()
    with PageReader() as reader:
        MappedFile(path, LoadMeter(SIZE_BYTES, held.tell), reader).part(0, SIZE_BYTES)
        assert held.tellers == [threading.current_thread().name]


def test_behind_an_error_the_rest_is_left(path: Path) -> None:
    held = Held()
    meter = LoadMeter(SIZE_BYTES, held.tell)

    def let_go(reader: PageReader) -> None:
        while not reader.leaves:
            time.sleep(0.001)
        held.go.set()

    def fail() -> None:
        with PageReader() as reader:
            file = MappedFile(path, meter, reader)
            file.part(0, HALF_BYTES, later=True)
            file.part(HALF_BYTES, HALF_BYTES, later=True)
            assert held.began.wait(60)
            threading.Thread(target=let_go, args=(reader,)).start()
            raise KeyError("of another stage")

    with pytest.raises(KeyError):
        fail()
    assert meter.done_bytes == HALF_BYTES
