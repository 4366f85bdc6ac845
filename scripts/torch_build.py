"""Installs the build of torch that this machine's NVIDIA driver can run, or the one for CPUs.

    VENV/bin/python scripts/torch_build.py install VENV [cpu|cuda|URL]
    VENV/bin/python scripts/torch_build.py check VENV   # a sentence, where there is a driver now
    VENV/bin/python scripts/torch_build.py kind VENV    # cpu or cuda: what is installed

It runs before anything is installed, so it knows the standard library alone.
"""

import ctypes
import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LIBRARY = "libcuda.so.1"
INDEXES = "https://download.pytorch.org/whl"
INSTALL_LIMIT_S, CHECK_LIMIT_S = 120.0, 10.0
"""For the driver's answer: without persistence it takes seconds for each GPU to begin."""
RECORD = ".torch-build"
"""In the virtual environment: what was wished for, and the build that was asked of pip."""
AUTO = "auto"
NOT_INSTALLED = "torch could not be installed; what pip said stands above"
_NO_DEVICE = 100
_OWN_INDEX = re.compile(
    r"^(?:global|install|:env:)\.(?:index-url|extra-index-url|find-links|no-index)=", re.MULTILINE
)


@dataclass(frozen=True)
class CudaBuild:
    """One of torch's CUDA builds, and which drivers run it."""

    name: str
    cuda: tuple[int, int]
    """The driver's CUDA version at least: a build runs on every driver of its major version."""
    driver: int
    """The first driver series of that version."""


CUDA_BUILDS = (CudaBuild("cu130", (13, 0), 580), CudaBuild("cu126", (12, 0), 525))
"""Those of the pinned torch, the best first; cu132 was an experiment in that release."""


@dataclass(frozen=True)
class Driver:
    """What the NVIDIA driver says: the CUDA version it supports, or why it is of no use."""

    cuda: tuple[int, int] = (0, 0)
    fault: str = ""


@dataclass(frozen=True)
class Choice:
    """A build, by the name of its index or the address of one, and why it was chosen."""

    build: str
    why: str

    @property
    def address(self) -> str:
        """The index that has this build."""
        return self.build if _is_address(self.build) else f"{INDEXES}/{self.build}"


def main(arguments: list[str]) -> int:
    """Do what the command line says; the exit status."""
    match arguments:
        case ["driver"]:  # of `driver()` alone
            print(*_ask())
            return 0
        case ["kind", _]:
            print("cuda" if _installed()[1].startswith("cu") else "cpu")
            return 0
        case ["check", venv]:
            return check(Path(venv))
        case ["install", venv, *wish] if len(wish) < 2:
            return install(Path(venv), *filter(None, wish))
    print(__doc__, file=sys.stderr)
    return 2


def install(venv: Path, asked: str = "") -> int:
    """Install torch, unless it is there as wished for; what was asked for before holds until
    something else is.
    """
    recorded_wish, recorded_build = _recorded(venv)
    wish = asked or recorded_wish
    if wish not in (AUTO, "cpu", "cuda") and not _is_address(wish):
        return _fail(f"TORCH is cpu, cuda, or the address of a package index, not {wish!r}")
    choice = choose(wish)
    version, build = _installed()
    tried = recorded_build == choice.build and not asked
    if version != pinned() or not (build == choice.build or tried):
        print(f"torch {pinned()}, build {choice.build}: {choice.why}", flush=True)
        if not _fetch(choice, wished=wish != AUTO, replace=bool(version)):
            return _fail(NOT_INSTALLED)
    # What torch needs, and what llmd is built with.
    if not _pip(f"torch=={pinned()}", "setuptools"):
        return _fail(NOT_INSTALLED)
    (venv / RECORD).write_text(f"{wish} {choice.build}\n", encoding="utf-8")
    _, build = _installed()
    if choice.build.startswith("cu") and build == "cpu":
        print(
            "the package index that pip is configured for has torch for CPUs alone, so no GPU will "
            f"be used; `make venv TORCH={choice.address}` takes the build for them from there"
        )
    return 0


def check(venv: Path) -> int:
    """Say so where torch was installed for CPUs and a GPU could be used by now."""
    wish, recorded = _recorded(venv)
    if wish != AUTO or _installed()[1] != "cpu":
        return 0
    found = driver(CHECK_LIMIT_S)
    best = _best(found)
    if best and best.name != recorded:
        print(
            f"This machine's NVIDIA driver supports CUDA {_dotted(found.cuda)}, but torch was "
            "installed for CPUs: `make venv TORCH=cuda` installs the build for GPUs."
        )
    return 0


