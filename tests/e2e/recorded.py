"""transformers' own answers of the embedded model, kept beside the tests that need them.

transformers unpacks a GGUF file for twenty seconds. So `make test` reads what
`python -m tests.e2e.recorded` wrote; `make soak` computes all of it again. A record of another
model is an error.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.soak import SOAK

KEPT = Path(__file__).with_name("recorded.json")


def computed(module: str, folder: str, count: int, asked: Any) -> list[Any]:
    """The answers that a module of this suite prints, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, folder, str(count)],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def answers(module: str, folder: str, count: int, asked: Any) -> list[Any]:
    """The same, as recorded where this is no soak. Raises AssertionError if nothing is."""
    if SOAK:
        return computed(module, folder, count, asked)
    kept = json.loads(KEPT.read_text())
    again = "record it again: python -m tests.e2e.recorded"
    assert kept["model"] == digest(folder), f"{KEPT} is of another model; {again}"
    key = _key(module, count, asked)
    assert key in kept["answers"], f"{KEPT} does not have what is asked; {again}"
    found: list[Any] = kept["answers"][key]
    return found


def digest(folder: str) -> str:
    """The content of a folder's GGUF file."""
    with (Path(folder) / "model.gguf").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _key(module: str, count: int, asked: Any) -> str:
    words = json.dumps([module, count, asked])
    return f"{module} {count} {hashlib.sha256(words.encode()).hexdigest()[:16]}"


def main() -> None:
    """Record all that the quick tests ask for."""
    from daemon.config.paths import default_cache
    from daemon.models.embedded import converted_folder, embedded_gguf
    from tests.e2e import test_exactness, test_seeds

    folder = str(converted_folder(embedded_gguf(), default_cache()))
    made = {}
    for wanted in (*test_exactness.wanted(folder), *test_seeds.wanted(folder)):
        module, count, asked = wanted
        made[_key(*wanted)] = computed(module, folder, count, asked)
    kept = {"model": digest(folder), "answers": made}
    KEPT.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
