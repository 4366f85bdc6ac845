"""Makes transformers read GGUF files several times faster, with the same bits as before.

It parses a file for the tokenizer, the configuration and the weights, each anew, one string at a
time through numpy's memory map; and it builds gguf's table of names once for every module of a
model. `hurry` puts functions with equal results in their places, for the rest of a process that
does nothing else.
"""

import functools
import os
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_STRING = 8
"""gguf's number for this kind of value."""


def hurry() -> None:
    """Replace what is slow in gguf and transformers."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    read = functools.cache(_reader_of(gguf.GGUFReader))
    here: Any = gguf
    here.GGUFReader = lambda path: read(os.fspath(path))
    here.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    there: Any = reading
    there._gguf_parse_value = _parse_value_of(there._gguf_parse_value)


def _reader_of(base: Any) -> Any:
    class Reader(base):
        """Takes values straight from the file's bytes."""

        def _get(
            self, offset: int, dtype: Any, count: int = 1, override_order: str | None = None
        ) -> Array:
            kind = _ordered(dtype, override_order or self.byte_order)
            return np.frombuffer(self.data.base, kind, int(count), int(offset))

    return Reader


@functools.cache
def _ordered(dtype: Any, order: Any) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder(order)


def _parse_value_of(parse: Any) -> Any:
    def parse_value(value: Any, types: Any) -> Any:
        kind = types[-1] if isinstance(types, list) else types
        return value.tobytes().decode() if kind == _STRING else parse(value, types)

    return parse_value
