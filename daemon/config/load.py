"""Read the configuration: file, then flags, then defaults; every value remembers its source."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from daemon.base.files import read_whole
from daemon.config.checks import check
from daemon.config.convert import convert, given_keys
from daemon.config.instances import completed
from daemon.config.schema import Config
from daemon.scheduler.policies import FORMER_NAMES, POLICIES
from daemon.scheduler.policies.base import Policy

FLAGS = "flag"
DEFAULT = "default"


COMMAND_LINE = "command line"


class ConfigFault(NamedTuple):
    """A fault, for people: where it was written, the dotted key, and a sentence."""

    source: str  # a file's name or "command line"
    key: str  # "": the file as a whole
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(Exception):
    """The configuration cannot be used; the message is its first fault, in one line."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        more = len(self.faults) - 1
        super().__init__(f"{self.faults[0]}{f' (and {more} more: llmd check)' if more else ''}")


class Loaded(msgspec.Struct, frozen=True):
    """A configuration that passed every check, and the sources of its values."""

    config: Config
    sources: dict[str, str]  # "scheduler.policy" -> the file's name, "flag" or "default"
    file: str = ""
    written: Config = Config()  # before defaults that depend on others were filled in
    notes: tuple[ConfigFault, ...] = ()  # former names; they are read all the same

    def source(self, key: str) -> str:
        """The source of a dotted key's value."""
        return self.sources.get(key, DEFAULT)


def load(file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """The configuration from a TOML file (None: none) and overrides by dotted key.

    After loading, every instance has a name of its own. Without any, devices are still to be found
    (`daemon.config.find`).
    Raises ConfigError.
    """
    label = str(file) if file else ""
    data, faults = _read(file, label) if file else ({}, [])
    sources = dict.fromkeys(given_keys(data), label)
    faults += [ConfigFault(label, *found) for found in convert(data).faults]
    for key, value in (overrides or {}).items():
        sources[key] = FLAGS
        if fault := _set(data, key, value):
            faults.append(ConfigFault(COMMAND_LINE, key, fault))
    written, found = convert(data)
    written, notes = _present(written)
    config = _completed(written)
    faulty = {key for _, key, _ in faults} | {key for key, _ in found}
    found += [(key, text) for key, text in check(config) if not _follows(key, text, faulty)]
    faults += [ConfigFault(_place(sources, key), key, text) for key, text in found]
    if faults:
        raise ConfigError(dict.fromkeys(faults))
    former = tuple(ConfigFault(_place(sources, key), key, text) for key, text in notes)
    return Loaded(config, sources, label, written, former)


def _place(sources: Mapping[str, str], key: str) -> str:
    """The place where a key, or its section, was written."""
    within = [source for known, source in sources.items() if known.startswith(f"{key}.")]
    for known in (key, key.partition("[")[0], key.partition(".")[0]):
        if known in sources:
            within.insert(0, sources[known])
            break
    source = within[0] if within else DEFAULT
    return COMMAND_LINE if source == FLAGS else source


def _follows(key: str, text: str, faulty: Collection[str]) -> bool:
    """Whether a fault may be only a consequence of another: a key has its default because its
    value could not be read, and this fault is about it or names it.
    """
    return key in faulty or any(other in text.split() for other in faulty)


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


def _read(file: Path, label: str) -> tuple[dict[str, Any], list[ConfigFault]]:
    """The file's content, or nothing and the fault of the whole file."""
    try:
        return tomllib.loads(read_whole(file).decode()), []
    except OSError as error:
        return {}, [ConfigFault(label, "", str(error.strerror))]
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, or of a number's digits
        return {}, [ConfigFault(label, "", f"not TOML: {error}")]


def _set(data: dict[str, Any], key: str, value: Any) -> str:
    """Put a value in its place; return why that is impossible, or nothing."""
    section, _, name = key.partition(".")
    table = data.get(section, {})
    if not name:
        data[section] = value
    elif isinstance(table, dict):
        data[section] = {**table, name: value}
    else:
        return f"[[{section}]] is a list; name it as a whole"
    return ""


def _present(config: Config) -> tuple[Config, list[tuple[str, str]]]:
    """The configuration with its policies' present names, and a note for each former one."""
    notes: list[tuple[str, str]] = []

    def named(key: str, policy: str) -> str:
        if (name := FORMER_NAMES.get(policy)) is None:
            return policy
        notes.append((key, f"the policy {policy!r} is called {name!r} now"))
        return name

    replace = msgspec.structs.replace
    policy = named("scheduler.policy", config.scheduler.policy)
    scheduler = replace(config.scheduler, policy=policy)
    instances = tuple(
        replace(spec, policy=named(f"instance[{number}].policy", spec.policy))
        for number, spec in enumerate(config.instance)
    )
    return replace(config, scheduler=scheduler, instance=instances), notes


def _completed(config: Config) -> Config:
    """The configuration with names for its instances, and the budgets left to the policy."""
    scheduler = config.scheduler
    budget = POLICIES.get(scheduler.policy, Policy).budget(scheduler.max_batch_tokens)
    chunk = scheduler.prefill_chunk or budget
    scheduler = msgspec.structs.replace(scheduler, max_batch_tokens=budget, prefill_chunk=chunk)
    return msgspec.structs.replace(config, scheduler=scheduler, instance=completed(config))
