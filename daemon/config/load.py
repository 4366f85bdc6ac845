"""Read the configuration: file, then flags, then defaults; every value remembers its source."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from daemon.config.checks import check
from daemon.config.instances import named
from daemon.config.schema import Config
from daemon.config.unknown import several_models, unknown_keys
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import Policy

FLAGS = "flag"
DEFAULT = "default"

_AT = re.compile(r" - at `\$\.?(.*)`$")


COMMAND_LINE = "command line"


class Fault(NamedTuple):
    """One thing that is wrong, for a person: where it was written, the dotted key, what it is."""

    source: str  # a file's name or "command line"
    key: str  # "": the file as a whole
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(Exception):
    """The configuration cannot be used; the message is of its first fault, in one line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        more = len(self.faults) - 1
        super().__init__(f"{self.faults[0]}{f' (and {more} more: llmd check)' if more else ''}")


class Loaded(msgspec.Struct, frozen=True):
    """A configuration that passed every check, and where its values come from."""

    config: Config
    sources: dict[str, str]  # "scheduler.policy" -> the file's name, "flag" or "default"
    file: str = ""
    written: Config = Config()  # before what is left open was chosen

    def source(self, key: str) -> str:
        """Where the value of a dotted key comes from."""
        return self.sources.get(key, DEFAULT)


def load(file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """The configuration from a TOML file (None: none) and overrides by dotted key.

    After loading, `config.instance` is never empty and every instance has a name of its own.
    Raises ConfigError.
    """
    label = str(file) if file else ""
    data = _read(file) if file else {}
    sources = dict.fromkeys(_keys(data), label)
    _convert(data, label)
    flags = dict(overrides or {})
    for key, value in flags.items():
        _set(data, key, value)
        sources[key] = FLAGS
    written = _convert(data, COMMAND_LINE)
    config = _completed(written)
    places = {key: COMMAND_LINE if source == FLAGS else source for key, source in sources.items()}
    faults = [Fault(places.get(key, DEFAULT), key, text) for key, text in check(config)]
    if faults:
        raise ConfigError(faults)
    return Loaded(config, sources, label, written)


def parse_value(text: str) -> Any:
    """The value of a `--set section.key=value`: TOML where it reads as TOML, else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def flatten(config: Config) -> dict[str, Any]:
    """Every value by its dotted key, in the order of the schema."""
    flat: dict[str, Any] = {}
    for section in msgspec.structs.fields(config):
        value = getattr(config, section.name)
        if isinstance(value, tuple):
            flat[section.name] = value
            continue
        for field in msgspec.structs.fields(value):
            flat[f"{section.name}.{field.name}"] = getattr(value, field.name)
    return flat


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Fault(str(file), "", str(error.strerror))]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Fault(str(file), "", f"not TOML: {error}")]) from error


def _keys(data: Mapping[str, Any]) -> list[str]:
    keys = []
    for section, values in data.items():
        keys += [f"{section}.{key}" for key in values] if isinstance(values, dict) else [section]
    return keys


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if not name:
        data[section] = value
        return
    table = data.get(section, {})
    if not isinstance(table, dict):
        text = f"[[{section}]] is a list; name it as a whole"
        raise ConfigError([Fault(COMMAND_LINE, key, text)])
    data[section] = {**table, name: value}


def _convert(data: Mapping[str, Any], label: str) -> Config:
    faults = [Fault(label, *found) for found in (*several_models(data), *unknown_keys(data))]
    if faults:
        raise ConfigError(faults)
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError([_plain(label, str(error))]) from error


def _plain(label: str, message: str) -> Fault:
    """msgspec's message with the place apart: `scheduler.max_running`, `expected int, got str`."""
    found = _AT.search(message)
    text = _AT.sub("", message).replace("`", "")
    return Fault(label, found.group(1) if found else "", text[:1].lower() + text[1:])


def _completed(config: Config) -> Config:
    """Names for instances, and the budgets that are left to the policy."""
    scheduler = config.scheduler
    budget = POLICIES.get(scheduler.policy, Policy).budget(scheduler.max_batch_tokens)
    chunk = scheduler.prefill_chunk or budget
    scheduler = msgspec.structs.replace(scheduler, max_batch_tokens=budget, prefill_chunk=chunk)
    return msgspec.structs.replace(config, scheduler=scheduler, instance=named(config.instance))
