"""Whole measurements: what is sent, what is counted, what is told."""

import asyncio
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from daemon.lab.bench.bench import BenchSpec, Measured, measure
from daemon.lab.bench.choices import EventSink
from daemon.lab.bench.client import Client
from daemon.lab.bench.errors import BenchError
from daemon.lab.report.records import Outcome
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from tests.lab.bench.scripted import Body, ScriptedServer, Stream, each_token, event

CLOSED = 5  # requests of `lengths` that fit


async def measured(
    server: ScriptedServer,
    trace: Path,
    *,
    arrivals: str = "closed",
    rate: float = 0,
    **flags: object,
) -> Measured:
    spec = BenchSpec(url=server.url, **flags)  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        return await measure(spec, WorkloadSpec(trace=trace, arrivals=arrivals, rate=rate))


def outcomes(result: Measured) -> list[Outcome]:
    return [Outcome(code) for code in result.run.requests.outcome]


def told(result: Measured, words: str) -> list[str]:
    return [note for note in result.notes if words in note]


async def test_counts_lengths_and_drops(server: ScriptedServer, lengths: Path) -> None:
    result = await measured(server, lengths)
    log = result.run.requests
    assert outcomes(result) == [Outcome.FINISHED] * CLOSED
    assert log.prompt_tokens.tolist() == [7, 20, 40, 2, 33]
    assert log.output_tokens.tolist() == log.asked_tokens.tolist() == [3, 1, 5, 4, 2]
    assert log.gap_request.tolist() == [0, 0, 2, 2, 2, 2, 3, 3, 3, 4]
    assert (log.first_s > log.arrival_s).all() and (log.last_s >= log.first_s).all()
    report = result.report
    assert (report.kind, report.profile, report.dropped) == ("measured", server.url, 1)
    assert report.rate_rps is None and report.slo_attainment is None
    assert not result.interrupted


async def test_pauses_are_seen_in_the_gaps(server: ScriptedServer, lengths: Path) -> None:
    async def pauses_once(stream: Stream) -> None:
        for number in range(stream.num_tokens):
            if number == 4:
                await asyncio.sleep(0.25)
            await stream.text("a", "length" if number == stream.num_tokens - 1 else None)
        await stream.end(stream.num_tokens)

    server.script = pauses_once
    result = await measured(server, lengths)
    log, report = result.run.requests, result.report
    assert (log.paused_s > 0.1).tolist() == [False, False, True, False, False]
    assert report.paused_s.max == pytest.approx(log.paused_s[2])
    assert report.longest_gap_s.max == pytest.approx(log.gap_s.max()) and log.gap_s.max() > 0.2


async def test_the_rate_is_the_one_that_was_asked(server: ScriptedServer, lengths: Path) -> None:
    asked = await measured(server, lengths, arrivals="poisson", rate=50)
    assert asked.report.rate_rps == 50
    at_once = await measured(server, lengths, arrivals="closed", rate=50)
    assert at_once.report.rate_rps is None


async def test_what_no_client_can_know_is_unknown(server: ScriptedServer, lengths: Path) -> None:
    report = (await measured(server, lengths)).report
    assert (report.preemptions, report.preempted_requests_fraction) == (None, None)
    assert (report.recomputed_tokens, report.swaps, report.iterations) == (None, None, None)


async def test_what_a_request_says(server: ScriptedServer, lengths: Path) -> None:
    await measured(server, lengths, arrivals="uniform", rate=50, api_key="secret")
    assert [(len(b["prompt"]), b["max_tokens"]) for b in server.bodies] == [
        *((7, 3), (20, 1), (40, 5), (2, 4), (33, 2)),
    ]
    for body in server.bodies:
        assert body["model"] == "scripted" and body["stream"] is True
        assert body["ignore_eos"] is True and body["temperature"] == 0
        assert body["stream_options"] == {"include_usage": True}
    assert server.authorization == "Bearer secret"
    assert len(server.probes) == 1


async def test_a_slow_answer_holds_no_later_request_back(
    server: ScriptedServer, lengths: Path
) -> None:
    async def first_waits_for_last(stream: Stream) -> None:
        if stream.index == 0:
            await server.until(CLOSED)  # a closed loop would never send the rest
        await each_token(stream)

    server.script = first_waits_for_last
    result = await measured(server, lengths, arrivals="uniform", rate=50)
    assert outcomes(result) == [Outcome.FINISHED] * CLOSED


async def test_several_tokens_in_an_event(server: ScriptedServer, lengths: Path) -> None:
    async def all_at_once(stream: Stream) -> None:
        await stream.text("aaa", "length")
        await stream.end(stream.num_tokens)

    server.script = all_at_once
    result = await measured(server, lengths)
    assert result.run.requests.output_tokens.tolist() == [3, 1, 5, 4, 2]
    assert result.run.requests.gap_s.size == 0
    assert told(result, "3.00 tokens an event")


