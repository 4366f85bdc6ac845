"""What is asked of the servers: the modes, their prompts, and when each request is sent."""

import random
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.peers.servers import (
    AMPLE,
    LIMITED,
    LONG_TOKENS_EACH,
    MAX_STREAMS,
    Room,
)

PROMPT_TOKENS, LONG_PROMPT_TOKENS = 128, 2000
OUTPUT_TOKENS = 64
TEXT_BYTES = 600_000
ARRIVAL_SPREAD = 2.0


@dataclass(frozen=True)
class Mode:
    """One way of loading a server.

    `streams` requests are kept open at once, each sent when another ends; where `rate_per_s` is
    given, requests arrive by themselves instead. `outputs` holds answer lengths and their shares.
    """

    name: str
    requests: int
    streams: int = 1
    rate_per_s: float | None = None
    outputs: tuple[tuple[int, float], ...] = ((OUTPUT_TOKENS, 1.0),)
    limited_kv: bool = False
    prompt_tokens: int = PROMPT_TOKENS

    def with_requests(self, share: float) -> "Mode":
        """The same with a share of its requests, but one for each stream at least."""
        return replace(self, requests=max(self.streams, round(share * self.requests)))


def room_for(modes: list[Mode]) -> Room:
    """The room for keys and values with which servers are started for these modes."""
    if any(mode.limited_kv for mode in modes):
        return LIMITED
    if all(mode.prompt_tokens == PROMPT_TOKENS for mode in modes):
        return AMPLE
    streams = max(MAX_STREAMS if mode.rate_per_s else mode.streams for mode in modes)
    return Room(streams, streams * LONG_TOKENS_EACH)


@dataclass(frozen=True)
class Job:
    """One request to send: its prompt, how long an answer, and when (seconds from the start)."""

    prompt: str
    output_tokens: int
    at_s: float = 0.0


MODES = (
    Mode("single", requests=12),
    Mode("c8", requests=48, streams=8),
    Mode("c32", requests=64, streams=32),
    Mode("prefill", requests=6, outputs=((2, 1.0),), prompt_tokens=LONG_PROMPT_TOKENS),
    Mode("bursty", requests=40, rate_per_s=2.0, outputs=((8, 0.8), (256, 0.2))),
    Mode(
        "kv",
        requests=24,
        streams=LIMITED.streams,
        outputs=((192, 1.0),),
        limited_kv=True,
    ),
)


class Prompts:
    """Pieces of the standard library's text, each exactly so many tokens for the model."""

    def __init__(self, tokenizer_file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._ids = self._tokenizer.encode(_library_text(), add_special_tokens=False).ids
        self._num_special = len(self._tokenizer.encode("").ids)

    def draw(self, rng: random.Random, num_tokens: int) -> str:
        """A piece that encodes to `num_tokens` tokens, special ones included."""
        size = num_tokens - self._num_special
        while True:
            start = rng.randrange(len(self._ids) - size)
            text = self._tokenizer.decode(self._ids[start : start + size])
            if len(self._tokenizer.encode(text).ids) == num_tokens:
                return text


def _library_text() -> str:
    """Modules of the standard library, in order of their names, up to a limit."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = ""
    for file in sorted(folder.glob("*.py")):
        text += file.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= TEXT_BYTES:
            break
    return text[:TEXT_BYTES]


def make_jobs(mode: Mode, prompts: Prompts, seed: str, attempt: int = 0) -> list[Job]:
    """The requests of one run; the same seed gives the same requests.

    Another attempt has the same lengths and times, but prompts that no cache has seen.
    """
    rng, text_rng = random.Random(seed), random.Random(f"{seed} {attempt}")
    lengths = [length for length, _ in mode.outputs]
    shares = [share for _, share in mode.outputs]
    shape = ARRIVAL_SPREAD**-2
    jobs, at_s = [], 0.0
    for _ in range(mode.requests):
        if mode.rate_per_s is not None:
            at_s += rng.gammavariate(shape, 1 / (mode.rate_per_s * shape))
        prompt = prompts.draw(text_rng, mode.prompt_tokens)
        jobs.append(Job(prompt, rng.choices(lengths, shares)[0], at_s))
    return jobs
