"""Scenario files: TOML, unknown keys refused; relative trace paths are relative to the file."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from daemon.base.files import read_whole
from daemon.base.nearest import did_you_mean
from daemon.lab.simulator.scenario import (
    HandoffSpec,
    InstanceGroup,
    Scenario,
    ScenarioError,
    ScenarioLimits,
    WorkerFault,
)
from daemon.lab.workload.workload import SloClass, WorkloadSpec

_UNKNOWN = re.compile(r"unknown field `(.+?)`")
_KINDS = (Scenario, WorkloadSpec, SloClass, InstanceGroup, ScenarioLimits, HandoffSpec, WorkerFault)
_NAMES = {field.name for kind in _KINDS for field in msgspec.structs.fields(kind)}


def read_scenario(path: Path) -> Scenario:
    """The scenario of a file. Raises ScenarioError, naming the file and the key."""
    try:
        data = tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: not TOML: {error}") from None

    def to_path(expected: type, value: Any) -> Any:
        if expected is Path and isinstance(value, str):
            return path.parent / value
        raise NotImplementedError(f"expected {expected.__name__}")

    try:
        return msgspec.convert(data, Scenario, dec_hook=to_path)
    except msgspec.ValidationError as error:
        wrong = _UNKNOWN.search(str(error))
        meant = did_you_mean(wrong[1], _NAMES) if wrong else ""
        raise ScenarioError(f"{path}: {error}{meant}") from None
