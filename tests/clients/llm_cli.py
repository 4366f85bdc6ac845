"""The `llm` command line: a prompt streamed to the terminal, against the same prompt whole."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

URL = os.environ["LLMD_URL"]
OPTIONS = ["-o", "temperature", "0", "-o", "max_tokens", "24"]


def prompt(folder: str, *flags: str) -> list[bytes]:
    """The output of one call of `llm`, as it comes."""
    command = [str(Path(sys.executable).with_name("llm")), "prompt", "-m", "llmd", *OPTIONS, *flags]
    command.append("Name three rivers of Europe.")
    environment = {**os.environ, "LLM_USER_PATH": folder, "LLM_LOAD_PLUGINS": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environment) as process:
        assert process.stdout is not None
        found = list(iter(lambda: process.stdout.read(4096), b""))
    assert process.returncode == 0
    return found


def main() -> None:
    """Ask twice; the texts must be one."""
    with urllib.request.urlopen(f"{URL}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        entry = {"model_id": "llmd", "model_name": model, "api_base": f"{URL}/v1"}
        # JSON is YAML too.
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))
        pieces = prompt(folder)
        whole = b"".join(prompt(folder, "--no-stream")).decode()
    assert whole.strip() and b"".join(pieces).decode() == whole
    assert len(pieces) > 3
    print(f"llm {version('llm')}: {len(pieces)} pieces, {whole.strip()!r}")


main()
