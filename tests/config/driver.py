"""A machine with NVIDIA cards, as far as their driver's two libraries tell: compiled from C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config import cuda

SOURCE = Path(__file__).with_name("driver.c")
LARGE = "89:24576:24000:0:NVIDIA RTX 4090"
SMALL = "86:1024:1000:0:NVIDIA GT 1030"
"""Cards as driver.c reads them: one that holds a small model, and one that holds none."""
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()


def build_driver(folder: Path) -> Path:
    """Puts the two libraries into a folder, for LD_LIBRARY_PATH. Skips without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / cuda.LIBRARY)]
    subprocess.run([*command, str(SOURCE)], check=True)
    shutil.copy(folder / cuda.LIBRARY, folder / cuda.NVML)
    return folder


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, *cards: str, **settings: str) -> None:
    """Makes this a machine with the driver in `folder`, such cards (driver.c says how they are
    written), and a torch that can use them.
    """
    monkeypatch.delenv(cuda.VISIBLE, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("DRIVER_CARDS", ",".join(cards))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cuda, "installed_torch", lambda: cuda.Torch((13, 0)))


def torch_package(folder: Path, cuda: str | None) -> Path:
    """A package torch of a build, for PYTHONPATH: its version file alone, never imported."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="ascii")
    (package / "version.py").write_text(
        f"__version__ = '2.9.0+{'cpu' if cuda is None else 'cu'}'\n"
        f"cuda: Optional[str] = {cuda!r}\n",
        encoding="ascii",
    )
    return folder


def devices_seen_by(environment: dict[str, str]) -> str:
    """The answer of `cuda_devices` in a process with this environment, as JSON."""
    code = (
        "import msgspec; from daemon.config.cuda import cuda_devices; "
        "print(msgspec.json.encode(cuda_devices()).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
