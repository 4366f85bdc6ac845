"""The learned store on disk: vectors always, prompts only where the configuration says so."""

import logging
import os
import time
from pathlib import Path

import msgspec

from daemon.config.schema import PredictConfig
from daemon.length_models.store import VectorStore
from daemon.length_models.store_file import from_bytes, to_bytes
from daemon.predictor.disk import FILE_MODE, read_file, remove, set_aside, write_file
from daemon.protocol.predictor import Ask

log = logging.getLogger(__name__)

DAY_S = 86_400.0
TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Size limit of the file of prompts; one older file is kept."""


class Keeper:
    """The store, read from its file at the start and written to it by `save`."""

    def __init__(self, path: Path, config: PredictConfig) -> None:
        """A file that is damaged, or cannot be read, costs what was learned and nothing else: it is
        set aside, and where it stays in its place, nothing is saved.
        """
        self._path = path
        self._texts = path.with_name(f"{path.name}.prompts.jsonl")
        self._full_texts = path.with_name(f"{self._texts.name}.1")
        self._keeps_texts = config.keep_text
        if not self._keeps_texts:
            remove(self._texts)
            remove(self._full_texts)
        self.changed = False
        self._may_save = True
        self._start_s = time.time() - time.monotonic()
        self.store = self._read(config.store_size, config.max_age_days * DAY_S)
        self.store.resume(self._now_s)

    @property
    def _now_s(self) -> float:
        """The time by the clock of the start: later leaps of the clock change no row's age."""
        return self._start_s + time.monotonic()

    def tick(self) -> None:
        """Drop rows that are too old."""
        self.store.advance(self._now_s)

    def learned(self, ask: Ask, num_output_tokens: int) -> None:
        """Add a row of this request to the store."""
        self.changed = True
        if self._keeps_texts:
            self._keep_text(ask, num_output_tokens)

    def save(self) -> None:
        """Write the store if it has changed; what cannot be written is tried again next time."""
        if self.changed and self._may_save and write_file(self._path, to_bytes(self.store)):
            self.changed = False

    def _read(self, max_rows: int, max_age_s: float) -> VectorStore:
        """The store in the file, or an empty one."""
        store, fault = VectorStore(max_rows, max_age_s), ""
        try:
            data = read_file(self._path)
            if data is not None:
                store, fault = from_bytes(data, max_rows, max_age_s)
        except OSError as error:
            fault = f"not readable: {error.strerror}"
        if fault:
            self._set_aside(fault)
        return store

    def _set_aside(self, fault: str) -> None:
        aside = set_aside(self._path)
        self._may_save = aside is not None
        kept = f"kept as {aside.name}" if aside is not None else "and nothing is saved"
        log.warning("%s is %s; begun anew, %s", self._path, fault, kept)

    def _keep_text(self, ask: Ask, num_output_tokens: int) -> None:
        record = {
            "time_s": time.time(),
            "prompt": ask.text,
            "num_prompt_tokens": ask.num_prompt_tokens,
            "max_tokens": ask.max_tokens,
            "num_output_tokens": num_output_tokens,
        }
        path = self._texts
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, flags, FILE_MODE), "ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
                full = file.tell() >= TEXT_LIMIT_BYTES
            if full:
                os.replace(path, self._full_texts)
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error.strerror)