def choose(wish: str) -> Choice:
    """The build for a wish: that which the driver can run, where it is not named."""
    if wish == "cpu" or _is_address(wish):
        return Choice(wish, f"asked for as TORCH={wish}")
    found = driver()
    best = _best(found)
    if best:
        return Choice(best.name, f"the NVIDIA driver supports CUDA {_dotted(found.cuda)}")
    why = found.fault
    if not why:
        least = CUDA_BUILDS[-1]
        why = (
            f"the NVIDIA driver supports CUDA {_dotted(found.cuda)}, and torch {pinned()} needs "
            f"{_dotted(least.cuda)} at least, which comes with driver {least.driver}"
        )
    if wish == "cuda":
        return Choice(CUDA_BUILDS[0].name, f"asked for as TORCH=cuda, but {why}")
    return Choice("cpu", why)


def driver(limit_s: float = INSTALL_LIMIT_S) -> Driver:
    """The driver's answer, asked for in a process of its own: it may crash, or never answer."""
    command = [sys.executable, __file__, "driver"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Driver(fault=f"the NVIDIA driver did not answer in {limit_s:g} s")
    words = done.stdout.split()
    if done.returncode or len(words) != 2:
        return Driver(fault="the NVIDIA driver's library crashed when it was asked for its version")
    status, version = map(int, words)
    if status == -1:
        return Driver(fault=f"there is no NVIDIA driver here ({LIBRARY})")
    if status == _NO_DEVICE:
        return Driver(fault="the NVIDIA driver shows no GPU")
    if status:
        return Driver(fault=f"the NVIDIA driver failed (error {status})")
    return Driver((version // 1000, version % 1000 // 10))


def _ask() -> tuple[int, int]:
    """The driver's status, -1 where there is none, and CUDA's version as 1000 major + 10 minor."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL(LIBRARY)
        status = library.cuInit(0) or library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return -1, 0
    return status, version.value


def pinned() -> str:
    """The version of torch that all builds have."""
    found = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{CONSTRAINTS} pins no torch"
    return found[1]


def _best(found: Driver) -> CudaBuild | None:
    return next((build for build in CUDA_BUILDS if found.cuda >= build.cuda), None)


def _fetch(choice: Choice, *, wished: bool, replace: bool) -> bool:
    """Install torch alone; whether it could be. An index that was named is the only one tried.

    Another build of the same version satisfies pip, so that replacing one has to be forced. From
    PyTorch's index comes torch and nothing else: all other packages are the configured index's.
    """
    alone = ["--no-deps", *(["--force-reinstall"] if replace else [])]
    named = _is_address(choice.build)
    if wished or not _has_own_index():
        # Named in full: pip may know further indexes, with another build.
        exact = f"torch=={pinned()}{'' if named else f'+{choice.build}'}"
        if _pip("--retries", "2", "--index-url", choice.address, *alone, exact):
            return True
        if named:
            return False
        print(
            f"{choice.address} cannot be used, so torch comes from the index that pip is configured"
            " for; from PyPI that is the build for GPUs, gigabytes large",
            flush=True,
        )
    return _pip(*alone, f"torch=={pinned()}")


def _has_own_index() -> bool:
    """Whether pip was told of an index by its user, who knows what is in it. Elsewhere than on
    Linux any index will do: there is nothing to choose from.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return sys.platform != "linux" or bool(_OWN_INDEX.search(listed.stdout))


def _pip(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--no-compile", "--constraint", str(CONSTRAINTS), *arguments]
    return subprocess.run(command, check=False).returncode == 0


def _installed() -> tuple[str, str]:
    """The version of torch that is installed and its build, "cpu" or as "cu130"; empty for none.

    Read without importing it, which takes seconds.
    """
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "", ""
    version = re.search(r"^__version__ *= *['\"]([^'\"+]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return version[1] if version else "", f"cu{cuda[1].replace('.', '')}" if cuda else "cpu"


def _recorded(venv: Path) -> tuple[str, str]:
    try:
        words = (venv / RECORD).read_text(encoding="utf-8").split()
    except OSError:
        words = []
    return (words[0], words[1]) if len(words) == 2 else (AUTO, "")


def _is_address(wish: str) -> bool:
    return "://" in wish


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _fail(sentence: str) -> int:
    print(f"make venv: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
