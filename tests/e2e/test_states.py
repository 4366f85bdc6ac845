"""Moves between real workers, and kills of them, of a model whose layers keep states, change no
text.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.engine.worker.torch_stubs import leave_out
from tests.api.folder import BOS, EOS, build, tokenizer
from tests.e2e.live import LiveDaemon
from tests.e2e.moves import KINDS, RUNNING, WAITING
from tests.e2e.test_kills import check_kills
from tests.e2e.test_lifecycle import text_of
from tests.e2e.test_migrations import KV_BLOCKS, LONG, SHORT, bodies, move_about
from tests.e2e.tiny import CONTEXT_LEN
from tests.shapes import SIZES
from tests.soak import tries


def hybrid_folder(folder: Path) -> Path:
    """A tiny Qwen3.5 with its tokenizer: delta nets beside attention."""
    leave_out()
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    build(folder)
    sizes = {
        **SIZES,
        "vocab_size": tokenizer().get_vocab_size(),
        "max_position_embeddings": CONTEXT_LEN,
    }
    config = Qwen3_5TextConfig(
        **sizes,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    torch.manual_seed(7)
    Qwen3_5ForCausalLM(config).float().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder: Path = tmp_path_factory.mktemp("states")
    flags = ["--model", str(hybrid_folder(folder / "tiny")), "--kv-blocks", str(KV_BLOCKS)]
    flags += ["--instance", "cpu:mixed", "cpu:mixed", "--policy", "mlfq", "--predictor", "none"]
    flags += ["--set", 'memory.swap="proactive"', "--set", "scheduler.prefill_chunk=64"]
    with LiveDaemon(*flags, "--set", "daemon.threads=1") as daemon:
        daemon.wait_all_ready()
        yield daemon


def hits(daemon: LiveDaemon) -> int:
    """Sequences that went on from a snapshot."""
    return sum(one.states.hits for one in daemon.snapshot().instances if one.states)


async def test_a_few_moves_change_no_text(daemon: LiveDaemon) -> None:
    num_pages = daemon.snapshot().instances[0].kv_blocks
    await move_about(daemon, bodies(4, num_tokens=60), SHORT, (RUNNING, WAITING), num_pages)
    assert daemon.snapshot().counters.sent_blocks


async def test_a_prompt_that_comes_again_goes_on_from_its_snapshot(daemon: LiveDaemon) -> None:
    model, before = daemon.model()["id"], hits(daemon)
    asked = {"prompt": list(range(5, 305)), "max_tokens": 20}
    first, *again = [await text_of(daemon.url, model, **asked) for _ in range(3)]
    assert again == [first, first]
    assert hits(daemon) > before


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_hundred_moves_change_no_text(daemon: LiveDaemon) -> None:
    num_pages = daemon.snapshot().instances[0].kv_blocks
    await move_about(daemon, bodies(16, num_tokens=120), LONG, KINDS, num_pages)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instances", [1, 2])
async def test_kills_in_a_small_pool_change_no_text(tmp_path: Path, instances: int) -> None:
    await check_kills(hybrid_folder(tmp_path / "tiny"), instances, tries(4, 40), kv_blocks=150)
