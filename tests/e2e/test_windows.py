"""Moves between real workers, of a model some of whose layers have windows, change no text."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.engine.worker.torch_stubs import leave_out
from tests.api.folder import BOS, EOS, build, tokenizer
from tests.e2e.live import LiveDaemon
from tests.e2e.moves import KINDS, RUNNING, WAITING
from tests.e2e.test_migrations import KV_BLOCKS, LONG, SHORT, bodies, move_about
from tests.e2e.tiny import CONTEXT_LEN
from tests.shapes import SIZES

NUM_PAGES = 3 * KV_BLOCKS
"""Each block of all layers is a page of each group."""


def windowed_folder(folder: Path) -> Path:
    """A tiny Gemma 3 with its tokenizer."""
    leave_out()
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    build(folder)
    sizes = {
        **SIZES,
        "vocab_size": tokenizer().get_vocab_size(),
        "num_hidden_layers": 3,
        "max_position_embeddings": CONTEXT_LEN,
    }
    config = Gemma3TextConfig(
        **sizes,
        head_dim=16,
        sliding_window=40,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    torch.manual_seed(7)
    Gemma3ForCausalLM(config).float().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder: Path = tmp_path_factory.mktemp("windows")
    flags = ["--model", str(windowed_folder(folder / "tiny")), "--kv-blocks", str(KV_BLOCKS)]
    flags += ["--instance", "cpu:mixed", "cpu:mixed", "--policy", "mlfq", "--predictor", "none"]
    flags += ["--set", 'memory.swap="proactive"', "--set", "scheduler.prefill_chunk=64"]
    with LiveDaemon(*flags, "--set", "daemon.threads=1") as daemon:
        daemon.wait_all_ready()
        yield daemon


async def test_a_few_moves_change_no_text(daemon: LiveDaemon) -> None:
    assert [kind.kind for kind in daemon.snapshot().instances[0].kv_kinds] == ["full", "window"]
    await move_about(daemon, bodies(4, num_tokens=60), SHORT, (RUNNING, WAITING), NUM_PAGES)
    assert daemon.snapshot().counters.sent_blocks


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_hundred_moves_change_no_text(daemon: LiveDaemon) -> None:
    await move_about(daemon, bodies(16, num_tokens=120), LONG, KINDS, NUM_PAGES)
    assert sum(one.ahead_used for one in daemon.snapshot().instances)