async def test_refusals_failures_and_cut_streams(server: ScriptedServer, lengths: Path) -> None:
    def refuse(body: Body) -> tuple[int, str] | None:
        said = {"error": {"message": f"the queue is full, wait {body['max_tokens']}.5 s"}}
        status = {3: 429, 1: 429, 5: 503}.get(body["max_tokens"]) if body["stream"] else None
        return (status, json.dumps(said)) if status else None

    async def cut(stream: Stream) -> None:
        await stream.text("a")
        await stream.text("b")
        if stream.num_tokens == 4:
            stream.cut()

    server.refuse, server.script = refuse, cut
    result = await measured(server, lengths)
    assert outcomes(result) == [
        *(Outcome.REJECTED, Outcome.REJECTED, Outcome.FAILED, Outcome.FAILED, Outcome.FAILED),
    ]
    assert result.run.requests.output_tokens.tolist()[:3] == [0, 0, 0]
    assert result.run.requests.output_tokens[4] == 2
    report = result.report
    assert (report.finished, report.rejected, report.failed) == (0, 2, 3)
    assert told(result, "2 x HTTP 429: the queue is full")
    assert told(result, "1 x HTTP 503: the queue is full")
    assert told(result, "1 x the stream ended without a finish reason")
    assert told(result, "1 x ClientPayloadError") or told(result, "1 x ClientOSError")


async def test_bytes_that_are_no_text_fail_one_answer_alone(
    server: ScriptedServer, lengths: Path
) -> None:
    async def garbled(stream: Stream) -> None:
        if stream.num_tokens == 3:
            await stream.write(b'data: {"choices": [{"index": 0, "text": "\xff"}]}\n\n')
        await each_token(stream)

    server.script = garbled
    result = await measured(server, lengths)
    assert outcomes(result) == [Outcome.FAILED, *[Outcome.FINISHED] * (CLOSED - 1)]
    assert told(result, "1 x an event that is not OpenAI's: ")


async def test_a_refusal_that_is_no_text_is_told(server: ScriptedServer, lengths: Path) -> None:
    said = b'{"error": {"message": "full \xff"}}'
    server.refuse = lambda body: (429, said) if body["max_tokens"] == 3 else None
    result = await measured(server, lengths)
    assert outcomes(result) == [Outcome.REJECTED, *[Outcome.FINISHED] * (CLOSED - 1)]
    assert told(result, '1 x HTTP 429: {"error": {"message": "full \ufffd"}}')


