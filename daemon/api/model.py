"""The model that is served, and whether requests are admitted now."""

import asyncio
import logging
import time
from concurrent.futures import Executor
from pathlib import Path

from daemon.api.replies.errors import ApiError, unavailable
from daemon.api.text.text import Text
from daemon.protocol.api import Serving

log = logging.getLogger(__name__)

LOADING_RETRY_S = 1.0
DRAINING_RETRY_S = 5.0
SILENT_S = 10.0
"""The daemon sends a message every other second, unless its event loop hangs."""


class CurrentModel:
    """The newest `Serving`, and its folder's tokenizer, read in a thread."""

    def __init__(self, name: str, pool: Executor) -> None:
        self.draining = False  # by a signal to this process
        self.created = int(time.time())
        self._name = name
        self._pool = pool
        self._serving: Serving | None = None
        self._serving_at_s = 0.0
        self._text: Text | None = None
        self._text_root = ""
        self._problem = ""
        self._loading: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name that clients use."""
        return self._serving.model if self._serving is not None else self._name

    @property
    def serving(self) -> Serving | None:
        """The newest message of the runtime."""
        return self._serving

    @property
    def settled(self) -> bool:
        """Whether the tokenizer is loaded: loading it blocks other threads for seconds."""
        return self._text is not None and (self._loading is None or self._loading.done())

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        serving = self._serving
        return (
            serving is not None
            and serving.ready
            and not serving.draining
            and not self.draining
            and self._text is not None
            and self._text_root == serving.root
        )

    @property
    def status(self) -> str:
        """A sentence for people."""
        if self.draining:
            return "draining"
        if self._serving is None:
            return "starting"
        if self._serving.ready and not self.ready and not self._serving.draining:
            return self._problem or "loading the tokenizer"
        return self._serving.status

    @property
    def last_step_age_s(self) -> float | None:
        """The age of the last reported engine step; None: there was none."""
        if self._serving is None or self._serving.last_step_age_s < 0:
            return None
        return self._serving.last_step_age_s + time.monotonic() - self._serving_at_s

    @property
    def fault(self) -> str:
        """Why running answers make no progress, as far as is known here; empty: they do."""
        if self._serving is None:
            return ""
        silent_s = time.monotonic() - self._serving_at_s
        if silent_s > SILENT_S:
            return f"nothing was heard from the daemon for {silent_s:.0f} s"
        return self._serving.fault

    def update(self, serving: Serving) -> None:
        """Take the runtime's message; load the tokenizer of a new folder."""
        self._serving = serving
        self._serving_at_s = time.monotonic()
        missing = serving.root and self._text_root != serving.root
        if missing and (self._loading is None or self._loading.done()):
            self._loading = asyncio.get_running_loop().create_task(self._load(serving.root))

    def admit(self, name: str | None) -> tuple[Serving, Text]:
        """The state that serves a model by name, or the only one. Raises ApiError 404, 503."""
        serving, text = self._serving, self._text
        if self.draining or (serving is not None and serving.draining):
            raise unavailable("the server is draining", "draining", DRAINING_RETRY_S)
        if not self.ready or serving is None or text is None:
            raise unavailable(
                f"the model is not ready: {self.status}", "not_ready", LOADING_RETRY_S
            )
        if name:
            self.check_name(name)
        return serving, text

    def check_name(self, name: str) -> None:
        """Raise ApiError 404 for a model that is not served."""
        if name not in self.names:
            message = f"the model {name[:200]!r} does not exist; this server has {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    @property
    def names(self) -> set[str]:
        """The names that clients may use."""
        root = self._serving.root if self._serving is not None else ""
        return {self.name, Path(root).name} - {""}

    async def _load(self, root: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._text = await loop.run_in_executor(self._pool, Text, Path(root))
        except Exception as error:
            self._problem = f"the tokenizer cannot be read: {error}"
            # While weights are still being converted the file may yet come.
            if self._serving is not None and self._serving.ready:
                log.exception("the tokenizer of %s cannot be read", root)
        else:
            self._problem = ""
            self._text_root = root
        if self._serving is not None and self._serving.root != root:
            self.update(self._serving)
