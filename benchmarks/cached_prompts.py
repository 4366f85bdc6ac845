"""How often a cached prompt has another greedy answer: `python -m benchmarks.cached_prompts`.

Each prompt is asked twice at temperature 0, alone: first new, then with most of its keys and values
from the prefix cache, so that fewer rows are computed together and products may round differently.
It prints how many answers differ, and at the first token that does, how far apart the logits of the
two best tokens were.
"""

import argparse
import itertools
import json
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.live import READY_S, daemon
from benchmarks.prompt_texts import generated


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer, token by token."""

    cached_tokens: int
    texts: list[str]
    margins: list[float]  # between the logits of the two best tokens


def wait_ready(url: str) -> None:
    """Until the daemon serves. Raises SystemExit if it never does."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"{url} does not answer")


def asked(url: str, number: int, prompt: str, max_tokens: int) -> Answer:
    """The answer to a prompt whose first block no other number's prompt has."""
    messages = [{"role": "system", "content": f"Conversation {number}. Be brief and correct."}]
    body: dict[str, Any] = {
        "messages": [*messages, {"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "repetition_penalty": 1.0,  # the log-probabilities' differences are those of the logits
        "logprobs": True,
        "top_logprobs": 2,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        answer = json.load(reply)
    tokens = answer["choices"][0]["logprobs"]["content"]
    return Answer(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        [token["token"] for token in tokens],
        [
            token["top_logprobs"][0]["logprob"] - token["top_logprobs"][1]["logprob"]
            for token in tokens
        ],
    )


def fork(new: Answer, cached: Answer) -> int:
    """The first token at which two answers differ; -1: none."""
    pairs = itertools.zip_longest(new.texts, cached.texts)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), -1)


def compare(url: str, num_prompts: int, max_tokens: int) -> None:
    """Ask each prompt twice and print what differs."""
    wait_ready(url)
    num_tokens, forks, calm = 0, [], []
    for number, (_, prompt) in enumerate(generated(num_prompts)):
        new, cached = (asked(url, number, prompt, max_tokens) for _ in range(2))
        if new.cached_tokens or not cached.cached_tokens:
            raise SystemExit(f"prompt {number}: {new.cached_tokens}, {cached.cached_tokens} cached")
        at = fork(new, cached)
        same = len(new.texts) if at < 0 else at
        num_tokens += same
        calm += new.margins[:same]
        if at >= 0:
            forks.append((new.margins[at], cached.margins[at]))
            print(
                f"prompt {number}, token {at}: {new.texts[at]!r} by {new.margins[at]:.4f} new, "
                f"{cached.texts[at]!r} by {cached.margins[at]:.4f} cached",
                flush=True,
            )
    widest = max((max(margins) for margins in forks), default=0.0)
    closer = sum(margin <= widest for margin in calm)
    print(
        f"{len(forks)} of {num_prompts} answers differ, {num_tokens:,} tokens before are the same"
    )
    print(f"widest margin where they part: {widest:.4f}; {closer} same tokens had no wider one")


def main() -> None:
    """Compare on a daemon of its own, or on the one at --url."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="ask this daemon")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("flags", nargs="*", help="of llmd serve, after --")
    arguments = parser.parse_args()
    if arguments.url:
        compare(arguments.url, arguments.prompts, arguments.tokens)
        return
    with (
        tempfile.TemporaryDirectory(prefix="llmd-cached-") as folder,
        daemon(arguments.flags, Path(folder)) as url,
    ):
        compare(url, arguments.prompts, arguments.tokens)


if __name__ == "__main__":
    main()
