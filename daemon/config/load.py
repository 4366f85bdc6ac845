"""Read the configuration: file, then flags, then defaults; every value remembers its source."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from daemon.config.checks import check
from daemon.config.instances import named
from daemon.config.schema import Config
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import Policy

FLAGS = "flag"
DEFAULT = "default"

_AT = re.compile(r" - at `\$\.?(.*)`$")


class ConfigError(Exception):
    """The configuration cannot be used; the message names the source, the value and the fault."""


class Loaded(msgspec.Struct, frozen=True):
    """A configuration that passed every check, and where its values come from."""

    config: Config
    sources: dict[str, str]  # "scheduler.policy" -> the file's name, "flag" or "default"
    file: str = ""

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
    config = _completed(_convert(data, "command line"))
    for key, fault in check(config):
        source = sources.get(key, DEFAULT)
        place = "command line" if source == FLAGS else source
        raise ConfigError(f"{place}: {key}: {fault}")
    return Loaded(config, sources, label)


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
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error


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
        raise ConfigError(f"command line: {key}: [[{section}]] is a list; name it as a whole")
    data[section] = {**table, name: value}


def _convert(data: Mapping[str, Any], label: str) -> Config:
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {_plain(str(error))}") from error


def _plain(message: str) -> str:
    """msgspec's message with the place first: `scheduler.max_running: expected int, got str`."""
    found = _AT.search(message)
    place = found.group(1) if found else ""
    text = _AT.sub("", message).replace("`", "")
    text = text.replace("Object contains unknown field", "unknown key")
    text = text[:1].lower() + text[1:]
    return f"{place}: {text}" if place else text


def _completed(config: Config) -> Config:
    """Names for instances, and the budgets that are left to the policy."""
    scheduler = config.scheduler
    budget = POLICIES.get(scheduler.policy, Policy).budget(scheduler.max_batch_tokens)
    chunk = scheduler.prefill_chunk or budget
    scheduler = msgspec.structs.replace(scheduler, max_batch_tokens=budget, prefill_chunk=chunk)
    return msgspec.structs.replace(config, scheduler=scheduler, instance=named(config.instance))
