"""Default sampling: what a model's generation_config.json recommends, where a request says nothing.

Read as vLLM reads it: temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens;
`do_sample` is left alone, since most files that give a temperature leave it at its default.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from daemon.base.files import read_whole
from daemon.models.shape import ModelError

AUTO, NEUTRAL = "auto", "llmd"
"""Values of `model.generation_config`; any other one is a folder."""

_FILE = "generation_config.json"


class DefaultSampling(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has where it says nothing. The values given here change no distribution."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 0  # of a chat's answer; 0: as many as the context has room for

    def __str__(self) -> str:
        """What the file says and changes something, for people."""
        given = msgspec.structs.asdict(self)
        neutral = msgspec.structs.asdict(DefaultSampling())
        changed = [f"{key} {value:g}" for key, value in given.items() if value != neutral[key]]
        return f"{', '.join(changed)} (by {_FILE})" if changed else "neutral"


class _File(msgspec.Struct, frozen=True):
    """The fields of the file that are read; null is as good as absent."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


def default_sampling(setting: str, folder: Path) -> DefaultSampling:
    """The defaults that `model.generation_config` asks for, of the model in `folder`.

    Raises ModelError for a file that cannot be read, and for a folder named that has none.
    """
    if setting == NEUTRAL:
        return DefaultSampling()
    path = (folder if setting == AUTO else Path(setting).expanduser()) / _FILE
    try:
        found = msgspec.json.decode(read_whole(path), type=_File)
    except FileNotFoundError:
        if setting == AUTO:
            return DefaultSampling()
        raise ModelError(f"{path} is missing: model.generation_config names its folder") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        way_out = f"--generation-config {NEUTRAL} does without it"
        raise ModelError(f"{path} cannot be used: {error}; {way_out}") from None
    said = {key: value for key, value in msgspec.structs.asdict(found).items() if value is not None}
    if "max_new_tokens" in said:
        said["max_tokens"] = said.pop("max_new_tokens")
    said["top_k"] = max(said.get("top_k", 0), 0)
    return DefaultSampling(**said)
