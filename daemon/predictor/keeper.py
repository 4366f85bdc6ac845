"""What was learned, on disk: the store always, prompts only where the configuration says so."""

import logging
import os
import time
from pathlib import Path

import msgspec

from daemon.config.schema import PredictConfig
from daemon.predict.store import VectorStore
from daemon.predict.store_file import from_bytes, to_bytes
from daemon.predictor.disk import FILE_MODE, read_file, set_aside, write_file
from daemon.predictor.protocol import Ask

log = logging.getLogger(__name__)

DAY_S = 86_400.0
TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Of the file of prompts; one older file is kept."""


class Keeper:
    """The store, read from its file at the start and written to it by `save`."""

    def __init__(self, path: Path, config: PredictConfig) -> None:
        """A file that is missing or damaged costs what was learned, and nothing else."""
        self._path = path
        self._texts = path.with_name(f"{path.name}.prompts.jsonl") if config.keep_text else None
        bounds = (config.store_size, config.max_age_days * DAY_S)
        self.store = VectorStore(*bounds)
        self.changed = False
        data = read_file(path)
        if data is not None:
            self.store, fault = from_bytes(data, *bounds)
            if fault:
                log.warning("%s is %s; begun anew, kept as %s", path, fault, set_aside(path).name)
        self.store.advance(time.time())

    def learned(self, ask: Ask, num_output_tokens: int) -> None:
        """The store has one row more, of this request."""
        self.changed = True
        if self._texts is not None:
            self._keep_text(self._texts, ask, num_output_tokens)

    def save(self) -> None:
        """Write the store if it has changed; what cannot be written is tried again next time."""
        if self.changed and write_file(self._path, to_bytes(self.store)):
            self.changed = False

    def _keep_text(self, path: Path, ask: Ask, num_output_tokens: int) -> None:
        record = {
            "time_s": time.time(),
            "prompt": ask.text,
            "num_prompt_tokens": ask.num_prompt_tokens,
            "max_tokens": ask.max_tokens,
            "num_output_tokens": num_output_tokens,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, flags, FILE_MODE), "ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
                full = file.tell() >= TEXT_LIMIT_BYTES
            if full:
                os.replace(path, path.with_name(f"{path.name}.1"))
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error.strerror)