async def test_whatever_goes_wrong_with_an_answer_fails_it_alone(
    server: ScriptedServer, lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Client.stream

    async def stream(client: Client, path: str, body: bytes, answer: EventSink) -> None:
        if json.loads(body)["max_tokens"] == 3:
            raise ZeroDivisionError("nobody thought of this")
        await whole(client, path, body, answer)

    monkeypatch.setattr(Client, "stream", stream)
    result = await measured(server, lengths, warm_up=2)
    assert outcomes(result) == [Outcome.FAILED, *[Outcome.FINISHED] * (CLOSED - 1)]
    assert told(result, "1 x ZeroDivisionError: nobody thought of this")
    assert told(result, "in the warm-up: 1 x ZeroDivisionError: nobody thought of this")


async def test_answers_that_take_too_long_fail(server: ScriptedServer, lengths: Path) -> None:
    async def never(stream: Stream) -> None:
        await stream.text("a")
        await asyncio.Event().wait()

    server.script = never
    result = await measured(server, lengths, timeout_s=0.3)
    assert outcomes(result) == [Outcome.FAILED] * CLOSED
    assert told(result, "5 x no whole answer within 0.3 s")


async def test_ctrl_c_keeps_what_is_there(server: ScriptedServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": ms, "input_length": 4, "output_length": 2} for ms in (0, 1, 10**9)]
    trace.write_text("".join(json.dumps({**row, "hash_ids": [7]}) + "\n" for row in rows))

    async def second_is_interrupted(stream: Stream) -> None:
        if stream.index == 0:
            await each_token(stream)
            return
        await stream.text("a")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    server.script = second_is_interrupted
    async with asyncio.timeout(30):
        result = await measure(BenchSpec(url=server.url), WorkloadSpec(trace=trace))
    assert result.interrupted
    assert len(result.run.requests) == 2 and Outcome.UNFINISHED in outcomes(result)
    assert "ended by hand after 2 of 3 requests" in result.report.label
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_prompts_share_the_blocks_that_the_trace_shares(
    server: ScriptedServer, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [(600, [1, 2]), (700, [1, 3]), (600, [4, 5])]
    rows = [
        {"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": h} for n, h in lines
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server.cards[0]["max_model_len"] = 1000
    async with asyncio.timeout(30):
        await measure(BenchSpec(url=server.url), WorkloadSpec(trace=trace, arrivals="closed"))
    first, second, third = sorted(
        (body["prompt"] for body in server.bodies),
        key=lambda p: (
            sum(p[:512] == other["prompt"][:512] for other in server.bodies) == 1,
            len(p),
        ),
    )
    assert first[:512] == second[:512] and first[512:] != second[512:600]
    assert first[:512] != third[:512]


async def test_warm_up_requests_are_sent_and_not_recorded(
    server: ScriptedServer, lengths: Path
) -> None:
    result = await measured(server, lengths, warm_up=7)
    assert len(server.bodies) == 7 + CLOSED and len(result.run.requests) == CLOSED
    prompts = {tuple(body["prompt"]) for body in server.bodies}
    assert len(prompts) == 7 + CLOSED


async def test_a_warm_up_that_fails_ends_the_run(server: ScriptedServer, lengths: Path) -> None:
    server.refuse = lambda body: (500, "broken") if body["stream"] else None
    with pytest.raises(BenchError, match="every warm-up request failed: 2 x HTTP 500: broken"):
        await measured(server, lengths, warm_up=2)
    assert len(server.bodies) == 2


async def test_a_server_that_ignores_ignore_eos_is_told(
    server: ScriptedServer, lengths: Path
) -> None:
    async def one_token(stream: Stream) -> None:
        await stream.text("a", "stop")
        await stream.end(1)

    server.script = one_token
    result = await measured(server, lengths)
    assert told(result, "4 answers are not as long as asked")
    own = await measured(server, lengths, ignore_eos=False)
    assert not told(own, "as long as asked")
    assert own.run.requests.asked_tokens.tolist() == [1] * CLOSED
    assert all("ignore_eos" not in body for body in server.bodies[CLOSED:])


async def test_cached_prompts_are_told(server: ScriptedServer, lengths: Path) -> None:
    async def cached(stream: Stream) -> None:
        await stream.text("a", "length")
        await stream.end(1, cached=len(stream.body["prompt"]) // 2)

    server.script = cached
    result = await measured(server, lengths)
    assert told(result, "49% of prompt tokens came from the server's prefix cache")


async def test_promises_and_labels_reach_the_report(server: ScriptedServer, lengths: Path) -> None:
    classes = (SloClass("all", ttft_s=100.0),)
    spec = BenchSpec(url=server.url, label="gpu-7")
    workload = WorkloadSpec(trace=lengths, arrivals="closed", classes=classes, seed=3)
    report = (await measure(spec, workload)).report
    assert (report.slo_attainment, report.seed, report.profile) == (1.0, 3, "gpu-7")


async def test_each_of_several_choices_is_a_row(server: ScriptedServer, lengths: Path) -> None:
    """They take turns, but that the last is slow; it ends without text."""

    async def choices(stream: Stream) -> None:
        for number in range(stream.num_tokens):
            for index in range(2):
                await stream.write(event({"index": index, "text": "a"}))
            if number or stream.num_tokens == 1:
                await stream.write(event({"index": 2, "text": "a"}))
        for index in range(3):
            await asyncio.sleep(0.05)
            await stream.write(event({"index": index, "text": "", "finish_reason": "length"}))
        await stream.end(3 * stream.num_tokens)

    server.script = choices
    result = await measured(server, lengths, n=3, warm_up=1, arrivals="uniform", rate=50)
    log, asked = result.run.requests, [3, 1, 5, 4, 2]
    assert outcomes(result) == [Outcome.FINISHED] * 3 * CLOSED
    assert log.prompt_tokens.tolist() == np.repeat([7, 20, 40, 2, 33], 3).tolist()
    assert log.output_tokens.tolist() == log.asked_tokens.tolist() == np.repeat(asked, 3).tolist()
    assert log.arrival_s[::3].tolist() == log.arrival_s[2::3].tolist()
    num_gaps = np.bincount(log.gap_request, minlength=3 * CLOSED)
    assert num_gaps.tolist() == (np.repeat(asked, 3) - 1).tolist()
    last_s = log.last_s.reshape(-1, 3)
    assert (last_s[[0, 2, 3, 4], 2] > last_s[[0, 2, 3, 4], 0] + 0.1).all(), "it came with its end"
    assert {(body["n"], body["temperature"]) for body in server.bodies} == {(3, 1)}
    assert result.report.requests == 15 and "; n = 3" in result.report.label
    assert not told(result, "not as long as asked") and not told(result, "prefix cache")


async def test_all_choices_of_a_refused_or_broken_request_fail(
    server: ScriptedServer, lengths: Path
) -> None:
    async def one_choice_then_nothing(stream: Stream) -> None:
        await stream.write(event({"index": 1, "text": "a", "finish_reason": "length"}))
        if stream.num_tokens == 5:
            await stream.write(event(error={"message": "lost"}))

    server.refuse = lambda body: (429, "full") if body["max_tokens"] == 3 else None
    server.script = one_choice_then_nothing
    result = await measured(server, lengths, n=2)
    assert outcomes(result)[:2] == [Outcome.REJECTED] * 2
    assert outcomes(result)[4:6] == [Outcome.FAILED] * 2
    assert outcomes(result)[6:8] == [Outcome.FAILED, Outcome.FINISHED]
    assert told(result, "2 x HTTP 429") and told(result, "2 x in mid-stream: lost")
