"""So many streams at a time over HTTP: whenever one ends, the next request leaves."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from daemon.lab.bench.answer import ClientAnswer
from daemon.lab.bench.client import Client
from daemon.lab.bench.errors import error_lines
from daemon.lab.report.records import Outcome

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of a loop."""

    tokens: int  # of all answers, unfinished ones too
    seconds: float  # from the first request to the last token
    finished: int
    cut: bool  # time was up before all were done
    ttft_s: tuple[float, ...]
    errors: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds

    def raw(self) -> dict[str, object]:
        """For the results."""
        ttft_s = np.percentile(self.ttft_s, [50, 99]).tolist() if self.ttft_s else None
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "finished": self.finished,
            "cut": self.cut,
            "ttft_p50_p99_s": ttft_s,
            "errors": list(self.errors),
        }


async def closed_loop(url: str, bodies: Sequence[bytes], streams: int, cut_s: float) -> Streamed:
    """Send all bodies, `streams` of them at a time; after `cut_s` seconds the rest is cut off."""
    waiting = iter(bodies)
    answers: list[ClientAnswer] = []
    began_s = perf_counter()
    cut = False
    async with Client(url, "", cut_s + 60.0) as client:
        tasks = [asyncio.create_task(_stream(client, waiting, answers)) for _ in range(streams)]
        try:
            async with asyncio.timeout(cut_s):
                await asyncio.gather(*tasks)
        except TimeoutError:
            cut = True
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
    return _streamed(answers, began_s, cut)


async def _stream(client: Client, waiting: Iterator[bytes], answers: list[ClientAnswer]) -> None:
    for body in waiting:
        answers.append(answer := ClientAnswer())
        await client.stream(PATH, body, answer)


def _streamed(answers: list[ClientAnswer], began_s: float, cut: bool) -> Streamed:
    last_s = max((answer.token_s[-1] for answer in answers if answer.token_s), default=began_s)
    return Streamed(
        tokens=sum(answer.num_tokens for answer in answers),
        seconds=max(last_s - began_s, 1e-9),
        finished=sum(answer.outcome is Outcome.FINISHED for answer in answers),
        cut=cut,
        ttft_s=tuple(answer.token_s[0] - answer.sent_s for answer in answers if answer.token_s),
        errors=tuple(error_lines(answer.error for answer in answers)),
    )
