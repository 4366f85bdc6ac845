"""All that a daemon's processes do with a model folder, one after the other, in one process."""

from pathlib import Path

import torch

from daemon.api.text.text import Text
from daemon.config.load import load
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import resolve_here
from daemon.memory.sizing import SizingError
from daemon.models.shape import ModelError
from daemon.runtime.model import find_model


def tried(folder: Path) -> str:
    """The result, in a line: served, refused with a sentence, or something unexpected.

    The daemon expects ModelError and SizingError alone. The API shows what a tokenizer's reader
    raised, and a worker tells its daemon; a library's panic is no Exception, and ends this process.
    """
    places = {"model.path": str(folder), "daemon.cache": str(folder)}
    cpu = {"instance": [{"device": "cpu"}], "memory.kv_blocks": 64}
    config = load(None, {**places, **cpu}).config
    try:
        find_model(config, resolve_here)  # as the daemon's child process does
    except (ModelError, SizingError) as error:
        return f"refused: {_line(error)}"
    except BaseException as error:  # noqa: BLE001 - the daemon would end without a sentence
        return f"unexpected {type(error).__name__}: {_line(error)}"
    try:
        Text(folder)
        model = load_model(folder, "float32", torch.device("cpu"))
    except Exception as error:  # noqa: BLE001 - as the API and the worker do
        return f"refused: {_line(error)}"
    return f"served: {model.config.model_type}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
