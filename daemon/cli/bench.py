"""`llmd bench`: put a workload on a real endpoint and report what its clients saw."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvloop

from daemon.base.files import raise_descriptor_limit
from daemon.cli.argument_parser import add_flags
from daemon.cli.faults import UsageError, error_text
from daemon.cli.outputs import add_output_flags, check_places, write_outputs
from daemon.cli.progress import progress
from daemon.cli.workload_flags import add_workload_flags, workload_spec
from daemon.client.address import AddressError
from daemon.lab.bench.bench import BenchSpec, Measured, measure
from daemon.lab.bench.errors import BenchError
from daemon.lab.bench.load import LoadGenerator
from daemon.lab.report.errors import ReportError
from daemon.lab.workload.build import check
from daemon.lab.workload.workload import WorkloadError, WorkloadSpec
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST

REFRESH_S = 0.5
LONGEST_TIMEOUT_S = 1e9
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd bench`."""
    parser.add_argument("--url", required=True, help="the endpoint, such as http://127.0.0.1:8000")
    add_flags(
        parser,
        ("--model", str, "", "M", "its name (default: the first served)"),
        ("--api-key", str, "", "K", "the key (default: OPENAI_API_KEY, if set)"),
    )
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    parser.add_argument(
        "--prompt-form",
        choices=("ids", "text"),
        default="ids",
        help="prompts as token ids, of exact length, or as words, as a chat's always are "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--prompt-seed",
        type=int,
        metavar="S",
        help="of the prompts' tokens (default: another one each time, so that no run meets prompts "
        "of an earlier one in the server's prefix cache)",
    )
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="for servers that refuse ignore_eos: answers then end where the model ends them",
    )
    answers = "answers of each request, each with a row of its own; several are sampled at "
    answers += "temperature 1 (default: %(default)s)"
    longest = "leave out requests longer than N tokens (default: than the server says)"
    add_flags(
        parser,
        ("--n", int, 1, "N", answers),
        ("--max-len", int, 0, "N", longest),
        ("--timeout-s", float, 600.0, "S", "of a whole answer; 0: none (default: %(default)g)"),
        ("--warm-up", int, 0, "N", "send N requests first, not recorded (default: %(default)s)"),
        ("--label", str, "", "LABEL", "what the report calls the endpoint (default: its URL)"),
    )
    add_workload_flags(parser)
    add_output_flags(parser)


def bench(arguments: argparse.Namespace) -> int:
    """Measure and report.

    0: done; 1: it could not be measured; 2: the workload is wrong; 130: ended early by Ctrl-C.
    """
    with suppress(ValueError, OSError):  # an open loop may need thousands of connections
        raise_descriptor_limit()
    try:
        wanted = workload_spec(arguments)
        check(wanted)
        _check_classes(wanted)
        check_places(arguments)
        measured: Measured = uvloop.run(measure(_spec(arguments), wanted, _following))
        for note in measured.notes:
            print(f"llmd bench: {note}", file=sys.stderr)
        write_outputs(arguments, measured.run, measured.report)
    except WorkloadError as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except (AddressError, BenchError, ReportError, OSError) as error:
        print(f"llmd: {error_text(error)}", file=sys.stderr)
        return 1
    return INTERRUPTED if measured.interrupted else 0


def _spec(arguments: argparse.Namespace) -> BenchSpec:
    if arguments.warm_up < 0 or arguments.max_len < 0:
        raise UsageError("--warm-up and --max-len must not be below 0")
    if not 1 <= arguments.n <= MAX_SEQUENCES_PER_REQUEST:
        raise UsageError(f"--n must be from 1 to {MAX_SEQUENCES_PER_REQUEST}, got {arguments.n}")
    if not 0 <= arguments.timeout_s <= LONGEST_TIMEOUT_S:
        raise UsageError(f"--timeout-s must be from 0 (none) to {LONGEST_TIMEOUT_S:g}")
    given = {name: getattr(arguments, name) for name in BenchSpec.__struct_fields__}
    given["api_key"] = given["api_key"] or os.environ.get("OPENAI_API_KEY", "")
    return BenchSpec(**given)


@asynccontextmanager
async def _following(load: LoadGenerator, num_answers: int) -> AsyncIterator[None]:
    """Show the load's progress while it runs."""
    with progress() as show:

        async def follow() -> None:
            while True:
                ended, running = load.sent.ended, len(load.sent.answers) - load.sent.ended
                show(ended, num_answers, f"{ended:,} of {num_answers:,}, {running:,} running")
                await asyncio.sleep(REFRESH_S)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


def _check_classes(wanted: WorkloadSpec) -> None:
    for slo in wanted.classes:
        if slo.scale:
            raise WorkloadError(
                f"class {slo.name!r}: scale needs the time of an answer alone, which an endpoint "
                "does not tell; a key's slo_scale is counted in the daemon's /metrics"
            )
