"""The table of published models: `python -m tests.models.published docs/models.md` writes it.

`published/` has the configurations that makers of models published, without tokenizers and weights.
A field that such a file leaves out has the default of its type.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from daemon.engine.loading.resolve import resolve_here
from daemon.memory.layout import NO_KEYS
from daemon.memory.sizing import DTYPE_BYTES
from daemon.memory.state_layout import state_bytes
from daemon.models.containers import is_container, text_fields
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError
from daemon.models.supported import refusals
from tests.zoo.table import written

CONFIGS = Path(__file__).with_name("published")
BEGIN, END = "<!-- published: begin -->", "<!-- published: end -->"
_HEAD = ("| model | type | served | how, or why not |", "|---|---|---|---|")
_TYPE_ALONE = frozenset({"architectures", "model_type", "dtype", "text_config"})


def configs() -> dict[str, dict[str, Any]]:
    """The content of each config.json, by the model's name."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(CONFIGS.glob("*.json"))}


def decided(config: dict[str, Any], folder: Path) -> tuple[Resolved, list[str]]:
    """A configuration as llmd reads it in a folder, and why it would not be served.

    Raises ModelError.
    """
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a": np.zeros(3, np.float32)}, folder / "model.safetensors")  # of no model
    resolved = resolve_here(folder)
    return resolved, list(refusals(resolved))


def table() -> str:
    """The whole table, between its marks."""
    return "\n".join((BEGIN, *_HEAD, *map(_row, configs(), configs().values()), END))


def _row(name: str, config: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory(prefix="published-") as place:
        try:
            resolved, reasons = decided(config, Path(place))
        except ModelError as error:
            model_type = text_fields(config)["model_type"]
            said, notes = "no", [str(error).replace(f"{place}/", "").replace(f"{place}: ", "")]
        else:
            model_type = resolved.model_type
            said, notes = ("no", reasons) if reasons else ("yes", list(_how(config, resolved)))
    return f"| {name} | `{model_type}` | {said} | {'; '.join(notes)} |"


def _how(config: dict[str, Any], resolved: Resolved) -> Iterator[str]:
    """Notes on a model that is served."""
    if is_container(config):
        yield f"as the text model of a `{config['model_type']}`"
    windows = resolved.layer_kinds.count("sliding_attention")
    if 0 < resolved.window < resolved.context_len:
        layers = windows or resolved.num_layers
        yield f"windows of {resolved.window:,} tokens in {layers} of {resolved.num_layers} layers"
    if 0 < resolved.chunk < resolved.context_len:
        layers = resolved.layer_kinds.count("chunked_attention")
        yield f"chunks of {resolved.chunk:,} tokens in {layers} of {resolved.num_layers} layers"
    rows = {(heads.latent, heads.head_dim - heads.latent) for heads in resolved.layer_heads}
    for latent, turned in sorted(row for row in rows if row[0]):
        yield f"latent rows of {latent} + {turned} numbers"
    apart = [heads for heads in resolved.layer_heads if not heads.latent and heads != NO_KEYS]
    if sizes := sorted({(heads.num_kv_heads, heads.head_dim) for heads in apart}):
        said = " and ".join(f"{number} of {size}" for number, size in sizes)
        yield f"heads of keys: {said}"
    if states := [parts for parts in resolved.layer_states if parts]:
        mebibytes = state_bytes(states, DTYPE_BYTES[resolved.dtype]) / 2**20
        yield f"states of {mebibytes:.1f} MiB in {len(states)} of {resolved.num_layers} layers"
    for kind in sorted({rope.kind for rope in resolved.ropes} - {"default"}):
        yield f"positions: {kind}"
    if method := (resolved.fields.get("quantization_config") or {}).get("quant_method"):
        yield f"weights: {method}"
    if not set(text_fields(config)) - _TYPE_ALONE:
        yield "the type's defaults"


def main() -> int:
    """Write the table into the page that the command line names."""
    if len(sys.argv) != 2:
        print("usage: python -m tests.models.published docs/models.md", file=sys.stderr)
        return 2
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text(), table(), BEGIN, END))
    return 0


if __name__ == "__main__":
    sys.exit(main())
