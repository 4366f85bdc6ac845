"""The project's metadata: version floors, pins, suites with a stated budget."""

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import daemon
from tests.house.source import ROOT
from tests.run_suites import BUDGETS_S, TESTS, suites

FLOORS = {"aiohttp": "3.14.1", "transformers": "5.17", "textual": "8"}
"""Versions below which a fault that matters here is known."""

AT_THE_ROOT = {
    ".gitignore",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
}
"""All else is in a folder."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [
        Requirement(r)
        for r in PROJECT["dependencies"] + extras["gpu"] + extras["ray"] + extras["dev"]
    ]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    script = (ROOT / "scripts" / "packages.sh").read_text(encoding="utf-8")
    later = re.findall(r"\b(triton)==([\d.]+)", script)  # why: see constraints.txt
    return {canonicalize_name(name): pin for name, _, pin in pins} | dict(later)


def test_names_that_scripts_rely_on() -> None:
    assert PROJECT["name"] == "llmd-server"
    assert PROJECT["requires-python"] == ">=3.11"
    assert set(PROJECT["scripts"]) == {"llmd", "llmd-top", "llmd-powerd"}
    assert {"gpu", "ray", "retrieval", "dev"} <= set(PROJECT["optional-dependencies"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", daemon.__version__)


@pytest.mark.parametrize("name", FLOORS)
def test_floors_exclude_known_faults(name: str) -> None:
    found = [r for r in _requirements() if r.name == name]
    floors = [s.version for r in found for s in r.specifier if s.operator == ">="]
    assert floors and Version(floors[0]) >= Version(FLOORS[name])


def test_every_dependency_is_pinned_and_the_pin_fits() -> None:
    pins = _pins()
    for requirement in _requirements():
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} excludes its own pin {pin}"
    assert pins["torch"] == "2.13.0"


def test_what_is_installed_is_what_is_pinned() -> None:
    differing = {}
    for name, pin in _pins().items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if name != "triton" and installed.partition("+")[0] != pin:
            differing[name] = (installed, pin)
    assert not differing


def test_every_suite_has_a_stated_budget_and_is_a_package() -> None:
    for suite in suites():
        assert suite in BUDGETS_S, f"state a budget for tests/{suite} in tests/run_suites.py"
        assert (TESTS / suite / "__init__.py").exists(), f"tests/{suite} needs an __init__.py"


def test_the_run_grows_no_dearer() -> None:
    assert sum(BUDGETS_S.values()) <= 1750
    assert max(BUDGETS_S.values()) <= 350


def _tracked() -> list[str]:
    """Paths under version control, from the root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    return listed.stdout.splitlines()


def test_nothing_strays_to_the_root() -> None:
    assert {name for name in _tracked() if "/" not in name} == AT_THE_ROOT


def test_nothing_is_left_over_from_a_patch_or_an_editor() -> None:
    left = (".orig", ".rej", ".bak", ".swp", "~")
    assert [name for name in _tracked() if name.endswith(left)] == []
