"""The worker as a process: its messages, its exits, and the tokens that come back."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from daemon.protocol.worker import Copied, Failed, Ready, Reply, Shutdown
from daemon.state.request import FinishReason, SamplingParams
from tests.engine.driver import GREEDY, Driver, Running
from tests.engine.process import WorkerProcess, cpu_load
from tests.engine.tiny import greedy, reference, save
from tests.wire.descriptors import full_pipe

PROMPT = [5, 17, 90, 33, 8, 121, 64, 2, 77]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save("llama", tmp_path_factory.mktemp("llama")))


def finish(worker: WorkerProcess, plans: Driver, sequences: list[Running], count: int) -> Reply:
    """Run until each sequence has `count` outputs; the last reply."""
    reply = None
    while going := [s for s in sequences if len(s.outputs) < count]:
        work = [(s, len(s.tokens) - s.num_computed) for s in going]
        worker.send(plans.plan(work))
        reply = worker.receive()
        assert isinstance(reply, Reply)
        plans.take(work, reply)
    assert isinstance(reply, Reply)
    return reply


def test_a_worker_s_life(folder: str) -> None:
    expected = greedy(reference("llama"), PROMPT, 12)
    end = next(token for token in expected[3:] if token not in expected[:3])
    stops = msgspec.structs.replace(GREEDY, stop_token_ids=(end,))
    later = msgspec.structs.replace(stops, min_tokens=12)
    asks = msgspec.structs.replace(GREEDY, logprobs=2)
    at_once = SamplingParams(temperature=0.0, logit_bias=((1, 1e6),))
    goes_on = msgspec.structs.replace(at_once, ignore_eos=True)
    with WorkerProcess() as worker:
        ready = worker.load(cpu_load(folder))
        assert isinstance(ready, Ready), ready
        assert ready.num_blocks == 64
        assert ready.block_bytes == 2 * 2 * 16 * 2 * 16 * 4
        assert ready.weight_bytes > 0 and ready.step_s > 0
        assert ready.forward_tokens == 0, "nobody asked for it"
        plans = Driver(16, list(range(64)))
        sequences = [plans.add(i, PROMPT, s) for i, s in enumerate((GREEDY, stops, later, asks))]
        reply = finish(worker, plans, sequences, 12)
        assert reply.elapsed_s > 0 and reply.idle_s >= 0
        plain, stopped, unstopped, asking = sequences
        assert plain.outputs == stopped.outputs == asking.outputs == expected
        assert set(plain.reasons) == {FinishReason.NONE}
        assert stopped.reasons.index(FinishReason.STOP) == expected.index(end)
        assert end not in unstopped.outputs
        assert reply.logprobs is not None
        assert reply.logprobs.rows.tolist() == [3]
        assert reply.logprobs.top_ids[0] == expected[-1]
        ends = [plans.add(4 + i, PROMPT, s) for i, s in enumerate((at_once, goes_on))]
        finish(worker, plans, ends, 1)
        assert [s.outputs for s in ends] == [[1], [1]]
        assert [s.reasons for s in ends] == [[FinishReason.STOP], [FinishReason.NONE]]
        worker.hang_up()
        assert worker.exit_status() == 0


def test_a_broken_plan_fails_with_a_trace(folder: str, quick: dict[str, str]) -> None:
    with WorkerProcess(stderr=subprocess.PIPE, **quick) as worker:
        assert isinstance(worker.load(cpu_load(folder)), Ready)
        plans = Driver(16, list(range(64)))
        plan = plans.plan([(plans.add(0, PROMPT), len(PROMPT))])
        worker.send(msgspec.structs.replace(plan, inputs=plan.inputs[:-1]))
        answer = worker.receive()
        assert isinstance(answer, Failed)
        assert "feeds 9 tokens but brings 8" in answer.message
        assert worker.exit_status() == 1
        assert worker.process.stderr is not None
        assert b"Traceback" in worker.process.stderr.read()


def test_what_cannot_be_loaded_is_said(tmp_path: Path, quick: dict[str, str]) -> None:
    reading, writing, _ = full_pipe()  # whoever reads what it logs stands still
    with WorkerProcess(stderr=writing, **quick) as worker:
        answer = worker.load(cpu_load(str(tmp_path / "nothing")))
        assert isinstance(answer, Failed) and "is not a folder" in answer.message
        assert worker.exit_status() == 1
    os.close(reading)
    os.close(writing)


@pytest.mark.soak
def test_another_rank_computes_and_keeps_silent(folder: str) -> None:
    with WorkerProcess() as worker:
        assert isinstance(worker.load(cpu_load(folder, rank=1, num_host_blocks=2)), Ready)
        plans = Driver(16, list(range(64)))
        plans.outs = [(0, 1)]
        worker.send(plans.plan([(plans.add(0, PROMPT), len(PROMPT))]))
        worker.send(Shutdown())
        assert worker.exit_status() == 0
        with pytest.raises(AssertionError, match="closed its end"):
            worker.receive()


def test_a_worker_swaps_and_says_when_it_is_done(folder: str, quick: dict[str, str]) -> None:
    with WorkerProcess(**quick) as worker:
        ready = worker.load(cpu_load(folder, num_host_blocks=9, finds_size=True))
        assert isinstance(ready, Ready), ready
        assert ready.num_host_blocks == 9 and 16 <= ready.forward_tokens <= 128
        assert ready.host_block_bytes == ready.block_bytes
        assert ready.copy_block_s > 0
        plans = Driver(16, list(range(64)))
        running = plans.add(0, PROMPT)
        finish(worker, plans, [running], 3)
        plans.outs = [(running.blocks[0], 7)]
        plans.leave(running)
        worker.send(plans.plan([]))
        answers = [worker.receive(), worker.receive()]  # in either order, though no plan follows
        (reply,) = [answer for answer in answers if isinstance(answer, Reply)]
        (copied,) = [answer for answer in answers if isinstance(answer, Copied)]
        assert (reply.step, reply.tokens.size) == (plans.step, 0)
        assert (copied.step, copied.num_out, copied.num_in) == (plans.step, 1, 0)
        back = plans.back(5, running, [7])
        assert back.blocks != running.blocks
        plans.awaits = plans.step + 1
        worker.send(plans.plan([(back, 1)]))
        answers = [worker.receive(), worker.receive()]
        (reply,) = [answer for answer in answers if isinstance(answer, Reply)]
        plans.take([(back, 1)], reply)
        finish(worker, plans, [back], 6)
        assert running.outputs + back.outputs == greedy(reference("llama"), PROMPT, 9)
        worker.send(Shutdown())
        assert worker.exit_status() == 0


def test_a_worker_whose_blocks_are_compressed(folder: str, quick: dict[str, str]) -> None:
    with WorkerProcess(stderr=subprocess.DEVNULL, **quick) as worker:
        ready = worker.load(cpu_load(folder, num_host_blocks=4, compress=True))
        assert isinstance(ready, Ready), ready
        assert ready.host_block_bytes == 2 * 2 * 2 * 16 * (16 + 4)
        assert ready.num_host_blocks == 4 and ready.copy_block_s > 0
        plans = Driver(16, list(range(64)))
        plans.ins = [(4, 0)]
        worker.send(plans.plan([]))
        answer = worker.receive()
        assert isinstance(answer, Failed)
        assert "blocks 4 .. 4 of a host pool of 4" in answer.message
        assert worker.exit_status() == 1


def test_a_quick_worker_s_fork_dies_with_it(folder: str, quick: dict[str, str]) -> None:
    """It is the fork that holds the other end; `tests/nursery` starts it."""
    with WorkerProcess(**quick) as worker:
        assert isinstance(worker.load(cpu_load(folder)), Ready)
        worker.process.kill()
        with pytest.raises(AssertionError, match="closed its end"):
            worker.receive()
