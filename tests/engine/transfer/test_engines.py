"""A prompt computed by one engine goes on in another as if it had stayed."""

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend, choose_backend
from daemon.engine.step.step import Engine
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.messages import Done, News
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.sender import Sender
from daemon.engine.transfer.watch import watched
from daemon.engine.worker.start import assemble
from daemon.protocol.worker import Load
from daemon.wire.columns import int32
from tests.engine.driver import Driver, Running
from tests.engine.tiny import VOCAB_SIZE, greedy, reference, save
from tests.hangs import HANG_S

BLOCK_SIZE, NUM_BLOCKS, NUM_LAYERS = 8, 24, 2


@pytest.fixture(scope="module", params=["llama", "opt"])
def name(request: pytest.FixtureRequest) -> str:
    """One that is fused, and one that transformers' own modules compute."""
    return str(request.param)


class Ends:
    """Two engines and the link between their pools; layers that the first one told of."""

    def __init__(self, folder: Path) -> None:
        self.layers: list[int] = []
        plain = choose_backend(torch.device("cpu"), torch.float32)
        self.one, self.other = load(folder, watched(plain, self._after_layer)), load(folder, plain)
        here, there = socket.socketpair()
        with ThreadPoolExecutor(1) as threads:
            receiver = threads.submit(connect_receiver, there, EndPools(self.other.cache))
            self.sender: Sender = connect_sender(here, EndPools(self.one.cache))
            self.receiver: Receiver = receiver.result()
        self.told: SimpleQueue[News] = SimpleQueue()
        self.sender.start(lambda _told: None)
        self.receiver.start(self.told.put)
        self.layers.clear()

    def _after_layer(self, layer: int) -> None:
        self.layers.append(layer)
        if hasattr(self, "sender"):  # an engine computes before it knows its peers
            self.sender.after_layer(layer)


@pytest.fixture(scope="module")
def ends(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    ends = Ends(save(name, tmp_path_factory.mktemp(name)))
    yield ends
    ends.sender.close()
    ends.receiver.close()


def load(folder: Path, backend: Backend) -> Engine:
    message = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=4,
        max_len=128,
        max_batch_tokens=64,
        num_threads=1,
    )
    with torch.inference_mode():
        model = load_model(folder, "float32", torch.device("cpu"))
        return assemble(model, shape_here(folder), message, lambda _stage, _done: None, backend)


def run(engine: Engine, plans: Driver, work: list[tuple[Running, int]]) -> None:
    with torch.inference_mode():
        plans.take(work, engine.run(plans.plan(work)))


def test_an_answer_goes_on_elsewhere(name: str, ends: Ends) -> None:
    engine, plans = ends.one, Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    assert engine.model.fused == (name == "llama"), "a program, and layer by layer"
    chooser = random.Random(1)
    prompt = [chooser.randrange(2, VOCAB_SIZE) for _ in range(27)]
    running = plans.add(0, prompt)
    run(engine, plans, [(running, 16)])
    ends.layers.clear()
    targets = [17, 3, 20, 9]
    plan = plans.plan([(running, 11)])
    blocks, fills = int32(running.blocks), int32([8, 8, 8, 3])
    ends.sender.begin_layers(1, blocks, int32(targets), fills)
    with torch.inference_mode():
        plans.take([(running, 11)], engine.run(plan))
    ends.sender.after_step()
    told = [] if engine.model.compiled else list(range(NUM_LAYERS))
    assert ends.layers == told, "each once; of a program's step all are sent behind it"
    assert isinstance(ends.told.get(timeout=HANG_S), Done)
    assert ends.other.cache.fills[targets].tolist() == fills.tolist()
    elsewhere = Driver(BLOCK_SIZE, [block for block in range(NUM_BLOCKS) if block not in targets])
    there = elsewhere.add(2, running.tokens, shared=targets)
    there.num_computed = len(prompt)
    for _ in range(8):
        run(ends.other, elsewhere, [(there, 1)])
    assert running.outputs + there.outputs == greedy(reference(name), prompt, 9)
