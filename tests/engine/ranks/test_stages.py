"""A model whose layers several stages have answers as the whole does."""

from collections import deque
from pathlib import Path

import msgspec
import pytest
from transformers import Gemma2Config, LlamaConfig, MixtralConfig, PreTrainedConfig

from daemon.protocol.worker import Failed, Ready
from tests.engine.driver import Driver, Running
from tests.engine.ranks.group import (
    GroupAnswer,
    RankGroup,
    answers_of,
    assert_as_one,
    assert_as_whole,
    assert_texts_of,
)
from tests.engine.ranks.test_shards import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_OUTPUTS,
    prompts,
    tiny_load,
)
from tests.engine.tiny import (
    deeper,
    greedy,
    random_model,
    reference,
    save,
    save_model,
)

CASES = (("llama_tied", (1, 1)), ("opt", (1, 1)))
LONG = [(name, (1, 1)) for name in ("llama", "qwen3", "gpt_neox", "mistral_window")]
DEEP: dict[str, tuple[PreTrainedConfig, tuple[int, ...]]] = {
    "llama": (LlamaConfig(**deeper(5)), (2, 2, 1)),
    "gemma2": (Gemma2Config(**deeper(4), head_dim=16, sliding_window=16), (2, 2)),
    "mixtral": (MixtralConfig(**deeper(3), num_local_experts=4, sliding_window=None), (1, 1, 1)),
}
"""Models of more layers, and those of each stage."""


@pytest.mark.parametrize(
    ("name", "stage_layers"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in LONG)],
)
def test_stages_give_the_text_of_the_whole_model(
    name: str, stage_layers: tuple[int, ...], quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    load = tiny_load(folder, tmp_path, num_host_blocks=8, stage_layers=stage_layers)
    with RankGroup(load, len(stage_layers), **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        assert_as_whole(reference(name), prompts(), answers_to(group))
        assert group.shut_down() == [0] * len(stage_layers)


@pytest.mark.soak
@pytest.mark.parametrize("name", DEEP)
def test_three_stages_mixtures_and_unlike_windows(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    answer_as_one(*DEEP[name], quick, tmp_path)


def answer_as_one(
    config: PreTrainedConfig,
    stage_layers: tuple[int, ...],
    quick: dict[str, str],
    folder: Path,
    apart: bool = False,
) -> None:
    """A random model's stages answer as the whole model does, and count pages alike. `apart`: the
    logits of one worker are further from transformers' than `TOLERANCE`, and those of stages are
    compared with them.
    """
    whole = random_model(config, 5)
    sizes = {"stage_layers": stage_layers, "num_host_blocks": 64}
    load = tiny_load(save_model(whole, folder / "model"), folder, **sizes)
    with RankGroup(load, len(stage_layers), **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        kinds = [
            (ready.num_blocks, ready.num_host_blocks, ready.windows, ready.state_pages)
            for ready in readies
            if isinstance(ready, Ready)
        ]
        assert len(set(kinds)) == 1, kinds
        found = answers_to(group)
    if not apart:
        assert_as_whole(whole, prompts(), found)
        return
    assert_texts_of(whole, prompts(), found)
    with RankGroup(msgspec.structs.replace(load, stage_layers=()), 1, **quick) as alone:
        alone.ready()
        assert_as_one(found, answers_to(alone))


def answers_to(group: RankGroup) -> list[GroupAnswer]:
    """The answers to all prompts."""
    return answers_of(group, prompts(), BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)


def test_batches_in_flight_have_the_text_of_one_at_a_time(
    quick: dict[str, str], tmp_path: Path
) -> None:
    """Three of distinct sequences over two stages; a plan names no token that a stage has heard."""
    folder = save("llama", tmp_path / "model")
    load = tiny_load(folder, tmp_path, stage_layers=(1, 1))
    with RankGroup(load, 2, **quick) as group:
        assert all(isinstance(ready, Ready) for ready in group.ready())
        each = NUM_BLOCKS // 3
        plans = [
            Driver(BLOCK_SIZE, list(range(each * number, each * (number + 1))))
            for number in range(3)
        ]
        going = deque(
            (driver, driver.add(slot, tokens))
            for slot, (driver, tokens) in enumerate(zip(plans, prompts(), strict=True))
        )
        sequences, step = [sequence for _, sequence in going], 0
        in_flight = deque[tuple[Driver, list[tuple[Running, int]]]]()
        while going or in_flight:
            while going:
                driver, sequence = going.popleft()
                step += 1
                driver.step = step - 1
                work = [(sequence, len(sequence.tokens) - sequence.num_computed)]
                group.send(driver.plan(work))
                in_flight.append((driver, work))
            driver, work = in_flight.popleft()
            driver.take(work, group.reply())
            if len(work[0][0].outputs) < NUM_OUTPUTS:
                going.append((driver, work[0][0]))
        whole = reference("llama")
        assert [sequence.outputs for sequence in sequences] == [
            greedy(whole, tokens, NUM_OUTPUTS) for tokens in prompts()
        ]


@pytest.mark.parametrize(
    ("name", "stage_layers", "said"),
    [
        ("llama", (1, 1, 1), "2 layers cannot be split into 3 stages"),
        ("gemma4_shared", (3, 3), "its layers read tokens' embeddings beside the states"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_by_name(
    name: str,
    stage_layers: tuple[int, ...],
    said: str,
    quick: dict[str, str],
    tmp_path: Path,
) -> None:
    folder = save(name, tmp_path / "model")
    load = tiny_load(folder, tmp_path, stage_layers=stage_layers)
    with RankGroup(load, len(stage_layers), **quick) as group:
        for failed in group.ready():
            assert isinstance(failed, Failed) and said in failed.message
