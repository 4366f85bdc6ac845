"""The most memory that each rank of an instance holds while it loads, beside its share of weights.

    python -m benchmarks.rank_memory [--layers 8] [--width 1024] [--ways alone tp2 pp2 tp3 pp3]

A Llama of random float32 weights is written to a folder. Each rank is a worker process that has
imported all; what it holds then is no part of the figures. Its memory is looked at every few
milliseconds, files that it maps included, until its weights are loaded, and then until it is ready:
by then products may hold weights in a second form. A share is the bytes of the folder's weights
that are the rank's own: as many of all as its loaded ones are of all ranks'.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daemon.engine.loading.resolve import shape_here
from daemon.engine.worker.torch_stubs import leave_out
from daemon.models.stages import stage_layers
from daemon.protocol.worker import Loading, Ready
from daemon.wire.pulse import Alive, Ping

leave_out()

LOOK_S = 0.003


def held_bytes(pid: int) -> int:
    """What a process holds: memory of its own, and pages of files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))


class Watched:
    """A rank's memory as it loads, from what it held before."""

    def __init__(self, worker: Any) -> None:
        worker.send(Ping())
        while not isinstance(worker.receive(), Alive):
            pass
        self._worker = worker
        self._before = held_bytes(worker.process.pid)
        self.loading_bytes = self.most_bytes = 0
        self._stage = ""
        self._thread = threading.Thread(target=self._listen)
        self._looks = threading.Thread(target=self._look, daemon=True)

    def begin(self) -> None:
        """Watch from now on."""
        self._thread.start()
        self._looks.start()

    def end(self) -> None:
        """Wait until it is ready. Raises SystemExit where it fails."""
        self._thread.join()
        if not isinstance(self._answer, Ready):
            raise SystemExit(str(self._answer))
        self.ready = self._answer

    def _listen(self) -> None:
        while isinstance(message := self._worker.receive(), Loading):
            self._stage = message.stage
        self._answer, self._stage = message, "ready"

    def _look(self) -> None:
        while self._stage != "ready":
            held = held_bytes(self._worker.process.pid) - self._before
            self.most_bytes = max(self.most_bytes, held)
            if self._stage in ("", "weights"):
                self.loading_bytes = max(self.loading_bytes, held)
            time.sleep(LOOK_S)


def written(folder: Path, layers: int, width: int) -> int:
    """A folder's model of random weights; their bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    config = LlamaConfig(vocab_size=8192, max_position_embeddings=512, **sizes, **heads)
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return sum(parameter.nbytes for parameter in model.parameters())


def measure(folder: Path, way: str, all_bytes: int) -> None:
    """Load a model one way, and print a line for each rank."""
    from tests.engine.process import cpu_load
    from tests.engine.ranks.group import RankGroup

    num_ranks = 1 if way == "alone" else int(way[2:])
    stages = stage_layers(shape_here(folder), num_ranks) if way.startswith("pp") else ()
    with tempfile.TemporaryDirectory() as cache:
        load = cpu_load(str(folder), cache=cache, num_threads=1, stage_layers=stages)
        group = RankGroup(load, num_ranks)
        watched = [Watched(worker) for worker in group.ranks]
        for each in watched:
            each.begin()
        with group:
            for each in watched:
                each.end()
    whole = sum(each.ready.weight_bytes for each in watched)
    for rank, each in enumerate(watched):
        share = all_bytes * each.ready.weight_bytes / whole
        loading, most = (n / share for n in (each.loading_bytes, each.most_bytes))
        print(f"| {way} | {rank} | {share / 1e6:.0f} | {loading:.2f} | {most:.2f} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--ways", nargs="+", default=["alone", "tp2", "pp2", "tp3", "pp3"])
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as found:
        folder = Path(found) / "model"
        all_bytes = written(folder, options.layers, options.width)
        print("| Way | Rank | Share, MB | most while loading, of it | until ready |")
        print("|---|---|---|---|---|")
        for way in options.ways:
            measure(folder, way, all_bytes)


if __name__ == "__main__":
    main()
