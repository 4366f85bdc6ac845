"""The documents' denials: each such sentence is checked against the code."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from daemon.api.replies.elsewhere import nothing_here
from daemon.config.instance_text import parse_instance, role_fault
from daemon.config.load import ConfigError, flatten, load
from daemon.config.schema import Config
from daemon.memory.layout import KVHeads
from daemon.memory.state_layout import SSM, StatePart
from daemon.models.kv_parts import RankSplit, rank_links
from daemon.models.rank_shares import shape_of_rank
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError
from daemon.models.stages import stage_layers
from daemon.models.supported import refusals
from tests.house.source import ROOT, name_of
from tests.shapes import tiny_shape

FULL = Resolved(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    causal_class="LlamaForCausalLM",
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    hidden_size=64,
    vocab_size=256,
    context_len=4096,
    dtype="bfloat16",
)


def refuses_experts_of_ranks_in_host_memory() -> bool:
    ranks = as_plain("cuda:0,1:tp2")
    load(None, {"instance": [ranks]})
    return refuses("model.experts_on_cpu", 1, instance=[ranks])


def refuses_model(**fields: Any) -> bool:
    assert not list(refusals(FULL))
    return bool(list(refusals(msgspec.structs.replace(FULL, **fields))))


def refuses_sparse_attention() -> bool:
    return refuses_model(fields={"index_topk": 2048})


def has_one_model() -> bool:
    return isinstance(load().config.model.path, str)


def has_no_adapters() -> bool:
    return not [key for key in flatten(Config()) if "lora" in key or "adapter" in key]


def has_no_embeddings() -> bool:
    return "embeddings are" in str(nothing_here("/v1/embeddings", ["/v1/models"]))


def reads_no_images() -> bool:
    return refuses_model(fields={"vision_config": {}})


def knows_cuda_and_cpu_alone() -> bool:
    for device in ("rocm:0", "xpu:0", "mps"):
        with pytest.raises(ValueError, match="cpu or cuda"):
            parse_instance(device)
    return True


def has_no_gpu_results() -> bool:
    return not list((ROOT / "benchmarks" / "results").glob("gpu-*"))


def refuses(key: str, *values: object, **others: object) -> bool:
    """Whether a configuration with any of these values is refused, and for that key."""
    for value in values:
        with pytest.raises(ConfigError, match=re.escape(key)):
            load(None, {key: value, **others})
    return True


def refuses_pauses_without_end() -> bool:
    return refuses("scheduler.max_pause_s", math.inf, 0.0, -1.0)


def refuses_packing_twice() -> bool:
    load(None, {"memory.compress": True})
    return refuses("memory.compress", True, **{"memory.kv_dtype": "int8"})


def refuses_gpus_and_ranks_on_a_cluster() -> bool:
    for texts, key, others in (
        (["cuda:0"], "instance[0].device", {}),
        (["cpu:tp2"], "instance[0].parallel", {}),
        ([], "instance", {}),
        (["cpu"], "daemon.threads", {"daemon.threads": 0}),
        (["cpu"], "cluster.address", {"cluster.address": "here"}),
        (["cpu"], "cluster.address", {"cluster.address": "here:65536"}),
        (["cpu"], "cluster.address", {"cluster.address": "here:0"}),
    ):
        values = {**CLUSTER, "instance": [as_plain(text) for text in texts], **others}
        with pytest.raises(ConfigError) as error:
            load(None, values)
        assert [fault.key for fault in error.value.faults] == [key]
    load(None, {**CLUSTER, "instance": [as_plain("cpu:prefill"), as_plain("cpu:decode")]})
    return True


def moves_nothing_between_types() -> bool:
    ways = RankSplit(dtypes=("bfloat16",)), RankSplit(dtypes=("float32",))
    return not rank_links(tiny_shape(), *ways)


def moves_no_states_between_unlike_splits() -> bool:
    ways = RankSplit(2), RankSplit(2, (1, 1))
    assert rank_links(tiny_shape(), *ways)
    states = tiny_shape(layer_states=((StatePart(SSM, 2, 4),), ()))
    windows = tiny_shape(windows=(8, 0))
    return not rank_links(states, *ways) and not rank_links(windows, *ways)


def refuses_ranks_of_unlike_layers() -> bool:
    for kinds in (
        {"can_share": False},
        {"layer_heads": (KVHeads(2, 16), KVHeads(1, 32))},
    ):
        shape_of_rank(tiny_shape(), 0, 2)
        with pytest.raises(ModelError, match=r"yet: (it|transformers has no plan)"):
            shape_of_rank(tiny_shape(**kinds), 0, 2)
    return True


def refuses_stages_that_read_others() -> bool:
    for kinds in (
        {"layer_heads": (KVHeads(2, 16), KVHeads(2, 16, 0))},
        {"layer_inputs": 8},
    ):
        stage_layers(tiny_shape(), 2)
        with pytest.raises(ModelError, match=r"stages yet: (its|some of its) layers read"):
            stage_layers(tiny_shape(**kinds), 2)
    return True


def as_plain(text: str) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(parse_instance(text))
    return plain


CLUSTER = {"cluster.launcher": "ray", "daemon.threads": 1}


DENIED: dict[str, dict[str, Callable[[], bool]]] = {
    "README.md": {
        "without their towers for images and sound": reads_no_images,
        "models with an indexer.": refuses_sparse_attention,
        "daemon serves one model": has_one_model,
        "no GPU has run them yet": has_no_gpu_results,
        "as nodes of a Ray cluster, it serves by CPUs alone": refuses_gpus_and_ranks_on_a_cluster,
    },
    "docs/instances.md": {
        "No GPU has run this yet": has_no_gpu_results,
        "and so are experts in host memory and nodes of a cluster": (
            refuses_experts_of_ranks_in_host_memory
        ),
        "None move between instances that compute in unlike types": moves_nothing_between_types,
        "between unlike splits where layers keep states": moves_no_states_between_unlike_splits,
        "by name models with unlike heads, and types of which nobody says how they are cut": (
            refuses_ranks_of_unlike_layers
        ),
        "(Gemma 3n, Gemma 4 E2B and E4B); another that reads them": (
            refuses_stages_that_read_others
        ),
        "GPUs and ranks are refused on a cluster.": refuses_gpus_and_ranks_on_a_cluster,
    },
    "docs/gpu.md": {
        "No GPU has run this code yet": has_no_gpu_results,
    },
    "docs/measurements.md": {"No GPU has run llmd": has_no_gpu_results},
    "docs/models.md": {"No GPU has run this": has_no_gpu_results},
    "docs/operations.md": {
        "`memory.compress`, which packs only swapped blocks, is refused together": (
            refuses_packing_twice
        )
    },
    "docs/papers.md": {"No GPU has run llmd": has_no_gpu_results},
    "docs/scheduling.md": {"It is refused, as are 0 and less": refuses_pauses_without_end},
    "docs/sizing.md": {
        "No GPU has run llmd yet": has_no_gpu_results,
        "a card and the CPU too; never run yet |": has_no_gpu_results,
        "| LoRA adapters | no |": has_no_adapters,
        "| Embeddings | no |": has_no_embeddings,
        "| Images | no; models that read them are served for text |": reads_no_images,
        "| Several models, loaded when asked for | no, a daemon each |": has_one_model,
        "| Cards but NVIDIA's | no; CPUs |": knows_cuda_and_cpu_alone,
    },
}
"""Sentences of documents, and what must be so for them to be true."""


def denials() -> Iterator[tuple[str, str, Callable[[], bool]]]:
    for document, sentences in DENIED.items():
        for sentence, holds in sentences.items():
            yield document, sentence, holds


@pytest.mark.parametrize(("document", "sentence", "holds"), list(denials()))
def test_what_a_document_denies_is_so(
    document: str, sentence: str, holds: Callable[[], bool]
) -> None:
    assert sentence in " ".join((ROOT / document).read_text(encoding="utf-8").split())
    assert holds()


def test_every_no_of_the_comparison_with_other_servers_is_held() -> None:
    text = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    denied = re.findall(r"^\| [^|]+ \| no\b[^|]*\|", text, re.MULTILINE)
    assert len(denied) >= 5
    held = DENIED["docs/sizing.md"]
    assert [row for row in denied if not any(row.endswith(sentence) for sentence in held)] == []


ROTS = re.compile(
    r"so far\b(?! as\b)|\b(?:not|cannot be) (?:supported|served|possible) yet\b"
    r"|\bhas run .{0,20}yet"
)
"""The words of sentences that are true until the missing part is built."""


def test_no_page_says_that_something_is_missing_until_later_without_a_test() -> None:
    found = []
    for path in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]:
        if path.name == "measurements.md":
            continue  # a record
        text = " ".join(path.read_text(encoding="utf-8").split())
        for match in ROTS.finditer(text):
            around = text[max(match.start() - 80, 0) : match.end() + 80]
            counted = re.search(r"(?:took|speed|waited|has) so far", around)
            if not counted and not any(
                sentence in around for sentence in DENIED.get(name_of(path), ())
            ):
                found.append(f"{name_of(path)}: {around}")
    assert not found


# What they grant, in lists that grow


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
def test_the_roles_that_the_pages_offer_are_taken(role: str) -> None:
    assert not role_fault(role) and parse_instance(f"cpu:{role}").role == role
    text = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    assert "different workers (roles) | yes" in text


def test_the_comparison_says_that_drafts_come_from_prompts_as_they_do_by_default() -> None:
    text = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    assert "| Speculative decoding | prompt lookup" in text
    assert load().config.scheduler.prompt_lookup
