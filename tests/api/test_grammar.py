"""Grammars are tried out in a process that may be killed; nobody waits for ever."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from daemon.api.replies.errors import ApiError
from daemon.api.sandbox import grammar_process, helper
from daemon.api.sandbox.grammar import Grammars
from daemon.api.sandbox.grammar_process import what_is_wrong
from daemon.models.grammar import Compiler
from daemon.state.request import SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="session")

PLAIN = SamplingParams(ignore_eos=True)
SLOW = "start: T0\n" + "\n".join(f"T{i}: " + f"T{i + 1} " * 4 for i in range(30)) + '\nT30: "a"'


def model(folder: Path) -> Any:
    return SimpleNamespace(serving=SimpleNamespace(root=str(folder), vocab_size=400))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(folder: Path) -> AsyncIterator[Grammars]:
    made = Grammars(model(folder))
    await made.check(PLAIN, "field")
    assert not pid(made), "plain text starts nothing"
    yield made
    process = made._helper._process
    await made.close()
    assert process is not None
    assert not process._child.alive


@pytest.fixture
def grammars(shared: Grammars) -> Grammars:
    """The same each time, with nothing remembered."""
    shared._verdicts._known.clear()
    return shared


async def verdict(grammars: Grammars, text: str) -> str:
    try:
        await grammars.check(SamplingParams(grammar=text), "field")
    except ApiError as error:
        if (error.status, error.param) != (400, "field"):
            raise
        return error.message
    return ""


def pid(grammars: Grammars) -> int:
    return grammars._helper.pid


async def test_verdicts_are_kept_and_asked_for_once(grammars: Grammars) -> None:
    good, bad = 'start: "a"', "start: nowhere"
    said = await asyncio.gather(*(verdict(grammars, text) for text in [good, bad] * 8))
    assert said[0::2] == [""] * 8
    assert len(set(said[1::2])) == 1
    assert "nowhere" in said[1]
    # Without its process it still knows.
    await grammars._helper.close()
    assert await verdict(grammars, good) == ""
    assert "nowhere" in await verdict(grammars, bad)
    assert not pid(grammars)


async def test_only_who_wrote_lines_is_told_of_them(grammars: Grammars) -> None:
    schema = 'start: f\nf: %json {"type": "object", "$ref": "#"}'
    regex = "start: /[0-9{4/"
    refused = "`field` cannot be used: "
    assert await verdict(grammars, schema) == (
        f"{refused}a `$ref` leads back to its own place, and cannot be followed there"
    )
    assert await verdict(grammars, regex) == (
        f"{refused}the regular expression cannot be read: unclosed character class"
    )
    with pytest.raises(ApiError, match="`guided_grammar` cannot be used: line 1, column 8: the"):
        await grammars.check(SamplingParams(grammar=regex), "guided_grammar")


async def test_what_takes_too_long_is_killed_and_neighbours_go_on(grammars: Grammars) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    first = pid(grammars)
    slow = asyncio.create_task(verdict(grammars, SLOW))
    await asyncio.sleep(0.01)
    neighbour = asyncio.create_task(verdict(grammars, 'start: "b"'))
    assert await slow
    assert await neighbour == ""
    assert pid(grammars) == first, "it was a fork that died"


async def test_a_client_that_leaves_takes_nothing_from_others(grammars: Grammars) -> None:
    leaves = asyncio.create_task(verdict(grammars, 'start: "c"'))
    stays = asyncio.create_task(verdict(grammars, 'start: "c"'))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays == ""
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_clients_that_left_wait_for_no_turn(grammars: Grammars) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    turns = grammars._helper._slots
    asked = [asyncio.create_task(verdict(grammars, text)) for text in (SLOW, 'start: "w"')]
    while not turns._waiting:
        await asyncio.sleep(0)
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(0)
    assert not turns._waiting
    assert turns._taken.total() == 1, "a fork is busy with it"
    assert await verdict(grammars, 'start: "x"') == ""


async def test_no_more_than_so_many_wait(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars._helper._slots, "_most_waiting", 2)
    tasks = [asyncio.create_task(verdict(grammars, f'start: "{i}"')) for i in range(4)]
    with pytest.raises(ApiError) as raised:
        await tasks[3]
    assert raised.value.status == 503
    assert await asyncio.gather(*tasks[:3]) == ["", "", ""]


async def test_the_oldest_verdict_is_forgotten(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars._verdicts, "_most", 2)
    for letter in "aba":
        assert await verdict(grammars, f'start: "{letter}"') == ""
    await verdict(grammars, 'start: "d"')
    kept = list(grammars._verdicts._known)
    await verdict(grammars, 'start: "a"')  # this one was asked for last
    assert sorted(grammars._verdicts._known) == sorted(kept)


async def test_another_model_has_another_process(grammars: Grammars, folder: Path) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    first = pid(grammars)
    grammars._model.serving.vocab_size = 500
    assert await verdict(grammars, 'start: "b"') == ""
    assert pid(grammars) != first
    grammars._model.serving.vocab_size = 400


async def test_a_process_that_is_gone_is_no_grammar_s_fault(grammars: Grammars) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    process = grammars._helper._process
    assert process is not None
    os.kill(pid(grammars), signal.SIGKILL)
    while not process.gone:
        await asyncio.sleep(0.01)
    assert await verdict(grammars, 'start: "b"') == ""


async def test_a_process_that_gets_no_processor_is_no_grammar_s_fault(grammars: Grammars) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    os.kill(pid(grammars), signal.SIGSTOP)
    asked = asyncio.create_task(verdict(grammars, 'start: "e"'))
    await asyncio.sleep(1.3)
    os.kill(pid(grammars), signal.SIGCONT)
    assert await asked == ""


async def test_one_that_is_killed_meanwhile_is_no_grammar_s_fault(grammars: Grammars) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    first = pid(grammars)
    os.kill(first, signal.SIGSTOP)
    asked = asyncio.create_task(verdict(grammars, 'start: "f"'))
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    assert await asked == ""
    assert pid(grammars) != first


async def test_one_that_hangs_is_replaced(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await verdict(grammars, 'start: "a"') == ""
    first = pid(grammars)
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(helper, "SILENT_S", 0.2)
    with pytest.raises(ApiError) as raised:
        await verdict(grammars, 'start: "g"')
    assert raised.value.status == 503
    monkeypatch.undo()
    assert await verdict(grammars, 'start: "g"') == ""
    assert pid(grammars) != first


async def test_without_a_tokenizer_there_are_no_grammars(tmp_path: Path) -> None:
    grammars = Grammars(model(tmp_path))
    with pytest.raises(ApiError) as raised:
        await grammars.check(SamplingParams(grammar='start: "a"'), "field")
    assert raised.value.status == 501
    assert "tokenizer.json" in raised.value.message
    await grammars.close()


async def test_the_last_who_asked_may_leave(tmp_path: Path) -> None:
    grammars = Grammars(model(tmp_path))
    loop = asyncio.get_running_loop()
    complaints: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    leaves = asyncio.create_task(verdict(grammars, 'start: "e"'))
    await asyncio.sleep(0)
    leaves.cancel()
    while grammars._verdicts._questions:
        await asyncio.sleep(0.01)
    gc.collect()
    loop.set_exception_handler(None)
    assert not complaints
    await grammars.close()


@pytest.mark.parametrize("limit", ["COMPILE_CPU_S", "TOKEN_CPU_S"])
async def test_what_costs_a_worker_too_much_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    compiler = Compiler(folder, 400)
    lengths = compiler.token_lengths()
    gc.freeze()  # as the process does: a collection of all that these tests hold is no grammar's
    assert what_is_wrong(compiler, lengths, 'start: "a"') == ""
    gc.unfreeze()
    monkeypatch.setattr(grammar_process, limit, 0.0)
    assert "it takes longer than 0.0 s" in what_is_wrong(compiler, lengths, 'start: "a"')


@pytest.mark.parametrize("late", range(1, 8))
async def test_time_that_others_took_makes_no_grammar_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The clock jumps once, at any of its first readings."""
    compiler = Compiler(folder, 400)
    lengths = compiler.token_lengths()
    readings = count(1)
    jumping = SimpleNamespace(thread_time=lambda: 1.0 if next(readings) > late else 0.0)
    monkeypatch.setattr(grammar_process, "time", jumping)
    assert what_is_wrong(compiler, lengths, 'start: "ab"') == ""


async def test_a_fork_imports_nothing_in_a_grammar_s_time(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from daemon.api.sandbox import grammar_process as one;"
        "from daemon.models.grammar import Compiler; compiler = Compiler(Path(sys.argv[1]), 400);"
        "lengths = compiler.token_lengths(); one.rehearse(compiler, lengths);"
        "before = set(sys.modules);"
        "assert one.what_is_wrong(compiler, lengths, 'start: /[a-z ]+/') == '';"
        "print(sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
