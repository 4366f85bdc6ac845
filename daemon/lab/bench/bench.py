"""A whole measurement, in order: ask the endpoint, build the workload, warm up, load, report."""

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import msgspec

from daemon.lab.bench.choices import each_answer
from daemon.lab.bench.client import Client
from daemon.lab.bench.endpoint import Form, PromptForm, find_model, settle_form
from daemon.lab.bench.errors import BenchError, error_lines
from daemon.lab.bench.findings import LATE_S, findings, lateness_p99_s
from daemon.lab.bench.load import LoadGenerator, SentLoad, send_at_once
from daemon.lab.bench.log import run_log
from daemon.lab.bench.prompts import Prompts
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.report.summarize import About, Promise, summarize
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import Workload, WorkloadSpec, asked_rate

UNKNOWN_LEN = 2**31 - 1
"""The length limit if neither the server nor the user knows the context: nothing is dropped."""

Watch = Callable[[LoadGenerator, int], AbstractAsyncContextManager[None]]
"""Shows the progress of a load with this number of answers."""


class BenchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint to measure, and the form of its requests."""

    url: str
    model: str = ""  # empty: the first that is served
    api_key: str = ""
    chat: bool = False
    prompt_form: PromptForm = "ids"
    prompt_seed: int | None = None  # of the prompts' tokens; None: a new one each time
    ignore_eos: bool = True
    n: int = 1  # answers of each request, each with a row of its own
    max_len: int = 0  # tokens of a prompt and its answer; 0: the server's limit
    timeout_s: float = 600.0  # of a whole answer; 0: none
    warm_up: int = 0  # requests before the run, all at once, not recorded
    label: str = ""  # instead of the URL


@dataclass(slots=True)
class Measured:
    """A finished or interrupted run."""

    run: RunLog
    report: Report
    notes: list[str] = field(default_factory=list)  # sentences for people
    interrupted: bool = False


async def measure(
    spec: BenchSpec, wanted: WorkloadSpec, watch: Watch = lambda *_: nullcontext()
) -> Measured:
    """Run the load against the endpoint; Ctrl-C ends it early and keeps the results.

    Raises BenchError, WorkloadError and OSError, before the load begins.
    """
    async with Client(spec.url, spec.api_key, spec.timeout_s) as client:
        notes: list[str] = []
        card = await find_model(client, spec.model)
        workload = build(wanted, spec.max_len or card.max_model_len or UNKNOWN_LEN)
        prompt_form: PromptForm = "text" if spec.chat else spec.prompt_form
        form = Form(card.id, spec.chat, prompt_form, spec.ignore_eos, spec.n)
        form = await settle_form(client, form, notes)
        seed = secrets.randbits(32) if spec.prompt_seed is None else spec.prompt_seed
        notes.append(f"prompts are of --prompt-seed {seed}")
        prompts = Prompts(workload, seed)
        # All bodies are made before the first is sent: about 6 bytes of memory for each token.
        bodies = [
            form.body(prompts.of_request(index), int(num_output))
            for index, num_output in enumerate(workload.output_tokens)
        ]
        await _warm_up(client, form, prompts, workload, spec.warm_up, notes)
        load = LoadGenerator(client, form)
        async with watch(load, len(bodies) * form.n):
            with _stopping(load):
                sent = await load.run(bodies, workload.arrival_s)
    own_prompts = not (form.chat or workload.prefixes or form.n > 1)
    about = _about(spec, client.url, wanted, workload, sent)
    workload = each_answer(workload, form.n)
    notes += findings(sent, workload, fixed_length=spec.ignore_eos, own_prompts=own_prompts)
    run = run_log(sent, workload, spec.ignore_eos)
    return Measured(run, summarize(run, about), notes, sent.interrupted)


async def _warm_up(
    client: Client, form: Form, prompts: Prompts, workload: Workload, count: int, notes: list[str]
) -> None:
    """Send the warm-up requests. Raises BenchError if all of them fail."""
    rows = [index % len(workload) for index in range(count)]
    bodies = [
        form.body(prompts.of_warm_up(index, row), int(workload.output_tokens[row]))
        for index, row in enumerate(rows)
    ]
    answers = await send_at_once(client, form, bodies)
    errors = error_lines(answer.error for answer in answers)
    if answers and all(answer.error for answer in answers):
        raise BenchError(f"every warm-up request failed: {'; '.join(errors)}")
    notes += [f"in the warm-up: {line}" for line in errors]


def _about(
    spec: BenchSpec, url: str, wanted: WorkloadSpec, workload: Workload, sent: SentLoad
) -> About:
    label = f"{workload.label}; n = {spec.n}" if spec.n > 1 else workload.label
    if sent.interrupted:
        label += f"; ended by hand after {len(sent.answers) // spec.n} of {len(workload)} requests"
    late_s = lateness_p99_s(sent, each_answer(workload, spec.n))
    if late_s > LATE_S:
        label += f"; the generator was up to {late_s * 1e3:.0f} ms late (p99)"
    return About(
        kind="measured",
        label=label,
        policy="",
        profile=spec.label or url,
        seed=wanted.seed,
        dropped=workload.num_dropped,
        rate_rps=asked_rate(wanted, workload),
        classes=tuple(
            Promise(c.name, c.ttft_s, c.tpot_s, c.gap_s, c.normalized_latency_s)
            for c in workload.classes
        ),
    )


@contextmanager
def _stopping(load: LoadGenerator) -> Iterator[None]:
    """SIGINT stops the load; a second one is the usual KeyboardInterrupt."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        load.stop()

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
