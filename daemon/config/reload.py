"""The values of a reloaded configuration that a running daemon can and cannot take."""

from typing import Any

import msgspec

from daemon.config.load import Loaded, flatten
from daemon.config.schema import Config

LIVE = frozenset(
    {
        "daemon.drain_s",
        "daemon.log_level",
        "key",
        "scheduler.handoff",
        "scheduler.max_pause_s",
        "scheduler.max_waiting",
        "scheduler.mixed_pool",
        "scheduler.pair",
        "scheduler.placement",
        "scheduler.policy",
        "scheduler.prompt_lookup",
        "scheduler.starve_s",
        "server.allowed_hosts",
        "server.cors_origins",
        "server.keepalive_s",
    }
)
"""Values that change while requests run; every other one is read when the daemon starts."""


class Change(msgspec.Struct, frozen=True):
    """The result of a reload."""

    loaded: Loaded  # as the daemon runs from now on
    changed: tuple[str, ...]  # dotted keys that it takes
    needs_restart: tuple[str, ...]  # and those that differ and stay as they are


def change(running: Loaded, read: Loaded) -> Change:
    """The change from the running configuration to the one read, as far as needs no restart.

    Compared as written: a new policy has another default budget of a step, which the operator
    did not touch and which stays.
    """
    old, new = flatten(running.written), flatten(read.written)
    differing = [key for key in old if old[key] != new[key]]
    changed = tuple(key for key in differing if key in LIVE)
    taken = {key: new[key] for key in changed}
    sources = {**running.sources, **{key: read.source(key) for key in changed}}
    loaded = Loaded(
        _with(running.config, taken), sources, running.file, _with(running.written, taken)
    )
    return Change(loaded, changed, tuple(key for key in differing if key not in LIVE))


def _with(config: Config, values: dict[str, Any]) -> Config:
    for key, value in values.items():
        section, _, name = key.partition(".")
        if name:
            part = msgspec.structs.replace(getattr(config, section), **{name: value})
            config = msgspec.structs.replace(config, **{section: part})
        else:
            config = msgspec.structs.replace(config, **{section: value})
    return config
