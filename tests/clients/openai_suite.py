"""openai-python's own tests of completions, chat and models, against a running daemon.

`python openai_suite.py FOLDER`: its tests come from the package's source archive, fetched into
FOLDER, and are not changed. They ask for models of fixed names, so the daemon must be called as
they call it; the name decides which of them run. What is left out, and why, is in SKIPPED.
"""

import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

URL = os.environ["LLMD_URL"]
MODULES = {
    "gpt-3.5-turbo-instruct": ["test_completions.py"],
    "gpt-6-astra": ["chat/test_completions.py", "test_models.py"],
}
SKIPPED = {
    "with_all_params": "every field at once, some with values that no server takes: best_of=0, "
    "a logit_bias for the token 'foo', max_tokens=0",
    "(test_completions and chat) and (retrieve or update or delete or test_method_list "
    "or response_list) and not path_params": "chats that the server would have stored",
    "test_models and delete and not path_params": "models that the server would have trained",
}


def suite(folder: Path) -> Path:
    """The unpacked source archive of the installed version."""
    name = f"openai-{version('openai')}"
    if not (folder / name).exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        # What the archive says about itself is worked out by these.
        subprocess.run([*pip, "install", "hatchling", "hatch-fancy-pypi-readme"], check=True)
        fetch = ["download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
        wanted = [name.replace("-", "=="), "--dest", str(folder)]
        subprocess.run([*pip, *fetch, *wanted], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def main() -> int:
    """Run those for this daemon's name; pytest's exit status."""
    with urllib.request.urlopen(f"{URL}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    if model not in MODULES:
        print(f"the daemon serves {model}; start one with --set model.name= one of {[*MODULES]}")
        return 2
    for which, why in SKIPPED.items():
        print(f"left out: {which}: {why}")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["-k", " and ".join(f"not ({which})" for which in SKIPPED)]
    command += [f"tests/api_resources/{module}" for module in MODULES[model]]
    environment = {**os.environ, "TEST_API_BASE_URL": f"{URL}/v1"}
    folder = suite(Path(sys.argv[1]))
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
