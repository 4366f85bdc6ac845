"""The formats of weights that are compared, and where a prepared folder has each."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Format:
    """A format of weights; the last two are set where it can be had as safetensors."""

    name: str
    quantised: str  # how llama-quantize calls it
    folder: str = ""
    number: str = ""  # what is computed in

    @property
    def file(self) -> str:
        """Its GGUF file in the prepared folder."""
        return f"model-{self.name}.gguf"


def size_bytes(path: Path) -> int:
    """Bytes of a GGUF file, or of the weights in a folder."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


FLOAT32 = Format("f32", "F32", "model", "float32")
BFLOAT16 = Format("bf16", "BF16", "model-bf16", "bfloat16")
PACKED = (Format("q8_0", "Q8_0"), Format("q4_k_m", "Q4_K_M"))
MXFP4 = Format("mxfp4", "MXFP4_MOE")
"""Experts in blocks of MXFP4, the rest in Q8_0."""
OWN = Format("own", "COPY")
"""The file that the model came from, as it is."""
FORMATS = {one.name: one for one in (FLOAT32, BFLOAT16, *PACKED, MXFP4, OWN)}
