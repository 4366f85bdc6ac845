"""Obstacles to serving a configuration, found without starting or taking anything.

The daemon's sockets and the like are tried or looked at here as the daemon would do it; devices,
model and memory are checked in `daemon.runtime.model`.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from daemon.cluster.nodes import MISSING, has_ray
from daemon.config.cluster import by_ray
from daemon.config.instances import instance_limits, shared_limits
from daemon.config.paths import default_journal, default_predictions, default_socket
from daemon.config.schema import Config
from daemon.control.client import ControlError, attach_path, fetch_snapshot
from daemon.control.place import nearest_folder, place_fault
from daemon.placement import SUCCESSORS
from daemon.protocol.control import Snapshot
from daemon.runtime.listen import ListenError, listen
from daemon.runtime.model import cache_folder, served_name
from daemon.supervisor.spare import worker_module
from daemon.wire.faults import FaultError, faults


class Obstacle(NamedTuple):
    """One obstacle: the dotted key that it concerns, and a sentence."""

    key: str
    text: str
    fatal: bool = True  # False: the daemon would serve, with less


def obstacles(config: Config) -> Iterator[Obstacle]:
    """All obstacles but those of devices, the model and its memory."""
    try:
        faults()
        worker_module()
    except FaultError as error:
        yield Obstacle("", str(error))
    if by_ray(config) and not has_ray():
        yield Obstacle("cluster.launcher", MISSING)
    yield from _sockets(config)
    yield from shortfalls(config)


def _sockets(config: Config) -> Iterator[Obstacle]:
    """A daemon that already serves this configuration is no fault: a restart takes its place."""
    server = config.server
    path = Path(config.control.socket) if config.control.socket else default_socket()
    held = holder(config)
    if held is not None:
        text = f"a daemon (process {held.pid}) serves there now: this one would take its place"
        yield Obstacle("control.socket", text, fatal=False)
    elif fault := place_fault(path, makes_folder=not config.control.socket):
        yield Obstacle("control.socket", fault)
    try:
        listen(server.host, server.port).close()
    except ListenError as error:
        theirs = held is not None and held.url.endswith(f":{server.port}")
        if not (theirs and _in_use(error)):
            yield Obstacle("server.port", str(error))


def _in_use(error: ListenError) -> bool:
    """Whether another process listens there, and nothing else is wrong with the address."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


def shortfalls(config: Config) -> Iterator[Obstacle]:
    """Obstacles that do not prevent serving, but may make it worse than intended."""
    yield from _folders(config)
    yield from _crowded(config)
    if successor := SUCCESSORS.get(config.scheduler.placement):
        text = f"{config.scheduler.placement} was removed: {successor} is used in its place"
        yield Obstacle("scheduler.placement", text, fatal=False)


def _crowded(config: Config) -> Iterator[Obstacle]:
    """More slots than a step has tokens: not every running sequence gets a token in each step."""
    homes = {("scheduler", shared_limits(config))} if not config.instance else set()
    for number, spec in enumerate(config.instance):
        own = spec.max_running or spec.max_batch_tokens
        place = f"instance[{number}]" if own else "scheduler"
        homes.add((place, instance_limits(config, spec)))
    for place, limits in sorted(homes, key=lambda home: home[0]):
        if 0 < limits.max_batch_tokens < limits.max_running:
            counts = f"{limits.max_running} run, and a step has {limits.max_batch_tokens} tokens"
            text = f"{counts} (max_batch_tokens): beyond these, answers take turns"
            yield Obstacle(f"{place}.max_running", text, fatal=False)


def _folders(config: Config) -> Iterator[Obstacle]:
    """Folders that cannot be written: the daemon serves without keeping anything there."""
    wanted = [("daemon.cache", cache_folder(config), "what is compiled is not kept")]
    if config.journal.enabled:
        folder = Path(config.journal.folder) if config.journal.folder else default_journal()
        wanted.append(("journal.folder", folder, "there is no journal"))
    if config.predict.kind != "none":
        store = default_predictions(served_name(config)).parent
        wanted.append(("predict.kind", store, "what is learned of answers is not kept"))
    for key, folder, without in wanted:
        if fault := _folder_fault(folder):
            yield Obstacle(key, f"{fault}: {without}", fatal=False)


def _folder_fault(folder: Path) -> str:
    try:
        nearest = nearest_folder(folder)
    except OSError as error:
        return str(error)
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} cannot be written"


def _asked(config: Config) -> Path:
    """The socket at which a daemon of this configuration would answer; root asks the system's
    service.
    """
    if config.control.socket:
        return Path(config.control.socket)
    return attach_path() if os.geteuid() == 0 else default_socket()


def holder(config: Config) -> Snapshot | None:
    """The daemon that serves this configuration now, if any: a restart takes its place."""
    try:
        return fetch_snapshot(_asked(config))
    except ControlError:
        return None
