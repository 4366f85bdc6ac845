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
_CAPABILITY = (75, 76)
"""The driver's numbers of the attributes: major, minor."""
_OWN_INDEX = re.compile(
    r"^(?:global|install|:env:)\.(?:index-url|extra-index-url|find-links|no-index)=", re.MULTILINE
)


Version = tuple[int, int]
"""Of CUDA, or a card's compute capability: major, minor."""


@dataclass(frozen=True)
class CudaBuild:
    """One of torch's CUDA builds, which drivers run it, and which cards it has kernels for."""

    name: str
    cuda: Version
    """The driver's CUDA version at least: a build runs on every driver of its major version."""
    driver: int
    """The first driver series of that version."""
    oldest: Version
    newest: Version
    """Compute capabilities: of the oldest card, and of the last generation. Within a generation
    kernels run on later cards, too.
    """

    def has_kernels(self, capability: Version) -> bool:
        """Whether a card of this compute capability can compute with it."""
        return self.oldest <= capability and capability[0] <= self.newest[0]


CUDA_BUILDS = (
    CudaBuild("cu130", (13, 0), 580, (7, 5), (12, 0)),
    CudaBuild("cu126", (12, 0), 525, (5, 0), (9, 0)),
)
"""Those of the pinned torch, the best first; cu132 was an experiment in that release. CUDA 13 has
no Maxwell, Pascal and Volta any more, and CUDA 12.6 no Blackwell yet.
"""


@dataclass(frozen=True)
class Driver:
    """What the NVIDIA driver says: the CUDA version it supports and the compute capabilities of
    its cards, or why it is of no use.
    """

    cuda: Version = (0, 0)
    fault: str = ""
    cards: tuple[Version, ...] = ()


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
        print(f"note: torch {pinned()}, build {choice.build}: {choice.why}", flush=True)
        if not _fetch(choice, wished=wish != AUTO, replace=bool(version)):
            return _fail(NOT_INSTALLED)
    # What torch needs, and what llmd is built with.
    if not _pip(f"torch=={pinned()}", "setuptools"):
        return _fail(NOT_INSTALLED)
    (venv / RECORD).write_text(f"{wish} {choice.build}\n", encoding="utf-8")
    _, build = _installed()
    if choice.build.startswith("cu") and build == "cpu":
        print(
            "note: the package index that pip is configured for has torch for CPUs alone, so no "
            f"GPU will be used; `make venv TORCH={choice.address}` takes the build for GPUs there"
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
        return Choice(best.name, _reason(best, found))
    why = found.fault or _unusable(found)
    if wish == "cuda":
        return Choice(CUDA_BUILDS[0].name, f"asked for as TORCH=cuda, but {why}")
    return Choice("cpu", why)


def _reason(best: CudaBuild, found: Driver) -> str:
    """Why this build, and which cards it leaves out."""
    text = f"the NVIDIA driver supports CUDA {_dotted(found.cuda)}"
    newer = _runnable(found.cuda)[0]
    if newer != best:
        without = {one for one in found.cards if not newer.has_kernels(one)}
        text += f", but {newer.name} has no kernels for {_capabilities(without)}"
    lacking = {one for one in found.cards if not best.has_kernels(one)}
    if lacking:
        text += f"; {best.name} has no kernels for {_capabilities(lacking)}"
    return text


def _unusable(found: Driver) -> str:
    """Why no build can be run by a driver that is there."""
    text = f"the NVIDIA driver supports CUDA {_dotted(found.cuda)}"
    runnable, oldest = _runnable(found.cuda), CUDA_BUILDS[-1]
    if not runnable:
        return (
            f"{text}, and torch {pinned()} needs {_dotted(oldest.cuda)} at least, "
            f"which comes with driver {oldest.driver}"
        )
    text += f", and no build of torch {pinned()} for it has kernels for "
    text += _capabilities(set(found.cards))
    other = next((one for one in CUDA_BUILDS if any(map(one.has_kernels, found.cards))), None)
    return f"{text}; {other.name} has, and needs driver {other.driver}" if other else text


def _capabilities(capabilities: set[Version]) -> str:
    return f"compute capability {', '.join(map(_dotted, sorted(capabilities)))}"


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
    if done.returncode or len(words) < 2:
        return Driver(fault="the NVIDIA driver's library crashed when it was asked for its version")
    status, version, *cards = map(int, words)
    if status == -1:
        return Driver(fault=f"there is no NVIDIA driver here ({LIBRARY})")
    if status == _NO_DEVICE:
        return Driver(fault="the NVIDIA driver shows no GPU")
    if status:
        return Driver(fault=f"the NVIDIA driver failed (error {status})")
    capabilities = tuple(divmod(card, 10) for card in cards)
    return Driver((version // 1000, version % 1000 // 10), cards=capabilities)


def _ask() -> tuple[int, ...]:
    """The driver's status, -1 where there is none; CUDA's version as 1000 major + 10 minor; and of
    each card the compute capability as 10 major + minor.
    """
    version, count = ctypes.c_int(), ctypes.c_int()
    try:
        library = ctypes.CDLL(LIBRARY)
        status = library.cuInit(0) or library.cuDriverGetVersion(ctypes.byref(version))
        status = status or library.cuDeviceGetCount(ctypes.byref(count))
        cards = [_capability(library, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return -1, 0
    return status, version.value, *cards


def _capability(library: ctypes.CDLL, index: int) -> int:
    device, digits = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    library.cuDeviceGet(ctypes.byref(device), index)
    for digit, attribute in zip(digits, _CAPABILITY, strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(digit), attribute, device)
    return 10 * digits[0].value + digits[1].value


def pinned() -> str:
    """The version of torch that all builds have."""
    found = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{CONSTRAINTS} pins no torch"
    return found[1]


def _best(found: Driver) -> CudaBuild | None:
    """Of the builds that the driver runs, the one with kernels for most of its cards."""

    def count(build: CudaBuild) -> int:
        return sum(map(build.has_kernels, found.cards))

    best = max(_runnable(found.cuda), key=count, default=None)  # the first of those that are equal
    return None if best and found.cards and not count(best) else best


def _runnable(cuda: Version) -> list[CudaBuild]:
    return [build for build in CUDA_BUILDS if cuda >= build.cuda]


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
            f"note: {choice.address} cannot be used, so torch comes from the index that pip is "
            "configured for; from PyPI that is the build for GPUs, gigabytes large",
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


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _fail(sentence: str) -> int:
    print(f"make venv: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
